//! The engines behind one interface.

use crate::{Args, Failure};
use clap::ValueEnum;
use pagetier_kv::{Kv, Options};
use redb::{ReadableDatabase, TableDefinition};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

type Entry = (Vec<u8>, Vec<u8>);

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EngineName {
    Pagetier,
    Redb,
    Fjall,
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

impl EngineName {
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}").to_lowercase();
        f.write_str(&name)
    }
}

impl FromStr for EngineName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(name, true)
    }
}

/// An engine whose calls block.
pub(crate) trait Blocking: Send + Sync {
    fn get(&self, key: &[u8]) -> Result<bool, Failure>;
    /// Inserts an entry; it is durable on return, together with what other threads put meanwhile.
    fn put(&self, entry: Entry) -> Result<(), Failure>;
    /// Inserts entries; they are durable on return, together with what other threads load meanwhile.
    fn load(&self, entries: Vec<Entry>) -> Result<(), Failure>;
    /// Reads up to `count` entries from `from` on; returns their number.
    fn scan(&self, from: &[u8], count: usize) -> Result<usize, Failure>;
    /// Writes out what it holds back in memory. Merges of files are not awaited.
    fn settle(&self) -> Result<(), Failure>;
}

/// An engine as the clients use it. Calls of a [`Blocking`] engine block the worker thread; each client has
/// one.
pub(crate) enum Store {
    Pagetier(Box<Kv>),
    Blocking(Box<dyn Blocking>),
}

impl Store {
    pub(crate) async fn open(name: EngineName, dir: &Path, args: &Args) -> Result<Self, Failure> {
        let memory = args.memory_mib << 20;
        // Their allocations take up to twice their configured size: with half of the limit they are killed.
        let cache = memory / 4;
        Ok(match name {
            EngineName::Pagetier => {
                // Program, libraries, the log's buffers, the clients' values and the heap take up to 20 MiB.
                let pool_bytes = memory.saturating_sub(24 << 20).max(memory / 2);
                let mut options = Options::new(dir.join("kv")).pool_bytes(pool_bytes);
                options = options.page_bytes(args.page_kib << 10).ssd_bytes(args.ssd_mib << 20);
                options = options.log_bytes(args.log_mib << 20);
                if let Some(hdd) = &args.hdd {
                    options = options.hdd(hdd);
                }
                if let Some(ssd) = &args.ssd {
                    options = options.ssd(ssd);
                }
                Self::Pagetier(Box::new(Kv::open(&options).await?))
            }
            EngineName::Redb => Self::Blocking(Box::new(Redb::open(dir, cache)?)),
            EngineName::Fjall => Self::Blocking(Box::new(Fjall::open(dir, cache)?)),
            #[cfg(feature = "rocksdb")]
            EngineName::Rocksdb => Self::Blocking(Box::new(Rocks::open(dir, cache)?)),
        })
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        match self {
            Self::Pagetier(kv) => Ok(kv.get(key).await?.is_some()),
            Self::Blocking(engine) => engine.get(key),
        }
    }

    pub(crate) async fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        match self {
            Self::Pagetier(kv) => Ok(kv.put(&key, &value).await?),
            Self::Blocking(engine) => engine.put((key, value)),
        }
    }

    /// Inserts `entries` and makes them durable together; returns their number.
    pub(crate) async fn load(&self, entries: Vec<Entry>) -> Result<u64, Failure> {
        let count = entries.len() as u64;
        match self {
            Self::Pagetier(kv) => {
                for (key, value) in &entries {
                    kv.put_unsynced(key, value).await?;
                }
                kv.sync().await?;
            }
            Self::Blocking(engine) => engine.load(entries)?,
        }
        Ok(count)
    }

    pub(crate) async fn scan(&self, from: &[u8], count: usize) -> Result<usize, Failure> {
        match self {
            Self::Pagetier(kv) => {
                let (mut scan, mut found) = (kv.scan(from..), 0);
                while found < count && scan.next().await?.is_some() {
                    found += 1;
                }
                Ok(found)
            }
            Self::Blocking(engine) => engine.scan(from, count),
        }
    }

    /// Writes out changes that are in the log alone so far.
    pub(crate) async fn settle(&self) -> Result<(), Failure> {
        match self {
            Self::Pagetier(kv) => Ok(kv.store().sync().await?),
            Self::Blocking(engine) => engine.settle(),
        }
    }

    /// Pagetier's statistics since the open; the other engines have none.
    pub(crate) fn profile(&self) -> Option<String> {
        match self {
            Self::Pagetier(kv) => Some(kv.store().stats().to_string()),
            Self::Blocking(_) => None,
        }
    }

    pub(crate) async fn close(self) -> Result<(), Failure> {
        if let Self::Pagetier(kv) = self {
            kv.shutdown().await?;
        }
        Ok(())
    }
}

/// Changes, and the channel for their result.
type Change = (Vec<Entry>, SyncSender<Result<(), String>>);

/// Repeatedly commits all waiting changes together, in a thread of its own: one flush for all waiting
/// clients.
struct GroupCommit {
    changes: Option<Sender<Change>>,
    thread: Option<JoinHandle<()>>,
}

impl GroupCommit {
    fn new(commit: impl Fn(Vec<Entry>) -> Result<(), Failure> + Send + 'static) -> Self {
        let (changes, waiting): (_, Receiver<Change>) = channel();
        let thread = std::thread::spawn(move || {
            while let Ok(first) = waiting.recv() {
                let batch = std::iter::once(first).chain(waiting.try_iter());
                let (entries, clients): (Vec<Vec<Entry>>, Vec<_>) = batch.unzip();
                let done = commit(entries.into_iter().flatten().collect()).map_err(|error| error.to_string());
                for client in clients {
                    // A client that has gone needs no result.
                    let _ = client.send(done.clone());
                }
            }
        });
        Self { changes: Some(changes), thread: Some(thread) }
    }

    fn put(&self, entries: Vec<Entry>) -> Result<(), Failure> {
        let (done, wait) = sync_channel(1);
        let changes = self.changes.as_ref().ok_or("the engine is closed")?;
        changes.send((entries, done))?;
        Ok(wait.recv()??)
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        drop(self.changes.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("t");

struct Redb {
    db: Arc<redb::Database>,
    commits: GroupCommit,
}

impl Redb {
    fn open(dir: &Path, cache: u64) -> Result<Self, Failure> {
        let db = redb::Builder::new().set_cache_size(cache as usize).create(dir.join("redb"))?;
        let db = Arc::new(db);
        let commits = GroupCommit::new({
            let db = Arc::clone(&db);
            move |entries| Self::commit(&db, entries)
        });
        Ok(Self { db, commits })
    }

    fn commit(db: &redb::Database, entries: Vec<Entry>) -> Result<(), Failure> {
        let transaction = db.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in &entries {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        // Immediate durability is the default.
        Ok(transaction.commit()?)
    }
}

impl Blocking for Redb {
    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let value = table.get(key)?.map(|value| value.value().to_vec());
        Ok(value.is_some())
    }

    fn put(&self, entry: Entry) -> Result<(), Failure> {
        self.commits.put(vec![entry])
    }

    fn load(&self, entries: Vec<Entry>) -> Result<(), Failure> {
        self.commits.put(entries)
    }

    fn scan(&self, from: &[u8], count: usize) -> Result<usize, Failure> {
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let mut found = 0;
        for entry in table.range(from..)?.take(count) {
            let (key, value) = entry?;
            std::hint::black_box((key.value().to_vec(), value.value().to_vec()));
            found += 1;
        }
        Ok(found)
    }

    fn settle(&self) -> Result<(), Failure> {
        // Each commit has written all of its pages.
        Ok(())
    }
}

struct Fjall {
    entries: fjall::Keyspace,
    commits: GroupCommit,
}

impl Fjall {
    fn open(dir: &Path, cache: u64) -> Result<Self, Failure> {
        // Its memtables count as memory, too.
        let (blocks, buffers) = (cache / 4 * 3, cache / 4);
        let db = fjall::Database::builder(dir.join("fjall")).cache_size(blocks).open()?;
        let options = || fjall::KeyspaceCreateOptions::default().max_memtable_size(buffers / 4);
        let entries = db.keyspace("t", options)?;
        let commits = GroupCommit::new({
            let entries = entries.clone();
            move |batch| Self::commit(&db, &entries, buffers, batch)
        });
        Ok(Self { entries, commits })
    }

    fn commit(
        db: &fjall::Database,
        entries: &fjall::Keyspace,
        buffers: u64,
        batch: Vec<Entry>,
    ) -> Result<(), Failure> {
        // fjall has no limit for all memtables together: they grow while its flushes lag behind the writes.
        while db.write_buffer_size() > buffers {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for (key, value) in batch {
            entries.insert(key, value)?;
        }
        Ok(db.persist(fjall::PersistMode::SyncData)?)
    }
}

impl Blocking for Fjall {
    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        let value = self.entries.get(key)?.map(|value| value.to_vec());
        Ok(value.is_some())
    }

    fn put(&self, entry: Entry) -> Result<(), Failure> {
        self.commits.put(vec![entry])
    }

    fn load(&self, entries: Vec<Entry>) -> Result<(), Failure> {
        self.commits.put(entries)
    }

    fn scan(&self, from: &[u8], count: usize) -> Result<usize, Failure> {
        let mut found = 0;
        for entry in self.entries.range(from..).take(count) {
            let (key, value) = entry.into_inner()?;
            std::hint::black_box((key.to_vec(), value.to_vec()));
            found += 1;
        }
        Ok(found)
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(self.entries.rotate_memtable_and_wait()?)
    }
}

#[cfg(feature = "rocksdb")]
struct Rocks(rocksdb::DB);

#[cfg(feature = "rocksdb")]
impl Rocks {
    fn open(dir: &Path, cache: u64) -> Result<Self, Failure> {
        let mut table = rocksdb::BlockBasedOptions::default();
        table.set_block_cache(&rocksdb::Cache::new_lru_cache((cache / 4 * 3) as usize));
        table.set_bloom_filter(10.0, false);
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        // Its memtables count as memory, too.
        options.set_db_write_buffer_size((cache / 4) as usize);
        Ok(Self(rocksdb::DB::open(&options, dir.join("rocksdb"))?))
    }
}

#[cfg(feature = "rocksdb")]
impl Blocking for Rocks {
    fn get(&self, key: &[u8]) -> Result<bool, Failure> {
        Ok(self.0.get(key)?.is_some())
    }

    fn put(&self, (key, value): Entry) -> Result<(), Failure> {
        let mut options = rocksdb::WriteOptions::default();
        options.set_sync(true);
        Ok(self.0.put_opt(key, value, &options)?)
    }

    fn load(&self, entries: Vec<Entry>) -> Result<(), Failure> {
        let mut batch = rocksdb::WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        let mut options = rocksdb::WriteOptions::default();
        options.set_sync(true);
        Ok(self.0.write_opt(batch, &options)?)
    }

    fn scan(&self, from: &[u8], count: usize) -> Result<usize, Failure> {
        let mode = rocksdb::IteratorMode::From(from, rocksdb::Direction::Forward);
        let mut found = 0;
        for entry in self.0.iterator(mode).take(count) {
            std::hint::black_box(entry?);
            found += 1;
        }
        Ok(found)
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(self.0.flush()?)
    }
}
