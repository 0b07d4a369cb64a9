//! What goes wrong, where and how often.

use crate::IoOp;
use std::ops::Range;
use std::time::Duration;

/// What happens to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultEffect {
    /// It fails with EIO. Some of the sectors of a failed write may have landed. What a failed flush leaves
    /// is the device's [`FlushFailure`].
    Eio,
    /// It fails with ENOSPC. Nothing lands.
    NoSpace,
    /// It fails as if the device had vanished. Nothing lands.
    Gone,
    /// The first attempt transfers half; the device goes on by itself, and counts it.
    Short,
    /// A write lands so many bytes further on (within the device), and reports success. Reads: nothing.
    Misdirected(u64),
    /// A write reports success, but nothing lands. Reads: nothing.
    Lost,
    /// One random bit of what a read returns is wrong; it is right on the medium. Writes: one random bit
    /// lands wrong.
    BitFlip,
    /// It takes so much longer, in tokio's time.
    Slow(Duration),
}

/// What a failed flush does to the completed writes that it should have made durable. Some of them may have
/// reached the medium before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum FlushFailure {
    /// They stay in the device's cache: a later flush makes them durable.
    Cached,
    /// Reads see them, but no later flush makes them durable: a power cut loses them unless they are written
    /// again. So does a page cache that marks pages clean after a failed write-back.
    #[default]
    NeverDurable,
    /// They are gone at once: reads see what was there before.
    Reverted,
}

impl FlushFailure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cached, Self::NeverDurable, Self::Reverted];
}

/// A plan for some operations to go wrong. Of several plans that apply, the first one injected takes effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What happens.
    pub effect: FaultEffect,
    /// To which kind of operation; `None` for reads and writes alike (not flushes, discards and growth).
    pub op: Option<IoOp>,
    /// To operations that touch this range of bytes. Flushes touch every range.
    pub range: Range<u64>,
    /// Not before the device's operation of this number (from 1). Growth is counted apart: not before its
    /// `n`-th.
    pub from_op: u64,
    /// How often; `u64::MAX` for ever.
    pub times: u64,
}

impl Fault {
    /// For every read and write, for ever; narrow it down with the methods.
    #[must_use]
    pub const fn new(effect: FaultEffect) -> Self {
        Self { effect, op: None, range: 0..u64::MAX, from_op: 0, times: u64::MAX }
    }

    /// For operations of this kind only.
    #[must_use]
    pub const fn on(mut self, op: IoOp) -> Self {
        self.op = Some(op);
        self
    }

    /// For operations that touch `range` only.
    #[must_use]
    pub const fn within(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// For operations from the device's `n`-th on (from 1); of growth, from its `n`-th on.
    #[must_use]
    pub const fn from_op(mut self, n: u64) -> Self {
        self.from_op = n;
        self
    }

    /// For `n` operations.
    #[must_use]
    pub const fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    pub(super) fn applies(&self, op: IoOp, offset: u64, len: u64, number: u64) -> bool {
        let kind = match self.op {
            Some(wanted) => wanted == op,
            None => matches!(op, IoOp::Read | IoOp::Write),
        };
        let touches = matches!(op, IoOp::Flush | IoOp::Grow)
            || (offset < self.range.end && self.range.start < offset + len);
        kind && touches && number >= self.from_op && self.times > 0
    }
}
