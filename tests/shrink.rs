//! Spaces that shrink: they give their disk space to others and to the file system, and end with their last
//! page. No crash, and no save that fails, brings back what was freed, or loses what was synced.

use crate::fixture::{self, Fixture, PAGES, fill, read};
use crate::free::{SPACE, at, is_absent, written};
use pagetier::{PageId, PageStore};
use pagetier_devio::{Device, IoOp};
use pagetier_testing::{Fault, FaultEffect};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Extents whose pages are all free go to other spaces. The pages stay free; reusing them gets new extents.
#[tokio::test(start_paused = true)]
async fn a_space_that_shrinks_gives_its_room_to_others() {
    for crash in [None, Some(1), Some(2)] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        assert_eq!(store.spaces().shrink(SPACE).await.unwrap(), 0);
        store.free((SPACE, 30..256)).await.unwrap();
        let room = store.stats().room.unallocated_bytes;
        assert_eq!(store.spaces().shrink(SPACE).await.unwrap(), 3 * 64 * fixture::PAGE);
        assert_eq!(store.stats().room.unallocated_bytes, room + 3 * 64 * fixture::PAGE);
        assert_eq!(store.spaces().shrink(SPACE).await.unwrap(), 0);
        let size = fixture.hdd.size();
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..3 * 64 {
            fill(&mut store.allocate(other).await.unwrap(), no, 4);
        }
        assert_eq!(fixture.hdd.size(), size, "the other space has the room of the first");
        // Numbers with room are reused first, then those without.
        for no in 30..100 {
            assert_eq!(store.allocate(SPACE).await.unwrap().id().no, no);
        }
        fill(&mut store.overwrite(at(200)).await.unwrap(), 200, 5);
        store.sync().await.unwrap();
        let (fixture, store) = match crash {
            None => {
                store.close().await.unwrap();
                let store = fixture.open().await;
                (fixture, store)
            }
            Some(seed) => {
                let crashed = fixture.after_power_cut(seed);
                let store = crashed.open().await;
                (crashed, store)
            }
        };
        for no in 0..PAGES {
            match no {
                30..100 => assert!(store.get(at(no)).await.unwrap().iter().all(|byte| *byte == 0)),
                200 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 5),
                100..256 => assert!(is_absent(&store, no).await, "page {no}"),
                _ => assert_eq!(read(&store, SPACE, no).await.unwrap(), 1),
            }
        }
        for no in 0..3 * 64 {
            assert_eq!(read(&store, other, no).await.unwrap(), 4);
        }
        store.free((SPACE, 0..PAGES)).await.unwrap();
        assert!(store.spaces().shrink(SPACE).await.unwrap() > 0);
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 0);
        store.close().await.unwrap();
        let store = fixture.open().await;
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 0);
        for no in 0..2 {
            assert_eq!(store.allocate(SPACE).await.unwrap().id().no, no);
        }
        assert_eq!(store.validate(), Ok(()));
    }
}

/// The end of a space falls to its last page; a page that the next `sync` is to free still is one. What is
/// created beyond the end again is blank, and the numbers before it are free.
#[tokio::test(start_paused = true)]
async fn a_space_that_shrinks_ends_with_its_last_page() {
    for crash in [None, Some(1), Some(2)] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        store.free((SPACE, 100..290)).await.unwrap();
        store.free((SPACE, 291..PAGES)).await.unwrap();
        assert_eq!(store.free_on_sync(&[at(290)]).unwrap(), 1);
        let _ = store.spaces().shrink(SPACE).await.unwrap();
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 291);
        store.sync().await.unwrap();
        let _ = store.spaces().shrink(SPACE).await.unwrap();
        let info = store.spaces().list().remove(0);
        assert_eq!((info.pages, info.free), (100, 0));
        let reopened = async |fixture: Fixture, store: PageStore| match crash {
            None => {
                store.close().await.unwrap();
                let store = fixture.open().await;
                (fixture, store)
            }
            Some(seed) => {
                let crashed = fixture.after_power_cut(seed);
                let store = crashed.open().await;
                (crashed, store)
            }
        };
        let (fixture, store) = reopened(fixture, store).await;
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 100);
        assert!(store.overwrite(at(200)).await.unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(store.allocate(SPACE).await.unwrap().id().no, 100);
        let info = store.spaces().list().remove(0);
        assert_eq!((info.pages, info.free), (201, 99));
        fill(&mut store.overwrite(at(200)).await.unwrap(), 200, 3);
        store.sync().await.unwrap();
        let (_fixture, store) = reopened(fixture, store).await;
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 201);
        for no in 0..PAGES {
            match no {
                0..100 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 1),
                100 => assert!(store.get(at(no)).await.unwrap().iter().all(|byte| *byte == 0)),
                200 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 3),
                _ => assert!(is_absent(&store, no).await, "page {no}"),
            }
        }
        assert_eq!(store.validate(), Ok(()));
    }
}

/// Schedules: the power is cut at any moment of a shrink, so between the records of what is given back and
/// the save of the lower end, and while numbers beyond the end are used again.
#[tokio::test(start_paused = true)]
async fn a_power_cut_while_a_space_shrinks_brings_no_freed_page_back() {
    let mut shrunk = 0;
    for step in 0.. {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        let stage = std::cell::Cell::new(0);
        let life = tokio::time::timeout(step * Duration::from_micros(300), async {
            store.free((SPACE, 100..PAGES)).await.unwrap();
            stage.set(1);
            store.spaces().shrink(SPACE).await.unwrap();
            stage.set(2);
            for (done, no) in [(3, 110), (4, 280)] {
                fill(&mut store.overwrite(at(no)).await.unwrap(), no, 2);
                store.sync().await.unwrap();
                stage.set(done);
            }
        });
        let ended = life.await.is_ok();
        let stage = stage.get();
        shrunk += u32::from(stage == 1);
        let after = fixture.after_power_cut(step.into()).open().await;
        for no in 0..PAGES {
            let found = read(&after, SPACE, no).await.ok();
            let is_sound = match no {
                0..100 => found == Some(1),
                110 if stage >= 3 => found == Some(2),
                280 if stage >= 4 => found == Some(2),
                110 | 280 if stage >= 2 => found.is_none_or(|version| version == 2),
                _ if stage == 0 => found.is_none_or(|version| version == 1),
                _ => found.is_none(),
            };
            assert!(is_sound, "step {step}, stage {stage}: page {no} has {found:?}");
        }
        assert!(stage != 2 || after.spaces().pages(SPACE).unwrap() < 300, "step {step}");
        assert_eq!(after.validate(), Ok(()));
        if ended {
            break;
        }
    }
    assert!(shrunk >= 3, "only {shrunk} cuts of a shrink");
}

/// A page that a guard keeps in memory after it was freed may still be written: its extent stays its space's,
/// even if the space ends before it.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_leaving_memory_beyond_the_end_keeps_its_extent() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    store.free((SPACE, 100..290)).await.unwrap();
    store.free((SPACE, 291..PAGES)).await.unwrap();
    let mut guard = store.get_mut(at(290)).await.unwrap();
    fill(&mut guard, 290, 2);
    let freeing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.free(at(290)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!store.exists(at(290)) && !freeing.is_finished());
    let given = store.spaces().shrink(SPACE).await.unwrap();
    assert_eq!((given, store.spaces().pages(SPACE).unwrap()), (2 * 64 * fixture::PAGE, 100));
    // The number is not given out before the page has left, and those after it are, once each.
    let mut numbers = BTreeSet::new();
    for _ in (100..322).filter(|no| *no != 290) {
        let mut page = store.allocate(SPACE).await.unwrap();
        let no = page.id().no;
        assert!(no >= 100 && no != 290 && numbers.insert(no));
        fill(&mut page, no, 4);
    }
    assert_eq!(numbers.last(), Some(&321));
    drop(guard);
    assert_eq!(freeing.await.unwrap().unwrap(), 1);
    assert_eq!(store.allocate(SPACE).await.unwrap().id(), at(290));
    for no in 0..322 {
        let expected = if no < 100 { 1 } else { 4 };
        assert!(no == 290 || read(&store, SPACE, no).await.unwrap() == expected, "page {no}");
    }
    assert_eq!(store.validate(), Ok(()));
}

/// Each save of a shrink fails, with effect or without. A crash then finds a store that opens, with no freed
/// page; and what the store does without one is not lost by a later crash.
#[tokio::test(start_paused = true)]
async fn a_shrink_whose_saves_fail_loses_nothing_and_brings_nothing_back() {
    let mut failures = 0;
    for (step, replaced) in (0..20).flat_map(|step| [(step, false), (step, true)]) {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        // An extent in the middle, too.
        store.free((SPACE, 64..128)).await.unwrap();
        store.free((SPACE, 150..PAGES)).await.unwrap();
        fixture.manifest.fail_saves(step, 1, replaced);
        let shrunk = store.spaces().shrink(SPACE).await;
        fixture.manifest.fail_saves(0, 0, false);
        failures += u32::from(shrunk.is_err());
        let crashed = fixture.after_power_cut(step).open().await;
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..PAGES {
            fill(&mut store.allocate(other).await.unwrap(), no, 4);
        }
        for no in [70, 151, 280] {
            fill(&mut store.overwrite(at(no)).await.unwrap(), no, 2);
        }
        store.sync().await.unwrap();
        let later = fixture.after_power_cut(step).open().await;
        for (store, again, what) in
            [(crashed, false, "crashed"), (store, true, "running"), (later, true, "later")]
        {
            for no in 0..PAGES {
                let expected = match no {
                    70 | 151 | 280 if again => Some(2),
                    64..128 | 150.. => None,
                    _ => Some(1),
                };
                let found = read(&store, SPACE, no).await.ok();
                assert_eq!(found, expected, "step {step}, {replaced}, {what}: page {no}");
            }
            for no in (0..PAGES).filter(|_| again) {
                assert_eq!(read(&store, other, no).await.unwrap(), 4, "step {step}, {replaced}, {what}");
            }
            assert_eq!(store.validate(), Ok(()));
        }
        if shrunk.is_ok() && step > 0 {
            break;
        }
    }
    assert!(failures >= 6, "only {failures}");
}

/// A tool that inspects the store sees the disk space that a space has, not what it gave back.
#[tokio::test(start_paused = true)]
async fn extents_that_were_given_back_are_no_room_of_their_space() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    let room = async || {
        let inspection = fixture.builder().inspect().await.unwrap().manifest;
        (inspection.spaces[0].pages, inspection.spaces[0].room, (inspection.extents, inspection.extents_free))
    };
    assert_eq!(room().await, (0, 320, (5, 0)));
    store.free((SPACE, 64..256)).await.unwrap();
    store.spaces().shrink(SPACE).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(room().await, (PAGES, 320 - 192, (5, 3)));
}

/// While a space shrinks, no number of the extents that it gives back is used again.
#[tokio::test(start_paused = true)]
async fn numbers_of_extents_that_are_given_back_are_withheld_meanwhile() {
    for (seed, cut) in [(0, false), (1, true), (2, false), (3, true)] {
        let fixture = Fixture::new();
        let store = Arc::new(written(&fixture).await);
        // All of the second and third extent, and some pages of the first.
        store.free((SPACE, 60..192)).await.unwrap();
        if cut {
            // The end, too: all of the last extent, and some pages of the one before.
            store.free((SPACE, 250..PAGES)).await.unwrap();
        }
        store.sync().await.unwrap();
        // The shrinking waits for a flush of the HDD.
        let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Flush).times(1);
        fixture.hdd.inject(slow);
        let shrinking = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.spaces().shrink(SPACE).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!shrinking.is_finished());
        let mut numbers = Vec::new();
        for _ in 0..6 {
            let mut page = store.allocate(SPACE).await.unwrap();
            let no = page.id().no;
            fill(&mut page, no, 2);
            numbers.push(no);
        }
        let next = if cut { [250, 251] } else { [300, 301] };
        assert_eq!(numbers[..4], [60, 61, 62, 63]);
        assert_eq!(numbers[4..], next, "not those that are being given back");
        // A call for such a number waits until the space grows for it again.
        fill(&mut store.overwrite(at(100)).await.unwrap(), 100, 2);
        assert_eq!(shrinking.await.unwrap().unwrap(), (2 + u64::from(cut)) * 64 * fixture::PAGE);
        numbers.push(100);
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..200 {
            fill(&mut store.allocate(other).await.unwrap(), no, 4);
        }
        store.sync().await.unwrap();
        let crashed = fixture.after_power_cut(seed).open().await;
        for store in [&*store, &crashed] {
            for no in &numbers {
                assert_eq!(read(store, SPACE, *no).await.unwrap(), 2);
            }
            for no in 0..200 {
                assert_eq!(read(store, other, no).await.unwrap(), 4);
            }
            assert!(is_absent(store, 150).await);
        }
    }
}

/// A shrink frees numbers that were never used, since the rest of their extent is free. One that is created
/// meanwhile is not among them.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_created_while_a_space_shrinks_is_not_freed() {
    for step in 0..20 {
        let fixture = Fixture { on_hdd: true, ..Fixture::new() };
        let store = Arc::new(written(&fixture).await);
        store.free((SPACE, 200..PAGES)).await.unwrap();
        let shrinking = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.spaces().shrink(SPACE).await }
        });
        tokio::time::sleep(step * Duration::from_millis(1)).await;
        // Of the numbers that the last extent has left, and beyond it.
        for no in [PAGES, PAGES + 10, PAGES + 30] {
            fill(&mut store.overwrite(at(no)).await.unwrap(), no, 2);
        }
        shrinking.await.unwrap().unwrap();
        store.sync().await.unwrap();
        let crashed = fixture.after_power_cut(step.into()).open().await;
        for (what, store) in [("running", &*store), ("crashed", &crashed)] {
            for no in [PAGES, PAGES + 10, PAGES + 30] {
                assert_eq!(read(store, SPACE, no).await.unwrap(), 2, "step {step}, {what}: page {no}");
            }
            assert_eq!(store.spaces().pages(SPACE).unwrap(), PAGES + 31, "step {step}, {what}");
            assert_eq!(store.validate(), Ok(()));
        }
    }
}

/// Extents of a space that was dropped, and those of a growth that failed, are holes of the HDD's file.
#[tokio::test(start_paused = true)]
async fn disk_space_that_no_space_has_returns_to_the_file_system() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    let other = store.spaces().create("u").await.unwrap();
    for no in 0..4 * 64 {
        fill(&mut store.allocate(other).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    let holes =
        || fixture.hdd.snapshot().chunks(fixture::PAGE as usize).filter(|page| is_blank(page)).count();
    let before = holes();
    store.spaces().drop(other).await.unwrap();
    store.spaces().shrink(SPACE).await.unwrap();
    assert!(holes() >= before + 4 * 64, "{} holes, {before} before", holes());
    // Two runs of free extents with another space's between them.
    store.free((SPACE, 0..64)).await.unwrap();
    store.free((SPACE, 128..192)).await.unwrap();
    store.spaces().shrink(SPACE).await.unwrap();
    let before = holes();
    let other = store.spaces().create("v").await.unwrap();
    for nth in 1..9 {
        let full = Fault::new(FaultEffect::NoSpace).on(IoOp::Write).from_op(fixture.hdd.ops() + nth);
        fixture.hdd.inject(full.times(u64::MAX));
        let grown = store.overwrite(PageId::new(other, 639)).await.map(drop);
        fixture.hdd.clear_faults();
        assert!(grown.is_err(), "{nth}");
        assert_eq!(holes(), before, "a growth whose write number {nth} failed keeps disk space");
    }
}

fn is_blank(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}
