//! A flipped bit in each block of the map areas, after a close and after a crash: the store opens with the
//! right contents, or the open fails and names the damage.

use crate::fixture::{Fixture, PAGES, expect_all, grown, read, write, write_all, zoned};
use pagetier::{OpenError, SpaceId};
use pagetier_ssdcache::{BLOCK_BYTES, OpenError as SsdError};
use std::time::Duration;

/// A store whose two maps describe different versions; cleanly closed if `close`, otherwise as a power cut
/// finds it after a `sync`.
async fn worked(close: bool, policy: &str) -> (Fixture, SpaceId) {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
    let space = grown(&store).await;
    for version in 2..5 {
        write_all(&store, space, version).await;
        store.sync().await.unwrap();
    }
    if close {
        store.close().await.unwrap();
        return (fixture, space);
    }
    // Right after a checkpoint, with only a few writes on top of it.
    let checkpoints = store.stats().ssd.counts.checkpoints;
    let mut no = 0;
    while store.stats().ssd.counts.checkpoints < checkpoints + 2 {
        write(&store, space, no % PAGES, 4).await.unwrap();
        store.sync().await.unwrap();
        no += 1;
    }
    write_all(&store, space, 5).await;
    store.sync().await.unwrap();
    // The mark of a checkpoint that these writes caused becomes durable with a later flush.
    tokio::time::sleep(Duration::from_secs(1)).await;
    write(&store, space, 0, 5).await.unwrap();
    store.sync().await.unwrap();
    let cut = fixture.after_power_cut(9);
    (cut, space)
}

/// The number of opens with the right contents, and of those refused for a damaged body or header.
#[derive(Debug, Default)]
struct Seen {
    right: u32,
    bodies: u32,
    headers: u32,
}

async fn flipped(fixture: &Fixture, space: SpaceId, version: u32, at: &[u64], seen: &mut Seen) {
    let rotten = fixture.after_power_cut(1);
    for at in at {
        rotten.ssd.flip_bit(*at, (*at % 8) as u8);
    }
    match rotten.try_open().await {
        Ok(store) => {
            expect_all(&store, space, version).await;
            seen.right += 1;
        }
        Err(OpenError::Ssd(SsdError::DamagedMap { part: "body", .. })) => seen.bodies += 1,
        Err(OpenError::Ssd(SsdError::DamagedMap { part: "header", .. })) => seen.headers += 1,
        Err(error) => panic!("{at:?}: {error}"),
    }
}

async fn every_block(close: bool, policy: &str) {
    let (fixture, space) = worked(close, policy).await;
    let version = if close { 4 } else { 5 };
    let layout = fixture.layout();
    let mut seen = Seen::default();
    let blocks = (layout.map_at(0)..layout.map_at(2)).step_by(BLOCK_BYTES as usize);
    for block in blocks.clone() {
        for within in [3, 17, 45, 300] {
            flipped(&fixture, space, version, &[block + within], &mut seen).await;
        }
    }
    // The header exists twice, the body once; behind the used part of its last block only some bits matter.
    assert!((1..=4).contains(&seen.bodies) && seen.headers == 0, "{seen:?}");
    // With both headers of a map damaged, the mark in the other area reveals it.
    for area in 0..2 {
        let both = [0, 1].map(|copy| layout.map_header_at(area, copy) + 20);
        flipped(&fixture, space, version, &both, &mut seen).await;
    }
    assert_eq!(seen.headers, 1, "{seen:?}");
    // A mark matters only in that case.
    for area in 0..2 {
        let right = seen.right;
        flipped(&fixture, space, version, &[layout.map_mark_at(area) + 20], &mut seen).await;
        assert_eq!(seen.right, right + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_in_a_closed_stores_map_never_brings_older_pages_back() {
    every_block(true, "cac").await;
    every_block(true, "mv-fifo").await;
}

#[tokio::test(start_paused = true)]
async fn nor_does_one_after_a_crash() {
    every_block(false, "cac").await;
    every_block(false, "lru2").await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_opens_with_a_damaged_header_repairs_it() {
    let (fixture, space) = worked(true, "cac").await;
    let layout = fixture.layout();
    for copy in 0..2 {
        let rotten = fixture.after_power_cut(1);
        for area in 0..2 {
            rotten.ssd.flip_bit(layout.map_header_at(area, copy) + 20, 1);
        }
        let store = rotten.open().await;
        drop(store);
        let again = rotten.after_power_cut(2);
        for area in 0..2 {
            again.ssd.flip_bit(layout.map_header_at(area, 1 - copy) + 20, 1);
        }
        let store = again.open().await;
        assert_eq!(read(&store, space, 3).await.unwrap(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_interrupted_by_a_power_cut_is_not_damage() {
    use pagetier_devio::IoOp;
    use pagetier_testing::{Fault, FaultEffect};
    // Each write and flush of a checkpoint fails once; then the power is cut.
    for op in 0..12 {
        let (fixture, store, space) = Fixture::synced(2).await;
        let layout = fixture.layout();
        let maps = layout.map_at(0)..layout.map_at(2);
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(maps.clone());
        fixture.ssd.inject(fault.from_op(fixture.ssd.ops() + op * 3).times(1));
        for no in 0..PAGES {
            // Once the store refuses writes, the rest stays unchanged.
            if write(&store, space, no, 3).await.is_err() {
                break;
            }
        }
        let _ = store.sync().await;
        fixture.ssd.clear_faults();
        let _ = store.ssd().readmit().await;
        let _ = store.sync().await;
        for seed in 0..4 {
            let cut = fixture.after_power_cut(seed * 31 + op);
            let store = cut.open().await;
            for no in 0..PAGES {
                assert!((2..=3).contains(&read(&store, space, no).await.unwrap()), "page {no}");
            }
        }
    }
}
