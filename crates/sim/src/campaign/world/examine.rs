//! Opens stores on simulated devices, and checks every page after a crash.

use super::crash::{Crash, Moment, Outcome};
use super::probe::{Phase, Probe, Rate};
use crate::campaign::contract::content::version_in;
use crate::campaign::contract::model::{Model, SpaceState};
use crate::campaign::report::coverage::State;
use crate::campaign::report::totals::Checked;
use pagetier::{Error, OpenError, PageId, PageStore};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The maximum duration of a life, in virtual time.
const LIFE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The defects that faults excuse: those that the store cannot detect, or cannot repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lenient {
    /// A page's only copy may be bad: reading it yields an error.
    pub(crate) corrupt: bool,
    /// A home write may have been lost without an error: any version may be read.
    pub(crate) stale: bool,
    /// The power stayed on: readable data need not be durable.
    pub(crate) volatile: bool,
}

/// Runs `work` in virtual time on its own runtime.
pub(crate) fn in_virtual_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(async move {
        tokio::time::timeout(LIFE_MAX, work).await.unwrap_or_else(|_| Err("hangs".to_owned()))
    })
}

impl Checked {
    /// Adds what the crash met.
    pub(crate) fn meet(&mut self, crash: &Crash<'_>) {
        self.states = self.states.union(crash.states());
        self.running = crash.moment.model.doing.running;
    }
}

/// Checks that every page reads as the contract allows, and records each version found.
pub(crate) async fn check(
    store: &PageStore,
    model: &Mutex<Model>,
    lenient: Lenient,
) -> Result<Checked, String> {
    check_spaces(store, &mut model.lock())?;
    let loss = store.ssd().loss();
    model.lock().settle_loss(loss.is_some());
    let unlinked = model.lock().take_unlinked();
    let mut versions = BTreeMap::new();
    let pages = model.lock().live_pages();
    let mut checked = Checked::default();
    checked.states.add_if(loss.is_some(), State::LossReported);
    for page in pages {
        checked.pages += 1;
        let found = match look(store, page).await? {
            Err(error) if is_torn_discard(model, page, &error) => Ok(Some(0)),
            Err(error) if lenient.corrupt && error.to_string().contains("corrupt") => {
                checked.corrupt += 1;
                continue;
            }
            found => found,
        };
        let mut model = model.lock();
        let Some(p) = model.page(page) else { continue };
        match &found {
            Ok(found) if p.may_be(*found) || lenient.stale => {
                versions.insert(page, *found);
                checked.states.add_if(found.unwrap_or(0) < p.published, State::FoundOlder);
                // What a kill left readable a power cut may still take: then older versions stay allowed.
                p.was_found(*found, !lenient.volatile);
                continue;
            }
            Err(_) if p.fails() => continue,
            _ => {}
        }
        let (wrong, allowed) = (wrong(page, &found), p.allowed());
        let reported = loss.as_ref().is_some_and(|loss| loss.contains(page));
        // The list of a loss excuses what the pages on it read as, and no other page.
        if !reported || !model.lost(page, found.ok().map(|found| found.unwrap_or(0)), false) {
            return Err(format!("{wrong}, allowed is {allowed}, reported lost: {reported}"));
        }
    }
    // A loss may take the change of the page that refers to the freed one, and the free lasts: the
    // manifest has it.
    if loss.is_none() && !lenient.stale {
        unlinks_lasted(&unlinked, &versions)?;
    }
    store.validate()?;
    let recovery = store.recovery();
    checked.states.add_if(recovery.trusted > 0, State::FoundTrusted);
    checked.states.add_if(recovery.found > 0, State::FoundZone);
    checked.states.add_if(recovery.superseded > 0, State::FoundSuperseded);
    checked.states.add_if(recovery.repaired > 0, State::FoundRepaired);
    Ok(checked)
}

/// Checks that no page that does not exist is one that another page refers to.
fn unlinks_lasted(
    unlinked: &[(PageId, PageId, u32)],
    versions: &BTreeMap<PageId, Option<u32>>,
) -> Result<(), String> {
    for (page, from, version) in unlinked {
        if versions.get(page) == Some(&None)
            && let Some(found) = versions.get(from).filter(|found| found.unwrap_or(0) < *version)
        {
            return Err(format!(
                "page {page} is free, and page {from}, which refers to it up to version {version}, reads as \
                 {found:?}"
            ));
        }
    }
    Ok(())
}

/// What is wrong with what was found of a page.
fn wrong(page: PageId, found: &Result<Option<u32>, Error>) -> String {
    match found {
        Ok(Some(version)) => format!("page {page} reads as version {version}"),
        Ok(None) => format!("page {page} does not exist"),
        Err(error) => format!("page {page}: {error}"),
    }
}

/// The version that the page reads as: 0 if it does not exist. Content that is no version of it is a
/// violation.
pub(crate) async fn read(store: &PageStore, page: PageId) -> Result<Result<u32, Error>, String> {
    Ok(look(store, page).await?.map(|found| found.unwrap_or(0)))
}

/// The version that the page reads as; `None`: it does not exist. Content that is no version of it is a
/// violation.
pub(crate) async fn look(store: &PageStore, page: PageId) -> Result<Result<Option<u32>, Error>, String> {
    match store.get(page).await {
        Ok(guard) => version_in(&guard, page).map(|version| Ok(Some(version))),
        Err(Error::NoSuchPage { .. }) => Ok(Ok(None)),
        Err(error) => Ok(Err(error)),
    }
}

/// Whether the error concerns a discarded page whose home may be torn for good.
pub(crate) fn is_torn_discard(model: &Mutex<Model>, page: PageId, error: &Error) -> bool {
    let mut model = model.lock();
    let torn = model.torn_homes() && error.to_string().contains("corrupt on hdd");
    torn && model.page(page).is_some_and(|p| p.may_be_torn())
}

/// Checks that created spaces exist and dropped ones do not.
pub(crate) fn check_spaces(store: &PageStore, model: &mut Model) -> Result<(), String> {
    model.rest();
    let there = store.spaces().list();
    let spaces: Vec<(u32, String, SpaceState)> =
        model.spaces.iter().map(|(id, space)| (*id, space.name.clone(), space.state)).collect();
    for (id, name, state) in spaces {
        let found = there.iter().any(|s| s.id.0 == id && s.name == name);
        match (state, found) {
            (SpaceState::Live, false) if model.resolve_drop(id) => {}
            (SpaceState::Live, false) => return Err(format!("space {name} is gone")),
            (SpaceState::Dropped, true) => return Err(format!("space {name} was dropped, but is there")),
            // The space is unchanged.
            (SpaceState::Dropping | SpaceState::Live, true) => model.found_space(id),
            (SpaceState::Dropping, false) => model.dropped(id),
            (SpaceState::Dropped, false) => {}
        }
    }
    Ok(())
}

/// The results of one crash.
pub(crate) struct Examined {
    pub(crate) checked: Checked,
    /// The moments taken during the recovery and the check.
    pub(crate) moments: Vec<Moment>,
}

/// Recovers a crashed store, and checks it. Takes moments meanwhile at this rate, for further crashes.
pub(crate) fn examine(crash: Crash<'_>, lenient: Lenient, rate: Rate) -> Result<Examined, String> {
    let Crash { plan, moment, outcome } = crash;
    let disks = crash.devices();
    let lenient = Lenient { volatile: outcome.keeps_power(), ..lenient };
    let seed = match outcome {
        Outcome::Cut(seed) | Outcome::Landed(seed) | Outcome::Killed(seed) => seed,
    };
    in_virtual_time(async {
        let model = moment.model.clone();
        // Most crashes take no moments, so they need no observed devices, and no latencies, which cost
        // time.
        if matches!(rate, Rate::Never) {
            let manifest = Arc::new(moment.manifest.fork());
            let store = plan.open(disks.shared(), &manifest).await?;
            // It reads its list, and the pages that the list names, beside the check.
            plan.keep_hot_set(&store).await?;
            let mut checked = check(&store, &Mutex::new(model), lenient).await?;
            checked.meet(&crash);
            return Ok(Examined { checked, moments: Vec::new() });
        }
        let disks = plan.with_latencies(disks);
        let probe = Probe::new(plan, disks, moment.manifest.fork(), model, seed ^ 0x77);
        probe.set(rate, Phase::Recovering, moment.depth + 1);
        probe.follow(outcome);
        let store = Arc::new(probe.open(plan).await?);
        probe.watch(&store);
        plan.keep_hot_set(&store).await?;
        let mut checked = check(&store, &probe.model, lenient).await?;
        checked.meet(&crash);
        // A moment right after the check, too.
        let last = probe.now();
        let mut moments = probe.take();
        moments.push(last);
        probe.violation()?;
        Ok(Examined { checked, moments })
    })
}

/// Whether the open failed because another store, or a dropped one, still uses the devices.
pub(crate) fn is_busy(error: &OpenError) -> bool {
    matches!(error, OpenError::AlreadyOpen { .. }) || error.to_string().contains("in use")
}

/// Whether the error of a failed open names the record that could not be written.
pub(crate) fn names_the_record(error: &OpenError) -> bool {
    let text = pagetier::errors::Causes(error).to_string().to_lowercase();
    ["manifest", "hdd", "ssd"].iter().any(|place| text.contains(place))
}
