//! Single unreadable blocks (EIO) on the SSD when a store opens. The store opens if their contents are known;
//! otherwise the open fails and names the SSD. The loss of the SSD can then be accepted, and its report is
//! complete.

use crate::fixture::{self, Fixture, PAGE, PAGES, expect_all, grown, read, synced, write, write_all, zoned};
use pagetier::{
    Error, OpenError, PageId, PageSize, PageStore, SpaceId, SsdMode,
    errors::{PoolError, TierError},
};
use pagetier_devio::IoOp;
use pagetier_ssdcache::{BLOCK_BYTES, JournalSeq, Layout, OpenError as SsdError};
use pagetier_testing::{Fault, FaultEffect};
use std::ops::Range;

/// A store with every page at version 2, then half of them at version 3, and at version 4; everything synced,
/// some of it after the newest checkpoint.
async fn worked(close: bool) -> (Fixture, SpaceId) {
    let fixture = Fixture::new();
    // The default's choice of a setting decides which copies the SSD holds.
    let store = fixture.builder().ssd_policy(zoned("auto:pin=plain")).open().await.unwrap();
    let space = synced(&store, 2).await;
    let checkpoints = store.stats().ssd.counts.checkpoints;
    let mut no = 0;
    while no < PAGES || store.stats().ssd.counts.checkpoints < checkpoints + 2 {
        write(&store, space, no % PAGES, 3).await.unwrap();
        no += 2;
        if no % 20 == 0 {
            store.sync().await.unwrap();
        }
    }
    for no in (20..PAGES).step_by(2) {
        write(&store, space, no, 4).await.unwrap();
    }
    store.sync().await.unwrap();
    // A checkpoint that these have asked for is over by then, and the rest is too little for another.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    for no in (0..20).step_by(2) {
        write(&store, space, no, 4).await.unwrap();
    }
    store.sync().await.unwrap();
    if close {
        store.close().await.unwrap();
        return (fixture, space);
    }
    (fixture.after_power_cut(9), space)
}

const fn version(no: u32) -> u32 {
    if no.is_multiple_of(2) { 4 } else { 2 }
}

fn unreadable(fixture: &Fixture, range: Range<u64>) {
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(range));
}

/// The unreadable pages; all others must read correctly.
async fn unreadable_pages(store: &PageStore, space: SpaceId) -> Vec<u32> {
    let mut failed = Vec::new();
    for no in 0..PAGES {
        match read(store, space, no).await {
            Ok(found) => assert_eq!(found, version(no), "page {no}"),
            Err(Error::Pool(PoolError::Tier(TierError::Device { page, source }))) => {
                assert_eq!((page.no, source.op, &*source.device), (no, IoOp::Read, "ssd"));
                failed.push(no);
            }
            Err(other) => panic!("page {no}: {other}"),
        }
    }
    failed
}

#[tokio::test(start_paused = true)]
async fn after_a_close_any_block_of_slots_ring_and_journal_may_be_unreadable() {
    let (closed, space) = worked(true).await;
    let layout = closed.layout();
    let slots = closed.slots().step_by(PAGE as usize);
    let ring = (0..layout.ring_pages).map(|place| layout.ring_at(place));
    let journal = (0..u64::from(layout.journal_blocks)).map(|seq| layout.journal_at(JournalSeq(seq)));
    let mut failed = 0;
    for (nth, at) in (0..).zip(slots.chain(ring).chain(journal)) {
        let fixture = closed.after_power_cut(1);
        unreadable(&fixture, at..at + BLOCK_BYTES);
        let store = fixture.open().await;
        let pages = unreadable_pages(&store, space).await;
        assert!(pages.len() <= 1, "{at}: {pages:?}");
        failed += pages.len();
        if nth % 8 > 0 {
            continue;
        }
        // It can be written, and the store continues.
        fixture.ssd.clear_faults();
        write_all(&store, space, 5).await;
        store.sync().await.unwrap();
        expect_all(&fixture.after_power_cut(3).open().await, space, 5).await;
    }
    assert!(failed > 20, "only copies: {failed}");
}

#[tokio::test(start_paused = true)]
async fn the_rings_older_images_mend_nothing_when_the_newest_cannot_be_read() {
    let fixture = Fixture::new();
    let builder = || fixture.builder().ssd_mode(SsdMode::ReadOnly);
    let store = builder().open().await.unwrap();
    let space = grown(&store).await;
    for version in 2..4 {
        write(&store, space, 5, version).await.unwrap();
        store.sync().await.unwrap();
    }
    store.close().await.unwrap();
    // The ring has one image of each version. The newest is unreadable, and the home is corrupt.
    let page = PageId::new(space, 5);
    let images = fixture.images_of(page);
    assert!(images.len() > 1, "{images:?}");
    let home = fixture.home_of(page).unwrap();
    for newest in images {
        let fixture = fixture.after_power_cut(1);
        unreadable(&fixture, newest..newest + PAGE);
        fixture.hdd.rot(home..home + 512, 3);
        let store = fixture.builder().ssd_mode(SsdMode::ReadOnly).open().await.unwrap();
        let found = read(&store, space, 5).await;
        assert!(matches!(found, Ok(3) | Err(_)), "{found:?}");
        drop(store);
        fixture.ssd.clear_faults();
        let store = fixture.after_power_cut(2).builder().open().await.unwrap();
        let found = read(&store, space, 5).await;
        assert!(matches!(found, Ok(3) | Err(_)), "{found:?}");
    }
}

/// Checks that each page reads as it should or is listed.
async fn expect_listed(store: &PageStore, space: SpaceId) {
    let loss = store.ssd().loss().expect("a report");
    let mut lost = 0;
    for no in 0..PAGES {
        let found = read(store, space, no).await;
        if !matches!(found, Ok(found) if found == version(no)) {
            assert!(loss.contains(PageId::new(space, no)), "page {no} is not listed: {found:?}");
            lost += 1;
        }
    }
    assert!(lost > 0, "nothing was lost");
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_what_is_not_known_is_refused_by_name_and_can_be_given_up() {
    let (crashed, space) = worked(false).await;
    let layout = crashed.layout();
    let (mut opened, mut refused) = (0, 0);
    let mut parts = std::collections::BTreeSet::new();
    for at in (layout.map_at(0)..layout.end()).step_by(BLOCK_BYTES as usize) {
        let fixture = crashed.after_power_cut(1);
        unreadable(&fixture, at..at + BLOCK_BYTES);
        match fixture.try_open().await {
            Ok(store) => {
                opened += 1;
                assert!(unreadable_pages(&store, space).await.len() <= 1, "at {at}");
                continue;
            }
            Err(OpenError::Ssd(error @ SsdError::Unreadable { .. })) => {
                let text = pagetier::errors::Causes(&error).to_string();
                assert!(text.contains("accept the loss: ssd: "), "{text}");
                let SsdError::Unreadable { part, source } = error else { unreachable!() };
                assert!(source.offset <= at && at < source.offset + source.len, "{at}: {source}");
                parts.insert(part);
            }
            Err(other) => panic!("at {at}: {other}"),
        }
        refused += 1;
        // Once the block is readable, nothing is lost.
        if refused % 4 == 0 {
            fixture.ssd.clear_faults();
            assert!(unreadable_pages(&fixture.open().await, space).await.is_empty());
        }
        if refused % 4 == 1 {
            let without = crashed.after_power_cut(1);
            unreadable(&without, at..at + BLOCK_BYTES);
            assert!(without.builder().ssd_bytes(0).open().await.is_err());
            let store = without.builder().ssd_bytes(0).accept_ssd_loss(true).open().await.unwrap();
            expect_listed(&store, space).await;
            drop(store);
            // The next open reports the same.
            let store = without.after_power_cut(4).builder().ssd_bytes(0).open().await.unwrap();
            expect_listed(&store, space).await;
        }
        if refused % 4 == 2 {
            let blank = crashed.after_power_cut(1).with_blank_ssd();
            assert!(blank.try_open().await.is_err());
            let store = blank.builder().accept_ssd_loss(true).open().await.unwrap();
            expect_listed(&store, space).await;
        }
    }
    assert!(opened > 20 && refused > 20, "{opened} opened, {refused} refused");
    assert_eq!(Vec::from_iter(parts), ["journal", "map", "ring", "zone"]);
}

/// A store without an SSD whose ring's file is damaged.
#[tokio::test(start_paused = true)]
async fn a_ring_without_an_ssd_is_needed_after_a_crash_only() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let space = synced(&store, 2).await;
    let crashed = fixture.after_power_cut(2);
    store.close().await.unwrap();
    let at = Layout::ring_only(PageSize::MIN, fixture::RING_PAGES).ring_at(3);
    let eio = || Fault::new(FaultEffect::Eio).on(IoOp::Read).within(at..at + PAGE);
    fixture.ring.inject(eio());
    expect_all(&fixture.builder().ssd_bytes(0).open().await.unwrap(), space, 2).await;
    crashed.ring.inject(eio());
    let refused = crashed.builder().ssd_bytes(0).open().await.map(drop);
    assert!(
        matches!(&refused, Err(OpenError::Ssd(SsdError::Unreadable { part: "ring", .. }))),
        "{refused:?}"
    );
    crashed.ring.clear_faults();
    expect_all(&crashed.builder().ssd_bytes(0).open().await.unwrap(), space, 2).await;
}

/// Rewrites unreadable homes for which the ring has images.
#[tokio::test(start_paused = true)]
async fn a_home_that_cannot_be_read_is_rewritten_from_the_ring() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let space = synced(&store, 2).await;
    let crashed = fixture.after_power_cut(2);
    for no in PAGES - 4..PAGES {
        let home = crashed.home_of(PageId::new(space, no)).unwrap();
        crashed.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(home..home + PAGE).times(2));
    }
    expect_all(&crashed.builder().ssd_bytes(0).open().await.unwrap(), space, 2).await;
}
