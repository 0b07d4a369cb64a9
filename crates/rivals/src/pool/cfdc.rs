//! CFDC: clean-first, dirty-clustered (Ou, Jin & Härder, section 3.1).
//!
//! There are two regions. The working region W keeps the hot pages by LRU. The priority region P (λ of the
//! pool) supplies the victims: its clean pages in LRU order, then its dirty pages, cluster by cluster from
//! the lowest priority, so that consecutive writes fall into one cluster. A cluster of n pages has, by
//! formula (1), the priority
//!
//! > P(c) = IPD(c) / (n² · (globaltime - timestamp(c)))
//!
//! where IPD is the inter-page distance and the global time counts the dirty pages that have entered P. A use
//! of a page in P exchanges it for the LRU page of W (Algorithm 1).
//!
//! The paper keeps the clusters in a priority queue, O(log m) for m clusters. But formula (1) falls with time
//! at a different rate for each cluster, so the order changes although no cluster does. The queue here is a
//! [`Tournament`], which is exact: it takes O(log m) per change, and O(log m) each time one cluster overtakes
//! another. Everything else is O(1).
//!
//! Where the paper is silent, or speaks of one step where there are two:
//!
//! - *λ*: half of the pool, the middle of the paper's settings; `cfdc-75` is the paper's CFDC-75.
//! - *A timestamp equal to the global time*: formula (1) divides by zero; the cluster's priority is the
//!   highest. *Equal priorities*: the cluster of older timestamp goes first.
//! - *The victim cluster* (`c.ipd ← 0`) keeps the lowest priority until its pages are consumed, even if pages
//!   enter it meanwhile. A hit on one of its pages, which updates its IPD and timestamp, ends this.
//! - *A pick does not write*: a cluster becomes the victim cluster when a page of it is evicted, or cleaned
//!   for replacement.
//! - *Writing*: the cleaner gets the whole victim cluster (section 3.3: it "can directly use CFDC's dirty
//!   queue"). A page cleaned for replacement goes to the LRU end of the clean list, behind those so cleaned
//!   before it: it is evicted next. A page cleaned for another reason goes to the list's midpoint (as the
//!   2013 paper treats pages that change their queue without being used). A page in W stays where it is.
//! - *Becoming dirty counts as a use*, since its hit may be reported later or lost. *Read-ahead* is not
//!   treated specially (section 1.3 advises against it).
//! - *All of P is refused*: the victim is the LRU page of W that is not refused (Algorithm 1, line 9).

use super::clusters::{ClusterId, Clusters};
use super::tournament::{Entry, Tournament};
use super::window::{WindowPercent, WorkingRegion};
use pagetier_policy::collections::{QueueNo, Queues};
use pagetier_policy::pool::LookAhead;
use pagetier_policy::{Access, CleanReason, FrameId, FramePolicy, FrameState, Location, PageId, StateOf};

/// W of the paper.
const WORKING: QueueNo = QueueNo(0);
/// L of the paper, the clean pages of P.
const CLEAN: QueueNo = QueueNo(1);

/// A cluster's inputs to formula (1) besides its pages.
#[derive(Clone, Copy, Debug, Default)]
struct Timing {
    timestamp: u64,
    victim: bool,
}

/// Clean-first, dirty-clustered; see the module's text.
#[derive(Debug)]
pub struct Cfdc {
    /// Whether the page is dirty.
    queues: Queues<bool, 2>,
    working: WorkingRegion,
    /// The dirty pages of P.
    dirty: Clusters,
    timing: Vec<Timing>,
    /// Q of the paper: the larger, the lower the priority.
    queue: Tournament,
    global_time: u64,
}

impl Cfdc {
    /// For a pool of `frames` frames of which λ is the priority region, with clusters of `pages_per_cluster`.
    #[must_use]
    pub fn new(frames: usize, lambda: WindowPercent, pages_per_cluster: u32) -> Self {
        Self {
            queues: Queues::new(frames),
            working: WorkingRegion::new(WORKING, frames, lambda),
            dirty: Clusters::new(frames, pages_per_cluster),
            timing: Vec::new(),
            queue: Tournament::new(),
            global_time: 0,
        }
    }

    /// Returns the priority of the cluster of `frame`, by formula (1): infinite if its timestamp is the
    /// global time, 0 for the victim cluster. Returns `None` if the frame is in no cluster: clean, or in the
    /// working region.
    pub fn priority(&self, frame: FrameId) -> Option<f64> {
        let Entry { endless, over, under, since, .. } = self.entry(self.dirty.of(frame)?);
        // Formula (1); at age 0 it divides by zero, which `f64` answers with infinity, the highest priority.
        let age = (self.global_time - since) as f64;
        Some(if endless { 0.0 } else { under as f64 / (over as f64 * age) })
    }

    fn tracked(&self, frame: FrameId) -> bool {
        self.queues.tracks(frame.0) || self.dirty.of(frame).is_some()
    }

    /// The inverse of the cluster's priority: the largest goes first.
    fn entry(&self, cluster: ClusterId) -> Entry {
        let Timing { timestamp, victim } = self.timing[cluster.at()];
        let pages = u64::from(self.dirty.size(cluster));
        Entry {
            endless: victim,
            // n² in the numerator of the inverse: large clusters go first, since they make the longest runs
            // of writes.
            over: pages * pages,
            under: self.dirty.inter_page_distance(cluster),
            since: timestamp,
            tie: self.dirty.key(cluster).to_u64(),
        }
    }

    /// Updates the queue after the cluster's pages or timing changed.
    fn requeue(&mut self, cluster: ClusterId) {
        let entry = (self.dirty.size(cluster) > 0).then(|| self.entry(cluster));
        self.queue.set(cluster.at(), entry);
    }

    fn enter_cluster(&mut self, frame: FrameId) {
        // The global time counts the dirty pages that enter P (section 3.1.2).
        self.global_time += 1;
        self.queue.advance(self.global_time);
        let cluster = self.dirty.enter(frame);
        // A new cluster, perhaps under the number of an old one: it must not inherit its timing.
        if self.dirty.size(cluster) == 1 {
            if cluster.at() >= self.timing.len() {
                self.timing.resize(cluster.at() + 1, Timing::default());
            }
            self.timing[cluster.at()] = Timing { timestamp: self.global_time, victim: false };
        }
        self.requeue(cluster);
    }

    fn leave_cluster(&mut self, frame: FrameId, cluster: ClusterId) {
        self.dirty.leave(frame);
        self.requeue(cluster);
    }

    fn take_out(&mut self, frame: FrameId) {
        self.queues.take_out(frame.0);
        if let Some(cluster) = self.dirty.of(frame) {
            self.leave_cluster(frame, cluster);
        }
    }

    /// "Demote min(W)", when W is full.
    fn demote(&mut self) {
        match self.working.demote(&mut self.queues) {
            // Algorithm 1, "demote min(W)": a dirty page joins its cluster, a clean one the clean list.
            Some(frame) if self.queues.value(frame) => self.enter_cluster(FrameId(frame)),
            Some(frame) => self.queues.put_mru(CLEAN, frame),
            None => {}
        }
    }

    /// Handles a use of the page in `frame`: moves it to the MRU end of W.
    fn promote(&mut self, frame: FrameId) {
        if self.queues.queue_of(frame.0) != Some(WORKING) {
            // The exchange of Algorithm 1: P gets a page of W for the one that it gives up.
            self.demote();
            if let Some(cluster) = self.dirty.of(frame) {
                self.timing[cluster.at()] = Timing { timestamp: self.global_time, victim: false };
                self.leave_cluster(frame, cluster);
            }
        }
        self.queues.put_mru(WORKING, frame.0);
    }

    /// Handles the choice of a page of P: if the page is dirty, its cluster becomes the victim cluster.
    fn found(&mut self, frame: FrameId) {
        if let Some(cluster) = self.dirty.of(frame) {
            self.timing[cluster.at()].victim = true;
            self.requeue(cluster);
        }
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        // Clean pages first, dirty ones cluster by cluster, and W's pages only if all of P is refused.
        let clusters = self.queue.largest_first().map(|at| self.dirty.members(ClusterId::new(at)));
        let lru_first = |queue| self.queues.lru_first(queue).map(FrameId);
        lru_first(CLEAN).chain(clusters.flatten()).chain(lru_first(WORKING))
    }
}

impl FramePolicy for Cfdc {
    fn insert(&mut self, frame: FrameId, page: PageId, _location: Location, _access: Access) {
        self.queues.cover(frame.0);
        self.take_out(frame);
        self.dirty.holds(frame, page);
        self.queues.set_value(frame.0, false);
        self.promote(frame);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.tracked(frame) {
            self.promote(frame);
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if evicted {
            self.found(frame);
        }
        self.take_out(frame);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.tracked(frame) {
            self.promote(frame);
            self.queues.set_value(frame.0, true);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        if !self.tracked(frame) {
            return;
        }
        self.queues.set_value(frame.0, false);
        let Some(cluster) = self.dirty.of(frame) else { return };
        if reason == CleanReason::Replacement {
            self.found(frame);
        }
        self.leave_cluster(frame, cluster);
        self.queues.put_cleaned(CLEAN, frame.0, reason);
    }

    /// Goes in eviction order, and includes the whole of the cluster in which it reaches `depth`.
    fn clean_set(&mut self, depth: usize, max: usize, state: StateOf<'_>, out: &mut Vec<FrameId>) {
        let mut ahead = LookAhead::new(depth);
        let full = out.len().saturating_add(max);
        let mut cluster = None;
        for frame in self.eviction_order() {
            let before = std::mem::replace(&mut cluster, self.dirty.of(frame));
            let new_ground = cluster.is_none() || cluster != before;
            // A cluster that was begun is written whole: half of it now and half later would be two runs
            // instead of one.
            if out.len() >= full || ahead.is_over() && new_ground {
                break;
            }
            let state = state(frame);
            ahead.note(state);
            if state == FrameState::Dirty {
                out.push(frame);
            }
        }
    }

    fn set_frames(&mut self, frames: usize) {
        self.working.set_frames(frames);
        while self.working.has_too_many(&self.queues) {
            self.demote();
        }
    }

    fn len(&self) -> usize {
        self.queues.len() + self.dirty.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        self.working.validate(&self.queues)?;
        self.dirty.validate()?;
        self.queue.validate()?;
        if let Some(frame) = self.queues.lru_first(CLEAN).find(|&f| self.queues.value(f)) {
            return Err(format!("frame {frame} is dirty among the clean"));
        }
        let in_clusters: usize = self
            .queue
            .largest_first()
            .map(|at| self.dirty.members(ClusterId::new(at)).filter(|f| self.queues.value(f.0)).count())
            .sum();
        if in_clusters != self.dirty.len() {
            return Err(format!("{in_clusters} dirty frames queued, {} in clusters", self.dirty.len()));
        }
        Ok(())
    }
}
