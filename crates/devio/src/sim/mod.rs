//! A device for crash and fault tests: memory with a volatile write cache, a power supply that can be cut at
//! any operation, and a plan of faults. Deterministic: the same seed and the same calls give the same
//! outcome.
//!
//! A completed write is seen by reads but volatile until a flush that began later has succeeded.
//! [`SimDevice::after_power_cut`] gives the device as it comes back: each volatile write, completed or under
//! way, is there whole, absent, or torn at 512-byte sectors, in any order; growth that no flush followed may
//! be undone. [`SimDevice::after_kill`] gives it after the death of the process alone: what is volatile can
//! be read and stays volatile. An operation whose future is dropped is carried out all the same. Without
//! latency every operation is carried out by the call itself; with it, operations complete in shuffled order,
//! in tokio's time.
//!
//! Locking order: the state; the power's own lock inside it.

mod cache;
mod fault;
mod moment;
mod power;

pub use fault::{Fault, FaultEffect, FlushFailure};
pub use moment::SimMoment;
pub use power::SimPower;

use self::cache::{Cache, SECTOR};
use crate::check::{Spot, check, check_range, total_len};
use crate::device::IoBufs;
use crate::occupancy::InFlight;
use crate::stats::{Recorder, RetryReason, Slot};
use crate::ticket::ticket;
use crate::{
    Completion, Device, DeviceError, DeviceErrorKind, DeviceStats, IoClass, IoFuture, IoOp, Occupancy,
    RecentCosts,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::future::{Future, ready};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

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
    name: Arc<str>,
    power: SimPower,
    state: Mutex<State>,
    recorder: Recorder,
    occupancy: Occupancy,
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
}

/// A device's size, and the part of it that a power cut leaves for certain, in bytes.
#[derive(Clone, Copy, Debug)]
struct Extent {
    size: u64,
    durable: u64,
}

impl Extent {
    /// After a power cut: growth that no flush followed is undone or not.
    fn after_power_cut(self, seed: u64) -> Self {
        let kept = SmallRng::seed_from_u64(seed ^ 0x6f0a).random_bool(0.5);
        Self::durable(if kept { self.size } else { self.durable })
    }

    const fn durable(size: u64) -> Self {
        Self { size, durable: size }
    }
}

/// An operation under way.
struct Op {
    spot: Spot,
    class: IoClass,
    bufs: IoBufs,
    /// Its number on the power supply.
    powered: u64,
    effect: Option<FaultEffect>,
    /// For a write that lands: its id in the cache.
    write: Option<u64>,
    /// For a flush: what it makes durable, writes and size.
    flushes: Vec<u64>,
    size: u64,
    in_flight: InFlight,
}

impl SimDevice {
    /// A device of `size` zero bytes on `power`. `seed` decides about latencies, torn sectors and flipped
    /// bits.
    #[must_use]
    pub fn new(name: &str, size: u64, seed: u64, power: &SimPower) -> Self {
        Self::build(name.into(), Cache::default(), Extent::durable(size), seed, power)
    }

    fn build(name: Arc<str>, cache: Cache, extent: Extent, seed: u64, power: &SimPower) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        let flush_failure = FlushFailure::default();
        let (faults, ops, grows, present) = (Vec::new(), 0, 0, true);
        let state = State { cache, extent, flush_failure, rng, faults, ops, grows, present };
        let recorder = Recorder::new(1);
        let shared = Arc::new(Shared {
            name,
            power: power.clone(),
            state: Mutex::new(state),
            recorder,
            occupancy: Occupancy::default(),
        });
        Self { shared, alignment: SECTOR, latency_max: Duration::ZERO, size_max: u64::MAX }
    }

    /// With another alignment than 512 bytes.
    ///
    /// # Panics
    /// When it is no power of two, or less than 512.
    #[must_use]
    pub fn with_alignment(mut self, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two() && alignment >= SECTOR, "alignment {alignment}");
        self.alignment = alignment;
        self
    }

    /// Every operation takes a random time up to `max`, in tokio's time: operations have to be started in a
    /// tokio runtime with its timers enabled, and complete in shuffled order.
    #[must_use]
    pub fn with_latency(mut self, max: Duration) -> Self {
        self.latency_max = max;
        self
    }

    /// It cannot grow beyond `bytes`.
    #[must_use]
    pub fn with_size_max(mut self, bytes: u64) -> Self {
        self.size_max = bytes;
        self
    }

    /// Writes of `bytes` at multiples of that are never torn. Default: 512.
    ///
    /// # Panics
    /// When it is no power of two, or less than 512.
    #[must_use]
    pub fn with_atomic_writes(self, bytes: usize) -> Self {
        assert!(bytes.is_power_of_two() && bytes >= SECTOR, "{bytes} bytes");
        self.shared.state.lock().cache.set_unit(bytes);
        self
    }

    /// What a failed flush does. Default: [`FlushFailure::NeverDurable`].
    #[must_use]
    pub fn with_flush_failure(self, model: FlushFailure) -> Self {
        self.shared.state.lock().flush_failure = model;
        self
    }

    /// Adds to the plan of faults.
    pub fn inject(&self, fault: Fault) {
        self.shared.state.lock().faults.push(fault);
    }

    /// Nothing is planned to go wrong any more.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// Lets the device vanish (every operation fails with [`DeviceErrorKind::Gone`]), or come back with what
    /// it held.
    pub fn set_present(&self, present: bool) {
        self.shared.state.lock().present = present;
    }

    /// Rot: flips bit `bit % 8` of the byte at `offset`, on the medium and in the cache.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        self.shared.state.lock().cache.change(offset, 1, |_, byte| byte ^ (1 << (bit % 8)));
    }

    /// Rot: every byte of `range` becomes random, on the medium and in the cache.
    pub fn rot(&self, range: Range<u64>, seed: u64) {
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
        self.implant(range.start, &bytes);
    }

    /// Puts `bytes` at `offset`, on the medium and in the cache, as a tool that had the device to itself
    /// would. Bytes beyond the end are left out.
    pub fn implant(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.shared.state.lock();
        let len = state.extent.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        state.cache.change(offset, len, |at, _| bytes[at]);
    }

    /// Operations begun on this device so far: the numbers of [`Fault::from_op`].
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.shared.state.lock().ops
    }

    /// How many writes (or sectors of failed ones) are volatile.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.shared.state.lock().cache.unflushed()
    }

    /// The device as it comes back after the power was cut at this moment, on a supply of its own; `seed`
    /// decides about each volatile write. This one is left as it is: several outcomes of the same moment can
    /// be looked at.
    #[must_use]
    pub fn after_power_cut(&self, seed: u64, power: &SimPower) -> Self {
        let state = self.shared.state.lock();
        let mut cache = state.cache.after_power_cut(seed);
        let extent = state.extent.after_power_cut(seed);
        cache.truncate(extent.size);
        self.successor(cache, extent, state.flush_failure, seed, power)
    }

    /// The device after the process died while the power stayed on, on a supply of its own. Completed writes
    /// can be read and are as volatile as they were; `seed` decides about each of those under way, which
    /// completes, lands in part, or does not.
    #[must_use]
    pub fn after_kill(&self, seed: u64, power: &SimPower) -> Self {
        let state = self.shared.state.lock();
        self.successor(state.cache.after_kill(seed), state.extent, state.flush_failure, seed, power)
    }

    /// A copy of the device at this moment, volatile writes and all, on a supply of its own.
    #[must_use]
    pub fn fork(&self, seed: u64, power: &SimPower) -> Self {
        let state = self.shared.state.lock();
        self.successor(state.cache.fork(), state.extent, state.flush_failure, seed, power)
    }

    /// A copy of the device at this moment, cut short to `bytes`.
    #[must_use]
    pub fn truncated(&self, bytes: u64, seed: u64, power: &SimPower) -> Self {
        let state = self.shared.state.lock();
        let mut cache = state.cache.fork();
        cache.truncate(bytes);
        let extent = Extent::durable(bytes.min(state.extent.size));
        self.successor(cache, extent, state.flush_failure, seed, power)
    }

    fn successor(
        &self,
        cache: Cache,
        extent: Extent,
        model: FlushFailure,
        seed: u64,
        power: &SimPower,
    ) -> Self {
        let device = Self::build(Arc::clone(&self.shared.name), cache, extent, seed, power);
        let mut device = device.with_flush_failure(model);
        device.alignment = self.alignment;
        device.latency_max = self.latency_max;
        device.size_max = self.size_max;
        device
    }

    /// All bytes, as reads see them.
    #[must_use]
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
}

impl Shared {
    fn fail(&self, spot: Spot, bufs: IoBufs, kind: DeviceErrorKind) -> Completion {
        self.recorder.failed(&kind);
        Completion { bufs, result: Err(spot.error(&self.name, kind)) }
    }

    /// Counts, checks and registers an operation; says how long it takes.
    fn begin(
        &self,
        spot: Spot,
        class: IoClass,
        bufs: IoBufs,
        alignment: usize,
        latency_max: Duration,
    ) -> (Result<Op, Completion>, Duration) {
        let mut state = self.state.lock();
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
        let effect = state.take_fault(spot, number);
        let write = (spot.op == IoOp::Write).then(|| state.begin_write(spot.offset, &bufs, effect)).flatten();
        let flushes = if spot.op == IoOp::Flush { state.cache.completed() } else { Vec::new() };
        let delay = state.delay(effect, latency_max);
        let size = state.extent.size;
        let in_flight = self.occupancy.enter();
        (Ok(Op { spot, class, bufs, powered, effect, write, flushes, size, in_flight }), delay)
    }

    /// Carries an operation out.
    fn end(&self, op: Op) -> Completion {
        let Op { spot, class, mut bufs, powered, effect, write, flushes, size, in_flight: _in_flight } = op;
        let mut state = self.state.lock();
        if !self.power.is_on_for(powered) {
            return self.fail(spot, bufs, DeviceErrorKind::Gone);
        }
        if !state.present {
            // What was under way when it vanished has landed by now, or never will.
            state.fail_write(write);
            return self.fail(spot, bufs, DeviceErrorKind::Gone);
        }
        if let Some(kind) = effect.and_then(failure) {
            match spot.op {
                IoOp::Write => state.fail_write(write),
                IoOp::Flush => state.flush_failed(&flushes),
                _ => {}
            }
            return self.fail(spot, bufs, kind);
        }
        if effect == Some(FaultEffect::Short) {
            self.recorder.retried(RetryReason::Short);
        }
        let slot = match spot.op {
            IoOp::Write => {
                if let Some(id) = write {
                    state.cache.complete_write(id);
                }
                Slot::Write(class)
            }
            IoOp::Flush => {
                state.cache.flushed(&flushes);
                state.extent.durable = state.extent.durable.max(size);
                Slot::Flush
            }
            IoOp::Discard => {
                state.cache.discard(spot.offset, spot.len);
                Slot::Discard
            }
            IoOp::Read | IoOp::Grow | IoOp::Open => {
                state.read(spot.offset, &mut bufs, effect);
                Slot::Read(class)
            }
        };
        self.recorder.done(slot, spot.len, 0, 0);
        Completion { bufs, result: Ok(()) }
    }
}

/// The error that an effect ends in, if it does.
fn failure(effect: FaultEffect) -> Option<DeviceErrorKind> {
    match effect {
        FaultEffect::Eio => Some(DeviceErrorKind::Io(Arc::new(io::Error::from_raw_os_error(libc::EIO)))),
        FaultEffect::NoSpace => Some(DeviceErrorKind::NoSpace),
        FaultEffect::Gone => Some(DeviceErrorKind::Gone),
        _ => None,
    }
}

impl State {
    fn take_fault(&mut self, spot: Spot, number: u64) -> Option<FaultEffect> {
        let applies = |fault: &Fault| fault.applies(spot.op, spot.offset, spot.len, number);
        let fault = self.faults.iter_mut().find(|fault| applies(fault))?;
        if fault.times != u64::MAX {
            fault.times -= 1;
        }
        Some(fault.effect)
    }

    fn delay(&mut self, effect: Option<FaultEffect>, latency_max: Duration) -> Duration {
        let max_ns = u64::try_from(latency_max.as_nanos()).unwrap_or(u64::MAX);
        let usual = if max_ns == 0 { 0 } else { self.rng.random_range(1..=max_ns) };
        let extra = if let Some(FaultEffect::Slow(extra)) = effect { extra } else { Duration::ZERO };
        Duration::from_nanos(usual) + extra
    }

    /// The id of the write, if anything of it is to land.
    fn begin_write(&mut self, offset: u64, bufs: &IoBufs, effect: Option<FaultEffect>) -> Option<u64> {
        let mut bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
        let mut at = offset;
        match effect {
            Some(FaultEffect::Lost | FaultEffect::NoSpace | FaultEffect::Gone) => return None,
            Some(FaultEffect::Misdirected(by)) => {
                let room = self.extent.size - bytes.len() as u64;
                at = offset.saturating_add(by).min(room);
            }
            Some(FaultEffect::BitFlip) if !bytes.is_empty() => self.flip_one(&mut bytes),
            _ => {}
        }
        Some(self.cache.begin_write(at, bytes))
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
        if let Some(kind) = self.take_fault(spot, self.grows).and_then(failure) {
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

    fn flush(&self, class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let flushed = self.start(IoOp::Flush, 0, 0, IoBufs::new(), class);
        Box::pin(async move { flushed.await.result })
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
        grown.map_err(|kind| {
            self.shared.recorder.failed(&kind);
            spot.error(&self.shared.name, kind)
        })
    }

    fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let discarded = self.start(IoOp::Discard, offset, len, IoBufs::new(), IoClass::Meta);
        Box::pin(async move { discarded.await.result })
    }

    fn occupancy(&self) -> &Occupancy {
        &self.shared.occupancy
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn stats(&self) -> DeviceStats {
        self.shared.recorder.snapshot()
    }

    fn track_costs(&self, points: usize) {
        self.shared.recorder.track_costs(points);
    }

    fn recent_costs(&self) -> Option<RecentCosts> {
        self.shared.recorder.recent_costs()
    }

    fn backend(&self) -> &'static str {
        "sim"
    }

    fn name(&self) -> &str {
        &self.shared.name
    }
}
