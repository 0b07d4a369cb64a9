//! Backups of pages and log: neither counts without the other.

use pagetier::backup::{BackupError, BackupFile, BackupOptions, Backups};
use pagetier::{Builder, PageId, PageStore};
use pagetier_wal::{LoggedBackupError, LoggedStore, WalError, WalOptions};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A store, and the directory of its backups.
struct World {
    dir: TempDir,
    db: LoggedStore,
    chain: PathBuf,
}

pub(crate) fn builder(dir: &Path) -> Builder {
    PageStore::builder()
        .directory(dir.join("pages"))
        .page_size(pagetier::PageSize::MIN)
        .ssd_bytes(8 << 20)
        .pool_bytes(4 << 20)
}

async fn open(dir: &Path) -> LoggedStore {
    let options = WalOptions::new().capacity_bytes(256 << 10);
    LoggedStore::open(builder(dir), dir.join("log"), options).await.unwrap()
}

impl World {
    /// With backups 1 to `backups`, each of which has its number in page 0. Those of an odd number are full.
    async fn with(backups: u32) -> Self {
        let dir = pagetier_testing::scratch();
        let db = open(dir.path()).await;
        db.spaces().create("t").await.unwrap();
        let world = Self { chain: dir.path().join("chain"), dir, db };
        for number in 1..=backups {
            world.put(number as u8).await;
            assert_eq!(world.back_up(number % 2 == 1).await.unwrap(), number);
        }
        world
    }

    async fn put(&self, value: u8) {
        let mut change = self.db.begin().await.unwrap();
        let id = PageId::new(self.db.spaces().find("t").unwrap(), 0);
        let page = change.add(self.db.get_or_create(id).await.unwrap());
        change.write(page, 0, &[value]);
        self.db.commit(change).await.unwrap();
    }

    async fn back_up(&self, full: bool) -> Result<u32, LoggedBackupError> {
        Ok(self.db.backup(&self.chain, BackupOptions::new().full(full)).await?.number)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.chain.join(name)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.chain).unwrap().map(|name| name.unwrap().file_name().into_string());
        let mut names: Vec<_> = names.map(Result::unwrap).collect();
        names.sort();
        names
    }

    async fn verified(&self) -> Vec<BackupFile> {
        let verified = Backups::at(&self.chain).verify(|_| ()).await.unwrap();
        let listed = Backups::at(&self.chain).list().await.unwrap();
        let said = |files: &[BackupFile]| {
            let said = files.iter().map(|file| (file.number, file.is_restorable, file.fault.is_some()));
            said.collect::<Vec<_>>()
        };
        assert_eq!(said(&verified), said(&listed));
        verified
    }

    /// The numbers of the backups that can be restored, and the others with what is wrong.
    async fn judged(&self) -> (Vec<u32>, Vec<(u32, String)>) {
        let (sound, bad): (Vec<_>, Vec<_>) =
            self.verified().await.into_iter().partition(|file| file.is_restorable);
        assert!(sound.iter().all(|file| file.fault.is_none()));
        let bad =
            bad.into_iter().map(|file| (file.number, file.fault.map(|f| f.to_string()).unwrap_or_default()));
        (sound.iter().map(|file| file.number).collect(), bad.collect())
    }

    /// What page 0 has in the backup, restored with its log.
    async fn restored(&self, number: u32) -> u8 {
        let to = self.dir.path().join(format!("restored-{number}"));
        LoggedStore::restore(builder(&to), &to.join("log"), &self.chain, number).await.unwrap();
        let db = open(&to).await;
        let id = PageId::new(db.spaces().find("t").unwrap(), 0);
        let value = db.get(id).await.unwrap()[0];
        db.shutdown().await.unwrap();
        value
    }

    /// Restores the pages of the newest backup.
    async fn newest(&self) -> Result<u32, BackupError> {
        let to = self.dir.path().join("newest");
        Ok(builder(&to).restore(&self.chain, None, |_| ()).await?.number)
    }
}

#[tokio::test]
async fn a_backup_whose_log_is_missing_cannot_be_restored() {
    let world = World::with(2).await;
    assert_eq!(world.judged().await, (vec![1, 2], vec![]));
    let [log, aside] = ["log-000002", "aside"].map(|name| world.path(name));
    fs::rename(&log, &aside).unwrap();
    for is_empty in [false, true] {
        let (sound, bad) = world.judged().await;
        assert_eq!(sound, [1]);
        assert!(matches!(&bad[..], [(2, why)] if why.contains("log-000002: the log")), "{bad:?}");
        // Nothing older is given up for it.
        let refused = Backups::at(&world.chain).purge(1, |_| ()).await.unwrap_err();
        assert!(matches!(refused, BackupError::NoChain { .. }), "{refused:?}");
        if !is_empty {
            fs::create_dir(&log).unwrap();
        }
    }
    fs::remove_dir(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    // The next one continues the first one's pages, not its log.
    fs::remove_dir_all(world.path("log-000001")).unwrap();
    let (sound, bad) = world.judged().await;
    assert!(sound == [2] && bad.len() == 1, "{bad:?}");
    assert_eq!(world.restored(2).await, 2);
}

#[tokio::test]
async fn a_backup_removed_without_its_log_is_missed() {
    let world = World::with(2).await;
    fs::remove_file(world.path("000002.backup")).unwrap();
    let (sound, bad) = world.judged().await;
    assert_eq!(sound, [1]);
    assert!(matches!(&bad[..], [(2, why)] if why.contains("remove the directory log-000002")), "{bad:?}");
    // Older than what there was: only if its number is given.
    let refused = world.newest().await.unwrap_err();
    assert!(matches!(&refused, BackupError::NoChain { why, .. } if why.contains("backup 2")), "{refused:?}");
    assert!(matches!(Backups::at(&world.chain).pages(&[], None).await, Err(BackupError::NoChain { .. })));
    assert!(matches!(Backups::at(&world.chain).purge(1, |_| ()).await, Err(BackupError::NoChain { .. })));
    assert_eq!(world.restored(1).await, 1);
    // The next one has a number of its own: the log of another one would make its pages older.
    world.put(7).await;
    assert_eq!(world.back_up(false).await.unwrap(), 3);
    assert_eq!(world.judged().await, (vec![1, 3], vec![]));
    assert_eq!((world.newest().await.unwrap(), world.restored(3).await), (3, 7));
    Backups::at(&world.chain).purge(2, |_| ()).await.unwrap();
    assert_eq!(world.names(), ["000001.backup", "000003.backup", "log-000001", "log-000003"]);
    // Its log removed as well, nothing is missed.
    fs::remove_file(world.path("000003.backup")).unwrap();
    fs::remove_dir_all(world.path("log-000003")).unwrap();
    assert_eq!(world.judged().await, (vec![1], vec![]));
}

#[tokio::test]
async fn a_purge_removes_the_logs_of_what_it_purges() {
    let world = World::with(5).await;
    // What an interrupted purge left, whose log was opened where it is, and an interrupted copy; and what is
    // no copy of a log.
    fs::remove_file(world.path("000002.backup")).unwrap();
    fs::write(world.path("log-000002/spare-0123456789abcdef-1"), "").unwrap();
    fs::rename(world.path("log-000004"), world.path("log-000004.partial")).unwrap();
    let foreign = ["log-000001", "log-000003.old"].map(|name| world.path(name).join("letters"));
    fs::create_dir(world.path("log-000003.old")).unwrap();
    for path in &foreign {
        fs::write(path, "letters").unwrap();
    }
    let purged = Backups::at(&world.chain).purge(1, |_| ()).await.unwrap();
    assert_eq!((purged.kept, purged.removed), (vec![5], vec![4, 3, 1]));
    assert_eq!(world.names(), ["000005.backup", "log-000001", "log-000003.old", "log-000005"]);
    assert!(foreign.iter().all(|path| path.exists()));
    assert_eq!(world.judged().await, (vec![5], vec![]));
    assert_eq!(world.restored(5).await, 5);
}

#[tokio::test]
async fn there_is_no_backup_without_its_log() {
    let world = World::with(1).await;
    let before = fs::read_dir(&world.chain).unwrap().count();
    let in_the_way = world.path("log-000002.partial");
    fs::create_dir(&in_the_way).unwrap();
    fs::write(in_the_way.join("letters"), "letters").unwrap();
    world.put(2).await;
    let refused = world.back_up(false).await.unwrap_err();
    assert!(matches!(refused, LoggedBackupError::Log(WalError::Io { .. })), "{refused:?}");
    assert_eq!(world.judged().await, (vec![1], vec![]));
    // The failed one takes no space.
    assert_eq!(fs::metadata(world.path("unfinished.partial")).unwrap().len(), 0);
    fs::remove_dir_all(&in_the_way).unwrap();
    world.put(3).await;
    assert_eq!(world.back_up(false).await.unwrap(), 2);
    assert_eq!(fs::read_dir(&world.chain).unwrap().count(), 2 * before);
    assert_eq!(world.restored(2).await, 3);
}

/// Between the names of the log and of the backup.
#[tokio::test]
async fn an_interrupted_backup_whose_log_was_copied_is_neither_missed_nor_in_the_way() {
    let world = World::with(2).await;
    fs::rename(world.path("000002.backup"), world.path("unfinished.partial")).unwrap();
    assert_eq!(world.judged().await, (vec![1], vec![]));
    assert_eq!(world.newest().await.unwrap(), 1);
    Backups::at(&world.chain).purge(1, |_| ()).await.unwrap();
    assert_eq!(world.judged().await, (vec![1], vec![]));
    world.put(9).await;
    assert_eq!(world.back_up(false).await.unwrap(), 2);
    assert_eq!(world.names(), ["000001.backup", "000002.backup", "log-000001", "log-000002"]);
    assert_eq!(world.restored(2).await, 9);
}
