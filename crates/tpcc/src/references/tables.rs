//! The location of TPC-C's rows: B+-trees reduced to the pages that a descent touches.

use pagetier_ghost::{Reference, Use};
use pagetier_policy::{PageId, SpaceId};

/// Children per inner node, at a typical fill.
const FANOUT: u32 = 400;

/// Inner nodes are numbered from here, with 2^24 numbers per level.
const INNER: u32 = 0x8000_0000;

/// A tree's inner nodes: few, and almost always buffered. Located by the leaf's number, as after a load in
/// key order.
#[derive(Clone, Copy, Debug)]
struct Inner {
    space: SpaceId,
    /// The number of levels above the leaves.
    levels: u32,
}

impl Inner {
    fn new(space: SpaceId, leaves: u32) -> Self {
        // The levels of the load are kept: growth during a replay hardly ever adds one.
        let mut levels = 0;
        let mut nodes = leaves;
        while nodes > 1 {
            nodes = nodes.div_ceil(FANOUT);
            levels += 1;
        }
        Self { space, levels }
    }

    /// Descends from the root to `leaf`, whose use is `used`.
    fn descend(&self, out: &mut Vec<Reference>, leaf: u32, used: Use) {
        for level in (1..=self.levels).rev() {
            // The root is one page, however many leaves there are after the table has grown.
            let node = if level == self.levels { 0 } else { leaf / FANOUT.pow(level) };
            out.push(Reference::read(PageId::new(self.space, INNER | level << 24 | node)));
        }
        out.push(Reference { page: PageId::new(self.space, leaf), used, sequential: false });
    }
}

/// A table of fixed size, in the order of a dense key.
#[derive(Debug)]
pub(super) struct Dense {
    inner: Inner,
    rows_per_leaf: u32,
    pub(super) pages: u32,
}

impl Dense {
    pub(super) fn new(space: u32, rows: u32, rows_per_leaf: u32) -> Self {
        let pages = rows.div_ceil(rows_per_leaf);
        Self { inner: Inner::new(SpaceId(space), pages), rows_per_leaf, pages }
    }

    pub(super) fn read(&self, out: &mut Vec<Reference>, key: u32) {
        self.inner.descend(out, key / self.rows_per_leaf, Use::Read);
    }

    /// Reads the row, then changes it: two statements.
    pub(super) fn update(&self, out: &mut Vec<Reference>, key: u32) {
        self.read(out, key);
        self.inner.descend(out, key / self.rows_per_leaf, Use::Write);
    }
}

/// A table whose parts (a district's rows) grow at their ends. A part's new leaves are new pages at the end
/// of the space.
#[derive(Debug)]
pub(super) struct Parts {
    inner: Inner,
    rows_per_leaf: u32,
    parts: Vec<Part>,
    pub(super) pages: u32,
}

#[derive(Clone, Debug, Default)]
struct Part {
    leaves: Vec<u32>,
    rows: u32,
}

impl Parts {
    /// `parts` parts of `rows` rows each.
    pub(super) fn new(space: u32, parts: u32, rows: impl Fn(u32) -> u32, rows_per_leaf: u32) -> Self {
        let mut pages = 0;
        let parts: Vec<Part> = (0..parts)
            .map(|part| {
                let rows = rows(part);
                let first = pages;
                pages += rows.div_ceil(rows_per_leaf);
                Part { leaves: (first..pages).collect(), rows }
            })
            .collect();
        Self { inner: Inner::new(SpaceId(space), pages), rows_per_leaf, parts, pages }
    }

    pub(super) fn append(&mut self, out: &mut Vec<Reference>, part: u32) {
        let p = &mut self.parts[part as usize];
        let used = if p.rows.is_multiple_of(self.rows_per_leaf) {
            // A new leaf has nothing to be read.
            p.leaves.push(self.pages);
            self.pages += 1;
            Use::Create
        } else {
            Use::Write
        };
        p.rows += 1;
        self.inner.descend(out, p.leaves[p.leaves.len() - 1], used);
    }

    /// Uses each leaf of `rows` (from, to) once.
    pub(super) fn range(&self, out: &mut Vec<Reference>, part: u32, rows: (u32, u32), used: Use) {
        let p = &self.parts[part as usize];
        // An empty range still visits the leaf where it would be.
        let last = rows.1.max(rows.0 + 1) - 1;
        for leaf in rows.0 / self.rows_per_leaf..=last / self.rows_per_leaf {
            if let Some(&leaf) = p.leaves.get(leaf as usize) {
                self.inner.descend(out, leaf, used);
            }
        }
    }

    pub(super) fn row(&self, out: &mut Vec<Reference>, part: u32, row: u32, used: Use) {
        self.range(out, part, (row, row + 1), used);
    }
}

/// An index with insertions throughout each part's keys: full leaves split in the middle.
#[derive(Debug)]
pub(super) struct Splitting {
    inner: Inner,
    rows_per_leaf_max: u32,
    /// The leaves of each part, by first key.
    parts: Vec<Vec<Leaf>>,
    pub(super) pages: u32,
}

#[derive(Clone, Copy, Debug)]
struct Leaf {
    first: u32,
    page: u32,
    rows: u32,
}

impl Splitting {
    /// `parts` parts of `keys` keys with one row each, in leaves half full to full.
    pub(super) fn new(space: u32, parts: u32, keys: u32, rows_per_leaf_max: u32) -> Self {
        // About ln 2, the mean fill of a B-tree after random insertions.
        let per_leaf = rows_per_leaf_max * 7 / 10;
        let mut pages = 0;
        let parts = (0..parts)
            .map(|_| {
                let leaves = (0..keys).step_by(per_leaf as usize).map(|first| {
                    let rows = per_leaf.min(keys - first);
                    pages += 1;
                    Leaf { first, page: pages - 1, rows }
                });
                leaves.collect()
            })
            .collect();
        Self { inner: Inner::new(SpaceId(space), pages), rows_per_leaf_max, parts, pages }
    }

    fn leaf_of(&self, part: u32, key: u32) -> usize {
        self.parts[part as usize].partition_point(|leaf| leaf.first <= key).max(1) - 1
    }

    pub(super) fn read(&self, out: &mut Vec<Reference>, part: u32, key: u32) {
        let leaf = self.parts[part as usize][self.leaf_of(part, key)];
        self.inner.descend(out, leaf.page, Use::Read);
    }

    pub(super) fn insert(&mut self, out: &mut Vec<Reference>, part: u32, key: u32, keys: u32) {
        let at = self.leaf_of(part, key);
        let leaves = &mut self.parts[part as usize];
        let end = leaves.get(at + 1).map_or(keys, |next| next.first);
        let leaf = &mut leaves[at];
        leaf.rows += 1;
        self.inner.descend(out, leaf.page, Use::Write);
        // A leaf of one key has nothing to divide: it grows beyond a page, which only a replay can afford.
        if leaf.rows > self.rows_per_leaf_max && end - leaf.first > 1 {
            let upper = Leaf { first: leaf.first.midpoint(end), page: self.pages, rows: leaf.rows / 2 };
            leaf.rows -= upper.rows;
            self.pages += 1;
            leaves.insert(at + 1, upper);
            out.push(Reference {
                page: PageId::new(self.inner.space, upper.page),
                used: Use::Create,
                sequential: false,
            });
        }
    }
}
