//! SQLite in a store beside SQLite in memory; after kills, power cuts and on a full disk.

use pagetier::{MemoryManifest, PageStore, blocking, device::MemoryDevice};
use pagetier_example_redb::kills::{killed, rounds};
use pagetier_example_sqlite::vfs::{Journals, Registered, register};
use pagetier_testing::{SimDevice, SimPower};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const MODES: [&str; 4] = ["delete", "truncate", "persist", "wal"];

/// A store that SQLite knows by a name of its own.
struct Known {
    name: String,
    store: Arc<blocking::PageStore>,
    registered: Registered,
}

impl Known {
    fn new(builder: pagetier::Builder, journals: Journals) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("store{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let store = Arc::new(blocking::PageStore::open(builder).unwrap());
        let registered = register(&name, Arc::clone(&store), journals).unwrap();
        Self { name, store, registered }
    }

    fn connect(&self, mode: &str) -> rusqlite::Result<Connection> {
        let connection =
            Connection::open_with_flags_and_vfs("test.db", OpenFlags::default(), self.name.as_str())?;
        connection.busy_timeout(std::time::Duration::from_secs(20))?;
        let set: String =
            connection.query_row(&format!("pragma journal_mode = {mode}"), [], |row| row.get(0))?;
        assert_eq!(set, mode);
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "cache_size", 20)?;
        Ok(connection)
    }

    /// Drops the store like a process that ends: nothing is written any more.
    fn crash(self) {
        drop(self.registered);
        let left = self.store.wait_closed();
        drop(Arc::into_inner(self.store).expect("all connections are closed"));
        drop(left);
    }
}

fn table(connection: &Connection) {
    connection
        .execute_batch("create table if not exists t (no integer primary key, value blob, other text); create index if not exists i on t (other)")
        .unwrap();
}

fn rows(connection: &Connection) -> Vec<(i64, Vec<u8>, String)> {
    let mut all = connection.prepare("select no, value, other from t order by no").unwrap();
    let found = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    found.map(Result::unwrap).collect()
}

fn check(connection: &Connection) {
    let fine: String = connection.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(fine, "ok");
}

/// One statement, the same for both databases.
fn statement(rng: &mut SmallRng) -> (&'static str, i64, Vec<u8>, String) {
    let no = rng.random_range(0..400);
    let value: Vec<u8> = (0..rng.random_range(0..9_000)).map(|_| rng.random()).collect();
    let other = format!("{}", rng.random_range(0..1000));
    let sql = match rng.random_range(0..10) {
        0..5 => "insert or replace into t values (?1, ?2, ?3)",
        5..8 => "update t set value = ?2, other = ?3 where no = ?1",
        8 => "delete from t where no = ?1 or (?2 is null and ?3 is null)",
        _ => "delete from t where other < ?3 and no < ?1 and ?2 is not null",
    };
    (sql, no, value, other)
}

#[test]
fn every_journal_mode_has_what_sqlite_in_memory_has() {
    for (seed, mode) in (0..).zip(MODES) {
        let folder = tempfile::tempdir().unwrap();
        let builder = || {
            let builder = PageStore::builder().directory(folder.path().join("store"));
            builder.ssd_bytes(4 << 20).pool_bytes(4 << 20)
        };
        let known = Known::new(builder(), Journals::In(folder.path().to_owned()));
        let mut rng = SmallRng::seed_from_u64(seed);
        let model = Connection::open_in_memory().unwrap();
        let connections = [(); 2].map(|()| known.connect(mode).unwrap());
        table(&model);
        table(&connections[0]);
        for _ in 0..25 {
            let ours = &connections[rng.random_range(0..2)];
            let commits = rng.random_bool(0.8);
            for one in [ours, &model] {
                one.execute_batch("begin immediate").unwrap();
            }
            for _ in 0..rng.random_range(1..20) {
                let (sql, no, value, other) = statement(&mut rng);
                for one in [ours, &model] {
                    one.prepare_cached(sql).unwrap().execute((no, &value, &other)).unwrap();
                }
            }
            for one in [ours, &model] {
                one.execute_batch(if commits { "commit" } else { "rollback" }).unwrap();
            }
            let reader = &connections[rng.random_range(0..2)];
            assert!(rows(reader) == rows(&model), "{mode}");
        }
        connections[0].execute_batch("vacuum").unwrap();
        connections.iter().for_each(check);
        drop(connections);
        known.crash();
        let known = Known::new(builder(), Journals::In(folder.path().to_owned()));
        let again = known.connect(mode).unwrap();
        check(&again);
        assert!(rows(&again) == rows(&model), "{mode}: after a crash");
    }
}

#[test]
fn connections_in_threads_exclude_each_other() {
    for mode in ["delete", "wal"] {
        let folder = tempfile::tempdir().unwrap();
        let builder = PageStore::builder().directory(folder.path().join("store"));
        let builder = builder.ssd_bytes(4 << 20).pool_bytes(4 << 20);
        let known = Known::new(builder, Journals::In(folder.path().to_owned()));
        let first = known.connect(mode).unwrap();
        first.execute_batch("create table sum (n integer); insert into sum values (0)").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let connection = known.connect(mode).unwrap();
                    for _ in 0..20 {
                        let change = "begin immediate; update sum set n = n + 1; commit";
                        connection.execute_batch(change).unwrap();
                    }
                });
            }
        });
        let sum: i64 = first.query_row("select n from sum", [], |row| row.get(0)).unwrap();
        assert_eq!(sum, 80, "{mode}");
    }
}

#[test]
fn a_killed_sqlite_has_every_acknowledged_commit() {
    for mode in ["delete", "wal"] {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = SmallRng::seed_from_u64(7);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagetier-example-sqlite"));
        let command = command.args(["commit".as_ref(), folder.path(), mode.as_ref()]);
        killed(command, || rng.random_range(1..100));
    }
}

/// Database and journal are on devices whose power fails at any operation.
#[test]
fn a_power_cut_takes_no_commit() {
    for round in 0..rounds() * 4 {
        let mode = MODES[round as usize % MODES.len()];
        let power = SimPower::new();
        let devices = [1, 2].map(|no| SimDevice::new("device", 0, round * 2 + no, &power));
        let [hdd, ssd] = devices.map(Arc::new);
        let manifest = Arc::new(MemoryManifest::default());
        let builder = |hdd: &Arc<SimDevice>, ssd: &Arc<SimDevice>, manifest: &Arc<MemoryManifest>| {
            let builder = PageStore::builder().in_memory(Arc::clone(manifest)).hdd(Arc::clone(hdd));
            builder.ssd(Arc::clone(ssd)).ssd_bytes(2 << 20).pool_bytes(2 << 20)
        };
        let known = Known::new(builder(&hdd, &ssd, &manifest), Journals::InTheStore);
        let connection = known.connect(mode).unwrap();
        table(&connection);
        let mut rng = SmallRng::seed_from_u64(round);
        power.cut_at(power.ops() + rng.random_range(1..2_000));
        let (mut committed, mut next) = (Vec::new(), 0_i64);
        let uncertain = loop {
            let value: Vec<u8> = (0..rng.random_range(0..20_000)).map(|_| rng.random()).collect();
            let row = (next, value, "of one commit".to_owned());
            let done = connection.execute("insert into t values (?, ?, ?)", (&row.0, &row.1, &row.2));
            match done {
                Ok(_) => committed.push(row),
                Err(_) => break row,
            }
            next += 1;
            if next == 300 {
                power.cut_now();
            }
        };
        drop(connection);
        let after = SimPower::new();
        let hdd = Arc::new(hdd.after_power_cut(round, &after));
        let ssd = Arc::new(ssd.after_power_cut(round, &after));
        let manifest = Arc::new(manifest.fork());
        known.crash();
        let known = Known::new(builder(&hdd, &ssd, &manifest), Journals::InTheStore);
        let connection = known.connect(mode).unwrap();
        check(&connection);
        table(&connection);
        let found = rows(&connection);
        // The last commit may have become durable without being acknowledged.
        let with_last: Vec<_> = committed.iter().cloned().chain([uncertain]).collect();
        assert!(found == committed || found == with_last, "round {round}, {mode}: {} rows", found.len());
    }
}

#[test]
fn a_full_disk_is_sqlites_own_error_and_nothing_is_lost() {
    for mode in MODES {
        let power = SimPower::new();
        let hdd = SimDevice::new("hdd", 0, 1, &power).with_size_max(9 << 20);
        let builder = PageStore::builder().in_memory(Arc::default()).hdd(Arc::new(hdd));
        let builder = builder.ssd(Arc::new(MemoryDevice::new("ssd", 0))).ssd_bytes(2 << 20);
        let folder = tempfile::tempdir().unwrap();
        let known = Known::new(builder.pool_bytes(2 << 20), Journals::In(folder.path().to_owned()));
        let connection = known.connect(mode).unwrap();
        table(&connection);
        let mut committed = 0;
        let error = loop {
            let row = (committed, vec![7_u8; 100_000], "x");
            match connection.execute("insert into t values (?, ?, ?)", row) {
                Ok(_) => committed += 1,
                Err(error) => break error,
            }
            assert!(committed < 500, "{mode}: the disk does not fill up");
            // Commits go on in the WAL; what it has cannot be brought into the database.
            if let ("wal", Err(error)) = (mode, connection.execute_batch("pragma wal_checkpoint")) {
                break error;
            }
        };
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DiskFull), "{mode}: {error}");
        check(&connection);
        let count: i64 = connection.query_row("select count(*) from t", [], |row| row.get(0)).unwrap();
        assert_eq!(count, committed, "{mode}");
        // There is room within the database.
        connection.execute("delete from t where no < 5", []).unwrap();
        connection.execute("insert into t values (-1, ?, 'y')", [vec![8_u8; 20_000]]).unwrap();
        check(&connection);
    }
}

#[test]
fn what_is_no_database_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let builder = PageStore::builder().directory(folder.path()).ssd_bytes(0).pool_bytes(2 << 20);
    let known = Known::new(builder, Journals::InTheStore);
    let readonly = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let absent = Connection::open_with_flags_and_vfs("absent.db", readonly, known.name.as_str());
    assert_eq!(absent.unwrap_err().sqlite_error_code(), Some(ErrorCode::CannotOpen));
    let space = known.store.block_on(known.store.spaces().create("pages.db")).unwrap();
    known.store.allocate(space).unwrap()[0] = 1;
    let other = Connection::open_with_flags_and_vfs("pages.db", OpenFlags::default(), known.name.as_str());
    assert_eq!(other.unwrap_err().sqlite_error_code(), Some(ErrorCode::CannotOpen));
    let name = known.name.clone();
    known.crash();
    let gone = Connection::open_with_flags_and_vfs("test.db", OpenFlags::default(), name.as_str());
    assert_eq!(gone.unwrap_err().sqlite_error_code(), Some(ErrorCode::CannotOpen));
}
