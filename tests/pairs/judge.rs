//! Checks a store after two operations met on it: every page, whether the store goes on, and what a close and
//! a crash leave.

use crate::drive::{Case, LONG, Met};
use crate::fixture::fill;
use crate::operations::{Done, Effect};
use crate::world::{Allowed, Disks, Found, Setup, Side, World, listed, look};
use pagetier::{Error, PageId, PageStore, SsdLoss, SsdMode};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// A version that only this check writes.
const LATER: u32 = 50;

/// In virtual time; what a dropped call has begun has ended after it.
const SETTLED: Duration = Duration::from_secs(20);

/// What the operations did, as far as the pages are concerned.
struct Judged<'a> {
    world: &'a World,
    case: Case,
    met: &'a Met,
    lost: Vec<SsdLoss>,
}

impl Judged<'_> {
    fn named(&self, name: &str) -> bool {
        self.case.operations.iter().any(|operation| operation.name == name)
    }

    /// The end of the operation, if it completed in full.
    fn completed(&self, side: Side) -> Option<&Done> {
        let end = self.met.ends[side as usize].as_ref()?;
        end.as_ref().ok().filter(|done| !done.partly)
    }

    fn certain(&self, side: Side) -> bool {
        self.completed(side).is_some()
    }

    /// Whether an operation made everything durable.
    fn synced(&self) -> bool {
        Side::BOTH.iter().any(|side| self.case.operations[*side as usize].syncs && self.certain(*side))
    }

    /// Whether the pages that were lost are not known.
    fn loses_unknown(&self) -> bool {
        self.named("abandon the SSD") && self.named("acknowledge a loss")
    }

    /// No operation changes the mode of the SSD for another.
    fn check_mode(&self) -> Result<(), String> {
        let unknown = ["switch the SSD off", "abandon the SSD", "shutdown"];
        if self.world.setup != Setup::InUse || unknown.iter().any(|name| self.named(name)) {
            return Ok(());
        }
        let set = |side: &Side| match self.case.operations[*side as usize].name {
            "set the SSD's mode" => Some(SsdMode::WriteBack),
            "set the SSD read-only" => Some(SsdMode::ReadOnly),
            _ => None,
        };
        let sets: Vec<Side> = Side::BOTH.into_iter().filter(|side| set(side).is_some()).collect();
        let expected = match sets[..] {
            [] => SsdMode::WriteBack,
            [one] if self.certain(one) => set(&one).unwrap_or_default(),
            _ => return Ok(()),
        };
        let mode = self.world.store.stats().ssd.mode;
        if mode == expected {
            Ok(())
        } else {
            Err(format!("afterwards, the mode is {mode:?}, not {expected:?}"))
        }
    }

    fn effects(&self, page: PageId) -> Vec<(Side, Effect)> {
        let of = |side: Side| {
            let effects = (self.case.operations[side as usize].effects)(self.world);
            effects.into_iter().filter(move |(one, _)| *one == page).map(move |(_, effect)| (side, effect))
        };
        Side::BOTH.into_iter().flat_map(of).collect()
    }

    /// What `page` may read as in this run.
    fn live(&self, page: PageId) -> Allowed {
        let (newest, _) = self.world.before(page);
        let effects = self.effects(page);
        let mut allowed = Allowed { versions: [newest].into(), absent: false };
        if let [(side, effect)] = effects[..]
            && self.certain(side)
        {
            match effect {
                Effect::Write | Effect::Again => allowed.versions = [side.version()].into(),
                Effect::Free => allowed = Allowed { absent: true, ..Allowed::default() },
                Effect::Discard => allowed.lost(),
            }
        } else {
            for (side, effect) in effects {
                match effect {
                    Effect::Write => drop(allowed.versions.insert(side.version())),
                    Effect::Free => allowed.absent = true,
                    Effect::Again => {
                        allowed.versions.insert(side.version());
                        allowed.absent = true;
                    }
                    Effect::Discard => allowed.lost(),
                }
            }
        }
        self.with_losses(page, allowed)
    }

    /// What `page` may read as after a crash now.
    fn after_crash(&self, page: PageId) -> Allowed {
        let (newest, floor) = self.world.before(page);
        let mut allowed = self.live(page);
        let free = allowed.versions.is_empty();
        let untouched = self.effects(page).is_empty();
        let durable = untouched && self.synced();
        if !free && !durable {
            allowed.versions.extend(floor..=newest);
        }
        // It may have been freed, and the new page not synced.
        allowed.absent |= self.effects(page).iter().any(|(_, effect)| *effect == Effect::Again);
        self.with_losses(page, allowed)
    }

    /// What `page` may read as in a restored backup: as before the call, or newer.
    fn restored(&self, page: PageId) -> Allowed {
        let mut allowed = self.live(page);
        allowed.versions.insert(self.world.before(page).0);
        allowed.absent |= self.effects(page).iter().any(|(_, effect)| *effect == Effect::Again);
        allowed
    }

    fn with_losses(&self, page: PageId, mut allowed: Allowed) -> Allowed {
        if self.loses_unknown() || listed(&self.lost, page) {
            allowed.lost();
        }
        allowed
    }
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(LONG, future).await.map_err(|_| format!("afterwards, {what} hangs"))
}

/// Restores the backup of `world`, and checks every page.
pub(crate) async fn check_backup(world: &World, allowed: &BTreeMap<PageId, Allowed>) -> Result<(), String> {
    let restored = world.folder.path().join("restored");
    let builder = || PageStore::builder().directory(&restored).ssd_bytes(4 << 20).pool_bytes(8 << 20);
    builder()
        .restore(world.backup_folder(), None, |_| {})
        .await
        .map_err(|error| format!("no restore: {error:?}"))?;
    let store = builder().open().await.map_err(|error| format!("the restored store: {error:?}"))?;
    check(&store, world, "in the restored backup", |page| allowed[&page].clone()).await.map(drop)
}

/// Every page, each as `allowed` says.
async fn check(
    store: &PageStore,
    world: &World,
    when: &str,
    allowed: impl Fn(PageId) -> Allowed,
) -> Result<BTreeMap<PageId, Found>, String> {
    let mut all = BTreeMap::new();
    for page in world.pages() {
        let found = soon(&format!("a read of page {page}"), look(store, page)).await?;
        let allowed = allowed(page);
        if !allowed.permits(&found) {
            return Err(format!("{when}, page {page} is {found:?}, not {allowed:?}"));
        }
        all.insert(page, found);
    }
    Ok(all)
}

async fn reopened(disks: &Disks, after: &str) -> Result<PageStore, String> {
    let opened = soon(&format!("opening after {after}"), disks.open()).await?;
    opened.map_err(|error| format!("after {after} the store does not open: {error:?}"))
}

/// The refusals that an operation of a pair may meet.
fn is_expected(kind: &str, judged: &Judged<'_>) -> bool {
    match kind {
        "Closed" => judged.named("shutdown"),
        "Refusing" => judged.case.setup() == Some(Setup::Failed),
        "a panic" | "Exhausted" | "Device" | "Manifest" | "a damaged page" => false,
        other => !other.starts_with("another"),
    }
}

/// Returns what a restored backup may have, if one was completed.
pub(crate) async fn judge(
    world: &World,
    case: Case,
    met: &Met,
) -> Result<Option<BTreeMap<PageId, Allowed>>, String> {
    let cut = world.disks.after_power_cut(case.seed + 1);
    // What was dropped may go on in tasks of its own.
    tokio::time::sleep(SETTLED).await;
    let mut lost: Vec<SsdLoss> = met.ends.iter().flatten().flatten().filter_map(|d| d.lost.clone()).collect();
    lost.extend(world.store.ssd().loss());
    let mut judged = Judged { world, case, met, lost };
    for (side, end) in Side::BOTH.iter().zip(&met.ends) {
        if let Some(Err(refused)) = end
            && !is_expected(&refused.kind, &judged)
        {
            let name = case.operations[*side as usize].name;
            return Err(format!("`{name}` failed with {}: {}", refused.kind, refused.error));
        }
    }
    let may_lose = judged.named("abandon the SSD") || judged.named("readmit, after a failure");
    if !may_lose && judged.lost.iter().any(|loss| loss.pages() > 0) {
        return Err(format!("pages were lost: {:?}", judged.lost));
    }
    judged.check_mode()?;
    let closed = after_both(&judged).await?;
    let store = reopened(&cut, "a power cut").await?;
    judged.lost.extend(store.ssd().loss());
    check(&store, world, "after a power cut", |page| judged.after_crash(page)).await?;
    drop(store);
    if let Some(closed) = closed {
        let store = reopened(&world.disks, "the close").await?;
        let same = |page| match closed.get(&page) {
            // A page that is listed as lost may still have been in memory, where a read that was on its way
            // when the SSD was given up had put it.
            Some(Found::Version(version)) => {
                judged.with_losses(page, Allowed { versions: [*version].into(), absent: false })
            }
            _ => Allowed { absent: true, ..Allowed::default() },
        };
        check(&store, world, "after a close", same).await?;
        store.validate().map_err(|wrong| format!("after a close: {wrong}"))?;
    }
    let backed_up = |side: &Side| case.operations[*side as usize].name == "backup" && judged.certain(*side);
    let restored = || world.pages().map(|page| (page, judged.restored(page))).collect();
    Ok(Side::BOTH.iter().any(backed_up).then(restored))
}

/// The store goes on: it is read, written, synced and closed. Returns what the closed store must hold, unless
/// its close may fail.
async fn after_both(judged: &Judged<'_>) -> Result<Option<BTreeMap<PageId, Found>>, String> {
    let (store, world) = (&judged.world.store, judged.world);
    let mut found = BTreeMap::new();
    let ending = judged.case.operations.iter().zip(judged.met.polls);
    let mut ending = ending.filter(|(operation, polls)| operation.name == "shutdown" && *polls > 0);
    if ending.next().is_some() {
        // Every call has the result of the first; one that was dropped continues.
        let ended = soon("the shutdown", store.shutdown()).await?;
        return match ended {
            Ok(()) => {
                let store = reopened(&world.disks, "the shutdown").await?;
                let found = check(&store, world, "after the shutdown", |page| judged.live(page)).await?;
                store.close().await.map_err(|error| format!("the second close failed: {error:?}"))?;
                Ok(Some(found))
            }
            Err(_) if world.setup == Setup::Failed => Ok(None),
            Err(error) => Err(format!("the shutdown failed: {error:?}")),
        };
    }
    found.extend(check(store, world, "afterwards", |page| judged.live(page)).await?);
    let later = [world.page(30), PageId::new(world.full, 3)];
    for page in later {
        // The page may have been lost.
        let written = soon("a write", overwrite(store, page)).await?;
        written.map_err(|error| format!("afterwards, page {page} cannot be written: {error:?}"))?;
        found.insert(page, Found::Version(LATER));
    }
    match soon("a sync", store.sync()).await? {
        Ok(()) => {}
        // Not every operation readmits the SSD.
        Err(error) if world.setup == Setup::Failed && refuses(&error) => return Ok(None),
        Err(error) => return Err(format!("afterwards, a sync fails: {error:?}")),
    }
    // A call of `free_on_sync` that did not get to its own sync left its pages to this one.
    tokio::time::sleep(SETTLED).await;
    let frees = |page: &PageId| judged.effects(*page).iter().any(|(_, effect)| *effect == Effect::Free);
    for page in world.pages().filter(frees) {
        let left = soon("a read", look(store, page)).await?;
        let allowed = judged.live(page);
        if !allowed.permits(&left) {
            return Err(format!("after a sync, page {page} is {left:?}, not {allowed:?}"));
        }
        found.insert(page, left);
    }
    store.validate().map_err(|wrong| format!("afterwards: {wrong}"))?;
    soon("the close", store.shutdown()).await?.map_err(|error| format!("the close fails: {error:?}"))?;
    Ok(Some(found))
}

async fn overwrite(store: &PageStore, page: PageId) -> Result<(), Error> {
    fill(&mut store.overwrite(page).await?, page.no, LATER);
    Ok(())
}

fn refuses(error: &Error) -> bool {
    let said = format!("{error:?}");
    said.contains("Refusing") || said.contains("refuses")
}
