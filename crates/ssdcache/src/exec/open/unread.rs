//! Blocks of the SSD that a recovery cannot read: which of them it can do without.
//!
//! After a clean close, the map alone defines the contents of the SSD: a slot holds what the map names or
//! nothing, and journal and ring do not count. After a crash, a slot of the zone may have been given to any
//! page, unless no newer version of the page that the map names exists elsewhere
//! ([`Evidence::merge`](crate::Evidence::merge)). A place of the ring may hold the only whole image of any
//! page, and a journal block may void any copy.

use crate::exec::open::{OpenError, Reader};
use crate::protocol::recovery::Verdict;
use pagetier_devio::DeviceError;
use rustc_hash::FxHashMap;

/// The blocks that a recovery could not read, and why.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// A block of the journal.
    pub(crate) journal: Option<DeviceError>,
    /// Places of the ring.
    pub(crate) ring: FxHashMap<u32, DeviceError>,
    /// Slots of the zone.
    pub(crate) slots: FxHashMap<u32, DeviceError>,
}

impl Unread {
    /// Fails if a block of the journal or a place of the ring could not be read: recovery needs them all.
    pub(crate) fn refuse(&self) -> Result<(), OpenError> {
        let place = self.ring.iter().min_by_key(|(place, _)| **place).map(|(_, source)| ("ring", source));
        let first = self.journal.as_ref().map(|source| ("journal", source)).or(place);
        first.map_or(Ok(()), |(part, source)| Err(OpenError::Unreadable { part, source: source.clone() }))
    }

    /// Fails if there is an unreadable `slot` that may hold any page.
    pub(crate) fn refuse_slot(&self, slot: Option<u32>) -> Result<(), OpenError> {
        let source = slot.and_then(|slot| self.slots.get(&slot));
        source.map_or(Ok(()), |source| Err(OpenError::Unreadable { part: "zone", source: source.clone() }))
    }
}

impl Reader<'_> {
    /// After a close: writes zeroes to unreadable places that are not needed, which often makes them
    /// readable. The next recovery may follow a crash and need them. Clean copies in such places are given
    /// up.
    pub(crate) async fn zero_unreadable(&self, verdict: &mut Verdict) -> Result<(), DeviceError> {
        // After a crash such a place may hold the only version of a page. It may read well at the next
        // attempt, so it is not overwritten.
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
        let entries = &mut verdict.entries;
        let spare = |slot: &&u32| entries[**slot as usize].is_none_or(|entry| entry.clean);
        let slots: Vec<u32> = self.unread.slots.keys().filter(spare).copied().collect();
        for slot in &slots {
            entries[*slot as usize] = None;
        }
        for at in places.chain(slots.iter().map(|slot| layout.slot_at(*slot))) {
            if let Err(error) = self.void(at).await {
                // Nothing needs it now. The next opening tries again.
                tracing::warn!(%error, "an unused block of the SSD can be neither read nor overwritten");
            }
        }
        Ok(())
    }
}
