//! The files of backups and restorations on a file system that loses what was not synced.

use super::backups::remove;
use super::file::{Head, encode_head, name_of};
use super::locked::DRAFT;
use super::logs::{drafted, log_name_of, remove_left};
use super::report::{CopyLog, RestoreReport};
use super::site::{Begun, Done, Target};
use super::write::Draft;
use crate::error::BackupError;
use crate::manifest::areas::Areas;
use crate::manifest::changes::Slack;
use crate::manifest::contents::{Manifest, decode};
use crate::ownership::held_dir::HeldDir;
use futures_util::FutureExt;
use pagetier_devio::files::{Access, Directory, create_durably};
use pagetier_page::PageSize;
use pagetier_testing::{FileFault, SimFiles, SimPower};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The outcomes of each power cut that are looked at.
const OUTCOMES: u64 = 8;

fn read(files: &SimFiles, path: &Path) -> Option<Vec<u8>> {
    Some(files.root().open(path, Access::Read).ok()?.read_from(0).unwrap())
}

fn contents(number: u32) -> Vec<u8> {
    vec![number as u8; 10_000 + number as usize]
}

/// The whole file of a backup.
fn file_of(number: u32) -> Vec<u8> {
    let head = Head {
        id: number.to_string(),
        store: "store".into(),
        ssd: None,
        page_bytes: 4096,
        number,
        after: None,
        since: 0,
        upto: 0,
        losses: None,
        log: None,
        has_log: true,
    };
    [encode_head(&head).unwrap(), contents(number)].concat()
}

/// The files of a log's copy.
const OF_LOG: [&str; 3] = ["0000000000000001.log", "0000000000000002.log", "lock"];

/// Copies a log, with `number` in each file. Makes no name durable before the copy's.
fn copy_log(files: &dyn Directory, to: &Path, number: u32) -> std::io::Result<()> {
    let partial = to.with_extension("partial");
    if !files.has_name(&partial)? {
        files.create_directory(&partial)?;
    }
    let dir = files.directory(&partial)?;
    for name in OF_LOG {
        let file = dir.open(Path::new(name), Access::Replace)?;
        file.write_at(0, &contents(number))?;
        file.sync()?;
    }
    dir.sync()?;
    files.rename(&partial, to)?;
    files.directory(to.parent().unwrap())?.sync()
}

fn has_whole_log(files: &SimFiles, dir: &Path, number: u32) -> bool {
    let dir = dir.join(log_name_of(number));
    OF_LOG.iter().all(|name| read(files, &dir.join(name)) == Some(contents(number)))
}

/// The numbers that a directory has by names that begin and end so.
fn numbers_of(files: &SimFiles, dir: &Path, (start, end): (&str, &str)) -> Vec<u32> {
    let names = files.root().directory(dir).map_or(Vec::new(), |dir| dir.names().unwrap());
    let number = |name: &str| name.strip_prefix(start)?.strip_suffix(end)?.parse().ok();
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| number(name.to_str()?)).collect();
    numbers.sort_unstable();
    numbers
}

const BACKUPS: (&str, &str) = ("", ".backup");
const LOGS: (&str, &str) = ("log-", "");

/// Writes the file of a backup in a few pieces, with its log.
async fn back_up(files: &SimFiles, dir: &Path, number: u32) -> Result<PathBuf, BackupError> {
    let mut draft = Draft::create(files.root(), dir).await?;
    let written = async {
        draft.put(b"lost with the SSD").await?;
        draft.begin_again().await?;
        for piece in file_of(number).chunks(3000) {
            draft.put(piece).await?;
            draft.write_out().await?;
        }
        Ok(())
    };
    if let Err(error) = written.await {
        draft.abandon(None).await;
        return Err(error);
    }
    let root = files.root();
    let copy: CopyLog = Box::new(move |to| Box::pin(async move { copy_log(&*root, &to, number) }));
    Ok(draft.finish(number, Some(copy)).await?.0)
}

/// Checks that each backup there is whole, with its log, and that each log without a backup is the draft's.
fn judge(files: &SimFiles, dir: &Path) {
    let backups = numbers_of(files, dir, BACKUPS);
    for &number in &backups {
        assert!(read(files, &dir.join(name_of(number))) == Some(file_of(number)), "number {number}");
        assert!(has_whole_log(files, dir, number), "the log of number {number} is not whole");
    }
    for number in numbers_of(files, dir, LOGS).into_iter().filter(|number| !backups.contains(number)) {
        let draft = dir.join(DRAFT);
        let draft = files.root().open(&draft, Access::Read).ok().and_then(|file| drafted(&*file, &draft));
        assert_eq!(draft, Some(number), "number {number} seems to be removed by hand");
    }
}

#[tokio::test]
async fn a_backup_under_its_name_is_whole_with_its_log_and_a_finished_one_is_there() {
    let dir = Path::new("/backup/db");
    for n in 1.. {
        let power = SimPower::new();
        let files = SimFiles::new(n, &power);
        power.cut_at(n);
        let mut finished = 0;
        while finished < 2 && back_up(&files, dir, finished + 1).await.is_ok() {
            finished += 1;
        }
        for seed in OUTCOMES..20 * OUTCOMES {
            judge(&files.after_power_cut(seed, &SimPower::new()), dir);
        }
        for seed in 0..OUTCOMES {
            let after = files.after_power_cut(seed, &SimPower::new());
            judge(&after, dir);
            assert!(numbers_of(&after, dir, BACKUPS).len() >= finished as usize);
            // The next one, interrupted as well, begins over what is left.
            let power = SimPower::new();
            let after = after.after_kill(seed, &power);
            power.cut_at(1 + (n + 5 * seed) % 40);
            let _ = back_up(&after, dir, 3).await;
            let after = after.after_power_cut(seed, &SimPower::new());
            judge(&after, dir);
            back_up(&after, dir, 4).await.unwrap();
            let after = after.after_power_cut(seed, &SimPower::new());
            judge(&after, dir);
            assert!(numbers_of(&after, dir, BACKUPS).contains(&4));
            assert_eq!(numbers_of(&after, dir, LOGS), numbers_of(&after, dir, BACKUPS));
        }
        if finished == 2 && !power.is_cut() {
            assert!(n > 40, "{n}");
            break;
        }
    }
}

/// A backup that fails at any call leaves what the next one replaces, and no space taken.
#[tokio::test]
async fn a_backup_that_failed_takes_no_room_and_is_not_missed() {
    let dir = Path::new("/backup");
    for n in 0.. {
        let files = SimFiles::new(n, &SimPower::new());
        back_up(&files, dir, 1).await.unwrap();
        let before = files.calls();
        files.fail(n, FileFault::Torn);
        let failed = back_up(&files, dir, 2).await.is_err();
        judge(&files, dir);
        let left = read(&files, &dir.join(DRAFT)).unwrap_or_default();
        assert!(left.is_empty(), "after a failure of call {n}: {}", left.len());
        let is_named = numbers_of(&files, dir, BACKUPS).contains(&2);
        assert!(failed || is_named);
        for seed in 0..OUTCOMES {
            judge(&files.after_power_cut(seed, &SimPower::new()), dir);
        }
        if files.calls() - before <= n {
            break;
        }
    }
    // A full disk, with room for a part of the file, or of its log.
    for room in 0..12 {
        let files = SimFiles::new(room, &SimPower::new());
        back_up(&files, dir, 1).await.unwrap();
        files.set_free(Some(room * 4096));
        let error = back_up(&files, dir, 2).await.unwrap_err();
        assert!(matches!(&error, BackupError::Io { source, .. } if source.kind() == ErrorKind::StorageFull));
        // All of it is free again: a file takes it.
        let engine = files.root().open(Path::new("/log"), Access::Create).unwrap();
        engine.write_at(0, &vec![1; (room * 4096) as usize]).unwrap();
        judge(&files, dir);
        files.set_free(None);
        back_up(&files, dir, 2).await.unwrap();
        judge(&files, dir);
    }
}

/// A purge removes the newest first: what is left of a chain has its beginning, and each backup its log. The
/// next purge removes what is left of logs.
#[test]
fn a_purge_leaves_no_backup_without_those_that_it_continues() {
    let dir = Path::new("/backup");
    let mut n = 0;
    loop {
        let before = SimFiles::new(n, &SimPower::new());
        let root = before.root();
        create_durably(&*root, dir).unwrap();
        for number in 1..=4 {
            let file = root.open(&dir.join(name_of(number)), Access::Create).unwrap();
            file.write_at(0, &file_of(number)).and_then(|()| file.sync()).unwrap();
            copy_log(&*root, &dir.join(log_name_of(number)), number).unwrap();
        }
        root.directory(dir).unwrap().sync().unwrap();
        let power = SimPower::new();
        let files = before.after_kill(n, &power);
        power.cut_at(n);
        let mut gone = 0;
        let purged = (1..=3).rev().try_for_each(|number| {
            remove(&*files.root(), dir, &dir.join(name_of(number)))?;
            gone += 1;
            Ok(())
        });
        let purged = purged.and_then(|()| remove_left(&*files.root(), dir));
        for seed in 0..4 * OUTCOMES {
            let after = files.after_power_cut(seed, &SimPower::new());
            let left = numbers_of(&after, dir, BACKUPS);
            let (newest, older) = left.split_last().unwrap();
            assert!(*newest == 4 && older.iter().copied().eq(1..=older.len() as u32), "{left:?}");
            assert!(older.len() <= 3 - gone, "{left:?} after {gone} removals");
            assert!(left.iter().all(|number| has_whole_log(&after, dir, *number)), "{left:?}");
            assert!(purged.is_err() || numbers_of(&after, dir, LOGS) == [4]);
            remove_left(&*after.root(), dir).unwrap();
            let after = after.after_power_cut(seed, &SimPower::new());
            assert_eq!(numbers_of(&after, dir, LOGS), left);
        }
        if purged.is_ok() && !power.is_cut() {
            assert!(n > 10, "{n}");
            break;
        }
        n += 1;
    }
}

const STORE: &str = "/databases/db";
const PARTIAL: &str = "/databases/db.partial";

fn manifest_in(files: &SimFiles, dir: &str) -> Option<Areas> {
    let dir = files.root().directory(Path::new(dir)).ok()?;
    Some(Areas::in_directory(HeldDir::on(dir)))
}

/// Saves a manifest in place of the store's: opened for this epoch, or closed.
fn save(files: &SimFiles, epoch: u32, is_closed: bool) -> std::io::Result<()> {
    let file = manifest_in(files, PARTIAL).ok_or(std::io::ErrorKind::NotFound)?;
    file.load().now_or_never().unwrap()?;
    let mut manifest = Manifest::new("store".to_owned(), PageSize::MIN);
    (manifest.epoch, manifest.opened) = (epoch, epoch);
    manifest.closed = if is_closed { epoch } else { 0 };
    file.replace(&serde_json::to_vec(&manifest)?, Slack::Keep).now_or_never().unwrap()
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
    let report = RestoreReport { files: 1, number: 1, pages: 0, spaces: 0, needs_log: false };
    site.finish(Done { backup: backup.to_owned(), epoch, report }).await.map(drop)
}

/// The epoch of the store under its name, which is complete; `None`: there is none.
fn restored(files: &SimFiles) -> Option<u32> {
    let bytes = manifest_in(files, STORE)?.load().now_or_never().unwrap().unwrap().expect("a store");
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
