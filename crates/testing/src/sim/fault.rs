//! Fault plans: what fails, where and how often.

use pagetier_devio::IoOp;
use std::ops::Range;
use std::time::Duration;

/// The effect of a fault on an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultEffect {
    /// It fails with EIO. Some sectors of a failed write or discard may have landed. [`FlushFailure`] defines
    /// what a failed flush leaves.
    Eio,
    /// It fails with ENOSPC. Nothing lands.
    NoSpace,
    /// It fails as if the device had vanished. Nothing lands.
    Gone,
    /// A write that must be whole ([`Device::keep_whole`](pagetier_devio::Device::keep_whole)) is refused.
    /// Nothing of it lands; of several pages, some may. No effect on other operations.
    NotWhole,
    /// It fails as after another owner has taken the volume over. Nothing lands.
    Fenced,
    /// The first attempt transfers half; the device continues by itself and counts a retry.
    Short,
    /// A write lands this many bytes further on (within the device), and reports success. No effect on reads.
    Misdirected(u64),
    /// A write reports success, but nothing lands. No effect on reads.
    Lost,
    /// A read returns one random bit wrong, though the medium has it right. A write lands with one random bit
    /// wrong.
    BitFlip,
    /// It takes this much longer, in tokio's time.
    Slow(Duration),
    /// The whole device blocks, as a network volume does: this operation, and every one that begins within
    /// `time`, hangs until `time` has passed. Then all go on, or all fail with EIO.
    Blocked {
        /// How long the device blocks from the affected operation on, in tokio's time.
        time: Duration,
        /// Whether what has hung fails.
        fails: bool,
    },
}

/// What a failed flush does to the completed writes that it covered. Some of them may have reached the medium
/// before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum FlushFailure {
    /// They stay in the device's cache: a later flush makes them durable.
    Cached,
    /// Reads see them, but no later flush makes them durable: a power cut loses them unless they are
    /// rewritten. A page cache that marks pages clean after a failed write-back behaves this way.
    #[default]
    NeverDurable,
    /// They are gone at once: reads see the previous contents.
    Reverted,
}

impl FlushFailure {
    /// Every model, for tests that run over all of them.
    pub const ALL: [Self; 3] = [Self::Cached, Self::NeverDurable, Self::Reverted];
}

/// A plan for some operations to fail. Of several plans that apply, the first injected takes effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What happens to the affected operations.
    pub effect: FaultEffect,
    /// The affected kind of operation; `None` for reads and writes (not flushes, discards and growth).
    pub op: Option<IoOp>,
    /// The affected byte range. A flush touches every range.
    pub range: Range<u64>,
    /// The first affected operation, by the device's count (from 1). Growth is counted separately.
    pub from_op: u64,
    /// The number of affected operations; `u64::MAX`: unlimited.
    pub times: u64,
}

impl Fault {
    /// A fault of every read and write; narrow it down with the methods.
    #[must_use]
    pub const fn new(effect: FaultEffect) -> Self {
        Self { effect, op: None, range: 0..u64::MAX, from_op: 0, times: u64::MAX }
    }

    /// Restricts it to operations of this kind.
    #[must_use]
    pub const fn on(mut self, op: IoOp) -> Self {
        self.op = Some(op);
        self
    }

    /// Restricts it to operations that touch `range`.
    #[must_use]
    pub const fn within(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Restricts it to the device's `n`-th operation and later ones (from 1); for growth, the `n`-th growth.
    #[must_use]
    pub const fn from_op(mut self, n: u64) -> Self {
        self.from_op = n;
        self
    }

    /// Restricts it to `n` operations.
    #[must_use]
    pub const fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// `whole`: it must be written whole.
    pub(super) fn applies(&self, op: IoOp, offset: u64, len: u64, number: u64, whole: bool) -> bool {
        let kind = match self.op {
            Some(wanted) => wanted == op,
            None => matches!(op, IoOp::Read | IoOp::Write),
        };
        // A flush and a growth have no range of their own.
        let touches = matches!(op, IoOp::Flush | IoOp::Grow)
            || (offset < self.range.end && self.range.start < offset + len);
        let asked = whole || self.effect != FaultEffect::NotWhole;
        asked && kind && touches && number >= self.from_op && self.times > 0
    }
}
