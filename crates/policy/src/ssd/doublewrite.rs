//! The doublewrite buffer as a read cache (Kang et al., *InnoDB DoubleWrite Buffer as Read Cache using
//! SSDs*): the buffer that every dirty page is written to before it goes home lies on the SSD and is
//! enlarged, to 5 to 10 % of the database in the paper; what it still holds is read from there.
//!
//! Every cleaned page is appended and written home; pages that leave the pool clean are not taken. Slots are
//! taken back in the order in which they were written, read or not. Neither cost-based nor anticipatory.
//!
//! The shell keeps the circle ([`append_group`](crate::SlotPolicy::append_group)) and the order of the two
//! writes ([`write_through`](crate::SlotPolicy::write_through)); the policy knows which versions are valid.
//! Everything is O(1), as in [`MvFifo`](super::MvFifo), whose queue this is. Under a shell that does not
//! append, it is a FIFO that evicts within its zone.
//!
//! Where the paper is silent:
//!
//! - *What is written over*: the slots written longest ago, since the writes are sequential and the buffer is
//!   a file.
//! - *A page that is read again* from the buffer stays where it is: no second chance, no copy elsewhere.
//! - *A page changed in the pool* keeps its version in the buffer until it is cleaned: what the HDD has, too.

use super::mv_fifo::VersionQueue;
use crate::SlotPolicyParams;

/// The doublewrite buffer as a read cache; see the module's text.
pub type Doublewrite = VersionQueue<true>;

impl Doublewrite {
    /// With an empty SSD.
    #[must_use]
    pub fn new(params: &SlotPolicyParams) -> Self {
        Self::empty(params, false)
    }
}
