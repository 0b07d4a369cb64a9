//! One life of a store with a log: it opens, shows everything, is used by several tasks, and ends.

use super::backup::{self, Shelf};
use super::model::Model;
use super::open::{self, Parts, check, create_space};
use super::watch::{Media, Moment, Rate, Watch};
use super::work::Worker;
use crate::campaign::draw::plan::Plan;
use crate::campaign::polls::up_to;
use crate::campaign::report::totals::Totals;
use crate::campaign::world::examine::in_virtual_time;
use pagetier_wal::{LoggedStore, WalError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// The parameters of a life.
pub(super) struct Life<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) media: Media,
    pub(super) model: Model,
    pub(super) seed: u64,
    pub(super) rate: Rate,
    pub(super) closes: bool,
    /// Where its backups go, if it takes any.
    pub(super) shelf: Option<Shelf>,
}

impl Life<'_> {
    /// Runs the life; returns the moments taken, the last one at its end.
    pub(super) fn live(self, totals: &mut Totals) -> Result<Vec<Moment>, String> {
        let Self { plan, media, model, seed, rate, closes, shelf } = self;
        let watch = Watch::new(plan, media, model, seed);
        totals.lives += 1;
        in_virtual_time(async {
            watch.set(rate, true);
            let archive = shelf.as_ref().and_then(|shelf| shelf.archive.clone());
            let db = open::open(&watch, plan, &Parts { archive, ..Parts::default() }).await;
            let db = Arc::new(db.map_err(|error| format!("does not open: {error}"))?);
            let mut model = watch.model.lock().clone();
            let floor = model.acked;
            let (seen, end) = check(&db, &mut model, floor, false).await?;
            // The life goes on from what was found: records that were not acknowledged are there for good,
            // or gone.
            seen.settle(&mut model, end);
            *watch.model.lock() = model;
            watch.used_by(&db);
            watch.set(rate, false);
            if watch.model.lock().live().is_empty() {
                create_space(&db, &watch.model).await.map_err(|error| open::causes(&error))?;
            }
            // A second opener would get the store.
            let amid = closes && seed.is_multiple_of(4) && !plan.has("openers");
            let closing = amid.then(|| {
                tokio::spawn(close_amid(Arc::clone(plan), Arc::clone(&db), Arc::clone(&watch), seed))
            });
            work(plan, &watch, &db, seed, shelf.as_ref(), amid).await?;
            if let Some(closing) = closing {
                closing.await.map_err(|e| format!("a task panicked: {e}"))??;
            }
            let moments = end_of(&watch, db, closes.then_some(seed)).await?;
            if let (Some(shelf), Some(last)) = (shelf, moments.last()) {
                let mut rng = SmallRng::seed_from_u64(seed ^ 0xbac);
                backup::compare(plan, &shelf, last, &mut rng, totals).await?;
            }
            Ok(moments)
        })
    }
}

async fn work(
    plan: &Arc<Plan>,
    watch: &Arc<Watch>,
    db: &Arc<LoggedStore>,
    seed: u64,
    shelf: Option<&Shelf>,
    amid: bool,
) -> Result<(), String> {
    let ops = plan.ops;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..u64::from(plan.tasks) {
        let rng = SmallRng::seed_from_u64(seed ^ (task + 1) << 40);
        let (db, watch, plan) = (Arc::clone(db), Arc::clone(watch), Arc::clone(plan));
        let shelf = shelf.cloned();
        let worker = Worker { db, watch, plan, rng, shelf };
        tasks.spawn(worker.run(ops));
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|e| format!("a task panicked: {e}"))??;
    }
    if watch.power.is_cut() {
        return Err("does not come to rest".to_owned());
    }
    // Another task closes the store, so its pages cannot be looked at.
    if amid {
        return Ok(());
    }
    let rng = SmallRng::seed_from_u64(seed);
    let (db, watch, plan) = (Arc::clone(db), Arc::clone(watch), Arc::clone(plan));
    let last = Worker { db, watch, plan, rng, shelf: None };
    last.look_at_all().await?;
    last.db.validate()
}

/// Closes the store while its tasks use it: what they call is refused from some moment on.
async fn close_amid(
    plan: Arc<Plan>,
    db: Arc<LoggedStore>,
    watch: Arc<Watch>,
    seed: u64,
) -> Result<(), String> {
    let us = SmallRng::seed_from_u64(seed ^ 0xa31d).random_range(1..300_000);
    tokio::time::sleep(Duration::from_micros(us)).await;
    // Another task may let the SSD fail at any time.
    let fails = watch.is_troubled() || plan.has("readmit");
    watch.trouble();
    let ended = db.shutdown().await;
    if !matches!(db.admit(Duration::ZERO).await, Err(WalError::Stopped)) {
        return Err("a store that was closed admits changes".to_owned());
    }
    let failed = ended.err().filter(|_| !fails);
    failed.map_or(Ok(()), |error| Err(format!("a shutdown under load: {}", open::causes(&error))))
}

/// Ends the life by a close, whole or dropped, or leaves the store as it is.
async fn end_of(
    watch: &Arc<Watch>,
    db: Arc<LoggedStore>,
    closes: Option<u64>,
) -> Result<Vec<Moment>, String> {
    watch.clear_faults();
    let Some(seed) = closes else {
        let last = watch.now();
        let mut moments = watch.take();
        moments.push(last);
        return Ok(moments);
    };
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xc105e);
    let unsynced = watch.model.lock().unsynced();
    let polls = if rng.random_bool(0.3) { rng.random_range(1..40) } else { u32::MAX };
    // The close covers what was appended before its call.
    let end = db.wal().end().0;
    match up_to(polls, db.shutdown()).await {
        Some(Ok(())) => {
            let mut model = watch.model.lock();
            model.acknowledged(end);
            model.know(end);
            model.synced(&unsynced);
        }
        Some(Err(error)) if !watch.is_troubled() => {
            return Err(format!("shutdown: {}", open::causes(&error)));
        }
        _ => {}
    }
    let last = watch.now();
    let mut moments = watch.take();
    moments.push(last);
    Ok(moments)
}
