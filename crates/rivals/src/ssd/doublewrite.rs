//! The doublewrite buffer as a read cache (Kang et al., *InnoDB DoubleWrite Buffer as Read Cache using
//! SSDs*). The buffer, to which every dirty page is written before its home on the HDD, lies on the SSD and
//! is enlarged, in the paper to 5 to 10% of the database. Pages that it still holds are read from it.
//!
//! Every cleaned page is appended and then written to its home; pages that leave the pool clean are not
//! admitted. Slots are reclaimed in the order in which they were written, read or not. The policy is neither
//! cost-based nor anticipatory.
//!
//! The store manages the circular order ([`SlotPolicy::append_group`]) and the order of the two writes
//! ([`SlotPolicy::write_through`]); the policy tracks the valid versions. Everything is O(1), as in
//! [`MvFifo`](super::MvFifo), which shares the queue. Under a caller that does not append, it is a FIFO that
//! evicts within its zone.
//!
//! [`SlotPolicy::append_group`]: pagetier_policy::SlotPolicy::append_group
//! [`SlotPolicy::write_through`]: pagetier_policy::SlotPolicy::write_through
//!
//! Where the paper is silent:
//!
//! - *Slots to overwrite*: those written longest ago, since the writes are sequential and the buffer is a
//!   file.
//! - *A page that is read again* from the buffer stays where it is: no second chance, no copy elsewhere.
//! - *A page changed in the pool* keeps its version in the buffer until it is cleaned; the HDD has the same
//!   version.

use super::mv_fifo::VersionQueue;
use pagetier_policy::SlotPolicyParams;

/// The doublewrite buffer as a read cache; see the module's text.
pub type Doublewrite = VersionQueue<true>;

impl Doublewrite {
    /// For an empty SSD.
    #[must_use]
    pub fn new(params: &SlotPolicyParams) -> Self {
        Self::empty(params, false)
    }
}
