//! Spaces and pages that records remove, and what is committed or synced after that: redo must not take it.

use super::SMALL;
use super::engine::{Engine, SPACE};
use crate::{CheckpointError, Keep, LoggedStore, MiniTx, Wal};
use pagetier::{Error, PageId, PageMut, SpaceId};
use std::future::Future;
use std::task::Poll;
use std::time::Duration;

/// A call, polled so many times and dropped unless it completes first.
async fn dropped_after(mut polls: u32, call: impl Future) {
    let mut call = Box::pin(call);
    std::future::poll_fn(|cx| {
        if polls == 0 || call.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        polls -= 1;
        Poll::Pending
    })
    .await;
}

async fn put(db: &LoggedStore, page: PageId, value: u8) -> Result<(), Error> {
    let mut change = MiniTx::on(Some(db.wal()), db.get_or_create(page).await?);
    change.write(0, 0, &[value; 8]);
    db.commit(change).await.expect("the log works");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_removal_whose_caller_gives_up_goes_on_to_its_end() {
    for polls in 1..6 {
        let (mut engine, log) = (Engine::new(Keep::ForCrash), pagetier_testing::scratch());
        let open = async |engine: &Engine| {
            LoggedStore::on(engine.builder(), Wal::open(log.path(), SMALL).unwrap()).await.unwrap()
        };
        let db = open(&engine).await;
        let space = db.spaces().create(SPACE).await.unwrap();
        let page = PageId::new(space, 0);
        put(&db, page, 1).await.unwrap();
        dropped_after(polls, db.drop_space(space)).await;
        // Everything else does what it can.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(db.spaces().find(SPACE), None, "after {polls} polls its caller finds the space");
        assert!(matches!(put(&db, page, 2).await, Err(Error::NoSuchSpace { .. } | Error::NoSuchPage { .. })));
        let closed = db.wait_closed();
        drop(db);
        closed.await;
        engine.restart(true);
        assert_eq!(open(&engine).await.spaces().find(SPACE), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_failed_takes_no_later_commit() {
    let mut engine = Engine::new(Keep::ForCrash);
    let db = engine.open_alone().await;
    let spaces: Vec<SpaceId> = vec![db.spaces().find(SPACE).unwrap(), db.spaces().create("u").await.unwrap()];
    for space in &spaces {
        put(&db, PageId::new(*space, 0), 1).await.unwrap();
    }
    engine.log.set_full(true);
    engine.log.take_reserve();
    for space in &spaces {
        assert!(matches!(db.drop_space(*space).await, Err(CheckpointError::Log(_))));
        assert!(db.spaces().pages(*space).is_ok());
    }
    engine.log.set_full(false);
    // Its record becomes durable with that of this change, which is acknowledged.
    put(&db, PageId::new(spaces[0], 0), 2).await.unwrap();
    engine.crash(db, false).await;
    let db = engine.open(engine.builder()).await.unwrap();
    assert_eq!(db.get(PageId::new(spaces[0], 0)).await.unwrap()[0], 2);
    assert_eq!(db.spaces().find("u"), None, "its record is the last that concerns it");
}

/// A record frees a page, the store makes the free, and a change that no record describes uses the number.
#[tokio::test(start_paused = true)]
async fn redo_leaves_the_next_life_of_a_number_alone_though_no_record_describes_it() {
    for (freed_by_itself, in_a_mini_transaction) in [(false, true), (false, false), (true, true)] {
        let mut engine = Engine::new(Keep::ForCrash);
        let db = engine.open_alone().await;
        let space = db.spaces().find(SPACE).unwrap();
        for _ in 0..3 {
            engine.allocate(&db, space, true).await.unwrap();
        }
        // The record that frees page 1 is the log's last.
        engine.free(&db, 2, true).await.unwrap();
        engine.free(&db, 1, freed_by_itself).await.unwrap();
        db.wal().free_pending(db.store()).await.unwrap();
        let mut page = db.allocate(space).await.unwrap();
        let again = page.id();
        assert_eq!(again, PageId::new(space, 1));
        if in_a_mini_transaction {
            let mut change: MiniTx<'_, PageMut<'_>> = MiniTx::new(None);
            change.add(page);
            change.write(0, 0, b"bulk");
            assert_eq!(change.commit().unwrap().0, 0);
        } else {
            page[..4].copy_from_slice(b"bulk");
            drop(page);
        }
        db.sync().await.unwrap();
        engine.crash(db, false).await;
        for _ in 0..2 {
            let db = engine.open(engine.builder()).await.unwrap();
            assert_eq!(&db.get(again).await.expect("it was synced")[..4], b"bulk");
            assert_eq!(db.recovered().freed, 0, "the store has made both frees");
            db.checkpoint().await.unwrap();
            assert_eq!(&db.get(again).await.unwrap()[..4], b"bulk");
            engine.crash(db, true).await;
        }
    }
}

/// A free that the store has not made is made by redo, also of a page that no record ever described.
#[tokio::test(start_paused = true)]
async fn redo_frees_a_page_that_was_never_logged() {
    let mut engine = Engine::new(Keep::ForCrash);
    let db = engine.open_alone().await;
    let space = db.spaces().find(SPACE).unwrap();
    for no in 0..2 {
        db.allocate(space).await.unwrap()[0] = no;
    }
    db.sync().await.unwrap();
    let [root, freed] = [0, 1].map(|no| PageId::new(space, no));
    let mut change = MiniTx::on(Some(db.wal()), db.get_mut(root).await.unwrap());
    change.write(0, 0, b"without it");
    change.free(freed);
    db.commit(change).await.unwrap();
    engine.crash(db, false).await;
    let db = engine.open(engine.builder()).await.unwrap();
    assert!(matches!(db.get(freed).await, Err(Error::NoSuchPage { .. })));
    assert!(!db.store().exists(freed));
}
