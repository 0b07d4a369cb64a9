//! Runs every workload of a few operations on a small store in a known state, with a crash at every boundary
//! at which something changed, and with every subset of the unflushed writes where there are few.

use super::life::{Life, Start};
use crate::campaign::contract::content::version_in;
use crate::campaign::contract::model::Model;
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::totals::Totals;
use crate::campaign::report::violation::{Violation, judged};
use crate::campaign::world::crash::{Crash, Moment, Outcome};
use crate::campaign::world::examine::{Lenient, examine, in_virtual_time};
use crate::campaign::world::probe::{Phase, Probe, Rate};
use clap::ValueEnum;
use pagetier::{DrainOptions, Location, Lsn, PageId, PageMut, PageStore, SpaceId};
use pagetier_ssdcache::SLOTS_MIN;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The crash outcomes at each boundary of a workload of this many operations: the number of unflushed writes
/// up to which every subset is tried, the number of random outcomes beyond that, and the number of torn
/// outcomes in any case.
const fn outcomes(operations: usize) -> (usize, u64, u64) {
    match operations {
        1 => (6, 24, 4),
        2 => (4, 8, 2),
        _ => (1, 2, 1),
    }
}

/// An operation of the short workloads. A changed page is written out at once, except by
/// [`Step::WriteQuietly`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Step {
    WriteOnHdd,
    WriteOnSsd,
    WriteSame,
    WriteQuietly,
    Allocate,
    ReadMany,
    WriteMany,
    Discard,
    Sync,
    Drain,
}

/// The number of workloads of up to `depth` operations.
fn workloads(depth: u32) -> u64 {
    (1..=depth).map(|d| (Step::value_variants().len() as u64).pow(d)).sum()
}

/// The workload number `index`; shorter ones come first.
fn workload(mut index: u64) -> Vec<Step> {
    let all = Step::value_variants();
    let base = all.len() as u64;
    let mut length = 1;
    while index >= base.pow(length) {
        index -= base.pow(length);
        length += 1;
    }
    (0..length).map(|at| all[(index / base.pow(at) % base) as usize]).collect()
}

/// The layout of the devices that a workload runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Geometry {
    Usual,
    NoRing,
    /// A ring at rest, since the HDD writes pages whole.
    Whole,
    NoSsd,
    /// A batch of one page.
    RingOfOneBatch,
    /// Fewer slots than one batch of the write-back, and than the pool keeps dirty.
    FewSlots,
    ZoneOfOneSlot,
}

impl Geometry {
    fn shape(self, plan: &mut Plan) {
        match self {
            Self::Usual => {}
            Self::NoRing => plan.ring = 0,
            Self::Whole => plan.whole_kib = plan.page_kib,
            // The hazard of the base needs an SSD.
            Self::NoSsd => (plan.slots, plan.hazard) = (0, Hazard::Free),
            Self::RingOfOneBatch => plan.ring = 1,
            Self::FewSlots => (plan.slots, plan.frames) = (SLOTS_MIN, 44),
            Self::ZoneOfOneSlot => plan.zone_percent = 1,
        }
    }
}

/// The stores that every workload starts from, one per geometry: with a full SSD, several checkpoints, and
/// pages in every kind of location.
#[derive(Debug)]
pub struct Base {
    bases: Vec<(Geometry, Arc<Plan>, Moment)>,
}

impl Base {
    /// Builds the base, deterministically for a plan seed and SSD policy.
    ///
    /// # Errors
    /// What went wrong while building it.
    pub fn new(seed: u64, ssd_policy: &'static str) -> Result<Self, String> {
        let mut plan = Plan::directed(seed, Hazard::ColdCopies);
        // Small enough that the next write of the ring, or eviction from pool and SSD, is one operation
        // away.
        (plan.pages, plan.frames, plan.slots, plan.ring) = (70, 16, 34, 4);
        (plan.ssd_policy, plan.pool_policy, plan.zone_percent, plan.outqueue) = (ssd_policy, "gd2l", 40, 40);
        (plan.hdd_us, plan.ssd_us, plan.tasks, plan.ops) = (3000, 300, 1, 200);
        plan.whole_kib = 0;
        let base = |geometry: &Geometry| {
            let mut plan = plan.clone();
            geometry.shape(&mut plan);
            let plan = Arc::new(plan);
            let life = Life::new(&plan, Start::Blank, Rate::Never, seed);
            let made = life.live(&mut Totals::default()).map_err(|what| format!("{geometry:?}: {what}"));
            Ok((*geometry, plan, made?.pop().ok_or("no moment")?))
        };
        Ok(Self { bases: Geometry::value_variants().iter().map(base).collect::<Result<_, String>>()? })
    }

    /// The number of cases: each workload of up to `depth` operations on each geometry.
    #[must_use]
    pub fn cases(depth: u32) -> u64 {
        Geometry::value_variants().len() as u64 * workloads(depth)
    }

    /// Runs case number `index` of those of up to `depth` operations, and crashes it at every boundary. The
    /// usual geometry comes first.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(
        &self,
        index: u64,
        depth: u32,
        stop: &AtomicBool,
        totals: &mut Totals,
    ) -> Result<(), Violation> {
        let steps = workload(index % workloads(depth));
        let (geometry, plan, moment) = &self.bases[(index / workloads(depth)) as usize % self.bases.len()];
        let place = format!("case {index}: {steps:?} on {geometry:?}");
        let one = Workload { plan, moment, steps: &steps };
        judged(plan, place, totals, |place, totals| one.crash_all(place, stop, totals))
    }
}

/// One case.
struct Workload<'a> {
    plan: &'a Arc<Plan>,
    moment: &'a Moment,
    steps: &'a [Step],
}

impl Workload<'_> {
    fn crash_all(&self, place: &mut String, stop: &AtomicBool, totals: &mut Totals) -> Result<(), String> {
        totals.lives += 1;
        let name = place.clone();
        for moment in self.live()? {
            let writes = moment.ssd.unflushed() + moment.hdd.unflushed();
            let (subsets_of, samples, torn) = outcomes(self.steps.len());
            let outcomes: Vec<Outcome> = if writes <= subsets_of {
                (0..1 << writes).map(Outcome::Landed).collect()
            } else {
                (0..samples).map(Outcome::Cut).collect()
            };
            // Torn outcomes, in addition to those of whole writes.
            let torn = (100..100 + torn).map(Outcome::Cut).filter(|_| writes > 0);
            for outcome in outcomes.into_iter().chain(torn) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                *place = format!("{name}, crash at boundary {} ({outcome:?})", moment.boundary);
                let crash = Crash { plan: self.plan, moment: &moment, outcome };
                totals.crash(&examine(crash, Lenient::default(), Rate::Never)?.checked);
            }
        }
        Ok(())
    }

    fn live(&self) -> Result<Vec<Moment>, String> {
        // From a crash, always the same one: a recovered store has more states than a closed one.
        let disks = self.plan.with_latencies(self.moment.crashed(Outcome::Cut(3)));
        let (manifest, model) = (self.moment.manifest.fork(), self.moment.model.clone());
        let probe = Probe::new(self.plan, disks, manifest, model, 1);
        in_virtual_time(async {
            let store = Arc::new(probe.open(self.plan).await?);
            probe.watch(&store);
            crate::campaign::world::examine::check(&store, &probe.model, Lenient::default()).await?;
            // Let the work that the check caused finish.
            tokio::time::sleep(Duration::from_secs(1)).await;
            for (at, step) in self.steps.iter().enumerate() {
                // Shorter workloads covered the earlier boundaries.
                if at + 1 == self.steps.len() {
                    probe.set(Rate::Every, Phase::Working, 0);
                }
                step.carry_out(&store, &probe.model, at as u32).await?;
            }
            // The last operation's work in the background has boundaries, too.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let last = probe.now();
            let mut moments = probe.take();
            moments.push(last);
            Ok(moments)
        })
    }
}

impl Step {
    async fn carry_out(self, store: &PageStore, model: &Mutex<Model>, at: u32) -> Result<(), String> {
        let text = |e: pagetier::Error| e.to_string();
        match self {
            Self::WriteOnHdd => {
                write_some(store, model, Some(Location::Hdd), at, 1).await?;
                write_out(store, model).await
            }
            Self::WriteOnSsd => {
                write_some(store, model, Some(Location::Ssd), at, 1).await?;
                write_out(store, model).await
            }
            Self::WriteSame => {
                write_some(store, model, None, 0, 1).await?;
                write_out(store, model).await
            }
            Self::WriteQuietly => write_some(store, model, None, 0, 1).await,
            // More pages than stay dirty in the pool.
            Self::WriteMany => write_some(store, model, None, at * 7, 12).await,
            Self::ReadMany => {
                let pages = model.lock().live_pages();
                for page in pages.into_iter().skip(at as usize).step_by(3) {
                    let _ = store.get(page).await;
                }
                Ok(())
            }
            Self::Allocate => {
                // The base may have dropped its first space.
                let space = model.lock().live().first().copied().ok_or("no space")?;
                put(model, store.allocate(SpaceId(space)).await.map_err(text)?);
                write_out(store, model).await
            }
            Self::Discard => {
                // Only these have an older home that a discard may bring back.
                let on_ssd = |page: &PageId| store.location(*page) == Location::Ssd;
                let page = model.lock().live_pages().into_iter().filter(on_ssd).nth(at as usize);
                let Some(page) = page else { return Ok(()) };
                model.lock().discarded(page);
                store.discard(page).await.map_err(text)
            }
            Self::Sync => {
                let promise = model.lock().promise(u32::MAX);
                store.sync().await.map_err(text)?;
                model.lock().keep(promise);
                Ok(())
            }
            Self::Drain => {
                store.ssd().drain(DrainOptions::new()).await;
                Ok(())
            }
        }
    }
}

/// Makes every change so far durable, by its log position.
async fn write_out(store: &PageStore, model: &Mutex<Model>) -> Result<(), String> {
    let last = model.lock().last_version;
    let promise = model.lock().promise(last);
    store.flush_to(Lsn(u64::from(last))).await.map_err(|e| e.to_string())?;
    model.lock().keep(promise);
    Ok(())
}

fn put(model: &Mutex<Model>, mut guard: PageMut<'_>) {
    let mut model = model.lock();
    let version = model.write(&mut guard);
    model.published(guard.id(), version);
}

async fn write_some(
    store: &PageStore,
    model: &Mutex<Model>,
    home: Option<Location>,
    from: u32,
    count: usize,
) -> Result<(), String> {
    let fits = |page: &PageId| home.is_none_or(|home| store.location(*page) == home);
    let pages = model.lock().live_pages();
    let chosen: Vec<PageId> = pages.into_iter().filter(fits).skip(from as usize).take(count).collect();
    for page in chosen {
        let guard = store.get_or_create(page).await.map_err(|error| format!("recreate: {error}"))?;
        version_in(&guard, page)?;
        put(model, guard);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_comes_once() {
        let all: std::collections::BTreeSet<String> =
            (0..workloads(2)).map(|i| format!("{:?}", workload(i))).collect();
        assert_eq!(all.len() as u64, workloads(2));
        assert_eq!((workloads(3), Base::cases(2)), (1110, 770));
    }
}
