//! turso in a store: after crashes and kills, and on a full disk.

use pagetier::{PageSize, PageStore, blocking, device::MemoryDevice};
use pagetier_example_redb::kills::killed;
use pagetier_example_turso::Spaces;
use pagetier_testing::{SimDevice, SimPower};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use turso_core::{Connection, Database, OpenOptions, SqliteDialect, Value};

fn connect(store: &Arc<blocking::PageStore>, wals: &Path) -> Arc<Connection> {
    let spaces = Arc::new(Spaces::new(Arc::clone(store), wals).unwrap());
    let database = Database::open(spaces, "test.db", OpenOptions::new(Arc::new(SqliteDialect))).unwrap();
    let connection = database.connect().unwrap();
    connection.execute("pragma synchronous = full").unwrap();
    connection.execute("create table if not exists t (no integer primary key, value blob)").unwrap();
    connection
}

fn query(connection: &Arc<Connection>, sql: &str) -> Vec<Vec<Value>> {
    connection.prepare(sql).unwrap().run_collect_rows().unwrap()
}

fn check(connection: &Arc<Connection>) {
    assert_eq!(query(connection, "pragma integrity_check"), [[Value::build_text("ok")]]);
}

fn rows(connection: &Arc<Connection>) -> BTreeMap<i64, Vec<u8>> {
    let row = |row: Vec<Value>| (row[0].as_int().unwrap(), row[1].to_blob().unwrap().to_vec());
    query(connection, "select no, value from t").into_iter().map(row).collect()
}

/// Drops the store like a process that ends: nothing is written any more.
fn crash(store: Arc<blocking::PageStore>) {
    let left = store.wait_closed();
    drop(Arc::into_inner(store).expect("all connections are closed"));
    drop(left);
}

#[test]
fn the_database_is_the_model_also_after_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || {
        let builder = PageStore::builder().directory(folder.path().join("store")).page_size(PageSize::MIN);
        builder.ssd_bytes(4 << 20).pool_bytes(4 << 20)
    };
    let mut rng = SmallRng::seed_from_u64(1);
    let mut model = BTreeMap::new();
    for _ in 0..4 {
        let store = Arc::new(blocking::PageStore::open(builder()).unwrap());
        let connection = connect(&store, folder.path());
        check(&connection);
        assert!(rows(&connection) == model);
        for _ in 0..10 {
            connection.execute("begin").unwrap();
            let (commits, mut changed) = (rng.random_bool(0.8), model.clone());
            for _ in 0..rng.random_range(1..20) {
                let no = rng.random_range(0..200);
                if rng.random_bool(0.3) {
                    connection.execute(format!("delete from t where no = {no}")).unwrap();
                    changed.remove(&no);
                    continue;
                }
                let value: Vec<u8> = (0..rng.random_range(0..9_000)).map(|_| rng.random()).collect();
                let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                connection.execute(format!("insert or replace into t values ({no}, x'{hex}')")).unwrap();
                changed.insert(no, value);
            }
            connection.execute(if commits { "commit" } else { "rollback" }).unwrap();
            if commits {
                model = changed;
            }
            assert!(rows(&connection) == model);
        }
        if rng.random_bool(0.5) {
            query(&connection, "pragma wal_checkpoint(truncate)");
        }
        drop(connection);
        crash(store);
    }
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let hdd = SimDevice::new("hdd", 0, 1, &SimPower::new()).with_size_max(9 << 20);
    let builder = PageStore::builder().in_memory(Arc::default()).hdd(Arc::new(hdd));
    let builder = builder.ssd(Arc::new(MemoryDevice::new("ssd", 0))).ssd_bytes(2 << 20);
    let store = Arc::new(blocking::PageStore::open(builder.pool_bytes(2 << 20)).unwrap());
    let connection = connect(&store, folder.path());
    let mut committed = 0;
    let error = loop {
        match connection.execute(format!("insert into t values ({committed}, zeroblob(100000))")) {
            Ok(()) => committed += 1,
            Err(error) => break error,
        }
        assert!(committed < 500, "the disk does not fill up");
        // Commits go on in the WAL; what it has cannot be brought into the database.
        let checkpoint = connection.prepare("pragma wal_checkpoint(truncate)").unwrap().run_collect_rows();
        if let Err(error) = checkpoint {
            break error;
        }
    };
    // A checkpoint passes the text on alone.
    assert!(error.to_string().contains("no storage space"), "{error}");
    assert_eq!(rows(&connection).len(), committed);
    check(&connection);
}

#[test]
fn a_killed_turso_has_every_acknowledged_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetier-example-turso"));
    killed(command.arg("commit").arg(folder.path()), || rng.random_range(1..100));
}
