//! The operator's calls on a store in use: resizes the pool, switches policies, sets costs and a write
//! budget, takes backups, scrubs, records, simulates other sizes. A restored backup must hold every page in a
//! version no older than the backup's beginning, and no page that was free throughout the backup.

use super::worker::{LONG, Outcome, Worker};
use crate::campaign::contract::model::{Doing, Model};
use crate::campaign::draw::plan::Plan;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::State;
use crate::campaign::world::crash::bounded_power;
use crate::campaign::world::desk::{Backups, Desk, Folder, Taken};
use crate::campaign::world::examine::look;
use crate::campaign::world::probe::Probe;
use pagetier::{
    Costs, Error, PageId, PageStore, SpaceId, SsdLoss, backup::BackupOptions, scrub::ScrubOptions,
    what_if::WhatIfOptions,
};
use pagetier_control::{Request, perform};
use pagetier_devio::SharedDevice;
use pagetier_testing::SimDevice;
use rand::Rng;
use std::path::Path;
use std::sync::Arc;

/// The maximum number of backups of a session: each is restored at its end.
const BACKUPS_MAX: usize = 6;

/// The rate of a limited backup, in bytes per second: a page per eighth of a millisecond.
const RATE_BYTES: u64 = 32 << 20;

impl Worker {
    pub(super) async fn resize(&mut self) -> Outcome {
        // From below the smallest pool of a plan to above the largest, so that a resize has to evict
        // pages as well.
        let frames = self.rng.random_range(18..=60);
        let (store, bytes) = (Arc::clone(&self.store), self.plan.pool_bytes(frames));
        self.probe.mark(State::Resized);
        self.until("resize_pool", |_| (), store.resize_pool(bytes)).await
    }

    pub(crate) async fn switch(&mut self) -> Outcome {
        let policy = self.plan.ssd_policy_named(Plan::any_ssd_policy(&mut self.rng));
        let store = Arc::clone(&self.store);
        self.model.lock().doing.switch += 1;
        let ended = |doing: &mut Doing| doing.switch -= 1;
        self.until("set_ssd", ended, store.policies().set_ssd(policy)).await
    }

    pub(super) async fn set_pool_policy(&mut self) -> Outcome {
        let policy = Plan::any_pool_policy(&mut self.rng);
        self.store.policies().set_pool(policy).map_err(|error| format!("{policy}: {error}"))
    }

    pub(super) async fn set_budget(&mut self) -> Outcome {
        let budget = [None, Some(0), Some(100 << 20), Some(1 << 40)][self.rng.random_range(0..4)];
        self.store.ssd().set_write_budget(budget);
        self.probe.mark(State::Budgeted);
        Ok(())
    }

    /// A request over the control socket, by an operator who may go away. It may be refused.
    pub(super) async fn ask(&mut self) -> Outcome {
        let request = match self.rng.random_range(0..6) {
            0 => Request::Stat {},
            1 => Request::SetPolicy {
                pool: Some(Plan::any_pool_policy(&mut self.rng).to_owned()),
                ssd: Some(self.plan.ssd_policy_named(Plan::any_ssd_policy(&mut self.rng))),
            },
            2 => Request::SetBudget { bytes_per_day: [None, Some(1 << 30)][self.rng.random_range(0..2)] },
            3 => Request::ResizePool { bytes: self.plan.pool_bytes(self.rng.random_range(18..=60)) },
            4 => Request::Scrub { pages_per_second: 0.0, heal: true },
            _ => Request::Shrink { space: None, all: true },
        };
        // A shrink would go on, and give back disk space while others look at it.
        let dropped = self.rng.random_bool(0.2) && !matches!(request, Request::Shrink { .. });
        let polls = if dropped { self.rng.random_range(1..40) } else { u32::MAX };
        self.model.lock().doing.shrink += 1;
        self.model.lock().doing.switch += 1;
        let store = Arc::clone(&self.store);
        let asked = up_to(polls, perform(&*store, request, Arc::new(|_| ())));
        let answered = tokio::time::timeout(LONG, asked).await;
        self.model.lock().doing.shrink -= 1;
        self.model.lock().doing.switch -= 1;
        answered.map(drop).map_err(|_| "a request hangs".to_owned())
    }

    pub(super) async fn set_costs(&mut self) -> Outcome {
        let hdd_read_ms = [0.01, 1.0, 7.2, 100.0, f64::NAN, -1.0][self.rng.random_range(0..6)];
        let before = self.store.policies().costs();
        let set = self.store.policies().set_costs(Costs { hdd_read_ms, ..before });
        match set {
            Ok(()) if hdd_read_ms > 0.0 => Ok(()),
            Err(Error::BadCosts { .. }) if hdd_read_ms.is_nan() || hdd_read_ms <= 0.0 => Ok(()),
            other => Err(format!("costs of {hdd_read_ms} ms: {other:?}")),
        }
    }

    /// Scrubs the store, aborts that, or drops it.
    pub(super) async fn scrub(&mut self) -> Outcome {
        let rate = [None, Some(100.0), Some(10_000.0)][self.rng.random_range(0..3)];
        let (slots, homes) = (self.rng.random_bool(0.8), self.rng.random_bool(0.8));
        let options = ScrubOptions::default().pages_per_second(rate).slots(slots).homes(homes);
        let scrub = self.store.scrub(options.heal(self.rng.random_bool(0.8)));
        if self.rng.random_bool(0.3) {
            self.pause().await?;
            scrub.abort();
        }
        let polls = if self.rng.random_bool(0.3) { self.rng.random_range(1..40) } else { u32::MAX };
        let (_, _) = (scrub.progress(), scrub.is_finished());
        // A page that was discarded may be damaged, so findings are no violations.
        drop(up_to(polls, scrub.finished()).await);
        Ok(())
    }

    pub(super) async fn what_if(&mut self) -> Outcome {
        match self.rng.random_range(0..4) {
            0 | 1 => drop(self.store.what_if().start(&WhatIfOptions::new().share(1.0))),
            2 => drop(self.store.what_if().report()),
            _ => drop(self.store.what_if().stop().await),
        }
        Ok(())
    }

    pub(super) async fn trace(&mut self) -> Outcome {
        let Some(Desk { dir, .. }) = self.desk.clone() else { return Ok(()) };
        match self.rng.random_range(0..3) {
            0 | 1 => drop(self.store.trace().start(dir.join("trace.ptr"))),
            _ if self.store.trace().progress().is_some() => drop(self.store.trace().stop().await),
            _ => {}
        }
        Ok(())
    }

    /// Saves the list of hot pages, or loads the pages of the last list.
    pub(super) async fn hot_pages(&mut self) -> Outcome {
        let Some(Desk { dir, .. }) = self.desk.clone() else { return Ok(()) };
        let path = dir.join("hot");
        if self.rng.random_bool(0.5) || !path.exists() {
            let saved = self.store.hot_set().export(&path).await;
            return saved.map(drop).map_err(|error| format!("export_hot: {error}"));
        }
        let loaded = self.store.hot_set().import(&path).await;
        loaded.map(drop).map_err(|error| format!("import_hot: {error}"))
    }

    /// Calls what only looks at the store.
    pub(super) async fn views(&mut self) -> Outcome {
        let store = Arc::clone(&self.store);
        let _ = (store.stats().summary(), store.stats().to_string(), store.frames(), store.recovery());
        let _ = (store.stats().ssd.state(), store.stats().ssd.mode, store.ssd().events().try_next());
        let _ = (
            store.policies().ssd(),
            store.policies().groups(),
            store.policies().pool(),
            store.hot_set().pages(5),
        );
        let (min, _) = (store.min_recovery_lsn(), store.stats().ssd.oldest_lsn);
        if min.is_some_and(|min| min.0 > u64::from(self.model.lock().last_version)) {
            return Err(format!("the oldest change in memory has LSN {min:?}, which was not issued yet"));
        }
        if let Some(page) = self.pick() {
            let _ = (store.location(page), store.policies().counts(page), store.why(page));
            let _ = store.spaces().pages(page.space);
            let mut model = self.model.lock();
            if model.live_page(page).is_some_and(|p| p.is_in_use()) && !store.exists(page) {
                return Err(format!("page {page} is in use, but does not exist"));
            }
        }
        let named = self.model.lock().live_names();
        for (id, name) in named {
            if store.spaces().find(&name) != Some(SpaceId(id)) {
                return Err(format!("space {name} is not found"));
            }
        }
        Ok(())
    }

    /// The number of polls after which a call is dropped: below `most`, with this probability; otherwise none
    /// is.
    pub(crate) fn polls(&mut self, probability: f64, most: u32) -> u32 {
        let dropped = self.plan.has("drop-future") && self.rng.random_bool(probability);
        if dropped { self.rng.random_range(1..most) } else { u32::MAX }
    }

    /// Awaits a call, or drops it at one of its awaits. It may fail only if devices do.
    async fn until<T>(
        &mut self,
        what: &str,
        ended: impl FnOnce(&mut Doing),
        call: impl Future<Output = Result<T, Error>>,
    ) -> Outcome {
        let polls = self.polls(0.2, 10);
        let done = up_to(polls, call).await;
        ended(&mut self.model.lock().doing);
        match done {
            Some(Err(error)) => self.judge(what, None, &error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn back_up(&mut self) -> Outcome {
        let Some(Desk { dir, backups: Some(taken) }) = self.desk.clone() else { return Ok(()) };
        let before = self.model.lock().clone();
        if before.torn_homes() || taken.lock().len() >= BACKUPS_MAX {
            // A backup cannot copy a discarded page whose home stays torn.
            return Ok(());
        }
        let lost = self.store.ssd().loss();
        let calls = before.ssd_calls.are_running();
        if calls && !self.plan.has("abandon-in-backup") {
            return Ok(());
        }
        let full = self.rng.random_bool(0.2) || (before.acknowledged && !self.plan.has("backup-after-loss"));
        let polls = self.polls(0.15, 60);
        self.model.lock().doing.backup += 1;
        let store = Arc::clone(&self.store);
        // Every second one at a limited rate. No draw, which would change what every seed does.
        let rate = (taken.lock().len() % 2 == 1).then_some(RATE_BYTES);
        let options = BackupOptions::new().full(full).bytes_per_second(rate);
        let done = up_to(polls, store.backup(dir.join("chain"), options)).await;
        self.model.lock().doing.backup -= 1;
        match done {
            Some(Ok(made)) => {
                let (number, full) = (made.number, made.full_because.is_some());
                let after = self.model.lock().clone();
                // A loss may be acknowledged or begin meanwhile, so either list excuses a page.
                let losses = [lost, self.store.ssd().loss()];
                taken.lock().push(Taken { number, full, before, after, losses });
                Ok(())
            }
            // While pages are lost, some cannot be read.
            Some(Err(_)) if self.errors_allowed || self.store.ssd().loss().is_some() => Ok(()),
            Some(Err(_)) if self.model.lock().any_gone() => Ok(()),
            Some(Err(error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                Err(format!("backup: {error}: {}", cause.unwrap_or_default()))
            }
            None => Ok(()),
        }
    }
}

/// Restores the backups, and compares each with the model.
pub(crate) async fn compare(
    plan: &Plan,
    folder: &Folder,
    taken: &Backups,
    probe: &Probe,
) -> Result<(), String> {
    let taken = std::mem::take(&mut *taken.lock());
    for Taken { number, full, before, after, losses } in taken {
        let done = async {
            let to = folder.next_restored();
            let restored = restored(plan, &folder.chain(), &to, number).await?;
            judge(&restored, before, after, &losses, plan.has("reuse-in-backup")).await?;
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
        let builder = plan.builder().ssd_bytes(0).ring_pages(4).directory(to);
        // The paused clock waits for its saves.
        let builder = builder.before_saves(|| ());
        builder.hdd(Arc::clone(&hdd)).ring_device(Arc::clone(&ring))
    };
    builder().restore(chain, Some(number), |_| ()).await.map_err(|error| error.to_string())?;
    builder().create(pagetier::options::Create::Never).open().await.map_err(|error| error.to_string())
}

async fn judge(
    restored: &PageStore,
    mut before: Model,
    mut after: Model,
    losses: &[Option<SsdLoss>],
    strict: bool,
) -> Result<(), String> {
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
        let listed = losses.iter().flatten().any(|loss| loss.contains(page));
        let Some(p) = after.live_page(page) else { continue };
        if !p.may_be_copied(
            then.as_ref(),
            last,
            found,
            listed || (!strict && p.was_freed_since(then.as_ref())),
        ) {
            let was = then.map_or("absent".to_owned(), |then| then.allowed());
            return Err(format!("page {page} is in version {found:?}, was {was}, is {}", p.allowed()));
        }
    }
    let spaces = restored.spaces().list();
    let missing = |space: &u32| !spaces.iter().any(|s| s.id == SpaceId(*space));
    // A space that was created or dropped meanwhile may be in the backup or not.
    let all = before.live().into_iter().filter(|space| after.live().contains(space));
    match all.into_iter().find(missing) {
        Some(space) => Err(format!("space {space} is missing")),
        None => Ok(()),
    }
}
