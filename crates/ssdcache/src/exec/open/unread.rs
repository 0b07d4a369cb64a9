//! Blocks of the SSD that a recovery cannot read: which of them it can do without.
//!
//! After a clean close, the map alone defines the contents of the SSD: a slot holds what the map names or
//! nothing, and journal and ring do not count. After a crash, a slot of the zone may have been given to any
//! page, unless no newer version of the page that the map names exists elsewhere
//! ([`Evidence::merge`](crate::Evidence::merge)). A place of the ring may hold the only whole image of any
//! page, and a journal block may void any copy.

use super::evidence::Reader;
use crate::protocol::recovery::Verdict;
use pagetier_devio::DeviceError;

impl Reader<'_> {
    /// After a close: gives up the clean copies in slots that cannot be read. Returns these slots and those
    /// that hold nothing.
    pub(crate) fn give_up_unreadable(&self, verdict: &mut Verdict) -> Vec<u32> {
        // After a crash such a place may hold the only version of a page. It may read well at the next
        // attempt, so it is not overwritten.
        if !self.params.closed {
            return Vec::new();
        }
        let entries = &mut verdict.entries;
        let spare = |slot: &&u32| entries[**slot as usize].is_none_or(|entry| entry.clean);
        let slots: Vec<u32> = self.unread.slots.keys().filter(spare).copied().collect();
        for slot in &slots {
            entries[*slot as usize] = None;
        }
        slots
    }

    /// After a close: writes zeroes to `slots` and to unreadable places of the ring, none of which is needed:
    /// it often makes them readable. The next recovery may follow a crash and need them.
    pub(crate) async fn zero_unreadable(&self, slots: &[u32]) -> Result<(), DeviceError> {
        if !self.params.closed {
            return Ok(());
        }
        let layout = &self.params.layout;
        if !self.unread.ring.is_empty() {
            // No other image may outlive the one that could not be read.
            let others = (0..layout.ring_pages).filter(|place| !self.unread.ring.contains_key(place));
            for place in others {
                self.void(layout.ring_at(place)).await?;
            }
        }
        let places = self.unread.ring.keys().map(|place| layout.ring_at(*place));
        for at in places.chain(slots.iter().map(|slot| layout.slot_at(*slot))) {
            if let Err(error) = self.void(at).await {
                // Nothing needs it now. The next open tries again.
                tracing::warn!(%error, "an unused block of the SSD can be neither read nor overwritten");
            }
        }
        Ok(())
    }
}
