//! Frames by cluster. A cluster is the pages of one space whose numbers, divided by the cluster size, are
//! equal (Ou, Jin & Härder, section 1.3).
//!
//! A cluster exists while it has members. It is a doubly linked list through per-frame nodes, in order of
//! entering. It carries the sum of the distances between neighbours in that order, the *inter-page distance*
//! of section 3.1.2. Every operation is O(1); entering takes one hash lookup.

use pagetier_policy::collections::NIL;
use pagetier_policy::{CLUSTER_PAGES_MAX, FrameId, PageId};
use rustc_hash::FxHashMap;

/// A cluster's index; valid while the cluster has members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ClusterId(u32);

impl ClusterId {
    pub(crate) const fn new(at: usize) -> Self {
        Self(at as u32)
    }

    pub(crate) const fn at(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    page: PageId,
    cluster: u32,
    older: u32,
    newer: u32,
}

impl Member {
    const NONE: Self = Self { page: PageId::from_u64(0), cluster: NIL, older: NIL, newer: NIL };
}

#[derive(Clone, Copy, Debug)]
struct Cluster {
    key: PageId,
    oldest: u32,
    newest: u32,
    len: u32,
    distance: u64,
}

/// All clusters that have members.
#[derive(Debug)]
pub(crate) struct Clusters {
    pages_per_cluster: u32,
    members: Vec<Member>,
    clusters: Vec<Cluster>,
    free: Vec<u32>,
    by_key: FxHashMap<PageId, u32>,
    len: usize,
}

impl Clusters {
    /// For frames below `frames`; grows for a higher one.
    pub(crate) fn new(frames: usize, pages_per_cluster: u32) -> Self {
        Self {
            pages_per_cluster: pages_per_cluster.clamp(1, CLUSTER_PAGES_MAX),
            members: vec![Member::NONE; frames],
            clusters: Vec::new(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            len: 0,
        }
    }

    /// Frames in clusters.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Records that `frame`, which is in no cluster, holds `page`.
    pub(crate) fn holds(&mut self, frame: FrameId, page: PageId) {
        if frame.at() >= self.members.len() {
            self.members.resize(frame.at() + 1, Member::NONE);
        }
        debug_assert!(self.of(frame).is_none());
        self.members[frame.at()].page = page;
    }

    /// The cluster of `frame`, if it is in one.
    pub(crate) fn of(&self, frame: FrameId) -> Option<ClusterId> {
        self.members.get(frame.at()).map(|m| m.cluster).filter(|&c| c != NIL).map(ClusterId)
    }

    /// Puts `frame`, which is in no cluster, into the cluster of its page.
    pub(crate) fn enter(&mut self, frame: FrameId) -> ClusterId {
        let page = self.members[frame.at()].page;
        let key = PageId::new(page.space, page.no / self.pages_per_cluster);
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => self.create(key),
        };
        let Cluster { newest, .. } = self.clusters[id as usize];
        self.members[frame.at()] = Member { page, cluster: id, older: newest, newer: NIL };
        // The inter-page distance is along the order of entering, not of page numbers (section 3.1.2): pages
        // that were dirtied in sequence are near.
        let distance = self.distance(newest, frame.0);
        let cluster = &mut self.clusters[id as usize];
        match newest {
            NIL => cluster.oldest = frame.0,
            f => self.members[f as usize].newer = frame.0,
        }
        cluster.newest = frame.0;
        cluster.len += 1;
        cluster.distance += distance;
        self.len += 1;
        ClusterId(id)
    }

    /// Takes `frame` out of its cluster; removes the cluster with its last member.
    pub(crate) fn leave(&mut self, frame: FrameId) {
        let Member { page, cluster: id, older, newer } = self.members[frame.at()];
        if id == NIL {
            return;
        }
        // The neighbours become each other's: their distance replaces the two to this member.
        let closer = self.distance(older, newer);
        let apart = self.distance(older, frame.0) + self.distance(frame.0, newer);
        // The page stays: a clean page of the frame may become dirty again.
        self.members[frame.at()] = Member { page, ..Member::NONE };
        let cluster = &mut self.clusters[id as usize];
        match older {
            NIL => cluster.oldest = newer,
            f => self.members[f as usize].newer = newer,
        }
        match newer {
            NIL => cluster.newest = older,
            f => self.members[f as usize].older = older,
        }
        cluster.len -= 1;
        cluster.distance = cluster.distance + closer - apart;
        self.len -= 1;
        if cluster.len == 0 {
            self.by_key.remove(&cluster.key);
            // The number is used again, so that `clusters` grows with the clusters at one time, not with all
            // that ever were.
            self.free.push(id);
        }
    }

    /// The number of members of a cluster; 0 for a removed one.
    pub(crate) fn size(&self, id: ClusterId) -> u32 {
        self.clusters.get(id.at()).map_or(0, |cluster| cluster.len)
    }

    /// The inter-page distance: 1 for a cluster of one page.
    pub(crate) fn inter_page_distance(&self, id: ClusterId) -> u64 {
        self.clusters[id.at()].distance.max(1)
    }

    /// The cluster's space and its number in it (page number divided by cluster size); sorts clusters by
    /// position.
    pub(crate) fn key(&self, id: ClusterId) -> PageId {
        self.clusters[id.at()].key
    }

    /// The member that entered first.
    pub(crate) fn oldest(&self, id: ClusterId) -> FrameId {
        FrameId(self.clusters[id.at()].oldest)
    }

    /// The member that entered `frame`'s cluster next after it.
    pub(crate) fn next(&self, frame: FrameId) -> Option<FrameId> {
        let newer = self.members[frame.at()].newer;
        (newer != NIL).then_some(FrameId(newer))
    }

    /// The members in order of entering.
    pub(crate) fn members(&self, id: ClusterId) -> impl Iterator<Item = FrameId> + '_ {
        std::iter::successors(Some(self.oldest(id)), |&frame| self.next(frame))
    }

    fn create(&mut self, key: PageId) -> u32 {
        let cluster = Cluster { key, oldest: NIL, newest: NIL, len: 0, distance: 0 };
        let id = if let Some(id) = self.free.pop() {
            self.clusters[id as usize] = cluster;
            id
        } else {
            self.clusters.push(cluster);
            (self.clusters.len() - 1) as u32
        };
        self.by_key.insert(key, id);
        id
    }

    fn distance(&self, a: u32, b: u32) -> u64 {
        if a == NIL || b == NIL {
            return 0;
        }
        u64::from(self.members[a as usize].page.no.abs_diff(self.members[b as usize].page.no))
    }

    /// Recounts members and distances.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let mut counted = 0;
        for (&key, &id) in &self.by_key {
            let cluster = &self.clusters[id as usize];
            let members: Vec<FrameId> = self.members(ClusterId(id)).take(self.len + 1).collect();
            counted += members.len();
            let page = |f: &FrameId| self.members[f.at()].page;
            let distance: u64 = members.windows(2).map(|w| self.distance(w[0].0, w[1].0)).sum();
            let astray = members.iter().find(|f| {
                let page = page(f);
                self.of(**f) != Some(ClusterId(id))
                    || PageId::new(page.space, page.no / self.pages_per_cluster) != key
            });
            if cluster.key != key
                || cluster.len as usize != members.len()
                || cluster.distance != distance
                || astray.is_some()
            {
                return Err(format!("cluster {cluster:?}: {members:?}, distance {distance}"));
            }
        }
        if counted != self.len || self.by_key.len() + self.free.len() != self.clusters.len() {
            return Err(format!("{counted} frames in {} clusters, {} noted", self.by_key.len(), self.len));
        }
        Ok(())
    }
}
