//! Reports of an SSD policy about itself. None decides where a page goes.

use crate::{PageId, PolicyChoice};

/// One group's statistics (2013 paper, section 5.2), for reports.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct GroupStats {
    /// The space that the group's pages belong to.
    pub space: crate::SpaceId,
    /// The subrange of logical read rates, from 0.
    pub subrange: u32,
    /// Miss rate while on the SSD; `None` when undefined.
    pub miss_rate_ssd: Option<f64>,
    /// Miss rate while not on the SSD; `None` when undefined.
    pub miss_rate_hdd: Option<f64>,
    /// The miss rate expansion factor in use, equation 8.
    pub alpha: f64,
    /// The number of pages in the group.
    pub pages: u64,
}

/// A policy's counts of a page since tracking began (2013 paper, section 5.1), by its home at the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct PageCounts {
    /// r_D: random physical reads while not on the SSD.
    pub reads_hdd: u64,
    /// r_S: random physical reads while on the SSD.
    pub reads_ssd: u64,
    /// Logical reads while not on the SSD, including those that missed.
    pub logical_hdd: u64,
    /// Logical reads while on the SSD, including those that missed.
    pub logical_ssd: u64,
    /// w_D: writes by the cleaner to the HDD.
    pub writes_hdd: u64,
    /// w_S: writes by the cleaner to the SSD.
    pub writes_ssd: u64,
}

/// Reports of a [`SlotPolicy`](crate::SlotPolicy) about itself, for statistics and tests.
pub trait SlotReport {
    /// The counts of `page`, if it is tracked; CC counts no logical reads.
    fn counts(&self, _page: PageId) -> Option<PageCounts> {
        None
    }

    /// Statistics by group; empty for policies without groups.
    fn groups(&self) -> Vec<GroupStats> {
        Vec::new()
    }

    /// The group of `page`, if the policy groups pages and tracks this one.
    fn group_of(&self, _page: PageId) -> Option<GroupStats> {
        None
    }

    /// The number of changes of setting so far; the store polls it to notice a change. O(1).
    fn choice_changes(&self) -> u64 {
        0
    }

    /// The setting in force, if the policy adapts.
    fn choice(&self) -> Option<PolicyChoice> {
        None
    }

    /// The memory that the policy's tables take, in bytes, which the pool's budget covers. The default, 0, is
    /// for a policy without tables.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Recounts every structure; for tests.
    ///
    /// # Errors
    /// The first inconsistency found.
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}
