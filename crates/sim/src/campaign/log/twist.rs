//! The adversary: a store gets another log than its own, an older one, a damaged one, or loses its SSD. It
//! opens with everything that was acknowledged, or it is refused and nothing has changed: with the right
//! parts back, everything is there.

use super::disk::{LogDisk, Segment};
use super::model::Model;
use super::open::{self, LEAVES, Parts, check};
use super::terms::Terms;
use super::unlogged::unchanged;
use super::watch::{Media, Moment, Watch};
use crate::campaign::draw::plan::Plan;
use crate::campaign::draw::twist::Twist;
use crate::campaign::report::totals::Totals;
use crate::campaign::world::crash::Outcome;
use crate::campaign::world::examine::in_virtual_time;
use pagetier_devio::Device;
use pagetier_testing::SimPower;
use pagetier_wal::Keep;
use rand::Rng;
use rand::rngs::SmallRng;

/// What the adversary has at hand.
pub(super) struct Past<'a> {
    /// Earlier moments of this store, each in the past of the following one.
    pub(super) line: Vec<&'a Moment>,
    pub(super) foreign: &'a Moment,
    pub(super) unlogged: &'a Moment,
    pub(super) sibling: Option<&'a Moment>,
}

/// A twisted store.
struct Twisted {
    /// Instead of the store's pages, with what is known of them.
    pages: Option<(Media, Model)>,
    /// Instead of the store's log.
    log: Option<LogDisk>,
    /// The log may have lost what follows this position.
    excused: Option<u64>,
}

const TORN: &str = "a torn home page is corrupt";

/// Twists a crashed store, opens it, and puts everything right again.
pub(super) fn examine(
    plan: &Plan,
    (moment, outcome): (&Moment, Outcome),
    twist: Twist,
    past: &Past<'_>,
    rng: &mut SmallRng,
    totals: &mut Totals,
) -> Result<(), String> {
    let media = moment.crashed(outcome);
    let Some(twisted) = twisted(plan, twist, &media, moment, past, rng) else { return Ok(()) };
    let loses = plan.slots > 0 && twisted.pages.is_none() && !moment.model.loaded;
    let lost = (loses && (twist == Twist::LostSsd || rng.random_bool(0.25))).then(|| rng.random_bool(0.5));
    if twist == Twist::LostSsd && lost.is_none() {
        return Ok(());
    }
    let case = format!("{twist:?}{}", if lost.is_some() { ", SSD lost" } else { "" });
    let ended = in_virtual_time(attempt(plan, media, moment, twisted, twist, lost));
    let (ended, pages) = ended.map_err(|wrong| format!("{case}: {wrong}"))?;
    totals.tamper(&format!("log: {case}"), ended);
    totals.crashes += 1;
    totals.log_crashes += 1;
    totals.pages_checked += pages;
    Ok(())
}

/// With the SSD goes the ring, unless it is on the HDD. An HDD without a ring tears no page.
fn loses_ring(twist: Twist, plan: &Plan) -> bool {
    twist == Twist::LostSsd && plan.on_hdd == 0 && plan.ring > 0
}

async fn attempt(
    plan: &Plan,
    media: Media,
    moment: &Moment,
    twisted: Twisted,
    twist: Twist,
    lost: Option<bool>,
) -> Result<(&'static str, u64), String> {
    let right = Watch::new(plan, media, moment.model.clone(), 1);
    let other = twisted.pages.map(|(pages, model)| Watch::new(plan, pages, model, 1));
    let wrong = other.as_ref().unwrap_or(&right);
    let log = match (twisted.log, &other) {
        (Some(log), _) => Some(log),
        (None, Some(_)) => Some(right.log.clone()),
        (None, None) => None,
    };
    let before = (wrong.snapshot(), right.snapshot(), log.as_ref().map(|log| log.snapshot()));
    let parts = Parts { log: log.clone(), lost, archive: None };
    let opened = open::open(wrong, plan, &parts).await;
    let acked = moment.model.acked;
    // A torn home page would be repaired from the ring: reads and redo name it.
    let is_torn = |wrong: &str| loses_ring(twist, plan) && wrong.contains("is corrupt on hdd");
    // Another store's log, or pages, whatever is in them.
    let foreign = twist == Twist::ForeignPages || twist == Twist::ForeignLog && moment.model.opens > 0;
    let refusal = match opened {
        Ok(_) if foreign => return Err("it opens".to_owned()),
        // A log without records may become theirs.
        Ok(db) if twist == Twist::UnloggedPages => {
            let model = wrong.model.lock().clone();
            let pages = unchanged(&db, &model).await.map_err(|wrong| format!("it opens, but {wrong}"))?;
            return Ok(("opens unchanged", pages));
        }
        Ok(db) => {
            let mut model = moment.model.clone();
            let floor = twisted.excused.unwrap_or(acked).min(acked);
            return match check(&db, &mut model, floor, twisted.excused.is_some()).await {
                Ok((seen, _)) => Ok(("opens with everything", seen.pages)),
                Err(wrong) if is_torn(&wrong) => Ok((TORN, 0)),
                Err(wrong) => Err(format!("it opens, but {wrong}")),
            };
        }
        Err(refusal) => refusal,
    };
    if is_torn(&refusal) {
        return Ok((TORN, 0));
    }
    if twist == Twist::LostSsd && Terms::of(plan).keep == Keep::ForSsdLoss {
        return Err(format!("the log was kept for a loss of the SSD, but it is refused: {refusal}"));
    }
    if twist == Twist::LostSsd && !refusal.contains("lost changes with the SSD") {
        return Err(format!("refused without the number of pages: {refusal}"));
    }
    tokio::time::sleep(LEAVES).await;
    let after = (wrong.snapshot(), right.snapshot(), log.as_ref().map(|log| log.snapshot()));
    // Redo alone can find that the last writes are missing: the store has recovered by then. Pages without a
    // log need none.
    let is_late = twist != Twist::UnloggedPages && refusal.contains("the log cannot be redone");
    if after != before && !is_late {
        let parts = changed(&before.0, &after.0);
        let log = if after.2 == before.2 { "" } else { " the other log" };
        return Err(format!("refused ({refusal}), but it changed:{parts}{log}"));
    }
    drop((log, parts));
    // A loss of the SSD that was accepted before redo is final.
    let lost = lost.filter(|_| refusal.contains("the log cannot be redone"));
    let db = open::open(&right, plan, &Parts { lost, ..Parts::default() }).await;
    if lost.is_some() && db.as_ref().is_err_and(|again| again.contains("lost changes with the SSD")) {
        return Ok(("refused, after the loss of the SSD was accepted", 0));
    }
    let db = db.map_err(|error| format!("refused ({refusal}); with the right parts back: {error}"))?;
    let mut model = moment.model.clone();
    let checked = check(&db, &mut model, acked, false).await;
    let (seen, _) =
        checked.map_err(|wrong| format!("refused ({refusal}); with the right parts back: {wrong}"))?;
    Ok(("refused", seen.pages))
}

fn changed(before: &(Vec<Vec<u8>>, Option<Vec<u8>>), after: &(Vec<Vec<u8>>, Option<Vec<u8>>)) -> String {
    let names = ["hdd", "ssd", "ring", "log"];
    let mut all = String::new();
    for (at, name) in names.iter().enumerate() {
        if before.0[at] != after.0[at] {
            all += &format!(" {name}");
        }
    }
    if before.1 != after.1 { all + " manifest" } else { all }
}

/// What the twist makes of the store; `None`: there is nothing to twist.
fn twisted(
    plan: &Plan,
    twist: Twist,
    media: &Media,
    moment: &Moment,
    past: &Past<'_>,
    rng: &mut SmallRng,
) -> Option<Twisted> {
    let power = &media.pages.power;
    let of_log = |log: LogDisk| Some(Twisted { pages: None, log: Some(log), excused: None });
    let of_pages =
        |pages: Media, model: Model| Some(Twisted { pages: Some((pages, model)), log: None, excused: None });
    let older = |known: &dyn Fn(&Moment) -> bool, rng: &mut SmallRng| {
        let all: Vec<&Moment> = past.line.iter().copied().filter(|old| known(old)).collect();
        (!all.is_empty()).then(|| all[rng.random_range(0..all.len())])
    };
    match twist {
        Twist::LostSsd => Some(Twisted { pages: None, log: None, excused: None }),
        Twist::BlankLog => of_log(LogDisk::blank(plan, 5, power)),
        Twist::ForeignLog => of_log(past.foreign.log(power)),
        Twist::ForeignPages => of_pages(past.foreign.fork(), past.foreign.model.clone()),
        Twist::UnloggedPages => of_pages(past.unlogged.fork(), past.unlogged.model.clone()),
        Twist::StaleLog => of_log(older(&|old| is_known_older(old, moment), rng)?.log(power)),
        Twist::StalePages => {
            let earlier = |old: &Moment| {
                !old.recovering && old.model.opens < moment.model.opens && moment.model.acked_since
            };
            of_pages(older(&earlier, rng)?.fork(), moment.model.clone())
        }
        Twist::SiblingLog => {
            // Without a record of its own, the store is what the copy began with.
            let sibling = past.sibling.filter(|_| moment.model.acked_since && !moment.recovering)?;
            of_log(sibling.log(power))
        }
        _ => damaged(twist, media.log.fork(power), power, moment, rng),
    }
}

/// The store with its own log, damaged.
fn damaged(
    twist: Twist,
    log: LogDisk,
    power: &SimPower,
    moment: &Moment,
    rng: &mut SmallRng,
) -> Option<Twisted> {
    let excused = match twist {
        Twist::ShortLog => {
            let segments = log.segments();
            if let Some(shortened) = log.shortened(rng, power) {
                return Some(Twisted { pages: None, log: Some(shortened), excused: None });
            }
            let (position, segment, at) = acked_byte(&segments, moment, rng)?;
            log.cut(segment, at);
            // In the newest segment everything that follows is lost as well.
            let newest = segments.last().is_some_and(|last| last.start == segment.start);
            newest.then(|| last_write(moment, position))
        }
        Twist::NoNewest | Twist::Gap | Twist::NoOldest => {
            let segments = log.segments();
            let count = segments.len();
            let at = match twist {
                Twist::NoNewest => count.checked_sub(1)?,
                Twist::NoOldest => 0,
                _ => rng.random_range(1..count.checked_sub(1).filter(|last| *last > 1)?),
            };
            let segment = segments.get(at)?;
            log.remove(segment);
            // The pages may not know of it yet.
            let unknown = twist == Twist::NoNewest && moment.model.known <= segment.start;
            unknown.then_some(segment.start)
        }
        Twist::Rot => {
            let segments = log.segments();
            let (position, segment, at) = acked_byte(&segments, moment, rng)?;
            let len = [1, 1, 20, 512][rng.random_range(0..4)];
            rot(&log, segment, at, len, rng);
            excuse(moment, position, len)
        }
        _ => {
            if let LogDisk::Device(device, _) = &log {
                let at = rng.random_range(0..device.size());
                device.rot(at..(at + rng.random_range(1..2000)).min(device.size()), rng.random());
            } else {
                let segments = log.segments();
                let segment = segments.get(rng.random_range(0..segments.len().max(1)))?;
                let at = rng.random_range(0..segment.bytes().len().max(1));
                rot(&log, segment, at, rng.random_range(1..2000), rng);
            }
            // It may hit the last write anywhere, and what precedes it.
            let last = moment.model.batches.range(..moment.model.acked).next_back().copied().unwrap_or(0);
            Some(last_write(moment, last.saturating_sub(2000)))
        }
    };
    Some(Twisted { pages: None, log: Some(log), excused })
}

/// An acknowledged byte of the log: its position, its segment, and its offset there.
fn acked_byte<'a>(
    segments: &'a [Segment],
    moment: &Moment,
    rng: &mut SmallRng,
) -> Option<(u64, &'a Segment, usize)> {
    let start = segments.first()?.start;
    let acked = moment.model.acked;
    if acked <= start {
        return None;
    }
    // The newest records are in as much danger as all others together.
    let from = if rng.random_bool(0.5) { start } else { start.max(acked.saturating_sub(9000)) };
    let position = rng.random_range(from..acked);
    let segment = segments.iter().rev().find(|segment| segment.start <= position)?;
    Some((position, segment, segment.offset_of(position)?))
}

/// Changes every byte of a range of a segment.
fn rot(log: &LogDisk, segment: &Segment, at: usize, len: usize, rng: &mut SmallRng) {
    let mut bytes: Vec<u8> = segment.bytes().iter().skip(at).take(len).copied().collect();
    bytes.iter_mut().for_each(|byte| *byte ^= rng.random_range(1..=255_u8));
    log.implant(segment, at, &bytes);
}

/// What damage from `position` on may have lost: without a sound later write, damage to the last ones is no
/// different from a crash during them.
fn excuse(moment: &Moment, position: u64, len: usize) -> Option<u64> {
    let later = moment.model.batches.range(position + len as u64..).next();
    later.is_none_or(|at| *at >= moment.model.acked).then(|| last_write(moment, position))
}

/// Where the write of the log began that has `position`: if it and all later ones are damaged, they may pass
/// for torn ones, unless the pages know better.
fn last_write(moment: &Moment, position: u64) -> u64 {
    let model = &moment.model;
    let begun = model.batches.range(..=position).next_back().copied().unwrap_or(0);
    begun.max(model.known).min(model.acked)
}

/// Whether the pages of `new` must know that the log of `old` is not theirs any more.
fn is_known_older(old: &Moment, new: &Moment) -> bool {
    let reopened = old.model.opens < new.model.opens && new.model.acked_since;
    !old.recovering && (old.end < new.model.known || reopened)
}
