//! The records that the ghosts look through, so that no ghost has to look through all records.

use super::score::Seen;
use crate::ssd::tracked::{RecordId, Tracked};

/// Of a record that is not listed.
const NOT: u8 = 0;

/// An unordered list of records. A record that is listed carries the number of the round in which it was
/// listed or visited last, which distinguishes it from a record that was forgotten and reused since.
#[derive(Debug)]
pub(crate) struct Listed {
    numbers: Vec<u32>,
    /// The present round: 1 or 2.
    round: u8,
    /// The number of records found by the last visit.
    found: usize,
}

impl Listed {
    pub(crate) const fn new() -> Self {
        Self { numbers: Vec::new(), round: 1, found: 0 }
    }

    /// Lists the record, unless it is listed already.
    pub(crate) fn add(&mut self, pages: &mut Tracked<Seen>, id: RecordId) {
        let seen = pages.kept_mut(id);
        if seen.listed() == NOT {
            seen.set_listed(self.round);
            self.numbers.push(id.0);
        }
    }

    /// Whether so many records have been added since the last visit that another one is due, to remove those
    /// that were forgotten or are not wanted.
    pub(crate) fn is_crowded(&self) -> bool {
        self.numbers.len() > 2 * self.found
    }

    /// Calls `visit` for each listed record that is `wanted`, once, and removes the others from the list.
    pub(crate) fn visit(
        &mut self,
        pages: &mut Tracked<Seen>,
        wanted: impl Fn(&Seen) -> bool,
        mut visit: impl FnMut(RecordId, &Seen),
    ) {
        let before = self.round;
        self.round = 3 - before;
        let round = self.round;
        self.numbers.retain(|&no| {
            let seen = pages.kept_mut(RecordId(no));
            if seen.listed() != before {
                // Forgotten since, or listed again after that and visited already.
                return false;
            }
            let stays = wanted(seen);
            seen.set_listed(if stays { round } else { NOT });
            if stays {
                visit(RecordId(no), seen);
            }
            stays
        });
        self.found = self.numbers.len();
    }

    /// Whether the record is listed; for tests.
    pub(crate) fn has(&self, seen: &Seen) -> bool {
        seen.listed() == self.round
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::tracked::Kept;
    use crate::{PageId, SlotId, SpaceId};

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// The pages that a visit finds, among those on the SSD.
    fn visited(listed: &mut Listed, pages: &mut Tracked<Seen>) -> Vec<u32> {
        let mut found = Vec::new();
        let mut ids = Vec::new();
        listed.visit(pages, Seen::is_on_ssd, |id, _| ids.push(id));
        found.extend(ids.into_iter().map(|id| pages.page(id).no));
        found
    }

    #[test]
    fn each_wanted_record_is_visited_once_also_if_it_was_reused() {
        let mut pages = Tracked::new(8, 8, 8, 0);
        let mut listed = Listed::new();
        let ids: Vec<RecordId> = (0..4).map(|no| pages.track(page(no), Seen::default())).collect();
        for (slot, &id) in ids.iter().enumerate() {
            pages.set_slot(id, Some(SlotId(slot as u32)));
            (0..3).for_each(|_| listed.add(&mut pages, id));
        }
        assert_eq!(visited(&mut listed, &mut pages), [0, 1, 2, 3]);
        // One leaves the SSD, one is forgotten, and one forgotten record comes to be another page's.
        pages.set_slot(ids[0], None);
        pages.forget(ids[1]);
        pages.forget(ids[2]);
        let reused = pages.track(page(9), Seen::default());
        pages.set_slot(reused, Some(SlotId(2)));
        listed.add(&mut pages, reused);
        assert_eq!((listed.len(), reused), (5, ids[2]));
        assert_eq!(visited(&mut listed, &mut pages), [9, 3]);
        // What was not wanted can be listed again.
        pages.set_slot(ids[0], Some(SlotId(0)));
        listed.add(&mut pages, ids[0]);
        assert_eq!(visited(&mut listed, &mut pages), [9, 3, 0]);
        // What is unlisted and unwanted does not return with a reused record that no list asked for.
        pages.forget(reused);
        let other = pages.track(page(10), Seen::default());
        pages.set_slot(other, Some(SlotId(2)));
        assert_eq!(visited(&mut listed, &mut pages), [3, 0]);
    }
}
