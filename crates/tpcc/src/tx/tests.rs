//! Tests of the transactions on a small store: conditions 1 to 4, rollbacks, and crashes at any moment.

use super::{Kind, Outcome, Terminal};
use crate::database::catalog::{Catalog, Scale};
use crate::database::consistency;
use crate::database::engine::{Database, Recovered};
use crate::database::error::DbError;
use crate::database::load::load;
use crate::database::schema::{self, Table, district};
use pagetier::{Location, PageId, PageSize, PageStore, device::MemoryDevice};
use pagetier_wal::{Wal, WalOptions};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SCALE: Scale = Scale { warehouses: 2, items: 500, customers: 60, row_overhead: 8 };
const NOW_MS: i64 = 1_700_000_000_000;

/// Opens the database in `dir`, loading it the first time.
async fn open(dir: &Path, log_bytes: u64) -> (Arc<Database>, Recovered) {
    open_with(dir, log_bytes, 0).await
}

async fn open_with(dir: &Path, log_bytes: u64, ssd_bytes: u64) -> (Arc<Database>, Recovered) {
    let wal = Wal::open(&dir.join("wal"), WalOptions::new().capacity_bytes(log_bytes)).unwrap();
    let builder = PageStore::builder().directory(dir).ssd_bytes(ssd_bytes).pool_bytes(4 << 20);
    let size = PageSize::new(4096).unwrap();
    let store = Arc::new(builder.page_size(size).log_gate(wal.gate()).open().await.unwrap());
    let catalog = match Catalog::read(&store).await.unwrap() {
        Some(catalog) => catalog,
        None => load(&store, SCALE, 1, NOW_MS, || ()).await.unwrap(),
    };
    let (database, recovered) = Database::open(store, wal, catalog, NOW_MS).await.unwrap();
    (Arc::new(database), recovered)
}

/// The number of orders entered since the load, by the districts' next numbers.
async fn orders(database: &Database) -> u64 {
    let mut orders = 0;
    let see = |_: &[u8], row: &[u8]| {
        orders += district::NEXT_O_ID.int(row) as u64 - u64::from(SCALE.customers) - 1;
        ControlFlow::Continue(())
    };
    database.tree(Table::District).visit(&schema::district_key(1, 0), see).await.unwrap();
    orders
}

#[tokio::test]
async fn with_hints_the_history_leaves_the_ssd_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let (database, _) = open_with(dir.path(), 8 << 20, 16 << 20).await;
    let store = &database.store;
    let on_ssd = |table: Table| {
        let space = database.tree(table).space();
        let pages = (0..store.spaces().pages(space).unwrap()).map(|no| PageId::new(space, no));
        pages.filter(|page| store.location(*page) == Location::Ssd).count()
    };
    store.sync().await.unwrap();
    assert!(on_ssd(Table::History) > 0);
    let stock = on_ssd(Table::Stock);
    database.hint().unwrap();
    while store.stats().ssd.leaving > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((on_ssd(Table::History), on_ssd(Table::Stock)), (0, stock));
    assert_eq!(consistency::check(&database).await.unwrap(), Ok(()));
}

#[tokio::test]
async fn the_load_is_consistent_and_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (database, _) = open(dir.path(), 8 << 20).await;
    assert_eq!(consistency::check(&database).await.unwrap(), Ok(()));
    let districts = 10 * u64::from(SCALE.warehouses);
    let customers = districts * u64::from(SCALE.customers);
    let items = u64::from(SCALE.items);
    for (table, expected) in [
        (Table::Warehouse, 2),
        (Table::District, districts),
        (Table::Customer, customers),
        (Table::History, customers),
        (Table::NewOrder, customers * 3 / 10),
        (Table::Orders, customers),
        (Table::Item, items),
        (Table::Stock, items * 2),
        (Table::CustomerByName, customers),
        (Table::OrdersByCustomer, customers),
    ] {
        let mut rows = 0;
        let see = |_: &[u8], _: &[u8]| {
            rows += 1;
            ControlFlow::Continue(())
        };
        database.tree(table).visit(&[0; 39][..table.lens().0], see).await.unwrap();
        assert_eq!(rows, expected, "{}", table.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_at_once_keep_the_conditions_and_rollbacks_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (database, _) = open(dir.path(), 1 << 20).await;
    let checkpoints = tokio::spawn(Arc::clone(&database).keep_log_short());
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let mut terminal = Terminal::new(Arc::clone(&database), n, 7);
        tasks.spawn(async move {
            let mut ended = [0_u64; 2];
            for _ in 0..400 {
                let (kind, outcome) = terminal.next().await.unwrap();
                if kind == Kind::NewOrder {
                    ended[outcome as usize] += 1;
                } else {
                    assert_eq!(outcome, Outcome::Committed);
                }
            }
            ended
        });
    }
    let ended = tasks.join_all().await;
    database.end_checkpoints();
    checkpoints.await.unwrap().unwrap();
    let [committed, rolled_back] = [0, 1].map(|i| ended.iter().map(|n| n[i]).sum::<u64>());
    assert_eq!(committed + rolled_back, 8 * 400 * 45 / 100);
    assert!(rolled_back > 0);
    assert_eq!(orders(&database).await, committed);
    assert_eq!(consistency::check(&database).await.unwrap(), Ok(()));
    let bytes = database.wal.to_redo(pagetier::Loss::Crash).unwrap().bytes;
    assert!(bytes <= 2 << 20, "{bytes} bytes of log");
}

#[test]
fn a_commit_dropped_half_way_stops_the_database_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Each life has its own runtime: once it is gone, no write of the log is in flight.
    let life = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    life().block_on(async {
        let (database, _) = open(dir.path(), 8 << 20).await;
        let mut terminals: Vec<_> = (0..4).map(|n| Terminal::new(Arc::clone(&database), n, 5)).collect();
        for n in 0..80 {
            terminals[n % 4].next().await.unwrap();
        }
        // The pages are in the pool, so a transaction polled once mostly waits for its commit.
        let mut stopped = 0;
        for n in 0..1000 {
            let ended = tokio::select! {
                biased;
                ended = terminals[n % 4].next() => Some(ended),
                () = std::future::ready(()) => None,
            };
            match ended {
                Some(Err(DbError::Stopped)) => stopped += 1,
                Some(Err(error)) => panic!("{error}"),
                Some(Ok(_)) | None => assert_eq!(stopped, 0, "it continued after it had stopped"),
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert!(stopped > 0, "no commit was dropped half-way");
        database.wal.flush(database.wal.end()).await.unwrap();
    });
    life().block_on(async {
        let (database, recovered) = open(dir.path(), 8 << 20).await;
        assert_eq!(recovered.commits, 1);
        assert_eq!(consistency::check(&database).await.unwrap(), Ok(()));
    });
}

/// One life of the process: opens, checks, runs briefly, and ends without warning.
fn live_and_crash(dir: &Path, life: u64, acknowledged: &Arc<AtomicU64>) -> Recovered {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let acknowledged = Arc::clone(acknowledged);
    runtime.block_on(async move {
        let (database, recovered) = open(dir, 1 << 20).await;
        assert_eq!(consistency::check(&database).await.unwrap(), Ok(()), "life {life}");
        assert!(orders(&database).await >= acknowledged.load(Ordering::SeqCst), "life {life}");
        tokio::spawn(Arc::clone(&database).keep_log_short());
        let mut terminals = tokio::task::JoinSet::new();
        for n in 0..6 {
            let mut terminal = Terminal::new(Arc::clone(&database), n, life);
            let acknowledged = Arc::clone(&acknowledged);
            terminals.spawn(async move {
                loop {
                    if terminal.next().await? == (Kind::NewOrder, Outcome::Committed) {
                        acknowledged.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(100 + life * 37 % 150)).await;
        let failed: Option<Result<Result<(), DbError>, _>> = terminals.try_join_next();
        assert!(failed.is_none(), "life {life}: {failed:?}");
        recovered
    })
    // The tasks are dropped where they are.
}

#[test]
fn crashes_lose_no_acknowledged_order_and_break_no_condition() {
    let dir = tempfile::tempdir().unwrap();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut commits = 0;
    let mut applied = 0;
    for life in 0..8 {
        let recovered = live_and_crash(dir.path(), life, &acknowledged);
        commits += recovered.commits;
        applied += recovered.applied;
    }
    assert!(acknowledged.load(Ordering::SeqCst) > 100);
    assert!(commits > 0 && applied > 0, "{commits} commits and {applied} page changes recovered");
}

#[test]
fn the_same_seed_gives_the_same_database_in_virtual_time() {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            // Real I/O would end at any virtual time, and rows have dates.
            let hdd = Arc::new(MemoryDevice::new("hdd", 0));
            let wal = Wal::in_memory(WalOptions::new());
            let builder = PageStore::builder().in_memory(Arc::default()).hdd(hdd);
            let builder = builder.ssd_bytes(0).pool_bytes(8 << 20);
            let store = Arc::new(builder.log_gate(wal.gate()).open().await.unwrap());
            let catalog = load(&store, SCALE, 1, NOW_MS, || ()).await.unwrap();
            let (database, _) = Database::open(store, wal, catalog, NOW_MS).await.unwrap();
            let database = Arc::new(database);
            let mut terminals: Vec<_> = (0..4).map(|n| Terminal::new(Arc::clone(&database), n, 3)).collect();
            for _ in 0..50 {
                for terminal in &mut terminals {
                    terminal.next().await.unwrap();
                }
            }
            let mut all = Vec::new();
            for table in Table::ALL {
                let see = |key: &[u8], row: &[u8]| {
                    all.extend_from_slice(key);
                    all.extend_from_slice(row);
                    ControlFlow::Continue(())
                };
                database.tree(table).visit(&[0; 39][..table.lens().0], see).await.unwrap();
            }
            all
        })
    };
    assert!(run() == run());
}
