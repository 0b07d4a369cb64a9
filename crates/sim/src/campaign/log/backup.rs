//! Backups of pages and log while an engine works, their restoration, and what a later log makes of it.

use super::model::Model;
use super::open::{self, causes, check};
use super::terms::Terms;
use super::watch::{Media, Moment, Watch};
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::totals::Totals;
use crate::campaign::world::crash::bounded_power;
use pagetier::backup::{BackupFile, Backups};
use pagetier::{Builder, Lsn, MemoryManifest};
use pagetier_devio::SharedDevice;
use pagetier_testing::SimDevice;
use pagetier_wal::{LoggedStore, Until, WalError};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A backup, and what the engine knew at its beginning and at its end.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) number: u32,
    pub(super) before: Model,
    pub(super) after: Model,
}

/// Where the backups of a life go.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    dir: PathBuf,
    /// Where the life's log is archived, if it is.
    pub(super) archive: Option<PathBuf>,
    pub(super) taken: Arc<Mutex<Vec<Taken>>>,
}

impl Shelf {
    pub(super) fn new(dir: PathBuf, archived: bool) -> Result<Self, String> {
        let archive = archived.then(|| dir.join("archive"));
        std::fs::create_dir_all(archive.as_ref().unwrap_or(&dir)).map_err(|error| error.to_string())?;
        Ok(Self { dir, archive, taken: Arc::default() })
    }

    pub(super) fn chain(&self) -> PathBuf {
        self.dir.join("chain")
    }
}

/// Restores the backups of a life, and compares each with what the engine knew; some with the log that the
/// store has now.
pub(super) async fn compare(
    plan: &Plan,
    shelf: &Shelf,
    now: &Moment,
    rng: &mut SmallRng,
    totals: &mut Totals,
) -> Result<(), String> {
    let taken = std::mem::take(&mut *shelf.taken.lock());
    if taken.is_empty() {
        return Ok(());
    }
    let backups = Backups::at(shelf.chain());
    let files = backups.verify(|_| ()).await.map_err(|error| causes(&error))?;
    // Others were dropped half-way.
    let is_whole = |file: &BackupFile| taken.iter().any(|one| one.number == file.number);
    let bad = |file: &&BackupFile| is_whole(file) && (file.fault.is_some() || !file.is_restorable);
    if let Some(file) = files.iter().find(bad) {
        return Err(format!("a backup does not verify: {file:?}"));
    }
    let mut gone = Vec::new();
    if rng.random_bool(0.3) {
        // The backups that stay must need none of those that go.
        let purged = backups.purge(1, |_| ()).await.map_err(|error| causes(&error))?;
        gone = purged.removed;
    }
    for one in taken.iter().filter(|one| !gone.contains(&one.number)) {
        let ended = restored(plan, shelf, one, now, rng).await;
        let ended = ended.map_err(|wrong| format!("backup {}, restored: {wrong}", one.number))?;
        totals.tamper("log: restored", ended);
    }
    std::fs::remove_dir_all(&shelf.dir).map_err(|error| error.to_string())
}

async fn restored(
    plan: &Plan,
    shelf: &Shelf,
    one: &Taken,
    now: &Moment,
    rng: &mut SmallRng,
) -> Result<&'static str, String> {
    let to = shelf.dir.join("restored");
    let log = shelf.dir.join("restored-log");
    let _ = (std::fs::remove_dir_all(&to), std::fs::remove_dir_all(&log));
    let power = bounded_power();
    let device = |name| Arc::new(SimDevice::new(name, 0, 1, &power)) as SharedDevice;
    let (hdd, ring) = (device("hdd"), device("ring"));
    let builder = || store_in(plan, &to).hdd(Arc::clone(&hdd)).ring_device(Arc::clone(&ring));
    let later = rng.random_bool(0.5) && !now.model.loaded_since(&one.before);
    // The log does not create spaces.
    let later = later && now.model.spaces().iter().all(|(id, ..)| one.before.has_space(*id));
    if later
        && rng.random_bool(0.5)
        && let Some(archive) = &shelf.archive
    {
        return to_a_moment(plan, (builder, &log), (shelf, archive, one), now, rng).await;
    }
    let done = LoggedStore::restore(builder(), &log, &shelf.chain(), one.number).await;
    done.map_err(|error| causes(&error))?;
    if later && let Some(ended) = with_later_log(plan, builder(), now).await? {
        return Ok(ended);
    }
    let db = LoggedStore::open(
        builder().create(pagetier::options::Create::Never),
        &log,
        Terms::of(plan).options(),
    )
    .await;
    let again = if later { " after a later log was refused" } else { "" };
    let db = db.map_err(|error| format!("does not open{again}: {}", causes(&error)))?;
    let mut model = one.after.as_backed_up(&one.before);
    check(&db, &mut model, one.before.acked, false).await.map_err(|wrong| format!("{wrong}{again}"))?;
    leave(db).await;
    Ok(if later { "refused with a later log that has a gap, opens with its own" } else { "opens" })
}

/// Restores the backup to a moment since, by the life's archive: the store has every record up to it.
async fn to_a_moment(
    plan: &Plan,
    (builder, log): (impl Fn() -> Builder, &Path),
    (shelf, archive, one): (&Shelf, &Path, &Taken),
    now: &Moment,
    rng: &mut SmallRng,
) -> Result<&'static str, String> {
    let (chain, words) = (shelf.chain(), |error: WalError| causes(&error));
    let (first, last) = LoggedStore::restorable(&chain, one.number, archive).map_err(words)?;
    if first.lsn.0 < one.before.acked {
        return Err(format!("the backup ends at {}, before what was acknowledged", first.lsn));
    }
    // Most positions are inside a record, of which a restoration up to there must have nothing.
    let drawn = Lsn(rng.random_range(first.lsn.0..=last.lsn.0));
    let until = [Until::End, Until::Lsn(drawn), Until::Lsn(drawn)][rng.random_range(0..3)];
    let end = LoggedStore::restore_until(builder(), log, (&chain, one.number), archive, until).await;
    let end = end.map_err(|error| format!("{until:?}: {}", causes(&error)))?;
    let latest = if until == Until::End { last.lsn } else { drawn };
    if end > latest || until == Until::End && end != latest {
        return Err(format!("{until:?}: it was restored to {end}"));
    }
    // The restoration must have made the store: an open that makes a new one would hide that it had not.
    let never = builder().create(pagetier::options::Create::Never);
    let db = LoggedStore::open(never, log, Terms::of(plan).options()).await;
    let db = db.map_err(|error| format!("{until:?}: does not open: {}", causes(&error)))?;
    let (found, mut model) = (db.wal().end(), now.model.clone());
    if found != end {
        return Err(format!("{until:?}: the log ends at {found}, and not at {end}"));
    }
    check(&db, &mut model, end.0, false).await.map_err(|wrong| format!("{until:?}: {wrong}"))?;
    leave(db).await;
    Ok("to a moment, and opens")
}

/// Opens the restored pages with the log that the store has now: with every change since, or not at all.
async fn with_later_log(plan: &Plan, builder: Builder, now: &Moment) -> Result<Option<&'static str>, String> {
    let power = bounded_power();
    let log = now.log(&power);
    let pages = crate::campaign::world::disks::Disks {
        hdd: SimDevice::new("none", 0, 1, &power),
        ssd: SimDevice::new("none", 0, 1, &power),
        ring: SimDevice::new("none", 0, 1, &power),
        power,
    };
    let media = Media { pages, log, manifest: MemoryManifest::default() };
    let watch = Watch::new(plan, media, now.model.clone(), 1);
    match open::on(
        &watch,
        builder.create(pagetier::options::Create::Never),
        watch.log_media(),
        (Terms::of(plan), None),
    )
    .await
    {
        Ok(db) => {
            let mut model = now.model.clone();
            let checked = check(&db, &mut model, now.model.acked, false).await;
            checked.map_err(|wrong| format!("it opens with the log of now, but {wrong}"))?;
            leave(db).await;
            Ok(Some("opens with a later log, with everything since"))
        }
        Err(_) => {
            // An open that is refused leaves in the background, and holds its locks until then.
            tokio::time::sleep(open::LEAVES).await;
            Ok(None)
        }
    }
}

/// Drops a store, and waits until its locks are free.
async fn leave(db: LoggedStore) {
    let left = db.store().wait_closed();
    drop(db);
    left.await;
}

/// A store in a directory, of another size than the one that was backed up.
fn store_in(plan: &Plan, dir: &Path) -> Builder {
    let builder = plan.builder().ssd_bytes(0).ring_pages(4).directory(dir);
    // The paused clock waits for its saves.
    builder.before_saves(|| ())
}
