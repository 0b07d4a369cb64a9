//! LRU2, TAC and MV-FIFO (the comparisons of Liu & Salem 2013, section 6) and the doublewrite buffer of Kang et al. by hand, and beside what is said of them.

use pagetier_policy::{
    Access, CacParams, Cause, Costs, Doublewrite, Home, Lru2, Millis, MvFifo, PageId, SlotId, SpaceId,
    SsdPolicy, Tac, Verdict,
};
use proptest::prelude::*;

const NOW: Millis = Millis(0);

fn params(slots: usize) -> CacParams {
    CacParams::new(Costs::PAPER, slots, 4)
}

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn read(policy: &mut dyn SsdPolicy, no: u32, from: Home) {
    policy.read(p(no), Some(from), Access::Random, NOW);
}

fn zone(policy: &mut dyn SsdPolicy, k: usize) -> Vec<u32> {
    let mut out = Vec::new();
    policy.start_zone(k, &mut |_| true, NOW, &mut out);
    out.iter().map(|slot| slot.0).collect()
}

fn consider(policy: &mut dyn SsdPolicy, no: u32, cause: Cause, free: usize) -> Verdict {
    policy.consider(p(no), cause, free, &mut |_| true, NOW)
}

#[test]
fn lru2_goes_by_the_last_but_one_reference() {
    let mut lru2 = Lru2::new(&params(4));
    for slot in 0..4 {
        lru2.inserted(p(slot), SlotId(slot), NOW);
    }
    // References: 0 1 2 3, then 0, 2, 2, 1: last but one 1, 2, 6, none.
    for no in [0, 2, 2, 1] {
        read(&mut lru2, no, Home::Ssd);
    }
    assert_eq!(zone(&mut lru2, 4), [3, 0, 1, 2]);
    assert_eq!(consider(&mut lru2, 9, Cause::Evicted, 0), Verdict::AdmitOver(SlotId(3)));
    // Read again, 3 has a last but one reference: its admission, the fourth, after those of 0 and 1.
    read(&mut lru2, 3, Home::Ssd);
    assert_eq!(consider(&mut lru2, 9, Cause::Cleaned, 0), Verdict::AdmitOver(SlotId(0)));
    let mut next = Vec::new();
    lru2.next_victims(3, NOW, &mut next);
    assert_eq!(next, [SlotId(0), SlotId(1), SlotId(3)]);
    assert_eq!(consider(&mut lru2, 9, Cause::Cleaned, 1), Verdict::AdmitFree);
}

#[test]
fn lru2_counts_the_admission_of_a_dirty_page_once() {
    let mut lru2 = Lru2::new(&params(3));
    for slot in 0..3 {
        lru2.inserted(p(slot), SlotId(slot), NOW);
        lru2.wrote(p(slot), Home::Ssd, NOW);
    }
    // Page 0 is written again: only now it has been referenced twice. A write to the HDD is none.
    lru2.wrote(p(0), Home::Ssd, NOW);
    lru2.wrote(p(1), Home::Hdd, NOW);
    assert_eq!(zone(&mut lru2, 3), [1, 2, 0]);
    // A page that moves to another slot takes its history along.
    lru2.removed(p(1), true, NOW);
    lru2.inserted(p(0), SlotId(1), NOW);
    assert_eq!(zone(&mut lru2, 3), [2, 1]);
    lru2.validate().unwrap();
}

#[test]
fn lru2_evicts_within_its_zone() {
    let mut lru2 = Lru2::new(&params(4));
    for slot in 0..4 {
        lru2.inserted(p(slot), SlotId(slot), NOW);
    }
    assert_eq!(zone(&mut lru2, 2), [0, 1]);
    assert_eq!(
        lru2.consider(p(9), Cause::Cleaned, 0, &mut |slot| slot.0 != 0, NOW),
        Verdict::AdmitOver(SlotId(1))
    );
    assert_eq!(lru2.consider(p(9), Cause::Cleaned, 0, &mut |_| false, NOW), Verdict::Reject);
    lru2.removed(p(0), true, NOW);
    lru2.removed(p(1), true, NOW);
    assert_eq!(consider(&mut lru2, 9, Cause::Cleaned, 0), Verdict::Reject);
}

#[test]
fn tac_admits_pages_of_hotter_regions_on_reading_them() {
    let mut tac = Tac::new(&params(2));
    assert!(tac.write_through() && tac.admits_on_read() && tac.append_group().is_none());
    // Regions of 32 pages: 0 and 31 share one, 32 lies in the next.
    for no in [0, 31, 32] {
        read(&mut tac, no, Home::Hdd);
    }
    tac.read(p(32), Some(Home::Hdd), Access::Sequential, NOW);
    tac.read(p(32), None, Access::Random, NOW);
    assert_eq!([0, 1, 32].map(|no| tac.temperature(p(no))), [2.0 * 7.09, 2.0 * 7.09, 7.09]);
    assert_eq!(tac.temperature(PageId::new(SpaceId(2), 0)), 0.0);
    assert_eq!(consider(&mut tac, 0, Cause::Read, 1), Verdict::AdmitFree);
    for (slot, no) in [(0, 0), (1, 32)] {
        tac.inserted(p(no), SlotId(slot), NOW);
    }
    assert_eq!(zone(&mut tac, 2), [1, 0]);
    // 64 has never been read, then is as hot as 32, then hotter.
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::Reject);
    read(&mut tac, 64, Home::Hdd);
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::Reject);
    read(&mut tac, 70, Home::Hdd);
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::AdmitOver(SlotId(1)));
    // Reads from the SSD keep a region hot; pages that leave the pool are not asked about.
    read(&mut tac, 32, Home::Ssd);
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::Reject);
    assert_eq!(consider(&mut tac, 64, Cause::Evicted, 1), Verdict::Reject);
    assert_eq!(consider(&mut tac, 64, Cause::Cleaned, 1), Verdict::Reject);
    tac.validate().unwrap();
}

#[test]
fn mv_fifo_knows_the_valid_versions_in_order() {
    let mut fifo = MvFifo::new(&params(4), false);
    assert_eq!((fifo.name(), fifo.append_group()), ("mv-fifo", Some(1)));
    for (slot, no) in [(0, 7), (1, 8), (2, 7), (3, 9)] {
        fifo.inserted(p(no), SlotId(slot), NOW);
    }
    // Slot 0 holds a void version of page 7.
    assert_eq!(zone(&mut fifo, 4), [1, 2, 3]);
    assert_eq!(consider(&mut fifo, 5, Cause::Cleaned, 1), Verdict::AdmitFree);
    // Slots are taken over in turn; a read changes nothing.
    read(&mut fifo, 8, Home::Ssd);
    fifo.inserted(p(5), SlotId(0), NOW);
    fifo.inserted(p(6), SlotId(1), NOW);
    assert_eq!(zone(&mut fifo, 9), [2, 3, 0, 1]);
    assert!((0..4).all(|slot| !fifo.second_chance(SlotId(slot))));
    fifo.validate().unwrap();
}

#[test]
fn group_second_chance_is_for_pages_read_since_they_were_written() {
    let mut fifo = MvFifo::new(&params(3), true);
    assert_eq!((fifo.name(), fifo.append_group()), ("mv-fifo-gsc", Some(64)));
    for slot in 0..3 {
        fifo.inserted(p(slot), SlotId(slot), NOW);
    }
    read(&mut fifo, 0, Home::Ssd);
    read(&mut fifo, 1, Home::Ssd);
    // A new version of 1 has not been read; a read that came from the HDD is none of the SSD's.
    fifo.inserted(p(1), SlotId(2), NOW);
    read(&mut fifo, 1, Home::Hdd);
    assert_eq!([0, 1, 2].map(|slot| fifo.second_chance(SlotId(slot))), [true, false, false]);
    // It is one chance: appended again, it has to be read again.
    fifo.inserted(p(0), SlotId(1), NOW);
    assert!(!fifo.second_chance(SlotId(1)));
}

#[test]
fn the_doublewrite_buffer_takes_what_is_cleaned_and_nothing_else() {
    let mut buffer = Doublewrite::new(&params(3));
    assert!(buffer.write_through() && !buffer.admits_on_read());
    assert_eq!((buffer.name(), buffer.append_group()), ("doublewrite", Some(1)));
    for cause in [Cause::Evicted, Cause::Read] {
        assert_eq!(consider(&mut buffer, 7, cause, 1), Verdict::Reject, "{cause:?}");
    }
    assert_eq!(consider(&mut buffer, 7, Cause::Cleaned, 1), Verdict::AdmitFree);
    for (slot, no) in [(0, 7), (1, 8), (2, 7)] {
        buffer.inserted(p(no), SlotId(slot), NOW);
    }
    // The older version of 7 is void; being read moves nothing and earns nothing.
    read(&mut buffer, 8, Home::Ssd);
    assert_eq!(zone(&mut buffer, 3), [1, 2]);
    assert!((0..3).all(|slot| !buffer.second_chance(SlotId(slot))));
    buffer.inserted(p(9), SlotId(0), NOW);
    assert_eq!(zone(&mut buffer, 3), [1, 2, 0]);
    buffer.removed(p(8), true, NOW);
    assert_eq!(zone(&mut buffer, 3), [2, 0]);
    buffer.validate().unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Read from the SSD if the page is there; admitted otherwise.
    Use(u32),
    Rewrite(u32),
    Invalidate(u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let no = || prop_oneof![0..12u32, 0..30u32];
    let event = prop_oneof![
        6 => no().prop_map(Event::Use),
        2 => no().prop_map(Event::Rewrite),
        1 => no().prop_map(Event::Invalidate),
    ];
    prop::collection::vec(event, 1..300)
}

const SLOTS: usize = 8;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lru2_agrees_with_histories(events in events()) {
        let mut lru2 = Lru2::new(&params(SLOTS));
        // Page, slot, times of its references.
        let mut pages: Vec<(u32, u32, Vec<usize>)> = Vec::new();
        for (time, event) in events.into_iter().enumerate() {
            let at = |no: u32, pages: &[(u32, u32, Vec<usize>)]| pages.iter().position(|page| page.0 == no);
            match event {
                Event::Use(no) => if let Some(at) = at(no, &pages) {
                    read(&mut lru2, no, Home::Ssd);
                    pages[at].2.push(time);
                } else {
                    let free = (0..SLOTS as u32).find(|slot| pages.iter().all(|page| page.1 != *slot));
                    zone(&mut lru2, SLOTS);
                    let verdict = consider(&mut lru2, no, Cause::Evicted, usize::from(free.is_some()));
                    let slot = match free {
                        Some(free) => {
                            prop_assert_eq!(verdict, Verdict::AdmitFree);
                            free
                        }
                        None => {
                            // The last but one reference, before the last one.
                            let times = |page: &(u32, u32, Vec<usize>)| {
                                let mut times = page.2.iter().rev().copied();
                                let last = times.next();
                                (times.next().map_or(-1, |time| time as i64), last)
                            };
                            let oldest = (0..pages.len()).min_by_key(|&at| times(&pages[at])).unwrap();
                            let (gone, slot, _) = pages.swap_remove(oldest);
                            prop_assert_eq!(verdict, Verdict::AdmitOver(SlotId(slot)));
                            lru2.removed(p(gone), true, NOW);
                            slot
                        }
                    };
                    lru2.inserted(p(no), SlotId(slot), NOW);
                    pages.push((no, slot, vec![time]));
                    lru2.left_pool(p(no), NOW);
                },
                Event::Rewrite(no) => if let Some(at) = at(no, &pages) {
                    lru2.wrote(p(no), Home::Ssd, NOW);
                    pages[at].2.push(time);
                },
                Event::Invalidate(no) => if let Some(at) = at(no, &pages) {
                    lru2.removed(p(no), false, NOW);
                    pages.swap_remove(at);
                },
            }
            lru2.validate().map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn tac_agrees_with_counting(events in events()) {
        let mut tac = Tac::new(&params(SLOTS));
        let mut reads: Vec<u32> = Vec::new();
        let mut slots: Vec<Option<u32>> = vec![None; SLOTS];
        for event in events {
            // Eight regions.
            let (Event::Use(no) | Event::Rewrite(no) | Event::Invalidate(no)) = event;
            let page = no * 9;
            let heat = |reads: &[u32], page: u32| reads.iter().filter(|&&read| read / 32 == page / 32).count();
            let home = if slots.contains(&Some(page)) { Home::Ssd } else { Home::Hdd };
            read(&mut tac, page, home);
            reads.push(page);
            if home == Home::Ssd {
                continue;
            }
            let free = slots.iter().position(Option::is_none);
            zone(&mut tac, SLOTS);
            let verdict = consider(&mut tac, page, Cause::Read, usize::from(free.is_some()));
            // Of the coldest, the first slot.
            let coldest = (0..SLOTS).min_by_key(|&slot| slots[slot].map_or(0, |page| heat(&reads, page))).unwrap();
            let slot = match free {
                Some(free) => {
                    prop_assert_eq!(verdict, Verdict::AdmitFree);
                    free
                }
                None if heat(&reads, slots[coldest].unwrap()) < heat(&reads, page) => {
                    prop_assert_eq!(verdict, Verdict::AdmitOver(SlotId(coldest as u32)));
                    tac.removed(p(slots[coldest].unwrap()), true, NOW);
                    coldest
                }
                None => {
                    prop_assert_eq!(verdict, Verdict::Reject);
                    continue;
                }
            };
            slots[slot] = Some(page);
            tac.inserted(p(page), SlotId(slot as u32), NOW);
            tac.validate().map_err(TestCaseError::fail)?;
        }
    }
}
