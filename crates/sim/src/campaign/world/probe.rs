//! Watches a store's devices: tracks operations in flight, and takes moments of both devices at the
//! boundaries of their operations.
//!
//! A moment holds everything that determines a crash at that point: the devices with their volatile writes,
//! the manifest, and the versions that the contract allows. Nothing here changes the store's behaviour.

use super::crash::{Moment, Outcome};
use super::disks::Disks;
use super::gate::Log;
use super::peek;
use super::saves::Saves;
use crate::campaign::contract::model::Model;
use crate::campaign::contract::running::{Drawn, Running};
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::coverage::{State, States};
use pagetier::{Builder, LogGate, MemoryManifest, PageSize, PageStore, options::Create, stats::SsdState};
use pagetier_devio::IoClass;
use pagetier_ssdcache::{Layout, SLOTS_MIN};
use pagetier_testing::{FlushFailure, SimDevice, SimMoment, SimPower};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The number of moments examined per moment taken.
const LOOK: f64 = 3.0;

/// States that random boundaries seldom hit.
const RARE: [State; 10] = [
    State::DroppingSpace,
    State::JournalNeeded,
    State::WritingBack,
    State::Abandoned,
    State::RecoveryRepair,
    State::JournalFull,
    State::MovedOver,
    State::Freeing,
    State::Shrinking,
    State::Switching,
];

/// The store's phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No moments are taken while the store is being created.
    Creating,
    Recovering,
    Working,
}

/// How often to take moments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rate {
    Never,
    /// At this share of the boundaries, more often in the middle of the protocol; at most `max` moments.
    Some {
        share: f64,
        max: usize,
    },
    /// At every boundary at which something changed.
    Every,
}

/// The part that an operation plays in the protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The state that the operation in flight amounts to.
    pub(crate) state: Option<State>,
    /// How much more often than elsewhere moments are taken at its boundaries.
    pub(crate) weight: f64,
}

struct Inside {
    rng: SmallRng,
    rate: Rate,
    phase: Phase,
    boundaries: u64,
    /// Operations in flight, by state.
    in_flight: FxHashMap<State, u32>,
    moments: Vec<Moment>,
    store: Weak<PageStore>,
    depth: u32,
    /// Whether the possible outcomes of a crash have changed since the last moment.
    changed: bool,
    killed: bool,
    /// States to count for every later moment.
    marks: States,
    /// The lease of the open that received the devices last.
    lease: Arc<Lease>,
    /// The number of the first save of the manifest to fail, and whether failing saves take effect.
    failing_saves: Option<(u64, bool)>,
    violation: Option<String>,
    /// Whether the next opens overwrite what another store left.
    force: bool,
    /// Whether the next opens accept the loss of the SSD.
    accepts_loss: bool,
    drawn: Drawn,
}

/// The devices of a store, under observation.
pub(crate) struct Probe {
    pub(crate) hdd: Arc<SimDevice>,
    pub(crate) ssd: Arc<SimDevice>,
    pub(crate) ring: Arc<SimDevice>,
    pub(crate) power: SimPower,
    pub(crate) manifest: Arc<MemoryManifest>,
    /// The manifest is at the head of the HDD instead.
    pub(crate) on_hdd: bool,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) log: Option<Arc<Log>>,
    pub(crate) flush_failures: [FlushFailure; 2],
    pub(super) watches_drops: bool,
    layout: Layout,
    inside: Mutex<Inside>,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").finish_non_exhaustive()
    }
}

impl Probe {
    /// The size of the store's pages.
    pub(crate) fn page_size(&self) -> PageSize {
        self.layout.page_size
    }

    pub(crate) fn new(
        plan: &Plan,
        Disks { hdd, ssd, ring, power }: Disks,
        manifest: MemoryManifest,
        model: Model,
        seed: u64,
    ) -> Arc<Self> {
        let inside = Inside {
            rng: SmallRng::seed_from_u64(seed),
            rate: Rate::Never,
            phase: Phase::Creating,
            boundaries: 0,
            in_flight: FxHashMap::default(),
            moments: Vec::new(),
            store: Weak::new(),
            depth: 0,
            changed: true,
            killed: false,
            marks: geometry(plan),
            lease: Arc::default(),
            failing_saves: None,
            violation: None,
            force: false,
            accepts_loss: false,
            drawn: Drawn::default(),
        };
        let log = (plan.gate_us > 0).then(|| Log::new(plan.gate_us.into(), model.log_durable, seed));
        Arc::new(Self {
            log,
            flush_failures: plan.flush_failures,
            watches_drops: plan.has("reopen"),
            hdd: Arc::new(hdd),
            ssd: Arc::new(ssd),
            ring: Arc::new(ring),
            power,
            manifest: Arc::new(manifest),
            on_hdd: plan.on_hdd > 0,
            model: Arc::new(Mutex::new(model)),
            layout: plan.layout(),
            inside: Mutex::new(inside),
        })
    }

    /// The store's options, with the devices and the log.
    pub(crate) fn builder(self: &Arc<Self>, plan: &Plan) -> Builder {
        let lease = Arc::<Lease>::default();
        // Before the open begins: one that is dropped half-way must start no operation either.
        self.hold(&lease);
        self.leased(plan, &lease)
    }

    /// The options for an open that may not get the store; [`Probe::hold`] records the one that does.
    pub(crate) fn leased(self: &Arc<Self>, plan: &Plan, lease: &Arc<Lease>) -> Builder {
        let builder = plan.builder_on(self.devices(lease), &self.manifest);
        let builder = {
            let inside = self.inside.lock();
            builder
                .create(if inside.force { Create::Overwriting } else { Create::OnBlank })
                .accept_ssd_loss(inside.accepts_loss)
                .accept_log_loss(inside.accepts_loss)
        };
        match &self.log {
            Some(log) => builder.log_gate(Arc::clone(log) as Arc<dyn LogGate>),
            None => builder,
        }
    }

    /// Records the open that holds the store.
    pub(crate) fn hold(&self, lease: &Arc<Lease>) {
        self.inside.lock().lease = Arc::clone(lease);
    }

    pub(crate) async fn open(self: &Arc<Self>, plan: &Plan) -> Result<PageStore, String> {
        self.builder(plan).open().await.map_err(|e| format!("does not open: {e}"))
    }

    /// Records that the last opened store was dropped: it must not start any operation.
    pub(crate) fn released(&self) {
        self.inside.lock().lease.release();
    }

    /// Records that the devices are in the state that this crash left.
    pub(crate) fn follow(&self, outcome: Outcome) {
        self.inside.lock().killed = outcome.keeps_power();
    }

    /// Counts the state for every later moment.
    pub(crate) fn mark(&self, state: State) {
        self.inside.lock().marks.add(state);
    }

    /// Stops counting the state.
    pub(crate) fn unmark(&self, state: State) {
        self.inside.lock().marks.remove(state);
    }

    /// Makes later opens overwrite what another store left on the devices.
    pub(crate) fn overwrite_by_force(&self) {
        self.inside.lock().force = true;
        self.mark(State::Stranger);
    }

    /// Counts an operation that begins while others run.
    pub(crate) fn drawn(&self, at: usize, others: &Running) {
        self.inside.lock().drawn.begins(at, others);
    }

    /// Returns the counts of the operations drawn so far.
    pub(crate) fn take_drawn(&self) -> Drawn {
        std::mem::take(&mut self.inside.lock().drawn)
    }

    /// Makes later opens accept the loss of the SSD, or not.
    pub(crate) fn accept_loss(&self, yes: bool) {
        self.inside.lock().accepts_loss = yes;
    }

    /// Clears the plan of faults.
    pub(crate) fn clear_faults(&self) {
        self.hdd.clear_faults();
        self.ssd.clear_faults();
        self.ring.clear_faults();
        self.manifest.fail_saves(0, 0, false);
        // Count the saves that have failed before their plan is forgotten.
        self.note_saves(&mut self.inside.lock());
        self.inside.lock().failing_saves = None;
        if let Some(log) = &self.log {
            log.fail(0);
        }
    }

    /// Counts the failed saves for every later moment.
    pub(super) fn watch_saves(&self, saves: Saves) {
        let from = self.manifest.saves() + saves.skip;
        self.inside.lock().failing_saves = Some((from, saves.replaced));
    }

    fn note_saves(&self, inside: &mut Inside) {
        // A save that fails is told to the store alone, but it counts: the count shows that the first
        // failing one is past.
        let failed = |(from, _): &(u64, bool)| self.manifest.saves() > *from;
        if let Some((_, replaced)) = inside.failing_saves.filter(failed) {
            inside.marks.add(State::SaveFailed);
            inside.marks.add_if(replaced, State::SaveReplaced);
        }
    }

    pub(super) fn violate(&self, what: String) {
        // The first violation is the cause; later ones may follow from it.
        let _ = self.inside.lock().violation.get_or_insert(what);
    }

    /// Returns a forbidden operation that the devices have seen, if any.
    pub(crate) fn violation(&self) -> Result<(), String> {
        self.inside.lock().violation.take().map_or(Ok(()), Err)
    }

    pub(crate) fn set(&self, rate: Rate, phase: Phase, depth: u32) {
        let mut inside = self.inside.lock();
        (inside.rate, inside.phase, inside.depth) = (rate, phase, depth);
    }

    pub(crate) fn watch(&self, store: &Arc<PageStore>) {
        // A strong reference would keep the store open after its last user has dropped it.
        self.inside.lock().store = Arc::downgrade(store);
    }

    /// Whether the store may not use the SSD: it was given up, in this life or an earlier one.
    pub(crate) fn may_lack_ssd(&self) -> bool {
        let off = |store: Arc<PageStore>| store.stats().ssd.state() == SsdState::Off;
        let store = self.inside.lock().store.upgrade();
        self.model.lock().ssd_touched || store.is_some_and(off)
    }

    /// The number of SSD flushes in flight.
    pub(crate) fn ssd_flushes(&self) -> u32 {
        self.inside.lock().flying(State::SsdFlush)
    }

    /// Returns the moments taken so far.
    pub(crate) fn take(&self) -> Vec<Moment> {
        std::mem::take(&mut self.inside.lock().moments)
    }

    /// Takes this moment regardless of the rate.
    pub(crate) fn now(&self) -> Moment {
        self.moment(&mut self.inside.lock())
    }

    pub(super) fn boundary(&self, part: Part) {
        let mut inside = self.inside.lock();
        inside.boundaries += 1;
        let wanted = match inside.rate {
            Rate::Never => false,
            // Where nothing has changed since the last moment, a crash has the same outcomes.
            Rate::Every => std::mem::take(&mut inside.changed),
            Rate::Some { max, .. } if inside.moments.len() >= max => false,
            Rate::Some { share, .. } => inside.rng.random_bool((share * part.weight * LOOK).min(1.0)),
        };
        if wanted {
            let moment = self.moment(&mut inside);
            // Examine more moments than are taken: every moment with a rare hazard is taken.
            let rare = RARE.iter().any(|state| moment.states.has(*state));
            let taken = matches!(inside.rate, Rate::Every) || rare || inside.rng.random_bool(1.0 / LOOK);
            if taken {
                inside.moments.push(moment);
            }
        }
    }

    fn moment(&self, inside: &mut Inside) -> Moment {
        self.note_saves(inside);
        let (hdd, ssd, ring) = (self.hdd.moment(), self.ssd.moment(), self.ring.moment());
        let mut model = self.model.lock().clone();
        if let Some(log) = &self.log {
            model.log_durable = log.durable();
            for (name, device) in [("hdd", &hdd), ("ssd", &ssd), ("ring", &ring)] {
                // Every moment is a test of the gate: no device may hold a page whose record is not
                // durable.
                if let Err(what) = peek::behind_log(device, self.page_size(), &self.manifest, log.durable()) {
                    let _ = inside.violation.get_or_insert(format!("{name}: {what}"));
                }
            }
        }
        let states = self.states(inside, &hdd, &ssd, &model).union(inside.marks);
        let (boundary, depth, killed) = (inside.boundaries, inside.depth, inside.killed);
        let manifest = self.manifest.fork();
        Moment { hdd, ssd, ring, manifest, model, states, boundary, depth, killed }
    }

    fn states(&self, inside: &Inside, hdd: &SimMoment, ssd: &SimMoment, model: &Model) -> States {
        let mut states = inside.flight_states();
        states.add_if(inside.phase == Phase::Recovering, State::Recovering);
        states.add_if(ssd.unflushed() > 0, State::SsdUnflushed);
        states.add_if(hdd.unflushed() > 0, State::HddUnflushed);
        let doing = model.doing;
        states.add_if(doing.sync > 0, State::Syncing);
        states.add_if(doing.flush_to > 0, State::FlushingTo);
        states.add_if(doing.discard > 0, State::Discarding);
        states.add_if(doing.drop_space > 0, State::DroppingSpace);
        states.add_if(doing.closing, State::Closing);
        states.add_if(doing.free > 0, State::Freeing);
        states.add_if(doing.shrink > 0, State::Shrinking);
        states.add_if(doing.switch > 0, State::Switching);
        states.add_if(doing.backup > 0, State::BackingUp);
        let (free, reused) = model.free_and_reused();
        states.add_if(free, State::FreePages);
        states.add_if(reused, State::ReusedNumbers);
        if let Some(m) = inside.store.upgrade().and_then(|store| store.moment()) {
            states = states.union(tier_states(&m, inside));
        }
        states.union(peek::states(hdd, ssd, &self.layout, model))
    }

    pub(super) fn part(&self, which: Which, write: bool, offset: u64, class: IoClass) -> Part {
        // This device is in use only while there is no SSD, by the ring alone, and the report counts no
        // state of it.
        if which == Which::Ring {
            return Part { state: None, weight: 1.0 };
        }
        // Weights make up for numbers: a checkpoint is a few writes among hundreds, a repair one of a
        // recovery. The reads of a recovery are most of its operations, and no crash tells them apart.
        let (state, weight) = match (which == Which::Ssd, write, class) {
            (false, true, IoClass::WriteBack | IoClass::UrgentWriteBack) => (State::WriteBackHome, 3.0),
            (false, true, IoClass::Recovery) => (State::RecoveryRepair, 20.0),
            (false, true, IoClass::Clean | IoClass::UrgentClean) => (State::HomeWrite, 1.0),
            (true, false, IoClass::WriteBack | IoClass::UrgentWriteBack) => (State::WriteBackRead, 1.0),
            (true, false, IoClass::Recovery) => return Part { state: None, weight: 0.2 },
            (true, true, IoClass::Ring) => (State::RingWrite, 1.0),
            // Writes of this class are told apart by place: superblocks, the two maps, then the journal.
            (true, true, IoClass::Meta) if offset >= self.layout.map_at(2) => (State::JournalWrite, 3.0),
            (true, true, IoClass::Meta) if self.is_map_header(offset) => (State::MapHeader, 6.0),
            (true, true, IoClass::Meta) if offset >= self.layout.map_at(0) => (State::MapBody, 6.0),
            (true, true, IoClass::Clean | IoClass::UrgentClean) => (State::SlotWrite, 1.0),
            _ => return Part { state: None, weight: 1.0 },
        };
        Part { state: Some(state), weight }
    }

    fn is_map_header(&self, offset: u64) -> bool {
        let at = |(area, copy)| self.layout.map_header_at(area, copy) == offset;
        [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().any(at)
    }

    pub(super) fn begin(self: &Arc<Self>, part: Part, changes: bool) -> InFlight {
        // The boundary comes before the operation: it captures the state after the previous event.
        self.boundary(part);
        let mut inside = self.inside.lock();
        if let Some(state) = part.state {
            *inside.in_flight.entry(state).or_default() += 1;
        }
        inside.changed |= changes;
        drop(inside);
        InFlight { probe: Arc::clone(self), part, changes }
    }
}

impl Inside {
    fn flying(&self, state: State) -> u32 {
        self.in_flight.get(&state).copied().unwrap_or(0)
    }

    fn flight_states(&self) -> States {
        let mut states = States::default();
        self.in_flight.iter().for_each(|(state, flying)| states.add_if(*flying > 0, *state));
        states.add_if(self.flying(State::SlotWrite) > 1, State::SlotWrites);
        states.add_if(self.flying(State::HomeWrite) > 1, State::HomeWrites);
        let map = states.any(&[State::MapBody, State::MapHeader]);
        states.add_if(map && self.phase == Phase::Recovering, State::RecoveryCheckpoint);
        states
    }
}

fn tier_states(m: &pagetier::Moment, inside: &Inside) -> States {
    let mut states = States::default();
    let homing = inside.flying(State::HomeWrite) + inside.flying(State::WriteBackHome) > 0;
    states.add_if(m.capturing, State::Capturing);
    states.add_if(m.capturing && inside.flying(State::SsdFlush) > 0, State::MapFlush);
    states.add_if(m.capturing && inside.flying(State::SlotWrite) > 0, State::CapturingSlotWrite);
    states.add_if(m.capturing && homing, State::CapturingHome);
    states.add_if(m.going_home > 0, State::WritingBack);
    states.add_if(m.abandoned > 0, State::Abandoned);
    states.add_if(m.admissions > 0, State::Admission);
    states.add_if(m.writable == 0 && m.writing + m.dirty + m.clean > 0, State::ZoneSpent);
    states.add_if(m.starved, State::Starved);
    states.add_if(m.waiting > 0, State::Waiting);
    states.add_if(m.full && m.dirty + m.clean > 0, State::SsdFull);
    states.add_if(m.retired > 0, State::Retired);
    states.add_if(m.retired_read > 0, State::RetiredRead);
    states.add_if(m.ring_pages > 0 && m.ring_held + 1 > u64::from(m.ring_pages), State::RingFull);
    states.add_if(m.journal_used * 2 > u64::from(m.journal_blocks), State::JournalHigh);
    states.add_if(m.journal_blocks > 0 && m.journal_used >= u64::from(m.journal_blocks), State::JournalFull);
    states.add_if(m.refusing, State::Refusing);
    states.add_if(m.ssd_error, State::SsdFailed);
    states.add_if(m.laps > 0, State::Wrapped);
    states.add_if(m.moving > 0, State::Moving);
    states.add_if(m.moved_over > 0, State::MovedOver);
    states.add_if(m.reading > 0, State::ReadAdmission);
    states.add_if(m.renewing > 0, State::Renewing);
    states.add_if(m.backing > 0, State::Backing);
    states.add_if(m.backing > 0 && inside.flying(State::HomeWrite) > 0, State::BackingHome);
    states
}

/// An operation in flight, until it completes or its caller drops it.
pub(super) struct InFlight {
    probe: Arc<Probe>,
    part: Part,
    /// Whether it is a write or a flush.
    changes: bool,
}

impl InFlight {
    /// Completes the operation.
    pub(crate) fn end(self) {
        let (probe, part, changes) = (Arc::clone(&self.probe), self.part, self.changes);
        // It is no longer in flight at the boundary that its end makes.
        drop(self);
        probe.inside.lock().changed |= changes;
        probe.boundary(part);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Without a boundary, if the caller has dropped the future: the operation goes on in the device,
        // unseen.
        let mut inside = self.probe.inside.lock();
        if let Some(flying) = self.part.state.and_then(|state| inside.in_flight.get_mut(&state)) {
            *flying -= 1;
        }
    }
}

/// The states that a plan's geometry implies.
fn geometry(plan: &Plan) -> States {
    let mut states = States::default();
    states.add_if(plan.ring == 0, State::NoRing);
    states.add_if(plan.ring > 0 && plan.homes_are_whole(), State::Whole);
    states.add_if(plan.slots == 0, State::NoSsd);
    states.add_if((1..=2).contains(&plan.ring), State::TinyRing);
    states.add_if(plan.slots == SLOTS_MIN, State::FewSlots);
    states.add_if(plan.slots > 0 && plan.slots * plan.zone_percent <= 100, State::TinyZone);
    states.add_if(plan.hostile[0].is_some() && plan.slots > 0, State::HostileSsd);
    states.add_if(plan.hostile[1].is_some(), State::HostilePool);
    states.add_if(plan.gate_us > 0, State::Gated);
    states
}

/// One open's use of the devices.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// Whether its store was dropped.
    pub(crate) released: AtomicBool,
    /// Whether each device has seen its first operation.
    pub(crate) begun: [AtomicBool; 3],
    /// The opener must start no operation: another one holds the store.
    pub(crate) forbidden: bool,
}

impl Lease {
    /// Records that the store was dropped: it must not start any operation.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }
}

/// A device of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    Hdd,
    Ssd,
    Ring,
}
