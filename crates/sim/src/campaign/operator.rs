//! The operator of a store in use: resizes the pool, switches policies, sets a write budget, shrinks spaces,
//! takes backups. A restored backup must hold every page in a version no older than the backup's beginning,
//! and no page that was free throughout the backup.

use super::coverage::State;
use super::model::{Doing, Model};
use super::moment::bounded_power;
use super::plan::Plan;
use super::polls::up_to;
use super::probe::Probe;
use super::world::look;
use pagetier::{BackupOptions, Error, PageId, PageStore, SpaceId};
use pagetier_devio::{SharedDevice, SimDevice};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any call takes.
const LONG: Duration = Duration::from_secs(3600);

/// A folder for backups and restored stores.
#[derive(Debug)]
pub(super) struct Folder {
    dir: TempDir,
    restored: AtomicU32,
}

impl Folder {
    /// Creates a folder, in memory if the machine has a file system there: its contents need not outlive the
    /// run.
    pub(super) fn new() -> Result<Self, String> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.map_err(|error| format!("no folder for backups: {error}"))?;
        Ok(Self { dir, restored: AtomicU32::new(0) })
    }

    /// Where the backups go.
    pub(super) fn chain(&self) -> PathBuf {
        self.dir.path().join("chain")
    }

    fn next_restored(&self) -> PathBuf {
        self.dir.path().join(format!("restored-{}", self.restored.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A backup, and the model at its beginning and at its end.
#[derive(Debug)]
pub(super) struct Taken {
    number: u32,
    full: bool,
    before: Model,
    after: Model,
}

/// The backups of a session.
pub(super) type Backups = Arc<Mutex<Vec<Taken>>>;

/// The task that operates a store.
pub(super) struct Operator {
    pub(super) store: Arc<PageStore>,
    pub(super) probe: Arc<Probe>,
    pub(super) plan: Arc<Plan>,
    pub(super) rng: SmallRng,
    /// Devices may fail: errors are allowed.
    pub(super) errors_allowed: bool,
    /// Where to put backups, and where to list them; `None`: none are taken.
    pub(super) backups: Option<(PathBuf, Backups)>,
}

impl Operator {
    pub(super) async fn run(mut self) -> Result<(), String> {
        for _ in 0..self.rng.random_range(1..=5) {
            let pause = self.rng.random_range(1..=30 * self.plan.hdd_us);
            tokio::time::sleep(Duration::from_micros(pause)).await;
            match self.rng.random_range(0..9) {
                0 | 1 => self.resize().await?,
                2 | 3 => self.switch().await?,
                4 => {
                    let policy = Plan::any_pool_policy(&mut self.rng);
                    self.store.set_pool_policy(policy).map_err(|error| format!("{policy}: {error}"))?;
                }
                5 => self.set_budget(),
                _ => self.back_up().await?,
            }
        }
        Ok(())
    }

    async fn resize(&mut self) -> Result<(), String> {
        let frames = self.rng.random_range(18..=60);
        let (store, bytes) = (Arc::clone(&self.store), self.plan.pool_bytes(frames));
        self.probe.mark(State::Resized);
        self.call("resize_pool", |_| (), store.resize_pool(bytes)).await
    }

    async fn switch(&mut self) -> Result<(), String> {
        let policy = Plan::any_ssd_policy(&mut self.rng);
        let store = Arc::clone(&self.store);
        self.probe.model.lock().doing.switch += 1;
        let ended = |doing: &mut Doing| doing.switch -= 1;
        self.call("set_ssd", ended, store.policies().set_ssd(policy)).await
    }

    fn set_budget(&mut self) {
        let budget = [None, Some(0), Some(100 << 20), Some(1 << 40)][self.rng.random_range(0..4)];
        self.store.ssd().set_write_budget(budget);
        self.probe.mark(State::Budgeted);
    }

    /// Awaits a call, or drops it at one of its awaits. It may fail only if devices do.
    async fn call<T>(
        &mut self,
        what: &str,
        ended: impl FnOnce(&mut Doing),
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<(), String> {
        let dropped = self.plan.has("drop-future") && self.rng.random_bool(0.2);
        let polls = if dropped { self.rng.random_range(1..10) } else { u32::MAX };
        let done = tokio::time::timeout(LONG, up_to(polls, call)).await;
        ended(&mut self.probe.model.lock().doing);
        match done.map_err(|_| format!("{what} hangs"))? {
            Some(Err(error)) if !self.errors_allowed => Err(format!("{what}: {error}")),
            _ => Ok(()),
        }
    }

    async fn back_up(&mut self) -> Result<(), String> {
        let Some((chain, taken)) = self.backups.clone() else { return Ok(()) };
        let before = self.probe.model.lock().clone();
        if before.torn_homes() {
            // A backup cannot copy a discarded page whose home stays torn.
            return Ok(());
        }
        let full = self.rng.random_bool(0.2);
        let dropped = self.plan.has("drop-future") && self.rng.random_bool(0.15);
        let polls = if dropped { self.rng.random_range(1..60) } else { u32::MAX };
        self.probe.model.lock().doing.backup += 1;
        let backup = self.store.backup(&chain, BackupOptions::new().full(full));
        let done = tokio::time::timeout(LONG, up_to(polls, backup)).await;
        self.probe.model.lock().doing.backup -= 1;
        match done.map_err(|_| "backup hangs")? {
            Some(Ok(made)) => {
                let (number, full) = (made.number, made.full_because.is_some());
                let after = self.probe.model.lock().clone();
                taken.lock().push(Taken { number, full, before, after });
                Ok(())
            }
            Some(Err(error)) if !self.errors_allowed => Err(format!("backup: {error}")),
            _ => Ok(()),
        }
    }
}

/// Restores the backups, and compares each with the model.
pub(super) async fn compare(
    plan: &Plan,
    folder: &Folder,
    taken: &Backups,
    probe: &Probe,
) -> Result<(), String> {
    let taken = std::mem::take(&mut *taken.lock());
    for Taken { number, full, before, after } in taken {
        let done = async {
            let to = folder.next_restored();
            let restored = restored(plan, &folder.chain(), &to, number).await?;
            judge(&restored, before, after).await?;
            drop(restored);
            std::fs::remove_dir_all(&to).map_err(|error| error.to_string())
        };
        done.await.map_err(|wrong| format!("backup {number}, full: {full}, restored: {wrong}"))?;
        probe.mark(if full { State::BackedUp } else { State::BackedUpMore });
    }
    Ok(())
}

/// Restores a backup, and opens the restored store.
async fn restored(plan: &Plan, chain: &Path, to: &Path, number: u32) -> Result<PageStore, String> {
    let power = bounded_power();
    let [hdd, ring] =
        ["hdd", "ring"].map(|name| Arc::new(SimDevice::new(name, 0, 1, &power)) as SharedDevice);
    let builder = || {
        // Of another size and policy than the store's, and intact.
        let builder = plan.builder().ssd_bytes(0).ring_pages(4).mutation(None).directory(to);
        builder.hdd_device(Arc::clone(&hdd)).ring_device(Arc::clone(&ring))
    };
    builder().restore(chain, Some(number), |_| ()).await.map_err(|error| error.to_string())?;
    builder().create(false).open().await.map_err(|error| error.to_string())
}

async fn judge(restored: &PageStore, mut before: Model, mut after: Model) -> Result<(), String> {
    let last = before.last_version;
    let both: Vec<PageId> = after.live_pages();
    for page in both {
        let found = match look(restored, page).await? {
            Ok(found) => found,
            // Checked below.
            Err(Error::NoSuchSpace { .. }) => continue,
            Err(error) => return Err(format!("page {page}: {error}")),
        };
        let then = before.live_page(page).cloned();
        let Some(p) = after.live_page(page) else { continue };
        if !p.may_be_copied(then.as_ref(), last, found) {
            let was = then.map_or("absent".to_owned(), |then| then.allowed());
            return Err(format!("page {page} is in version {found:?}, was {was}, is {}", p.allowed()));
        }
    }
    let spaces = restored.spaces().list();
    let missing = |space: &u32| !spaces.iter().any(|s| s.id == SpaceId(*space));
    let all = before.live().into_iter().filter(|space| after.live().contains(space));
    match all.into_iter().find(missing) {
        Some(space) => Err(format!("space {space} is missing")),
        None => Ok(()),
    }
}
