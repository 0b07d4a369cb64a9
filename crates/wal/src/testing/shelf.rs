//! What an engine's history has besides its store: an archive that fails, a backup, and what was true when.

use crate::error::{ArchiveError, Moment, WalError};
use crate::media::FileMedia;
use crate::{LoggedBackupError, LoggedStore, Media, Until, Wal, WalOptions};
use pagetier::backup::BackupOptions;
use pagetier::device::SharedDevice;
use pagetier::{Builder, Lsn, PageSize, PageStore};
use pagetier_devio::files::{Access, create_durably};
use pagetier_testing::{FileFault, SimDevice, SimFiles, SimPower};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// What was true at a time.
#[derive(Clone, Copy, Debug)]
struct Then {
    ms: u64,
    /// Up to here everything was confirmed.
    confirmed: u64,
    /// Nothing was appended beyond.
    end: u64,
}

pub(super) struct Shelf {
    archive: SimFiles,
    power: SimPower,
    dir: tempfile::TempDir,
    /// Of the log's marks, in milliseconds.
    clock: Arc<AtomicU64>,
    /// The backup, and what was confirmed before it.
    backup: Option<(u32, u64)>,
    then: Vec<Then>,
}

impl Shelf {
    pub(super) fn new() -> Self {
        let power = SimPower::new();
        let archive = SimFiles::new(3, &power);
        create_durably(&*archive.root(), Path::new("/archive")).unwrap();
        let dir = pagetier_testing::scratch();
        Self { archive, power, dir, clock: Arc::new(AtomicU64::new(1000)), backup: None, then: Vec::new() }
    }

    pub(super) fn archive(&self, wal: &Wal) -> Result<(), WalError> {
        let (root, id, clock) = (self.archive.root(), wal.id(), Arc::clone(&self.clock));
        let opens = move || {
            let dir = root.directory(Path::new("/archive"))?;
            Ok(Box::new(FileMedia::archive(dir, id)?) as Box<dyn Media>)
        };
        let now = move || UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::Relaxed));
        wal.archive_on("/archive".into(), opens, now, Duration::from_secs(60))
    }

    pub(super) fn fail(&self, n: u8, torn: bool) {
        self.archive.fail(n.into(), if torn { FileFault::Torn } else { FileFault::Refused });
    }

    pub(super) fn set_full(&self, full: bool) {
        self.archive.set_free(full.then_some(9_000));
    }

    pub(super) fn works_again(&self) {
        self.archive.clear_faults();
        self.set_full(false);
    }

    pub(super) fn cut(&self) {
        self.power.cut_now();
    }

    pub(super) fn restart(&mut self, kill: bool, seed: u64) {
        self.power = SimPower::new();
        self.archive = if kill {
            self.archive.after_kill(seed, &self.power)
        } else {
            self.archive.after_power_cut(seed, &self.power)
        };
    }

    /// A step of the history has ended.
    pub(super) fn step(&mut self, confirmed: u64, end: u64) {
        let ms = self.clock.fetch_add(1, Ordering::Relaxed);
        self.then.push(Then { ms, confirmed, end });
    }

    /// A crash has left the log that ends here.
    pub(super) fn lost_from(&mut self, end: u64) {
        self.then.iter_mut().for_each(|then| then.end = then.end.min(end));
    }

    pub(super) async fn back_up(&mut self, db: &LoggedStore, confirmed: u64) {
        // The first one, which has the most moments after it.
        if self.backup.is_none()
            && let Ok(made) = db.backup(&self.dir.path().join("chain"), BackupOptions::new()).await
        {
            self.backup = Some((made.number, confirmed));
        }
    }

    fn builder(&self) -> Builder {
        let builder = PageStore::builder().directory(self.dir.path().join("restored")).ssd_bytes(0);
        builder.ring_pages(4).page_size(PageSize::MIN).pool_bytes(48 * 4096)
    }

    /// Copies the archive to where a restoration finds it.
    fn exported(&self) -> PathBuf {
        let to = self.dir.path().join("archive");
        fs::create_dir(&to).unwrap();
        let from = self.archive.root().directory(Path::new("/archive")).unwrap();
        for name in from.names().unwrap() {
            let bytes = from.open(Path::new(&name), Access::Read).unwrap().read_from(0).unwrap();
            fs::write(to.join(name), bytes).unwrap();
        }
        to
    }

    /// Restores the backup to a drawn moment, of which one kind is the end of a record in `lsns`. Returns the
    /// restored store, if there was a backup and the moment can be restored.
    pub(super) async fn restored(&self, lsns: &[u64], drawn: u64) -> Option<LoggedStore> {
        let (number, confirmed) = self.backup?;
        let (chain, archive) = (self.dir.path().join("chain"), self.exported());
        let (first, last) = LoggedStore::restorable(&chain, number, &archive).unwrap();
        assert!(confirmed <= first.lsn.0, "the backup lacks what was confirmed before it");
        // Few of those that must be refused.
        let due = |end: u64| end >= first.lsn.0 || drawn.is_multiple_of(8);
        let lsns: Vec<u64> = lsns.iter().copied().filter(|lsn| due(*lsn)).collect();
        let then: Vec<Then> = self.then.iter().copied().filter(|then| due(then.confirmed)).collect();
        let nth = |all: usize| drawn as usize / 3 % all.max(1);
        let then = then.get(nth(then.len())).copied();
        let (until, least, most) = match (drawn % 3, lsns.get(nth(lsns.len())), then) {
            (0, Some(&lsn), _) => (Until::Lsn(Lsn(lsn)), lsn, lsn),
            (1, _, Some(then)) => {
                let time = UNIX_EPOCH + Duration::from_millis(then.ms);
                (Until::Time(time), then.confirmed, then.end)
            }
            _ => (Until::End, last.lsn.0, last.lsn.0),
        };
        let log = self.dir.path().join("log");
        // The devices are simulated: the store that opens has those that were restored.
        let power = SimPower::new();
        let [hdd, ring] = ["hdd", "ring"].map(|name| Arc::new(SimDevice::new(name, 0, 1, &power)));
        let on = || {
            let [hdd, ring] = [&hdd, &ring].map(|device| Arc::clone(device) as SharedDevice);
            self.builder().hdd(hdd).ring_device(ring)
        };
        let done = LoggedStore::restore_until(on(), &log, (&chain, number), &archive, until).await;
        let end = match done {
            Ok(end) => end.0,
            Err(LoggedBackupError::Log(WalError::Archive(error))) => {
                assert!(!log.exists(), "something was written");
                refused(&error, until, (first, last), (least, most));
                return None;
            }
            Err(error) => panic!("{until:?}: {}", pagetier::errors::Causes(&error)),
        };
        assert!(
            end >= first.lsn.0 && (least..=most).contains(&end),
            "{until:?}: {end}, not {least} to {most}"
        );
        let wal = Wal::open(&log, WalOptions::new()).unwrap();
        assert_eq!(wal.end().0, end, "the log ends at the moment");
        Some(LoggedStore::on(on(), wal).await.unwrap())
    }
}

/// A moment is refused only if backup and archive do not have it.
fn refused(error: &ArchiveError, until: Until, (first, last): (Moment, Moment), (least, most): (u64, u64)) {
    match error {
        ArchiveError::TooEarly { earliest } => {
            assert!(*earliest == first && least <= first.lsn.0, "{until:?}: {error}")
        }
        ArchiveError::TooLate { latest } => {
            let is_later = matches!(until, Until::Time(time) if Some(time) > last.time) || most > last.lsn.0;
            assert!(*latest == last && is_later, "{until:?}: {error}");
        }
        _ => panic!("{until:?}: {error}"),
    }
}
