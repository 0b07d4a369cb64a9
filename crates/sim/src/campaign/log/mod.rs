//! An engine with a log in the campaign: a store whose pages are changed by records, crashed at the
//! boundaries of its I/O on all devices, and opened again with its own log or with a wrong one.
//!
//! | file | job |
//! | --- | --- |
//! | `model` | what the engine was told, and what an open must show |
//! | `terms`, `disk`, `media` | how the log is kept, and on what: a device, or files |
//! | `watch` | the devices, and moments of them |
//! | `open` | opens, and the check of everything that a store shows |
//! | `work`, `life` | the operations of an engine, and its lives |
//! | `trouble` | failures, another opener and an operator beside them |
//! | `backup` | backups and restorations |
//! | `twist` | wrong, older, damaged logs; a lost SSD |
//! | `unlogged` | a store that never had a log |

mod backup;
mod disk;
mod life;
mod media;
mod model;
mod open;
mod terms;
mod trouble;
mod twist;
mod unlogged;
mod watch;
mod work;

use self::backup::Shelf;
use self::disk::LogDisk;
use self::life::Life;
use self::model::Model;
use self::open::{Parts, check};
pub(super) use self::open::{SharedMedia, open_shared, open_shared_blocking};
use self::terms::Terms;
use self::twist::Past;
use self::watch::{Media, Moment, Rate, Watch};
pub(super) use self::work::drawn;
use super::draw::plan::Plan;
use super::draw::twist::Twist;
use super::report::totals::Totals;
use super::world::crash::Outcome;
use super::world::desk::Folder;
use super::world::examine::in_virtual_time;
use pagetier::MemoryManifest;
use pagetier_testing::SimDevice;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of operations of the stores beside the one under test.
const OPS_BESIDE: u32 = 25;

/// The share of crashes after which the adversary acts.
const TWISTED: f64 = 0.35;

/// Runs a scenario of an engine with a log.
pub(super) fn run(
    plan: &Plan,
    stop: &AtomicBool,
    totals: &mut Totals,
    place: &mut String,
) -> Result<(), String> {
    Run { plan: Arc::new(plan.clone()), stop, totals, place }.lives()
}

struct Run<'a> {
    plan: Arc<Plan>,
    stop: &'a AtomicBool,
    totals: &'a mut Totals,
    place: &'a mut String,
}

impl Run<'_> {
    fn lives(&mut self) -> Result<(), String> {
        let mut rng = SmallRng::seed_from_u64(self.plan.seed ^ 0x10_6106);
        *self.place = "the life of another store".to_owned();
        // Numbers far beyond those of the store under test: no page of another store passes for one of its
        // own.
        let foreign = self.beside(blank(&self.plan, 77), Model::default().going_on_at(1 << 24))?;
        *self.place = "the life of a store without a log".to_owned();
        let unlogged = unlogged::made(&self.plan, blank(&self.plan, 78))?;
        let folder = (self.plan.has("backup") && rng.random_bool(0.25)).then(Folder::new);
        let mut line: Vec<Moment> = Vec::new();
        let mut crashed: Option<Outcome> = None;
        for life in 0..self.plan.lives {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            *self.place = format!("life {life}");
            let start = line.last().zip(crashed);
            let begin = |plan: &Plan| match start {
                Some((moment, outcome)) => (moment.crashed(outcome), moment.model.clone()),
                None => (blank(plan, 0), Model::default()),
            };
            let images = self.plan.images as usize;
            // An operation has about 14 boundaries, so a life yields about as many moments as the plan
            // wants.
            let share = images as f64 / (f64::from(self.plan.tasks * self.plan.ops) * 14.0).max(1.0);
            let (media, model) = begin(&self.plan);
            let mut plan = Arc::clone(&self.plan);
            if folder.is_some() && life % 2 == 0 {
                // Restored pages take a later log only if every change since has a record.
                ["bulk", "drop-space"].iter().for_each(|kind| Arc::make_mut(&mut plan).disable(kind));
            }
            let moments = Life {
                plan: &plan,
                media,
                model,
                seed: self.plan.seed.wrapping_mul(1_000_003) ^ u64::from(life) << 32,
                rate: Rate { share: share.min(1.0), max: images },
                closes: self.plan.has("close") && rng.random_bool(0.35),
                shelf: folder
                    .as_ref()
                    .map(|folder| Shelf::new(folder.path(&format!("life-{life}")), life % 2 == 0))
                    .transpose()?,
            }
            .live(self.totals)?;
            // A copy that took another course from the same crash: its log has the store's identity and
            // other records.
            let sibling = if start.is_some() {
                *self.place = format!("life {life}, of a copy");
                let (media, model) = begin(&self.plan);
                let content = model.content + (1 << 22);
                Some(self.beside(media, model.going_on_at(content))?)
            } else {
                None
            };
            for (at, moment) in moments.iter().enumerate() {
                // A generator for each moment: a replay with fewer moments draws the same outcomes at those
                // that are left.
                let mut rng =
                    SmallRng::seed_from_u64(self.plan.seed ^ u64::from(life) << 50 ^ (at as u64) << 30);
                let before = line.iter().chain(&moments[..at]).collect();
                let past =
                    Past { line: before, foreign: &foreign, unlogged: &unlogged, sibling: sibling.as_ref() };
                self.crash(life, moment, &past, &mut rng)?;
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            let last = moments.len() - 1;
            // Moments after the one that the next life begins at belong to a future that never came: no
            // past has them.
            let next = if rng.random_bool(0.5) { last } else { rng.random_range(0..moments.len()) };
            crashed = Some(outcome(&mut rng));
            line.extend(moments.into_iter().take(next + 1));
        }
        Ok(())
    }

    /// The life of a store beside the one under test.
    fn beside(&mut self, media: Media, model: Model) -> Result<Moment, String> {
        let plan = Arc::new(Plan { ops: self.plan.ops.min(OPS_BESIDE), tasks: 1, ..(*self.plan).clone() });
        let seed = self.plan.seed ^ 0x51b1;
        let life = Life {
            plan: &plan,
            media,
            model,
            seed,
            rate: Rate::NEVER,
            closes: seed.is_multiple_of(3),
            shelf: None,
        };
        life.live(self.totals)?.pop().ok_or_else(|| "no moment".to_owned())
    }

    /// Examines a crash at this moment.
    fn crash(
        &mut self,
        life: u32,
        moment: &Moment,
        past: &Past<'_>,
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        for _ in 0..self.plan.outcomes {
            let outcome = outcome(rng);
            *self.place = format!("life {life}, crash at boundary {} ({outcome:?})", moment.boundary);
            let twist = match self.plan.twist {
                Some(twist) => Some(twist),
                None if self.plan.has("twists") && rng.random_bool(TWISTED) => {
                    let all = Twist::all();
                    Some(all[rng.random_range(0..all.len())])
                }
                None => None,
            };
            match twist {
                Some(twist) => {
                    twist::examine(&self.plan, (moment, outcome), twist, past, rng, self.totals)?;
                }
                None => self.recover(moment, outcome, 0, rng)?,
            }
        }
        Ok(())
    }

    /// Recovers a crashed store and checks it, some with crashes of the recovery.
    fn recover(
        &mut self,
        moment: &Moment,
        outcome: Outcome,
        nesting: u32,
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        // More often after a kill: only then do volatile writes of two lives meet at the next cut.
        let again = nesting < 3 && rng.random_ratio(1, if outcome.keeps_power() { 3 } else { 6 });
        let rate = if again { Rate { share: 0.06, max: 4 } } else { Rate::NEVER };
        let plan = Arc::clone(&self.plan);
        let watch = Watch::new(&plan, moment.crashed(outcome), moment.model.clone(), rng.random());
        let (pages, moments) = in_virtual_time(async {
            watch.set(rate, true);
            let db = match open::open(&watch, &plan, &Parts::default()).await {
                // A new store's HDD whose label is torn: it has no page yet, and the error says what to do.
                Err(error) if moment.model.opens == 0 && error.contains("not Pagetier's") => {
                    return Ok((0, watch.take()));
                }
                opened => opened.map_err(|error| format!("does not open: {error}"))?,
            };
            let (read, span) = (db.recovered().read, moment.span.unwrap_or_default());
            // It may read the whole log, if a page that the SSD should have is damaged.
            if read.from < span.from && read.from > db.wal().oldest() {
                return Err(format!("{read:?} of the log was read, and not {span:?}"));
            }
            let mut model = watch.model.lock().clone();
            let floor = model.acked;
            let (seen, end) = check(&db, &mut model, floor, false).await?;
            let (pages, mut moments) = (seen.pages, watch.take());
            if again {
                // A crash right after the open, too: the log has a generation without a record.
                seen.settle(&mut model, end);
                *watch.model.lock() = model;
                watch.set(Rate::NEVER, false);
                let db = Arc::new(db);
                watch.used_by(&db);
                moments.push(watch.now());
            }
            Ok((pages, moments))
        })?;
        self.totals.crashes += 1;
        self.totals.log_crashes += 1;
        self.totals.crashes_in_recovery += u64::from(nesting > 0);
        self.totals.pages_checked += pages;
        for inner in &moments {
            let then = self::outcome(rng);
            let before = self.place.clone();
            *self.place = format!("{before}, then at boundary {} of the recovery ({then:?})", inner.boundary);
            self.recover(inner, then, nesting + 1, rng)?;
            *self.place = before;
        }
        Ok(())
    }
}

fn outcome(rng: &mut SmallRng) -> Outcome {
    if rng.random_bool(0.25) { Outcome::Killed(rng.random()) } else { Outcome::Cut(rng.random()) }
}

impl SharedMedia {
    pub(super) fn blank(plan: &Plan) -> Self {
        let Media { pages, .. } = blank(plan, 0);
        let log = SimDevice::new("log", Terms::of(plan).log_bytes(), plan.seed + 3, &pages.power);
        Self::of(pages, log)
    }
}

/// Blank media.
fn blank(plan: &Plan, salt: u64) -> Media {
    let seed = plan.seed ^ salt;
    let pages = plan.blank_disks(seed);
    let log = LogDisk::blank(plan, seed + 3, &pages.power);
    Media { pages, log, manifest: MemoryManifest::default() }
}
