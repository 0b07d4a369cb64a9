//! A device for crash and fault tests: memory with a volatile write cache, a power supply that can be cut at
//! any operation, and a plan of faults. Deterministic: the same seed and the same calls give the same
//! outcome.
//!
//! Reads see a completed write, but it is volatile until a flush that began later has succeeded. A discard is
//! a write of zeros in this respect: what was there before may come back in any of its sectors until a flush.
//! [`SimDevice::after_power_cut`] returns the device as it comes back: each volatile write, completed or in
//! flight, is whole, absent, or torn at 512-byte sectors, in any order; growth without a later flush may be
//! undone. [`SimDevice::after_kill`] returns it after the death of the process alone: volatile writes are
//! readable and stay volatile. An operation is executed even if its future is dropped. Without latency each
//! call executes its operation; with latency, operations complete in shuffled order, in tokio's time.
//!
//! Locking order: the state, then the power's lock.

mod cache;
mod fault;
mod files;
mod moment;
mod power;
mod seat;

pub use fault::{Fault, FaultEffect, FlushFailure};
pub use files::{FileFault, SimFiles};
pub use moment::SimMoment;
pub use power::SimPower;
pub use seat::SimSeat;

use self::cache::{Cache, SECTOR};
use pagetier_devio::InFlight;
use pagetier_devio::IoBufs;
use pagetier_devio::parts::Meter;
use pagetier_devio::parts::RetryReason;
use pagetier_devio::parts::ticket;
use pagetier_devio::parts::{Spot, check, check_range, total_len};
use pagetier_devio::{
    Claim, Completion, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, IoClass, IoFuture,
    IoOp, Occupancy, RecentCosts,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::future::ready;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A simulated device. See the module.
#[derive(Debug)]
pub struct SimDevice {
    shared: Arc<Shared>,
    alignment: usize,
    latency_max: Duration,
    size_max: u64,
}

#[derive(Debug)]
struct Shared {
    meter: Meter,
    power: SimPower,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    extent: Extent,
    flush_failure: FlushFailure,
    rng: SmallRng,
    faults: Vec<Fault>,
    ops: u64,
    grows: u64,
    present: bool,
    /// Until when the device blocks, and whether what hangs then fails.
    blocked: Option<(Instant, bool)>,
    claim: Claim,
}

/// A device's size, and the part of it that certainly survives a power cut, in bytes.
#[derive(Clone, Copy, Debug)]
struct Extent {
    size: u64,
    durable: u64,
}

impl Extent {
    /// After a power cut, growth without a later flush is kept or undone.
    fn after_power_cut(self, seed: u64) -> Self {
        let kept = SmallRng::seed_from_u64(seed ^ 0x6f0a).random_bool(0.5);
        Self::durable(if kept { self.size } else { self.durable })
    }

    const fn durable(size: u64) -> Self {
        Self { size, durable: size }
    }
}

/// An operation in flight.
struct Op {
    spot: Spot,
    class: IoClass,
    bufs: IoBufs,
    /// Its number on the power supply.
    powered: u64,
    effect: Option<FaultEffect>,
    /// For a write or discard that lands: its id in the cache.
    write: Option<u64>,
    /// For a flush: the writes and the size that it makes durable.
    flushes: Vec<u64>,
    size: u64,
    in_flight: InFlight,
}

impl SimDevice {
    /// A device of `size` zero bytes on `power`. `seed` determines latencies, torn sectors and flipped bits.
    #[must_use]
    pub fn new(name: &str, size: u64, seed: u64, power: &SimPower) -> Self {
        Self::build(name.into(), Cache::default(), Extent::durable(size), seed, power)
    }

    fn build(name: Arc<str>, cache: Cache, extent: Extent, seed: u64, power: &SimPower) -> Self {
        pagetier_devio::locks::abort_on_violation();
        let rng = SmallRng::seed_from_u64(seed);
        let flush_failure = FlushFailure::default();
        let (faults, ops, grows, present, blocked) = (Vec::new(), 0, 0, true, None);
        let claim = Claim::in_tokio_time();
        let state = State { cache, extent, flush_failure, rng, faults, ops, grows, present, blocked, claim };
        let (meter, power, state) = (Meter::new(name), power.clone(), Mutex::new(state));
        let shared = Arc::new(Shared { meter, power, state });
        Self { shared, alignment: SECTOR, latency_max: Duration::ZERO, size_max: u64::MAX }
    }

    /// Sets an alignment other than 512 bytes.
    ///
    /// # Panics
    /// When it is not a power of two, or less than 512.
    #[must_use]
    pub fn with_alignment(mut self, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two() && alignment >= SECTOR, "alignment {alignment}");
        self.alignment = alignment;
        self
    }

    /// Delays every operation by a random time up to `max`, in tokio's time. Operations must be started in a
    /// tokio runtime with timers enabled, and complete in shuffled order.
    #[must_use]
    pub fn with_latency(mut self, max: Duration) -> Self {
        self.latency_max = max;
        self
    }

    /// Prevents growth beyond `bytes`.
    #[must_use]
    pub fn with_size_max(mut self, bytes: u64) -> Self {
        self.size_max = bytes;
        self
    }

    /// The device offers atomic writes of up to `bytes` at multiples of their length, to be asked for
    /// ([`Device::keep_whole`]). Default: 512.
    ///
    /// # Panics
    /// When it is not a power of two, or less than 512.
    #[must_use]
    pub fn with_atomic_writes(self, bytes: usize) -> Self {
        assert!(bytes.is_power_of_two() && bytes >= SECTOR, "{bytes} bytes");
        self.shared.state.lock().cache.set_unit(bytes);
        self
    }

    /// After a crash the device may offer smaller units, as another one to which the contents were copied.
    #[must_use]
    pub fn with_fickle_units(self) -> Self {
        self.shared.state.lock().cache.set_fickle();
        self
    }

    /// Sets the effect of a failed flush. Default: [`FlushFailure::NeverDurable`].
    #[must_use]
    pub fn with_flush_failure(self, model: FlushFailure) -> Self {
        self.shared.state.lock().flush_failure = model;
        self
    }

    /// Adds to the plan of faults.
    pub fn inject(&self, fault: Fault) {
        self.shared.state.lock().faults.push(fault);
    }

    /// Clears the plan of faults. What began before may still fail.
    pub fn clear_faults(&self) {
        let mut state = self.shared.state.lock();
        state.faults.clear();
        state.blocked = None;
    }

    /// Makes the device vanish (every operation fails with [`DeviceErrorKind::Gone`]), or come back with its
    /// contents.
    pub fn set_present(&self, present: bool) {
        self.shared.state.lock().present = present;
    }

    /// Simulates bit rot: flips bit `bit % 8` of the byte at `offset`, on the medium and in the cache.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        self.shared.state.lock().cache.change(offset, 1, |_, byte| byte ^ (1 << (bit % 8)));
    }

    /// Simulates a damaged range: randomises every byte of `range`, on the medium and in the cache.
    pub fn rot(&self, range: Range<u64>, seed: u64) {
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
        self.implant(range.start, &bytes);
    }

    /// Puts `bytes` at `offset`, on the medium and in the cache, as a tool with exclusive access would.
    /// Ignores bytes beyond the end.
    pub fn implant(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.shared.state.lock();
        let len = state.extent.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        state.cache.change(offset, len, |at, _| bytes[at]);
    }

    /// Operations begun on this device so far: the count of [`Fault::from_op`].
    pub fn ops(&self) -> u64 {
        self.shared.state.lock().ops
    }

    /// The number of volatile writes and discards, or sectors of failed ones.
    pub fn unflushed(&self) -> usize {
        self.shared.state.lock().cache.unflushed()
    }

    /// The device as it comes back after a power cut at this moment, on another power supply; `seed`
    /// determines the fate of each volatile write. This device is unaffected, so several outcomes of one
    /// moment can be examined.
    #[must_use]
    pub fn after_power_cut(&self, seed: u64, power: &SimPower) -> Self {
        self.successor(self.moment().after_power_cut(seed, power))
    }

    /// The device after the process died with the power on, on another power supply. Completed writes are
    /// readable and keep their volatility. `seed` determines for each write in flight whether it completes,
    /// lands in part, or fails.
    #[must_use]
    pub fn after_kill(&self, seed: u64, power: &SimPower) -> Self {
        self.successor(self.moment().after_kill(seed, power))
    }

    /// A copy of the device at this moment, volatile writes included, on another power supply.
    #[must_use]
    pub fn fork(&self, seed: u64, power: &SimPower) -> Self {
        self.successor(self.moment().fork(seed, power))
    }

    /// A copy of the device at this moment, truncated to `bytes`.
    #[must_use]
    pub fn truncated(&self, bytes: u64, seed: u64, power: &SimPower) -> Self {
        self.successor(self.moment().truncated(bytes, seed, power))
    }

    /// `device`, as slow as this one.
    fn successor(&self, device: Self) -> Self {
        device.with_latency(self.latency_max)
    }

    /// All bytes as reads see them.
    pub fn snapshot(&self) -> Vec<u8> {
        let state = self.shared.state.lock();
        let mut out = vec![0; state.extent.size as usize];
        state.cache.read(0, &mut out);
        out
    }

    fn start(&self, op: IoOp, offset: u64, len: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let shared = &self.shared;
        let spot = Spot { op, offset, len };
        let (begun, delay) = shared.begin(spot, class, bufs, self.alignment, self.latency_max);
        let op = match begun {
            Ok(op) => op,
            Err(completion) => return Box::pin(ready(completion)),
        };
        if delay.is_zero() {
            return Box::pin(ready(shared.end(op)));
        }
        let (promise, ticket) = ticket();
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            promise.complete(shared.end(op));
        });
        Box::pin(ticket)
    }

    fn unbuffered(&self, op: IoOp, offset: u64, len: u64, class: IoClass) -> DoneFuture {
        let started = self.start(op, offset, len, IoBufs::new(), class);
        Box::pin(async move { started.await.result })
    }
}

impl Shared {
    fn fail(&self, spot: Spot, bufs: IoBufs, kind: DeviceErrorKind) -> Completion {
        Completion { bufs, result: Err(self.meter.fail(spot, kind)) }
    }

    /// Counts, checks and registers an operation; returns its delay.
    fn begin(
        &self,
        spot: Spot,
        class: IoClass,
        bufs: IoBufs,
        alignment: usize,
        latency_max: Duration,
    ) -> (Result<Op, Completion>, Duration) {
        let mut state = self.state.lock();
        // Counted even if the checks below refuse it: a test cuts the power at the n-th operation of a
        // run, and the run must number them the same way each time.
        let Some(powered) = self.power.begin() else {
            return (Err(self.fail(spot, bufs, DeviceErrorKind::Gone)), Duration::ZERO);
        };
        state.ops += 1;
        let number = state.ops;
        let checked = match spot.op {
            IoOp::Read | IoOp::Write => check(spot.offset, &bufs, alignment, state.extent.size),
            _ => check_range(spot.offset, spot.len, state.extent.size),
        };
        let present = if state.present { Ok(()) } else { Err(DeviceErrorKind::Gone) };
        if let Err(kind) = present.and(checked) {
            return (Err(self.fail(spot, bufs, kind)), Duration::ZERO);
        }
        // The fault is drawn at the start, the outcome at the end: in between the power may be cut, and
        // the write is then one in flight with any part of it landed.
        let whole = state.keeps_whole(spot, &bufs, class);
        let effect = state.take_fault(spot, number, whole);
        let (effect, hangs) = state.hang(effect);
        let write = state.begin_change(spot, &bufs, effect, whole);
        // A flush covers what completed before it began, and nothing that completes while it runs.
        let flushes = if spot.op == IoOp::Flush { state.cache.completed() } else { Vec::new() };
        let delay = state.delay(effect, latency_max) + hangs;
        let size = state.extent.size;
        let in_flight = self.meter.occupancy.enter();
        (Ok(Op { spot, class, bufs, powered, effect, write, flushes, size, in_flight }), delay)
    }

    /// Executes an operation.
    fn end(&self, op: Op) -> Completion {
        let Op { spot, class, mut bufs, powered, effect, write, flushes, size, in_flight: _in_flight } = op;
        let mut state = self.state.lock();
        // The write stays in the list of those in flight: `after_power_cut` decides what of it landed.
        if !self.power.is_on_for(powered) {
            return self.fail(spot, bufs, DeviceErrorKind::Gone);
        }
        if !state.present {
            // A write in flight when the device vanished has landed in part, or never will.
            state.fail_write(write);
            return self.fail(spot, bufs, DeviceErrorKind::Gone);
        }
        if let Some(kind) = effect.and_then(failure) {
            match spot.op {
                IoOp::Write | IoOp::Discard => state.fail_write(write),
                IoOp::Flush => state.flush_failed(&flushes),
                _ => {}
            }
            let claim = state.claim.clone();
            drop(state);
            if matches!(kind, DeviceErrorKind::Fenced) {
                claim.end();
            }
            return self.fail(spot, bufs, kind);
        }
        if effect == Some(FaultEffect::Short) {
            self.meter.recorder.retried(RetryReason::Short);
        }
        match spot.op {
            IoOp::Write | IoOp::Discard => write.into_iter().for_each(|id| state.cache.complete_write(id)),
            IoOp::Flush => {
                state.cache.flushed(&flushes);
                // The size at the flush's start: a growth during it is not covered.
                state.extent.durable = state.extent.durable.max(size);
            }
            IoOp::Read | IoOp::Grow | IoOp::Open => state.read(spot.offset, &mut bufs, effect),
        }
        self.meter.recorder.done(spot.counter(class), spot.len, 0, 0);
        Completion { bufs, result: Ok(()) }
    }
}

/// The error that an effect produces, if any.
fn failure(effect: FaultEffect) -> Option<DeviceErrorKind> {
    match effect {
        FaultEffect::Eio => Some(DeviceErrorKind::Io(Arc::new(io::Error::from_raw_os_error(libc::EIO)))),
        FaultEffect::NoSpace => Some(DeviceErrorKind::NoSpace),
        FaultEffect::Gone => Some(DeviceErrorKind::Gone),
        FaultEffect::Fenced => Some(DeviceErrorKind::Fenced),
        FaultEffect::NotWhole => {
            Some(DeviceErrorKind::NotWhole(Arc::new(io::Error::from_raw_os_error(libc::EOPNOTSUPP))))
        }
        _ => None,
    }
}

impl State {
    /// Whether buffers of a write have to be whole: pages at their places.
    fn keeps_whole(&self, spot: Spot, bufs: &IoBufs, class: IoClass) -> bool {
        let (kept, mut at) = (self.cache.kept(), spot.offset);
        let asked = kept > 0 && spot.op == IoOp::Write && !matches!(class, IoClass::Meta | IoClass::Ring);
        asked
            && bufs.iter().any(|buf| {
                let aligned = at.is_multiple_of(kept as u64);
                at += buf.len() as u64;
                aligned && buf.len() == kept
            })
    }

    /// `whole`: its pages have to be whole.
    fn take_fault(&mut self, spot: Spot, number: u64, whole: bool) -> Option<FaultEffect> {
        let applies = |fault: &Fault| fault.applies(spot.op, spot.offset, spot.len, number, whole);
        // The first that applies, and only that one is used up.
        let fault = self.faults.iter_mut().find(|fault| applies(fault))?;
        if fault.times != u64::MAX {
            fault.times -= 1;
        }
        Some(fault.effect)
    }

    /// Lets an operation hang while the device blocks. Returns what then becomes of it, and how long it
    /// hangs.
    fn hang(&mut self, effect: Option<FaultEffect>) -> (Option<FaultEffect>, Duration) {
        let now = Instant::now();
        if let Some(FaultEffect::Blocked { time, fails }) = effect {
            self.blocked = Some((now + time, fails));
        }
        match self.blocked.filter(|(until, _)| now < *until) {
            Some((until, fails)) => (if fails { Some(FaultEffect::Eio) } else { effect }, until - now),
            None => (effect, Duration::ZERO),
        }
    }

    fn delay(&mut self, effect: Option<FaultEffect>, latency_max: Duration) -> Duration {
        let max_ns = u64::try_from(latency_max.as_nanos()).unwrap_or(u64::MAX);
        let usual = if max_ns == 0 { 0 } else { self.rng.random_range(1..=max_ns) };
        let extra = if let Some(FaultEffect::Slow(extra)) = effect { extra } else { Duration::ZERO };
        Duration::from_nanos(usual) + extra
    }

    /// Begins a write or discard; returns its id if any of it will land.
    fn begin_change(
        &mut self,
        spot: Spot,
        bufs: &IoBufs,
        effect: Option<FaultEffect>,
        whole: bool,
    ) -> Option<u64> {
        if !matches!(spot.op, IoOp::Write | IoOp::Discard) {
            return None;
        }
        let at = match effect {
            // Reported as done or failed, but no byte of it may ever be seen.
            Some(FaultEffect::Lost | FaultEffect::NoSpace | FaultEffect::Gone | FaultEffect::Fenced) => {
                return None;
            }
            // Of several pages, each of which is a write of its own, some may land.
            Some(FaultEffect::NotWhole) if bufs.len() < 2 => return None,
            Some(FaultEffect::Misdirected(by)) => {
                spot.offset.saturating_add(by).min(self.extent.size - spot.len)
            }
            _ => spot.offset,
        };
        if spot.op == IoOp::Discard {
            return Some(self.cache.begin_discard(at, spot.len));
        }
        let mut bytes = bufs.iter().map(|buf| buf.as_slice()).collect::<Vec<_>>().concat();
        if effect == Some(FaultEffect::BitFlip) && !bytes.is_empty() {
            self.flip_one(&mut bytes);
        }
        Some(self.cache.begin_write(at, bytes, whole))
    }

    fn fail_write(&mut self, id: Option<u64>) {
        if let Some(id) = id {
            self.cache.fail_write(id, &mut self.rng);
        }
    }

    fn flush_failed(&mut self, ids: &[u64]) {
        self.cache.flush_failed(ids, self.flush_failure, &mut self.rng);
    }

    /// Grows to at least `bytes`.
    fn grow(&mut self, bytes: u64, size_max: u64) -> Result<(), DeviceErrorKind> {
        self.grows += 1;
        let spot = Spot { op: IoOp::Grow, offset: self.extent.size, len: 0 };
        if let Some(kind) = self.take_fault(spot, self.grows, false).and_then(failure) {
            return Err(kind);
        }
        if bytes > size_max {
            return Err(DeviceErrorKind::NoSpace);
        }
        self.extent.size = self.extent.size.max(bytes);
        Ok(())
    }

    fn read(&mut self, offset: u64, bufs: &mut IoBufs, effect: Option<FaultEffect>) {
        let mut at = offset;
        for buf in bufs.iter_mut() {
            self.cache.read(at, buf.as_mut_slice());
            at += buf.len() as u64;
        }
        if effect == Some(FaultEffect::BitFlip)
            && let Some(buf) = bufs.iter_mut().find(|buf| !buf.is_empty())
        {
            self.flip_one(buf.as_mut_slice());
        }
    }

    fn flip_one(&mut self, bytes: &mut [u8]) {
        let at = self.rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << self.rng.random_range(0..8);
    }
}

impl Device for SimDevice {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let len = total_len(&bufs);
        self.start(IoOp::Read, offset, len, bufs, class)
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let len = total_len(&bufs);
        self.start(IoOp::Write, offset, len, bufs, class)
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        self.unbuffered(IoOp::Flush, 0, 0, class)
    }

    fn size(&self) -> u64 {
        self.shared.state.lock().extent.size
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let mut state = self.shared.state.lock();
        let size = state.extent.size;
        let spot = Spot { op: IoOp::Grow, offset: size, len: bytes.saturating_sub(size) };
        let is_on = state.present && !self.shared.power.is_cut();
        let grown = if is_on { state.grow(bytes, self.size_max) } else { Err(DeviceErrorKind::Gone) };
        grown.map_err(|kind| self.shared.meter.fail(spot, kind))
    }

    fn cut(&self, bytes: u64) -> Result<(), DeviceError> {
        let mut state = self.shared.state.lock();
        let size = state.extent.size;
        if !state.present || self.shared.power.is_cut() {
            let spot = Spot { op: IoOp::Grow, offset: bytes, len: size.saturating_sub(bytes) };
            return Err(self.shared.meter.fail(spot, DeviceErrorKind::Gone));
        }
        if bytes < size {
            // As a discard, so that a crash may bring back what the cut removed.
            let cut = state.cache.begin_discard(bytes, size - bytes);
            state.cache.complete_write(cut);
            state.extent.size = bytes;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        self.unbuffered(IoOp::Discard, offset, len, IoClass::Meta)
    }

    fn occupancy(&self) -> &Occupancy {
        &self.shared.meter.occupancy
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    /// That of the device's present owner, who opens it.
    fn claim(&self) -> Option<Claim> {
        let mut state = self.shared.state.lock();
        if state.claim.has_ended() {
            // Of another owner than the one that was fenced.
            state.claim = Claim::in_tokio_time();
        }
        Some(state.claim.clone())
    }

    fn writes_whole(&self, bytes: usize) -> bool {
        self.shared.state.lock().cache.offered() >= bytes
    }

    fn keep_whole(&self, bytes: usize) {
        self.shared.state.lock().cache.keep_whole(bytes);
    }

    fn backend(&self) -> &'static str {
        "sim"
    }

    fn name(&self) -> &str {
        &self.shared.meter.name
    }

    pagetier_devio::delegate! { self => self.shared.meter.recorder;
        fn stats() -> DeviceStats;
        fn track_costs(points: usize);
        fn recent_costs() -> Option<RecentCosts>;
    }
}
