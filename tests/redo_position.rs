//! The log positions that the store hands out for the loss of the SSD, and names after the loss.

use crate::fixture::{Fixture, PAGES, grown, read, write};
use pagetier::{DrainOptions, Loss, Lsn, PageId, PageStore, SpaceHints, SpaceId, SsdLoss};
use pagetier_devio::IoOp;
use pagetier_page::Header;
use pagetier_testing::{Fault, FaultEffect};

/// The number of checkpoints of a life.
const CHECKPOINTS: u32 = 4;

/// The end of the log of an engine whose next record is of `version`.
fn log_end(version: u32) -> Lsn {
    Lsn(u64::from(version) * 1000)
}

/// The oldest change that the HDD lacks, by its contents: each page's last version is `version`.
fn oldest_missing(fixture: &Fixture, space: SpaceId, version: u32) -> Option<u64> {
    let hdd = fixture.hdd.snapshot();
    let of = |no: u32| {
        let at = fixture.home_of(PageId::new(space, no))? as usize;
        let at_home = Header::peek(&hdd[at..at + 4096]).lsn.0 / 1000;
        let next = (at_home + 1).max(2) * 1000 + u64::from(no);
        (at_home < u64::from(version)).then_some(next)
    };
    (0..PAGES).filter_map(of).min()
}

/// An engine takes checkpoints and removes its log up to the positions handed out; then the power is cut, and
/// the SSD is gone. Returns the last position, the loss, and the oldest change that redo needs.
async fn life(seed: u64, recovers: bool) -> (Lsn, SsdLoss, Option<u64>) {
    let mut fixture = Fixture::new();
    let mut store = fixture.builder().open().await.unwrap();
    let space = grown(&store).await;
    let _ = store.ssd().drain(DrainOptions::new()).await;
    let mut handed = Lsn(0);
    for version in 2..2 + CHECKPOINTS {
        for no in 0..PAGES {
            write(&store, space, no, version).await.unwrap();
        }
        if u64::from(version) % 2 == seed % 2 {
            let _ = store.ssd().drain(DrainOptions::new()).await;
        }
        store.flush_to(log_end(version)).await.unwrap();
        handed = handed.max(store.redo_from(log_end(version + 1), Loss::Ssd).await.unwrap());
        if recovers && version == 3 {
            drop(store);
            fixture = fixture.after_power_cut(seed);
            store = fixture.builder().open().await.unwrap();
        }
    }
    // What follows needs records after the last position.
    let last = 2 + CHECKPOINTS;
    for no in 0..PAGES {
        write(&store, space, no, last).await.unwrap();
    }
    store.sync().await.unwrap();
    drop(store);
    let later = fixture.after_power_cut(seed).with_blank_ssd();
    let needed = oldest_missing(&later, space, last);
    let store = later.builder().accept_ssd_loss(true).open().await.unwrap();
    (handed, store.ssd().loss().expect("pages are lost"), needed)
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_loss_names_the_newest_position_that_was_handed_out() {
    for seed in 0..8 {
        let (handed, loss, needed) = life(seed, seed >= 4).await;
        assert!(handed > Lsn(0) && !loss.exact, "seed {seed}: {handed}");
        assert_eq!(loss.redo_from, Some(handed), "seed {seed}: a log shortened to it must suffice");
        assert!(
            needed.is_none_or(|needed| handed.0 <= needed),
            "seed {seed}: {handed}, {needed:?} is needed"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn only_an_engine_that_asks_pays_and_an_older_position_replaces_no_newer_one() {
    let (fixture, store, space) = Fixture::synced(1).await;
    let saves = fixture.manifest.saves();
    for version in 2..4 {
        for no in 0..PAGES {
            write(&store, space, no, version).await.unwrap();
        }
        store.sync().await.unwrap();
        store.flush_to(log_end(version)).await.unwrap();
        store.redo_from(log_end(version + 1), Loss::Crash).await.unwrap();
    }
    assert_eq!(fixture.manifest.saves(), saves, "a sync or a checkpoint wrote the manifest");
    let _ = store.ssd().drain(DrainOptions::new()).await;
    let newest = store.redo_from(log_end(4), Loss::Ssd).await.unwrap();
    assert_eq!((newest, fixture.manifest.saves()), (log_end(4), saves + 1));
    // An engine that asks again with the same log pays nothing.
    assert_eq!(store.redo_from(log_end(4), Loss::Ssd).await.unwrap(), newest);
    assert_eq!(store.redo_from(log_end(3), Loss::Ssd).await.unwrap(), log_end(3));
    assert_eq!(fixture.manifest.saves(), saves + 1);
    drop(store);
    let later = fixture.after_power_cut(1).with_blank_ssd();
    let store = later.builder().accept_ssd_loss(true).open().await.unwrap();
    assert_eq!(store.ssd().loss().unwrap().redo_from, Some(newest));
    assert_eq!(read(&store, space, 0).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_position_that_cannot_be_recorded_is_not_handed_out() {
    let (fixture, store, space) = Fixture::grown().await;
    write(&store, space, 0, 2).await.unwrap();
    store.sync().await.unwrap();
    fixture.manifest.fail_saves(0, 1, false);
    store.redo_from(log_end(9), Loss::Ssd).await.unwrap_err();
    store.redo_from(log_end(9), Loss::Ssd).await.unwrap();
}

/// A store one of whose pages went home last, with the change up to `log_end(2)`: the ring has its image, and
/// no slot a copy, until the HDD is flushed.
async fn ringed(fixture: &Fixture) -> PageStore {
    let store = fixture.open().await;
    let space = grown(&store).await;
    let _ = store.ssd().drain(DrainOptions::new()).await;
    store.spaces().set_hints(space, SpaceHints::new().never_to_ssd(true)).unwrap();
    while store.stats().ssd.leaving > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    write(&store, space, 0, 2).await.unwrap();
    store.flush_to(log_end(2)).await.unwrap();
    assert_eq!(store.redo_from(log_end(3), Loss::Ssd).await.unwrap(), log_end(2), "the ring has it alone");
    store
}

#[tokio::test(start_paused = true)]
async fn a_drain_leaves_nothing_to_the_ring_alone() {
    let fixture = Fixture::new();
    let store = ringed(&fixture).await;
    let drained = store.ssd().drain(DrainOptions::new().up_to(log_end(1))).await;
    assert_eq!((drained.written, drained.left), (0, 0));
    assert_eq!(store.redo_from(log_end(3), Loss::Ssd).await.unwrap(), log_end(2), "it is newer");
    let drained = store.ssd().drain(DrainOptions::new().up_to(log_end(2))).await;
    assert_eq!((drained.written, drained.left), (0, 0));
    assert_eq!(store.redo_from(log_end(3), Loss::Ssd).await.unwrap(), log_end(3));
}

#[tokio::test(start_paused = true)]
async fn a_drain_whose_last_flush_fails_names_the_disk_and_hands_out_no_later_position() {
    let fixture = Fixture::new();
    let store = ringed(&fixture).await;
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    let drained = store.ssd().drain(DrainOptions::new().up_to(log_end(2))).await;
    assert_eq!((drained.written, drained.left), (0, 0));
    assert!(drained.stopped_by.is_some_and(|error| error.to_string().contains("hdd")));
    if let Ok(position) = store.redo_from(log_end(3), Loss::Ssd).await {
        assert_eq!(position, log_end(2));
    }
    drop(store);
    // No later flush makes durable what the failed one covered, but the ring has it.
    let later = fixture.after_power_cut(1);
    let store = later.open().await;
    let space = store.spaces().list()[0].id;
    assert_eq!(read(&store, space, 0).await.unwrap(), 2);
}
