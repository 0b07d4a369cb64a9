//! The table of operations: what a task may do to a store, how often, and how. Each life draws from it; a
//! hazard is a weighting of it ([`Mix`]). `tests/drawn.rs` compares it with the public interface.

use super::ssd_calls::Act;
use super::worker::{Outcome, Worker};
use crate::campaign::contract::running::{Drawn, OPERATIONS_MAX};
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::log;
use pagetier::SsdMode;
use rand::Rng;
use rand::rngs::SmallRng;
use std::pin::Pin;

/// A part of the table. A mix weights groups; within a group each operation has its own share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    Read,
    Write,
    Sync,
    Side,
    Space,
    Free,
    Ssd,
    Operate,
    Trouble,
    Dropped,
    Records,
    Script,
}

const GROUPS: usize = 12;

type Run = for<'a> fn(&'a mut Worker) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

pub(crate) struct Operation {
    pub(crate) name: &'static str,
    group: Group,
    /// Its share of its group.
    share: u32,
    /// Lives that do not draw the whole table draw it, too.
    usual: bool,
    /// The kind of work ([`Plan::KINDS`]) that it belongs to.
    kind: &'static str,
    /// The public functions that it calls.
    pub(crate) calls: &'static [&'static str],
    pub(crate) run: Run,
}

const fn op(
    name: &'static str,
    (group, share): (Group, u32),
    calls: &'static [&'static str],
    run: Run,
) -> Operation {
    Operation { name, group, share, usual: false, kind: "", calls, run }
}

impl Operation {
    const fn usual(self) -> Self {
        Self { usual: true, ..self }
    }

    const fn of(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }
}

use Group::*;

/// Every operation. The names stand in the report.
pub(crate) const TABLE: &[Operation] = &[
    op("read", (Read, 40), &["PageStore::get"], |w| Box::pin(w.read())).usual(),
    op("read owned", (Read, 4), &["PageStore::get"], |w| Box::pin(w.read_owned())),
    op("read several", (Read, 4), &["PageStore::get_many"], |w| Box::pin(w.read_many())),
    op("read what is in memory", (Read, 4), &["PageStore::try_get"], |w| Box::pin(w.try_read())),
    op("write", (Write, 84), &["PageStore::get_mut", "PageStore::get_or_create"], |w| {
        Box::pin(w.write(false))
    })
    .usual(),
    op("write slowly", (Write, 4), &["PageStore::get_mut"], |w| Box::pin(w.write(true))).usual().of("hold"),
    op("write owned", (Write, 4), &["PageStore::get_mut"], |w| Box::pin(w.write_owned())),
    op("write what is in memory", (Write, 4), &["PageStore::try_get_mut"], |w| Box::pin(w.try_write())),
    op("allocate", (Write, 12), &["PageStore::allocate"], |w| Box::pin(w.allocate_some())).usual(),
    op("create by number", (Write, 3), &["PageStore::overwrite"], |w| Box::pin(w.create_by_number())),
    op("overwrite", (Write, 3), &["PageStore::overwrite"], |w| Box::pin(w.overwrite())),
    op("create far beyond the end", (Write, 1), &["PageStore::overwrite"], |w| Box::pin(w.create_far()))
        .of("far"),
    op("insert many under a guard", (Write, 2), &["PageStore::allocate", "Spaces::create"], |w| {
        Box::pin(w.insert_many())
    })
    .of("insert"),
    op("sync", (Sync, 20), &["PageStore::sync"], |w| Box::pin(w.sync())).usual(),
    op("sync a space", (Sync, 2), &["Spaces::sync"], |w| Box::pin(w.sync_space())).usual(),
    op("flush", (Sync, 1), &["PageStore::flush"], |w| Box::pin(w.flush())),
    op(
        "redo position",
        (Sync, 2),
        &["PageStore::redo_from", "PageStore::min_recovery_lsn", "PageStore::record_log"],
        |w| Box::pin(w.redo_from()),
    ),
    op("flush up to an LSN", (Side, 12), &["PageStore::flush_to"], |w| Box::pin(w.flush_to()))
        .usual()
        .of("flush-to"),
    op("scan", (Side, 12), &["PageStore::scan"], |w| Box::pin(w.scan())).usual().of("scan"),
    op("discard", (Side, 12), &["PageStore::discard"], |w| Box::pin(w.discard())).usual().of("discard"),
    op("prefetch", (Side, 6), &["PageStore::prefetch"], |w| Box::pin(w.prefetch())).usual().of("prefetch"),
    op("pause", (Side, 12), &[], |w| Box::pin(w.pause())).usual().of("pause"),
    op("views", (Side, 2), VIEWS, |w| Box::pin(w.views())),
    op("read, too", (Side, 24), &["PageStore::get"], |w| Box::pin(w.read())).usual(),
    op("drop or create a space", (Side, 1), &["Spaces::create", "Spaces::drop"], |w| {
        Box::pin(w.drop_space())
    })
    .usual()
    .of("drop-space"),
    op("drop a space", (Space, 8), &["Spaces::drop"], |w| Box::pin(w.drop_space())).usual().of("drop-space"),
    op("drop a space, call dropped", (Space, 4), &["Spaces::drop"], |w| Box::pin(w.dropped_drop_space()))
        .usual()
        .of("drop-space"),
    op("create a space by number", (Space, 2), &["Spaces::create_as"], |w| Box::pin(w.create_space_as())),
    op("hints", (Space, 8), &["Spaces::set_hints"], |w| Box::pin(w.set_hints())),
    op("free a page", (Free, 2), &["PageStore::free"], |w| Box::pin(w.free_one())).usual(),
    op("free pages", (Free, 2), &["PageStore::free"], |w| Box::pin(w.free_some())).usual(),
    op("free with a sync", (Free, 2), &["PageStore::free_on_sync", "PageStore::sync"], |w| {
        Box::pin(w.free_on_sync())
    })
    .usual(),
    op("free a range", (Free, 2), &["PageStore::free"], |w| Box::pin(w.free_run())).usual(),
    op("free an extent", (Free, 1), &["PageStore::free", "Spaces::shrink"], |w| Box::pin(w.free_extent()))
        .usual(),
    op("free and reuse", (Free, 2), &["PageStore::free", "PageStore::overwrite"], |w| {
        Box::pin(w.free_and_reuse())
    }),
    op("shrink", (Free, 1), &["Spaces::shrink"], |w| Box::pin(w.shrink())).usual(),
    op("reserve room", (Free, 1), &["Spaces::reserve"], |w| Box::pin(w.reserve())).usual(),
    op("fill", (Free, 4), &["PageStore::allocate"], |w| Box::pin(w.fill())).usual(),
    op("give up the SSD", (Ssd, 3), &["Ssd::abandon"], |w| Box::pin(w.ssd_call(Act::Abandon))),
    op("readmit the SSD", (Ssd, 4), &["Ssd::readmit"], |w| Box::pin(w.ssd_call(Act::Readmit))),
    op("switch the SSD off", (Ssd, 2), &["Ssd::set_mode"], |w| Box::pin(w.ssd_call(Act::Off))),
    op("switch the SSD on", (Ssd, 2), &["Ssd::set_mode"], |w| {
        let mode = w.any_mode();
        Box::pin(w.ssd_call(Act::On(mode)))
    }),
    // Only a third of the draws of any mode end in this one: without it, lives would stay out of the
    // states of write-back.
    op("write back again", (Ssd, 2), &["Ssd::set_mode"], |w| {
        Box::pin(w.ssd_call(Act::On(SsdMode::WriteBack)))
    }),
    op("drain", (Ssd, 3), &["Ssd::drain"], |w| Box::pin(w.drain())),
    op("acknowledge a loss", (Ssd, 4), &["Ssd::acknowledge_loss", "Ssd::loss"], |w| {
        Box::pin(w.acknowledge())
    }),
    op("write budget", (Operate, 1), &["Ssd::set_write_budget"], |w| Box::pin(w.set_budget())).usual(),
    op("resize the pool", (Operate, 2), &["PageStore::resize_pool"], |w| Box::pin(w.resize())).usual(),
    op("switch the SSD policy", (Operate, 2), &["Policies::set_ssd"], |w| Box::pin(w.switch())).usual(),
    op("switch the pool policy", (Operate, 1), &["Policies::set_pool"], |w| Box::pin(w.set_pool_policy()))
        .usual(),
    op("back up", (Operate, 3), &["PageStore::backup", "Builder::restore"], |w| Box::pin(w.back_up()))
        .usual()
        .of("backup"),
    op("ask over the control socket", (Operate, 1), &[], |w| Box::pin(w.ask())),
    op("costs", (Operate, 1), &["Policies::set_costs", "Policies::costs"], |w| Box::pin(w.set_costs())),
    op(
        "scrub",
        (Operate, 1),
        &["PageStore::scrub", "Scrub::progress", "Scrub::abort", "Scrub::is_finished", "Scrub::finished"],
        |w| Box::pin(w.scrub()),
    ),
    op(
        "simulate other sizes",
        (Operate, 1),
        &["PageStore::what_if", "Estimates::start", "Estimates::report", "Estimates::stop"],
        |w| Box::pin(w.what_if()),
    ),
    op("trace", (Operate, 1), &["PageStore::trace", "Trace::start", "Trace::progress", "Trace::stop"], |w| {
        Box::pin(w.trace())
    }),
    op("hot pages", (Operate, 1), &["PageStore::hot_set", "HotSet::export", "HotSet::import"], |w| {
        Box::pin(w.hot_pages())
    }),
    op("wrong reads", (Trouble, 3), &[], |w| Box::pin(w.wrong_reads())).of("wrong-reads"),
    op("a flush of the SSD fails", (Trouble, 3), &[], |w| Box::pin(w.ssd_flush_fails())),
    op("a device fails", (Trouble, 2), &[], |w| Box::pin(w.device_fails())),
    op("the SSD is gone for a while", (Trouble, 1), &[], |w| Box::pin(w.ssd_gone())),
    op("saves fail", (Trouble, 2), &[], |w| Box::pin(w.saves_fail())),
    op("a call dropped", (Dropped, 1), &[], |w| Box::pin(w.dropped())).usual().of("drop-future"),
    op("records change", (Records, 1), &[], |w| Box::pin(w.change_records())).usual(),
    op("cool copies", (Script, 1), &[], |w| Box::pin(w.script(Hazard::ColdCopies))),
    op("two ways home", (Script, 1), &[], |w| Box::pin(w.script(Hazard::TwoWaysHome))),
    op("fresh victims", (Script, 1), &[], |w| Box::pin(w.script(Hazard::FreshVictims))),
    op("just evicted", (Script, 1), &[], |w| Box::pin(w.script(Hazard::JustEvicted))),
    op("torn homes", (Script, 1), &[], |w| Box::pin(w.script(Hazard::TornHomes))),
    op("drained discards", (Script, 1), &[], |w| Box::pin(w.script(Hazard::DrainedDiscards))),
];

/// What "views" calls.
const VIEWS: &[&str] = &[
    "PageStore::spaces",
    "PageStore::ssd",
    "PageStore::policies",
    "PageStore::stats",
    "Stats::summary",
    "PageStore::why",
    "PageStore::exists",
    "PageStore::location",
    "PageStore::frames",
    "PageStore::recovery",
    "Policies::pool",
    "Spaces::find",
    "Spaces::list",
    "Spaces::pages",
    "Ssd::events",
    "Policies::ssd",
    "Policies::groups",
    "Policies::counts",
];

/// Called when a store is opened, and by the examinations of crashed and closed stores.
const EXAMINATIONS: &[&str] = &[
    "Builder::accept_ssd_loss",
    "Builder::costs",
    "Builder::create",
    "Builder::directory",
    "Builder::exhausted_after",
    "Builder::hdd",
    "Builder::in_memory",
    "Builder::inspect",
    "Builder::log_gate",
    "Builder::low_room",
    "Builder::manifest",
    "Builder::map_piece",
    "Builder::on_recovery_progress",
    "Builder::open",
    "Builder::open_read_only",
    "Builder::page_gap_max",
    "Builder::pool_bytes",
    "Builder::pool_policy",
    "Builder::read_ahead",
    "Builder::redo_span_max",
    "Builder::restore",
    "Builder::ring_device",
    "Builder::ring_pages",
    "Builder::ssd_bytes",
    "Builder::ssd",
    "Builder::ssd_mode",
    "Builder::ssd_policy",
    "PageStore::builder",
    "PageStore::close",
    "HotSet::keep",
    "HotSet::pages",
    "PageStore::wait_closed",
    "PageStore::shutdown",
    "Ssd::replace",
    "PageStore::validate",
];

/// Every public function that the campaign draws, as `Type::name`.
pub fn drawn() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|operation| operation.calls).chain(EXAMINATIONS).copied().chain(log::drawn())
}

const _: () = assert!(TABLE.len() <= OPERATIONS_MAX);

impl Drawn {
    /// Each operation's name, how often it was drawn, the crashes during it, and the number of operations
    /// that overlapped with it.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, u64, usize)> {
        let n = TABLE.len();
        // A pair is counted in the order in which the two began, which does not matter here.
        let of = |a: usize, b: usize| self.pairs[a * OPERATIONS_MAX + b];
        let met = move |a: usize, b: usize| of(a, b) + of(b, a) > 0;
        (0..n).map(move |at| {
            let others = (0..n).filter(|other| met(at, *other)).count();
            (TABLE[at].name, self.drawn[at], self.crashed[at], others)
        })
    }

    /// The number of pairs of operations that overlapped, and of all pairs.
    pub fn overlaps(&self) -> (usize, usize) {
        let n = TABLE.len();
        let pairs = || (0..n).flat_map(move |a| (a..n).map(move |b| (a, b)));
        let of = |a: usize, b: usize| self.pairs[a * OPERATIONS_MAX + b];
        let met = |(a, b): &(usize, usize)| of(*a, *b) + of(*b, *a) > 0;
        (pairs().filter(met).count(), pairs().count())
    }
}

/// How often a task draws each operation.
#[derive(Clone, Debug)]
pub(super) struct Mix {
    groups: [u32; GROUPS],
    shares: Vec<u32>,
}

impl Mix {
    /// The mix of one task. `frees`: it frees pages.
    pub(crate) fn of(plan: &Plan, frees: bool, troubled: bool, rng: &mut SmallRng) -> Self {
        // From readers, which fill the SSD with clean copies, to writers, which dirty it.
        let writes = rng.random_range(15..=60);
        // Few syncs leave the media many versions to choose from; many of them leave the store little
        // that a crash may take.
        let syncs = [1, 3, 8][rng.random_range(0..3)];
        let side = (100 - writes) / 3;
        let mut groups = [0; GROUPS];
        // In units of a hundredth of a per cent.
        let base = [(Read, 100 - writes - syncs - side), (Write, writes), (Sync, syncs), (Side, side)];
        base.iter().for_each(|(group, share)| groups[*group as usize] = share * 100);
        let mut set = |group: Group, share: u32| groups[group as usize] = share;
        set(Dropped, if plan.hazard == Hazard::DroppedFlush { 1700 } else { 300 });
        match plan.hazard {
            Hazard::DroppedSpaces => set(Space, 900),
            Hazard::Records => set(Records, 900),
            Hazard::Upkeep => set(Operate, 130),
            _ => {}
        }
        if frees {
            set(Free, 1600);
        }
        let whole = plan.is_whole();
        if whole {
            // Each task has its own profile, so that each operation is sometimes frequent beside every other.
            let mut some = |all: [u32; 4]| all[rng.random_range(0..4)];
            set(Dropped, some([0, 100, 300, 1000]));
            set(Space, some([0, 0, 60, 400]));
            set(Free, if frees { some([0, 300, 1000, 2500]) } else { 0 });
            // Seldom: an SSD that was given up meets few other states for the rest of the life.
            set(Ssd, if plan.has("ssd") { some([0, 20, 80, 250]) } else { 0 });
            set(Operate, if plan.has("operate") { some([0, 40, 100, 400]) } else { 0 });
            set(Trouble, if troubled { some([0, 30, 100, 300]) } else { 0 });
            set(Records, some([0, 0, 0, 100]));
            set(Script, if plan.slots > 0 { some([0, 0, 0, 20]) } else { 0 });
        }
        let mut share = |operation: &Operation| {
            let drawn = (whole || operation.usual) && plan.has(operation.kind);
            // A life lacks some operations and has others often: each then runs undisturbed by those that
            // it lacks.
            let factor = if whole { [0, 1, 1, 1, 1, 1, 2, 6][rng.random_range(0..8)] } else { 1 };
            // The first operation stands in for a group of which nothing is left.
            if drawn { 10 * operation.share * factor } else { 0 }
        };
        let shares = TABLE.iter().map(&mut share).collect();
        Self { groups, shares }
    }

    /// Draws an operation.
    pub(crate) fn draw(&self, rng: &mut SmallRng) -> usize {
        let mut left = rng.random_range(0..self.groups.iter().sum::<u32>());
        let group = self.groups.iter().position(|weight| {
            let found = left < *weight;
            left = left.saturating_sub(*weight);
            found
        });
        let of_group = |at: usize| group == Some(TABLE[at].group as usize);
        let shares = || self.shares.iter().enumerate().filter(|(at, _)| of_group(*at));
        let sum: u32 = shares().map(|(_, share)| share).sum();
        if sum == 0 {
            // Nothing is left of the group: read instead.
            return 0;
        }
        let mut left = rng.random_range(0..sum);
        for (at, share) in shares() {
            if left < *share {
                return at;
            }
            left -= share;
        }
        0
    }
}
