//! The files of backups and restorations on a file system that loses what was not synced.

use super::backups::remove;
use super::file::name_of;
use super::report::RestoreReport;
use super::site::{Begun, Done, Target};
use super::write::Draft;
use crate::error::BackupError;
use crate::manifest::contents::{Manifest, decode, encode};
use crate::manifest::file::ManifestFile;
use crate::manifest::slack::Slack;
use crate::manifest::tail;
use crate::seam::Seam;
use crate::tenure::held_dir::HeldDir;
use pagetier_devio::files::{Access, create_durably};
use pagetier_devio::{FileFault, SimFiles, SimPower};
use pagetier_page::PageSize;
use std::path::{Path, PathBuf};

/// The outcomes of each power cut that are looked at.
const OUTCOMES: u64 = 8;

fn read(files: &SimFiles, path: &Path) -> Option<Vec<u8>> {
    Some(files.root().open(path, Access::Read).ok()?.read_from(0).unwrap())
}

fn contents(number: u32) -> Vec<u8> {
    vec![number as u8; 10_000 + number as usize]
}

/// Writes the file of a backup in a few pieces.
async fn back_up(files: &SimFiles, dir: &Path, number: u32) -> Result<PathBuf, BackupError> {
    let mut draft = Draft::create(files.root(), dir).await?;
    draft.put(b"lost with the SSD").await?;
    draft.begin_again().await?;
    for piece in contents(number).chunks(3000) {
        draft.put(piece).await?;
        draft.write_out().await?;
    }
    Ok(draft.finish(number).await?.0)
}

#[tokio::test]
async fn a_backup_under_its_name_is_whole_and_a_finished_one_is_there() {
    let dir = Path::new("/backup/db");
    for n in 1.. {
        let power = SimPower::new();
        let files = SimFiles::new(n, &power);
        power.cut_at(n);
        let mut finished = 0;
        while finished < 2 && back_up(&files, dir, finished + 1).await.is_ok() {
            finished += 1;
        }
        for seed in 0..OUTCOMES {
            let after = files.after_power_cut(seed, &SimPower::new());
            for number in 1..3 {
                match read(&after, &dir.join(name_of(number))) {
                    Some(bytes) => assert!(bytes == contents(number), "number {number} is not whole"),
                    None => assert!(number > finished, "number {number} is gone"),
                }
            }
            // The next one begins over what is left.
            back_up(&after, dir, 3).await.unwrap();
            let after = after.after_power_cut(seed, &SimPower::new());
            assert!(read(&after, &dir.join(name_of(3))) == Some(contents(3)));
        }
        if finished == 2 && !power.is_cut() {
            assert!(n > 20, "{n}");
            break;
        }
    }
}

/// A purge removes the newest first: what is left of a chain has its beginning.
#[test]
fn a_purge_leaves_no_backup_without_those_that_it_continues() {
    let dir = Path::new("/backup");
    for n in 0..10 {
        let before = SimFiles::new(n, &SimPower::new());
        let root = before.root();
        create_durably(&*root, dir).unwrap();
        for number in 1..=4 {
            root.open(&dir.join(name_of(number)), Access::Create).unwrap();
        }
        root.directory(dir).unwrap().sync().unwrap();
        let power = SimPower::new();
        let files = before.after_kill(n, &power);
        power.cut_at(n);
        let mut gone = 0;
        for number in (1..=3).rev() {
            if remove(&*files.root(), dir, &dir.join(name_of(number))).is_err() {
                break;
            }
            gone += 1;
        }
        for seed in 0..4 * OUTCOMES {
            let after = files.after_power_cut(seed, &SimPower::new());
            let left = (1..=4).filter(|number| read(&after, &dir.join(name_of(*number))).is_some());
            let left: Vec<u32> = left.collect();
            let (newest, older) = left.split_last().unwrap();
            assert!(*newest == 4 && older.iter().copied().eq(1..=older.len() as u32), "{left:?}");
            assert!(older.len() <= 3 - gone, "{left:?} after {gone} removals");
        }
    }
}

const STORE: &str = "/databases/db";
const PARTIAL: &str = "/databases/db.partial";

fn manifest_in(files: &SimFiles, dir: &str) -> Option<ManifestFile> {
    let dir = files.root().directory(Path::new(dir)).ok()?;
    Some(ManifestFile::new(HeldDir::on(dir, Seam::default())))
}

/// Saves a manifest in place of the store's: opened for this epoch, or closed.
fn save(files: &SimFiles, epoch: u32, is_closed: bool) -> std::io::Result<()> {
    let file = manifest_in(files, PARTIAL).ok_or(std::io::ErrorKind::NotFound)?;
    file.adopt()?;
    let mut manifest = Manifest::new("store".to_owned(), PageSize::MIN);
    (manifest.epoch, manifest.opened) = (epoch, epoch);
    manifest.closed = if is_closed { epoch } else { 0 };
    let bytes = tail::sealed(&encode(&manifest)?, 0);
    file.replace(&|_| bytes.clone(), Slack::Keep)
}

/// Restores `backup`, whose store has this epoch. Returns whether it is restored.
async fn restore(files: &SimFiles, backup: &str, epoch: u32) -> Result<(), BackupError> {
    // With a slash at its end, as it may come from a shell.
    let target = Target::of(files.root(), Path::new("/databases/db/"))?;
    let site = match target.begin(backup).await? {
        Begun::Restored(_) => return Ok(()),
        Begun::Site(site) => site,
    };
    assert_eq!(site.directory(), Path::new(PARTIAL));
    for is_closed in [false, true] {
        save(files, epoch, is_closed).map_err(BackupError::io(Path::new(PARTIAL)))?;
    }
    let report = RestoreReport { files: 1, number: 1, pages: 0, spaces: 0 };
    site.finish(Done { backup: backup.to_owned(), epoch, report }).await.map(drop)
}

/// The epoch of the store under its name, which is complete; `None`: there is none.
fn restored(files: &SimFiles) -> Option<u32> {
    let bytes = manifest_in(files, STORE)?.read().unwrap().expect("a store");
    let manifest = decode(&bytes).unwrap();
    assert!(manifest.is_clean(), "it is not complete");
    Some(manifest.epoch)
}

/// A restoration is interrupted at any call, and one of the same backup or of another one follows, which is
/// interrupted, too.
#[tokio::test]
async fn a_restored_store_is_complete_and_an_interrupted_restoration_can_be_repeated() {
    for n in 1.. {
        let power = SimPower::new();
        let files = SimFiles::new(n, &power);
        power.cut_at(n);
        let done = restore(&files, "first", 1).await;
        for seed in 0..OUTCOMES {
            let mut after = match seed {
                // The process dies alone, and the power fails during the next restoration.
                0 => files.after_kill(n, &SimPower::new()),
                _ => files.after_power_cut(seed, &SimPower::new()),
            };
            let found = restored(&after);
            assert!(found == Some(1) || (found.is_none() && done.is_err()));
            let backup = if seed % 2 == 0 { "first" } else { "other" };
            for cut_at in [1 + (n + 3 * seed) % 20, u64::MAX] {
                let power = SimPower::new();
                let next = after.after_kill(seed, &power);
                power.cut_at(cut_at);
                let result = restore(&next, backup, 2).await;
                let taken = matches!(&result, Err(BackupError::Exists { .. }));
                let says = read(&after, &Path::new(STORE).join("restoration"));
                assert!(!taken || says.is_none() || backup == "other", "its record is lost");
                assert!(!matches!(result, Err(BackupError::InTheWay { .. })), "{result:?}");
                after = next.after_power_cut(seed, &SimPower::new());
                if result.is_ok() || taken {
                    for seed in 0..2 * OUTCOMES {
                        let after = next.after_power_cut(seed, &SimPower::new());
                        assert!(restored(&after).is_some(), "{result:?}");
                    }
                    break;
                }
                assert!(cut_at < u64::MAX, "{result:?}");
                restored(&after);
            }
        }
        if done.is_ok() && !power.is_cut() {
            assert!(n > 20, "{n}");
            break;
        }
    }
}

/// A restoration was complete but for its name, and one of another backup takes its place: the record of the
/// first must not come back beside the other's store.
#[tokio::test]
async fn a_record_is_void_before_the_store_beside_it_changes() {
    let mut complete = 0;
    for n in 1..60 {
        let power = SimPower::new();
        let files = SimFiles::new(n, &power);
        power.cut_at(n);
        let _ = restore(&files, "first", 1).await;
        let files = files.after_power_cut(n, &SimPower::new());
        let said = read(&files, &Path::new(PARTIAL).join("restoration"));
        if !said.is_some_and(|said| said.ends_with(b"}")) {
            continue;
        }
        complete += 1;
        for cut_at in 1..30 {
            let power = SimPower::new();
            let next = files.after_kill(n, &power);
            power.cut_at(cut_at);
            let _ = restore(&next, "other", 2).await;
            for seed in 0..OUTCOMES {
                let after = next.after_power_cut(seed, &SimPower::new());
                match restore(&after, "other", 3).await {
                    Ok(()) | Err(BackupError::Exists { .. }) => assert!(restored(&after).is_some()),
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    }
    assert!(complete > 0);
}

/// Any call fails, and the next attempt succeeds.
#[tokio::test]
async fn a_restoration_that_failed_can_be_repeated() {
    for n in 0.. {
        let files = SimFiles::new(n, &SimPower::new());
        files.fail(n, FileFault::Torn);
        let failed = restore(&files, "first", 1).await.is_err();
        restore(&files, "first", 1)
            .await
            .or_else(|error| match error {
                BackupError::Exists { .. } if !failed => Ok(()),
                error => Err(error),
            })
            .unwrap();
        for seed in 0..OUTCOMES {
            assert_eq!(restored(&files.after_power_cut(seed, &SimPower::new())), Some(1));
        }
        if files.calls() <= n {
            break;
        }
    }
}
