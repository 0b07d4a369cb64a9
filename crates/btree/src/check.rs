//! Walks a whole tree and verifies order, links, fences and chains, and that every page has exactly one use.

use crate::node::{Chain, HEADER_BYTES, Meta, NONE, Node, OVERFLOW, Stored, kind_of};
use crate::tree::{META_PAGE, ROOT, Tree, TreeError};
use pagetier::{Lsn, PageRef};

/// Problems beyond this number are counted but not listed.
const LISTED_MAX: usize = 50;

/// The findings of [`Tree::check`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of entries.
    pub entries: u64,
    /// The bytes of all keys and values.
    pub bytes: u64,
    /// The number of levels.
    pub height: u32,
    /// The number of leaves.
    pub leaves: u64,
    /// The number of inner nodes.
    pub inner: u64,
    /// The number of pages that hold long values.
    pub overflow: u64,
    /// The number of free pages.
    pub free: u64,
    /// The number of problems; 0 if the tree is sound.
    pub problems: u64,
    /// Descriptions of the first problems.
    pub listed: Vec<String>,
}

impl CheckReport {
    /// Whether the check found no problem.
    pub fn is_sound(&self) -> bool {
        self.problems == 0
    }

    fn problem(&mut self, page: u32, what: impl std::fmt::Display) {
        self.problems += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(format!("page {page}: {what}"));
        }
    }
}

impl Tree {
    /// Reads every page of the tree. Verifies order, links, counts, chains and free pages; that no page is
    /// used twice and none is lost; and that no page is newer than the log. Calls `progress` with the number
    /// of pages seen and their total.
    ///
    /// Reads, and changes within one page, continue meanwhile. A change to several pages waits for the check.
    ///
    /// # Errors
    /// The meta page cannot be read. The report lists other unreadable pages as problems.
    pub async fn check(&self, progress: impl FnMut(u64, u64) + Send) -> Result<CheckReport, TreeError> {
        let _frozen = self.structure.write().await;
        let Some(meta) = Self::meta(&self.store, self.space).await? else {
            return Err(TreeError::Damaged { page: self.id(META_PAGE), what: "its kind" });
        };
        let mut walk = Walk {
            tree: self,
            report: CheckReport::default(),
            uses: vec![false; meta.end as usize],
            logged: meta.tag != 0,
            seen: 0,
            progress: Box::new(progress),
        };
        walk.take(META_PAGE, META_PAGE);
        walk.nodes().await;
        walk.free_list(meta).await;
        walk.unused();
        Ok(walk.report)
    }
}

struct Walk<'t, 'p> {
    tree: &'t Tree,
    report: CheckReport,
    uses: Vec<bool>,
    /// Whether every page has a record in the log.
    logged: bool,
    seen: u64,
    progress: Box<dyn FnMut(u64, u64) + Send + 'p>,
}

/// A node to visit: its page, and the range of keys that it may hold, from `low` up to but excluding `high`.
struct Visit {
    no: u32,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Walk<'_, '_> {
    /// Records the use of a page; returns false if it was already in use or does not exist.
    fn take(&mut self, no: u32, by: u32) -> bool {
        self.seen += 1;
        if self.seen.is_multiple_of(256) || self.seen == self.uses.len() as u64 {
            (self.progress)(self.seen, self.uses.len() as u64);
        }
        match self.uses.get_mut(no as usize) {
            None => self.report.problem(no, format_args!("page {by} points to it, beyond the end")),
            Some(used) if *used => {
                self.report.problem(no, format_args!("it is used twice, by page {by} too"))
            }
            Some(used) => {
                *used = true;
                return true;
            }
        }
        false
    }

    async fn get(&mut self, no: u32) -> Option<PageRef<'_>> {
        match self.tree.store.get(self.tree.id(no)).await {
            Ok(page) => {
                // Read the log's end under the latch, so that the page cannot acquire a newer LSN in between.
                let log_end = self.tree.wal.as_ref().map_or(Lsn(0), |wal| wal.end());
                // A page without an LSN was changed outside of the log, and redo would not repeat that
                // change.
                if page.lsn() > log_end || self.logged && page.lsn() == Lsn(0) {
                    let what = format!("its LSN is {}, the log ends at {log_end}", page.lsn());
                    self.report.problem(no, what);
                }
                Some(page)
            }
            Err(error) => {
                self.report.problem(no, error);
                None
            }
        }
    }

    /// Visits the nodes level by level, from left to right.
    async fn nodes(&mut self) {
        // Level by level, because a leaf's link must lead to the next leaf, which may have another parent.
        let mut level = vec![Visit { no: ROOT, low: Vec::new(), high: None }];
        self.take(ROOT, META_PAGE);
        while !level.is_empty() {
            self.report.height += 1;
            let mut below = Vec::new();
            for i in 0..level.len() {
                let next = level.get(i + 1).map(|visit| visit.no);
                if let Some(chains) = self.node(&level[i], next, &mut below).await {
                    for chain in chains {
                        self.chain(level[i].no, chain).await;
                    }
                }
            }
            level = below;
        }
    }

    /// Visits a node; returns the chains of its values, and adds its children to `below`.
    async fn node(&mut self, visit: &Visit, next: Option<u32>, below: &mut Vec<Visit>) -> Option<Vec<Chain>> {
        // A copy, so that no latch is held while children and chains are read: changes of single pages go
        // on during the check.
        let payload = self.get(visit.no).await?.to_vec();
        let node = Node(&payload);
        if node.kind() != kind_of(node.level()) {
            self.report.problem(visit.no, "its kind");
            return None;
        }
        if let Err(what) = node.validate() {
            self.report.problem(visit.no, what);
            return None;
        }
        self.fences(visit, node);
        // Scans follow the links of leaves; inner nodes have none.
        let link = if node.level() == 0 { next.unwrap_or(NONE) } else { NONE };
        if node.next() != link {
            self.report.problem(visit.no, format_args!("its link leads to {}, not to {link}", node.next()));
        }
        if node.level() == 0 {
            self.report.leaves += 1;
            return Some(self.entries(node));
        }
        self.report.inner += 1;
        if node.count() == 0 {
            self.report.problem(visit.no, "an inner node without children");
        }
        for slot in 0..node.count() {
            let high =
                if slot + 1 < node.count() { Some(node.key(slot + 1).to_vec()) } else { visit.high.clone() };
            // A child that is used twice is visited once: damaged links may form a circle.
            if self.take(node.child(slot), visit.no) {
                self.child_level(visit.no, node, slot).await;
                below.push(Visit { no: node.child(slot), low: node.key(slot).to_vec(), high });
            }
        }
        None
    }

    async fn child_level(&mut self, no: u32, node: Node<'_>, slot: usize) {
        let child = node.child(slot);
        let level = self.get(child).await.map(|page| Node(&page).level());
        if level.is_some_and(|level| level + 1 != node.level()) {
            self.report.problem(child, format_args!("its level does not follow its parent's, page {no}"));
        }
    }

    fn fences(&mut self, visit: &Visit, node: Node<'_>) {
        let Some(last) = node.count().checked_sub(1) else { return };
        if node.key(0) < &visit.low[..] {
            self.report.problem(visit.no, "a key is below its range");
        }
        if node.level() > 0 && node.key(0) != visit.low {
            self.report.problem(visit.no, "its first key is not its parent's");
        }
        if visit.high.as_ref().is_some_and(|high| node.key(last) >= &high[..]) {
            self.report.problem(visit.no, "a key is above its range");
        }
    }

    fn entries(&mut self, leaf: Node<'_>) -> Vec<Chain> {
        let mut chains = Vec::new();
        for slot in 0..leaf.count() {
            let bytes = match leaf.value(slot) {
                Stored::Inline(value) => value.len(),
                Stored::Chain(chain) => {
                    chains.push(chain);
                    chain.bytes
                }
            };
            self.report.entries += 1;
            self.report.bytes += (leaf.key(slot).len() + bytes) as u64;
        }
        chains
    }

    async fn chain(&mut self, leaf: u32, chain: Chain) {
        let pages = chain.pages(self.tree.payload());
        let (mut no, mut left) = (chain.first, chain.bytes);
        for i in 0..pages {
            if !self.take(no, leaf) {
                return;
            }
            let part_max = self.tree.payload() - HEADER_BYTES;
            let Some(page) = self.get(no).await else { return };
            let node = Node(&page);
            let (kind, part, next) = (node.kind(), node.part().len(), node.next());
            drop(page);
            if kind != OVERFLOW || part != left.min(part_max) {
                self.report.problem(no, format_args!("it is not part {i} of a value of page {leaf}"));
                return;
            }
            // The last page links a freed chain to the free list: a wrong one would lose pages.
            if i + 1 == pages && no != chain.last {
                self.report
                    .problem(no, format_args!("page {leaf} has {} as the value's last page", chain.last));
            }
            self.report.overflow += 1;
            left -= part;
            no = next;
        }
    }

    async fn free_list(&mut self, meta: Meta) {
        let (mut no, mut by) = (meta.head, META_PAGE);
        while no != NONE {
            if !self.take(no, by) {
                return;
            }
            self.report.free += 1;
            let Some(page) = self.get(no).await else { return };
            (by, no) = (no, Node(&page).next());
        }
        // Allocations take a list with more pages than this for damage.
        if self.report.free != u64::from(meta.free) {
            let free = self.report.free;
            self.report.problem(META_PAGE, format_args!("it counts {} free pages, not {free}", meta.free));
        }
    }

    fn unused(&mut self) {
        let lost: Vec<u32> = (0..).zip(&self.uses).filter(|(_, used)| !**used).map(|(no, _)| no).collect();
        for no in lost {
            self.report.problem(no, "it is neither used nor free");
        }
    }
}
