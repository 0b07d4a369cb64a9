//! Determines what the SSD holds after a crash: a pure merge of checkpoint, zone slots, journal and ring.
//!
//! `docs/proof.md` argues that this loses nothing and resurrects nothing.

use crate::format::journal::{Backing, Block};
use crate::format::map::{Entry, MapBody};
use pagetier_page::{PageId, Stamp};
use pagetier_policy::PageIndex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// A sound page image in a slot or the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// The page that the image claims to be of; its checksum covers the claim.
    pub page: PageId,
    /// Its version: of two images of a page, the one with the larger stamp is newer (I11).
    pub stamp: Stamp,
    /// Whether it was written as a copy of the HDD's version.
    pub clean: bool,
}

/// Everything that recovery read.
#[derive(Debug)]
pub struct Evidence {
    /// The newest sound checkpoint's map and zone.
    pub map: MapBody,
    /// Images of the zone with larger stamps were written after the checkpoint began (I11).
    pub watermark: Stamp,
    /// By slot of the zone, its image; slots without a sound image are absent.
    pub zone: FxHashMap<u32, Image>,
    /// Slots of the zone that cannot be read.
    pub unreadable: FxHashSet<u32>,
    /// The store was closed cleanly: the checkpoint states exactly what every slot holds.
    pub closed: bool,
    /// Sound journal blocks, in any order.
    pub journal: Vec<Block>,
    /// By page, the stamp of its newest sound image in the doublewrite ring.
    pub ring: FxHashMap<PageId, Stamp>,
}

/// The result of [`Evidence::merge`].
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What each slot holds.
    pub entries: Vec<Option<Entry>>,
    /// The number of mappings taken from the checkpoint without reading the slot.
    pub trusted: usize,
    /// The number of mappings found by reading the zone.
    pub found: usize,
    /// The number of mappings whose slot in the zone does not hold the image that it must, with no newer
    /// version anywhere: reading the page is an error.
    pub damaged: usize,
    /// The number of candidates dropped because the HDD has a newer version or will get one from the ring.
    pub superseded: usize,
    /// An unreadable slot that may hold the newest version of any page.
    pub unknown: Option<u32>,
}

/// The newest version of each page that is known so far, by slot and by page.
#[derive(Debug)]
pub(crate) struct Newest {
    entries: Vec<Option<Entry>>,
    /// Slots alone, since `entries` has their pages: a hash map of pages would be several times as large.
    by_page: PageIndex,
}

impl Newest {
    /// Of `entries`, by slot.
    pub(crate) fn of(entries: Vec<Option<Entry>>) -> Self {
        let by_page = PageIndex::with_capacity(entries.len());
        let mut newest = Self { entries: vec![None; entries.len()], by_page };
        for (slot, entry) in (0..).zip(entries) {
            entry.into_iter().for_each(|entry| newest.add(slot, entry));
        }
        newest
    }

    pub(crate) fn entries(&self) -> &[Option<Entry>] {
        &self.entries
    }

    fn get(&self, page: PageId) -> Option<(u32, Entry)> {
        let slot = self.by_page.find(page, |slot| page_in(&self.entries, slot))?;
        Some((slot, self.entries[slot as usize]?))
    }

    /// Adds the `entry` of `slot`, unless there is a newer version of its page.
    fn add(&mut self, slot: u32, entry: Entry) {
        // A crash right after a rewrite finds two slots of one page. Stamps only grow, so the larger one is
        // the newer version (I11).
        let other = self.get(entry.page).map(|(slot, entry)| (entry.stamp, Reverse(slot)));
        if other.is_none_or(|other| (entry.stamp, Reverse(slot)) > other) {
            self.remove(entry.page);
            self.entries[slot as usize] = Some(entry);
            self.by_page.insert(entry.page, slot, |slot| page_in(&self.entries, slot));
        }
    }

    fn remove(&mut self, page: PageId) {
        let Some((slot, _)) = self.get(page) else { return };
        self.by_page.remove(page, |slot| page_in(&self.entries, slot));
        self.entries[slot as usize] = None;
    }
}

fn page_in(entries: &[Option<Entry>], slot: u32) -> PageId {
    entries[slot as usize].map(|entry| entry.page).unwrap_or_default()
}

impl Evidence {
    /// Drops the ring's images below its floor. They do not go home, so they must not void the copies that
    /// they supersede: with the ring on the HDD, that of an appended version may be durable before its slot.
    pub(crate) fn drop_below_floor(&mut self) {
        let floor = self.ring_floor();
        self.ring.retain(|_, stamp| *stamp >= floor);
    }

    /// Determines the newest durable version of every page that has one on the SSD.
    pub fn merge(&self) -> Verdict {
        self.judge(Newest::of(self.map.outside_zone()))
    }

    /// As [`Evidence::merge`], with `newest` of what the map says of slots outside the zone: it can be made
    /// while the zone is read.
    pub(crate) fn judge(&self, mut newest: Newest) -> Verdict {
        let writing_home = self.writing_home();
        let mut superseded = 0;
        for (page, newer) in &writing_home {
            // The HDD has a newer version, or gets it from the ring. Keeping this one would bring an old
            // version back (I3).
            if newest.get(*page).is_some_and(|(_, entry)| *newer > entry.stamp) {
                newest.remove(*page);
                superseded += 1;
            }
        }
        for slot in self.map.zone() {
            let Some(entry) = self.candidate(slot) else { continue };
            if writing_home.get(&entry.page).is_some_and(|newer| *newer > entry.stamp) {
                superseded += 1;
            } else {
                newest.add(slot, entry);
            }
        }
        let mut damaged = Vec::new();
        for slot in self.map.zone() {
            // A damaged version wins over an older sound one. Redo can repair an error, but nothing notices
            // stale data.
            let Some(entry) = self.damaged(slot) else { continue };
            let newer_home = writing_home.get(&entry.page).is_some_and(|stamp| *stamp >= entry.stamp);
            if !newer_home && newest.get(entry.page).is_none_or(|(_, other)| other.stamp < entry.stamp) {
                newest.add(slot, entry);
                damaged.push(slot);
            }
        }
        let Newest { entries, by_page } = newest;
        let in_zone = self.map.zone().filter(|slot| entries[*slot as usize].is_some()).count();
        let unknown = self.unknown(&entries);
        let trusted = by_page.len() - in_zone;
        // A map that names a page twice: the later damaged version replaced the earlier.
        let damaged = damaged.iter().filter(|slot| entries[**slot as usize].is_some()).count();
        Verdict { entries, trusted, found: in_zone - damaged, damaged, superseded, unknown }
    }

    /// The first unreadable slot that need not hold what the checkpoint says. A slot with an only copy is
    /// given to another page once a newer version of its own is durable elsewhere. If none of these pages has
    /// a newer version in any readable place, their newest versions are in these slots: there are as many
    /// pages as slots, so no other page is in them.
    fn unknown(&self, entries: &[Option<Entry>]) -> Option<u32> {
        let unnamed = self.unreadable.iter().copied().filter(|slot| entries[*slot as usize].is_none());
        unnamed.min().filter(|_| !self.closed)
    }

    /// Slots whose images the checkpoint does not vouch for: they were written since it began, or were being
    /// written when their entries were captured.
    pub(crate) fn unflushed_slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.map.zone().filter(|slot| {
            let image = self.zone.get(slot);
            image.is_some_and(|image| image.stamp > self.watermark || self.map.in_flight(*slot))
        })
    }

    /// What `slot` of the zone may hold: its image, if it was written after the checkpoint or is what the
    /// checkpoint says.
    fn candidate(&self, slot: u32) -> Option<Entry> {
        let named = self.map.entry(slot);
        // After a close the map is exact: what the slot holds need not be read.
        if self.closed && self.unreadable.contains(&slot) {
            return named;
        }
        let image = self.zone.get(&slot)?;
        let as_named = named.filter(|e| (e.page, e.stamp) == (image.page, image.stamp));
        let written_since = image.stamp > self.watermark;
        let clean = image.clean || as_named.is_some_and(|e| e.clean);
        (as_named.is_some() || written_since).then_some(Entry { page: image.page, stamp: image.stamp, clean })
    }

    /// A dirty version that was complete and durable at the checkpoint, whose slot, of the zone, holds
    /// neither it nor anything written since. A slot is given to another page only after a newer version of
    /// its own is durable. So without a newer version this one was damaged, and falling back to an older one
    /// would silently return stale data.
    fn damaged(&self, slot: u32) -> Option<Entry> {
        let complete = !self.map.in_flight(slot);
        let named = self.map.entry(slot).filter(|e| complete && !e.clean)?;
        let counts = self.zone.get(&slot).is_some_and(|image| {
            image.stamp > self.watermark || (image.page, image.stamp) == (named.page, named.stamp)
        });
        (!counts).then_some(named)
    }

    /// By page, the newest version that the HDD has or will get from the ring.
    fn writing_home(&self) -> FxHashMap<PageId, Stamp> {
        let ring = self.ring.iter().map(|(page, stamp)| (*page, *stamp));
        let journal = self.journal.iter().flat_map(|b| &b.records).map(|r| (r.page, r.stamp));
        newest_by_page(ring.chain(journal))
    }

    /// The pages whose write-back may have been under way. There is one batch at a time, which ends with an
    /// HDD flush.
    pub fn last_write_back(&self) -> Vec<PageId> {
        let last = self.journal.iter().filter(|b| b.backing == Backing::WriteBack).max_by_key(|b| b.seq);
        last.map(|b| b.records.iter().map(|r| r.page).collect()).unwrap_or_default()
    }

    /// By page, the newest version that was written back from its slot, which was durable before the record.
    pub fn written_back(&self) -> FxHashMap<PageId, Stamp> {
        let blocks = self.journal.iter().filter(|b| b.backing == Backing::WriteBack);
        newest_by_page(blocks.flat_map(|b| &b.records).map(|r| (r.page, r.stamp)))
    }

    /// From this stamp on, dirty versions in slots may have torn homes, to be repaired from the slots (the
    /// doublewrite policy).
    pub fn slots_back_from(&self) -> Option<Stamp> {
        self.newest_block().filter(|b| b.slots_back).map(|b| b.ring_floor)
    }

    /// The newest checkpoint that, according to a journal block, was in force.
    pub fn generation_in_force(&self) -> u64 {
        self.journal.iter().map(|b| b.generation).max().unwrap_or(0)
    }

    fn newest_block(&self) -> Option<&Block> {
        self.journal.iter().max_by_key(|b| b.seq)
    }

    /// Ring images below this stamp were durable on the HDD before the crash.
    pub fn ring_floor(&self) -> Stamp {
        self.newest_block().map_or(Stamp::ZERO, |b| b.ring_floor)
    }
}

/// The newest of each page's versions.
pub(crate) fn newest_by_page(versions: impl Iterator<Item = (PageId, Stamp)>) -> FxHashMap<PageId, Stamp> {
    let mut newest = FxHashMap::default();
    for (page, stamp) in versions {
        let known = newest.entry(page).or_insert(stamp);
        *known = stamp.max(*known);
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::journal::Record;
    use crate::format::layout::JournalSeq;
    use pagetier_page::SpaceId;
    use proptest::collection::{hash_map, vec};
    use proptest::option;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    fn at(n: u64) -> Stamp {
        Stamp::from_bits(n)
    }

    fn named(no: u32, stamp: u64) -> Option<Entry> {
        Some(Entry { page: page(no), stamp: at(stamp), clean: false })
    }

    fn image(no: u32, stamp: u64) -> Image {
        Image { page: page(no), stamp: at(stamp), clean: false }
    }

    /// Slots 0 and 1 outside the zone, 2 and 3 inside; watermark 100.
    fn evidence() -> Evidence {
        let mut map = MapBody::empty(4);
        map.set_entry(0, named(0, 10), false);
        map.set_entry(2, named(2, 20), true);
        [2, 3].into_iter().for_each(|slot| map.set_in_zone(slot));
        Evidence {
            map,
            watermark: at(100),
            zone: FxHashMap::default(),
            unreadable: FxHashSet::default(),
            closed: false,
            journal: Vec::new(),
            ring: FxHashMap::default(),
        }
    }

    fn pages(e: &Evidence) -> Vec<Option<(u32, u64)>> {
        e.merge().entries.iter().map(|e| e.map(|e| (e.page.no, e.stamp.bits()))).collect()
    }

    #[test]
    fn outside_the_zone_the_map_is_trusted_inside_the_slot_is_read() {
        let mut e = evidence();
        assert_eq!(pages(&e), [Some((0, 10)), None, None, None]);
        e.zone.insert(2, image(2, 20));
        assert_eq!(pages(&e), [Some((0, 10)), None, Some((2, 20)), None]);
    }

    #[test]
    fn an_old_image_that_the_map_does_not_name_does_not_count() {
        let mut e = evidence();
        e.zone.insert(3, image(9, 100));
        assert_eq!(pages(&e)[3], None);
        e.zone.insert(3, image(9, 101));
        assert_eq!(pages(&e)[3], Some((9, 101)));
    }

    #[test]
    fn a_damaged_only_copy_in_the_zone_is_not_replaced_by_an_older_version() {
        let mut e = evidence();
        e.map.set_entry(2, named(2, 20), false);
        assert_eq!(pages(&e)[2], Some((2, 20)), "reading it is an error");
        assert_eq!(e.merge().damaged, 1);
        e.zone.insert(2, image(9, 50));
        assert_eq!(pages(&e)[2], Some((2, 20)), "what stands there is older than the checkpoint");
        e.zone.insert(2, image(9, 150));
        assert_eq!(pages(&e)[2], Some((9, 150)), "it was given to another page");
        e.zone.remove(&2);
        e.zone.insert(3, image(2, 130));
        assert_eq!(pages(&e), [Some((0, 10)), None, None, Some((2, 130))], "a newer version is elsewhere");
        e.zone.remove(&3);
        let records = vec![Record { page: page(2), stamp: at(20) }];
        e.journal.push(Block {
            seq: JournalSeq(1),
            ring_floor: Stamp::ZERO,
            backing: Backing::Ring,
            slots_back: false,
            generation: 0,
            records,
        });
        assert_eq!(pages(&e)[2], None, "it went home, and the slot to a page whose write was torn");
    }

    #[test]
    fn an_image_below_the_floor_costs_no_copy_once_it_is_dropped() {
        let mut e = evidence();
        e.journal.push(Block {
            seq: JournalSeq(1),
            ring_floor: at(60),
            backing: Backing::Ring,
            slots_back: false,
            generation: 0,
            records: Vec::new(),
        });
        e.ring = FxHashMap::from_iter([(page(0), at(50))]);
        assert_eq!(
            pages(&e)[0],
            None,
            "the ring on the SSD has no image of a version that is to be in a slot"
        );
        e.drop_below_floor();
        assert_eq!(pages(&e)[0], Some((0, 10)));
        e.ring.insert(page(0), at(60));
        e.drop_below_floor();
        assert_eq!(pages(&e)[0], None, "it goes home");
    }

    #[test]
    fn a_slot_that_cannot_be_read_is_known_only_if_it_must_hold_what_the_map_names() {
        let mut e = evidence();
        let unknown = |e: &Evidence| e.merge().unknown;
        e.unreadable.insert(3);
        assert_eq!(unknown(&e), Some(3), "it was free");
        e.closed = true;
        assert_eq!(unknown(&e), None, "and is still");
        e.closed = false;
        e.unreadable = FxHashSet::from_iter([2]);
        assert_eq!(unknown(&e), Some(2), "its write may not have arrived");
        e.map.set_entry(2, named(2, 20), false);
        assert_eq!(unknown(&e), None);
        assert_eq!(pages(&e)[2], Some((2, 20)), "reading it is an error");
        e.zone.insert(3, image(2, 130));
        assert_eq!(unknown(&e), Some(2), "it may have been given to another page since");
        e.zone.remove(&3);
        e.map.set_entry(2, Some(Entry { page: page(2), stamp: at(20), clean: true }), false);
        assert_eq!(unknown(&e), Some(2), "a copy may be given away at any time");
        e.closed = true;
        assert_eq!((unknown(&e), pages(&e)[2]), (None, Some((2, 20))));
        assert!(e.merge().entries[2].is_some_and(|e| e.clean), "read from the HDD instead");
    }

    #[test]
    fn a_copy_is_clean_by_its_own_word_or_by_the_checkpoints() {
        let cleans = |e: &Evidence| e.merge().entries.iter().flatten().map(|e| e.clean).collect::<Vec<_>>();
        let mut e = evidence();
        e.map.set_entry(0, None, false);
        e.zone.insert(2, image(2, 20));
        assert_eq!(cleans(&e), [false]);
        e.zone.insert(2, Image { clean: true, ..image(2, 20) });
        assert_eq!(cleans(&e), [true], "it was written as a copy");
        e.zone.insert(2, Image { clean: true, ..image(9, 150) });
        assert_eq!(cleans(&e), [true], "so was another page's since");
        e.zone.insert(2, image(2, 20));
        e.map.set_entry(2, Some(Entry { page: page(2), stamp: at(20), clean: true }), false);
        assert_eq!(cleans(&e), [true], "it was written back before the checkpoint");
        e.zone.insert(2, image(2, 150));
        assert_eq!(cleans(&e), [false], "a newer version was not");
    }

    proptest! {
        #[test]
        fn of_each_page_the_newest_version_counts_that_no_home_supersedes(
            slots in vec(
                (option::of((0..6_u32, 1..20_u64, any::<bool>())), any::<bool>(), (0..6_u32, 1..20_u64)),
                1..12,
            ),
            homes in hash_map(0..6_u32, 1..20_u64, 0..4),
        ) {
            let mut e = Evidence { map: MapBody::empty(slots.len() as u32), watermark: at(10), ..evidence() };
            for (slot, (entry, in_zone, (no, stamp))) in (0..).zip(&slots) {
                let entry =
                    entry.map(|(no, stamp, clean)| Entry { page: page(no), stamp: at(stamp), clean });
                e.map.set_entry(slot, entry, false);
                if *in_zone {
                    e.map.set_in_zone(slot);
                    e.zone.insert(slot, image(*no, *stamp));
                }
            }
            e.ring = homes.iter().map(|(no, stamp)| (page(*no), at(*stamp))).collect();
            let mut newest: FxHashMap<PageId, (Stamp, Reverse<u32>, Entry)> = FxHashMap::default();
            for slot in 0..e.map.slots() {
                let entry = if e.map.in_zone(slot) { e.candidate(slot) } else { e.map.entry(slot) };
                let superseded = |entry: &Entry| e.ring.get(&entry.page).is_some_and(|s| *s > entry.stamp);
                let Some(entry) = entry.filter(|entry| !superseded(entry)) else { continue };
                let known = newest.entry(entry.page).or_insert((entry.stamp, Reverse(slot), entry));
                if (entry.stamp, Reverse(slot)) > (known.0, known.1) {
                    *known = (entry.stamp, Reverse(slot), entry);
                }
            }
            let mut damaged = HashSet::new();
            for slot in e.map.zone() {
                let Some(entry) = e.damaged(slot) else { continue };
                let newer_home = e.ring.get(&entry.page).is_some_and(|stamp| *stamp >= entry.stamp);
                if !newer_home && newest.get(&entry.page).is_none_or(|known| known.0 < entry.stamp) {
                    newest.insert(entry.page, (entry.stamp, Reverse(slot), entry));
                    damaged.insert(slot);
                }
            }
            let mut entries = vec![None; slots.len()];
            newest.values().for_each(|(_, Reverse(slot), entry)| entries[*slot as usize] = Some(*entry));
            let verdict = e.merge();
            prop_assert_eq!(&verdict.entries, &entries);
            let in_zone = |slot: &u32| e.map.in_zone(*slot) && entries[*slot as usize].is_some();
            let found = (0..e.map.slots()).filter(in_zone).count();
            damaged.retain(|slot| entries[*slot as usize].is_some());
            prop_assert_eq!(
                (verdict.trusted, verdict.found, verdict.damaged),
                (newest.len() - found, found - damaged.len(), damaged.len())
            );
        }
    }

    #[test]
    fn the_highest_stamp_wins() {
        let mut e = evidence();
        e.zone.insert(2, image(0, 150));
        e.zone.insert(3, image(0, 140));
        assert_eq!(pages(&e), [None, None, Some((0, 150)), None]);
    }

    #[test]
    fn what_went_home_later_voids_older_copies_but_not_its_own_version() {
        let mut e = evidence();
        let block = |stamp| Block {
            seq: JournalSeq(1),
            ring_floor: Stamp::ZERO,
            backing: Backing::Ring,
            slots_back: false,
            generation: 0,
            records: vec![Record { page: page(0), stamp: at(stamp) }],
        };
        e.journal = vec![block(10)];
        assert_eq!(pages(&e)[0], Some((0, 10)), "the version being written back is still a good copy");
        e.journal.push(block(11));
        assert_eq!(pages(&e)[0], None);
        e.journal.clear();
        e.ring.insert(page(0), at(11));
        assert_eq!(pages(&e)[0], None);
        assert_eq!(e.merge().superseded, 1);
    }
}
