//! Which operations of the table are in progress, and what the report counts of them.

use serde::Serialize;

/// The number of the operations that the report can count.
pub(crate) const OPERATIONS_MAX: usize = 80;

/// The operations in progress, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running([u8; OPERATIONS_MAX]);

impl Default for Running {
    fn default() -> Self {
        Self([0; OPERATIONS_MAX])
    }
}

impl Running {
    pub(crate) fn begin(&mut self, at: usize) {
        self.0[at] = self.0[at].saturating_add(1);
    }

    pub(crate) fn end(&mut self, at: usize) {
        self.0[at] = self.0[at].saturating_sub(1);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, _)| at)
    }
}

/// How often each operation was drawn, in how many crashes it was in progress, and how often it began while
/// another was.
#[derive(Clone, Debug, Serialize)]
pub struct Drawn {
    pub(crate) drawn: Vec<u64>,
    pub(crate) crashed: Vec<u64>,
    pub(crate) pairs: Vec<u64>,
}

impl Default for Drawn {
    fn default() -> Self {
        let n = OPERATIONS_MAX;
        Self { drawn: vec![0; n], crashed: vec![0; n], pairs: vec![0; n * n] }
    }
}

impl Drawn {
    pub(crate) fn begins(&mut self, at: usize, others: &Running) {
        self.drawn[at] += 1;
        others.all().for_each(|other| self.pairs[other * OPERATIONS_MAX + at] += 1);
    }

    pub(crate) fn crash(&mut self, running: &Running) {
        running.all().for_each(|at| self.crashed[at] += 1);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let parts = [
            (&mut self.drawn, &other.drawn),
            (&mut self.crashed, &other.crashed),
            (&mut self.pairs, &other.pairs),
        ];
        for (counts, more) in parts {
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
    }
}
