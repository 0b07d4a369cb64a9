//! Ghosts over an endless stream: reports cover its later half, so that the filling of empty ghosts does not
//! count.

use crate::grid::Ghosts;
use crate::reference::Reference;
use crate::what_if::{SampleSummary, WhatIf};

/// The number of sampled references before the first mark.
const FIRST_MARK: u64 = 1024;

/// Ghosts fed by live references. A mark is set whenever the stream has doubled; a report counts from the
/// last mark but one, which covers between a half and three quarters of the stream.
#[derive(Debug)]
pub struct Stream {
    ghosts: Ghosts,
    now: SampleSummary,
    marks: [SampleSummary; 2],
    next_mark: u64,
}

impl Stream {
    /// Creates an empty stream. `requests` is the current count of all references.
    #[must_use]
    pub fn new(ghosts: Ghosts, requests: u64) -> Self {
        let now = SampleSummary { requests, ..SampleSummary::default() };
        Self { ghosts, now, marks: [now; 2], next_mark: FIRST_MARK }
    }

    /// Applies the next references of the sample. `requests` counts all references up to here, and `lost`
    /// those of the sample that are missing.
    pub fn put(&mut self, references: impl IntoIterator<Item = Reference>, requests: u64, lost: u64) {
        for reference in references {
            self.ghosts.apply(reference);
            self.now.references += 1;
        }
        self.now = SampleSummary { requests, lost, ..self.now };
        if self.now.references >= self.next_mark {
            self.next_mark = 2 * self.now.references;
            self.ghosts.mark();
            // Keep the mark before this one: right after a mark, a report from it would cover nothing.
            self.marks = [self.now, self.marks[0]];
        }
    }

    /// Reports what other sizes would have cost.
    #[must_use]
    pub fn report(&self) -> WhatIf {
        self.ghosts.report(self.now.since(&self.marks[1]), true)
    }
}
