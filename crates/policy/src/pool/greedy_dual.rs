//! The common part of GD2L and its weighted variants: one queue of pages sorted by H per *class*.
//!
//! A page's class determines the value of a use: a page put at the MRU end gets L plus that value as its H.
//! `gd2l` and `gd2l_weighted` document what the papers leave open.

use super::h_queues::HQueues;
use crate::collections::links::QueueNo;
use crate::{Access, CleanReason, Costs, FrameId, FramePolicy, Location, PageId};

/// The maximum number of uses counted. Higher counts indicate one transaction that uses a page many times
/// rather than many transactions.
pub const FREQUENCY_MAX: u8 = 10;

/// The terms of GD2L's H beyond the cost of reading the page again. The default is the paper's GD2L.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gd2lOptions {
    /// Multiplies the cost by the uses since loading, up to [`FREQUENCY_MAX`].
    pub frequency: bool,
    /// Adds the cost of the write that evicting a dirty page takes.
    pub write_back: bool,
}

impl Gd2lOptions {
    /// The paper's GD2L: neither option.
    pub const PAPER: Self = Self { frequency: false, write_back: false };
    /// Both options.
    pub const BOTH: Self = Self { frequency: true, write_back: true };
}

/// The state of a page that determines the value of a use, and its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class {
    pub(crate) location: Location,
    /// Whether the page is dirty; false without the write-back option.
    pub(crate) dirty: bool,
    /// f - 1.
    pub(crate) more_uses: u8,
}

impl Class {
    const fn queue(self) -> QueueNo {
        // Q_S has the lowest number: among equal H the page that is cheaper to read again goes first.
        let location = matches!(self.location, Location::Hdd) as u8;
        QueueNo(location | (self.dirty as u8) << 1 | self.more_uses << 2)
    }

    const fn of(queue: QueueNo) -> Self {
        let location = if queue.0 & 1 == 0 { Location::Ssd } else { Location::Hdd };
        Self { location, dirty: queue.0 & 2 != 0, more_uses: queue.0 >> 2 }
    }
}

/// GreedyDual over `N` queues: [`Gd2l`](super::Gd2l) or [`Gd2lWeighted`](super::Gd2lWeighted).
#[derive(Debug)]
pub struct GreedyDual<const N: usize> {
    queues: HQueues<N>,
    options: Gd2lOptions,
    costs: Costs,
}

impl<const N: usize> GreedyDual<N> {
    /// For a pool of `frames` frames; `N` is the number of queues that these options need.
    pub(crate) fn weighted(frames: usize, costs: Costs, options: Gd2lOptions) -> Self {
        let mut new = Self { queues: HQueues::new(frames), options, costs };
        new.set_costs(costs);
        new
    }

    /// L, in milliseconds.
    #[must_use]
    pub fn inflation(&self) -> f64 {
        self.queues.inflation()
    }

    /// H of the page in `frame` in milliseconds, not yet reduced by L.
    #[must_use]
    pub fn h(&self, frame: FrameId) -> Option<f64> {
        self.queues.h(frame)
    }

    /// The number of frames in the queue of `class`.
    pub(crate) fn len_of(&self, class: Class) -> usize {
        self.queues.len_of(class.queue())
    }

    /// As [`FramePolicy::insert`], for a page that counts as used `more_uses` times before.
    pub(crate) fn insert_used(&mut self, frame: FrameId, location: Location, access: Access, more_uses: u8) {
        self.queues.admit(frame);
        let class = Class { location, dirty: false, more_uses: more_uses.min(FREQUENCY_MAX - 1) };
        match access {
            Access::Random => self.put_mru(frame, class),
            // A prefetched page has not been used; at the midpoint it leaves before the pages that have
            // (section 3.1).
            Access::Sequential => self.put_midpoint(frame, class),
        }
    }

    /// The counted uses of the page in `frame`.
    pub(crate) fn uses(&self, frame: FrameId) -> u8 {
        self.class(frame).map_or(0, |class| class.more_uses + 1)
    }

    fn class(&self, frame: FrameId) -> Option<Class> {
        self.queues.queue_of(frame).map(Class::of)
    }

    /// What a use of a page of this class adds to L.
    fn value(&self, class: Class) -> f64 {
        let (read, write) = self.costs.of(class.location);
        // H is what evicting the page would cost: reading it again, and, if asked for, writing it before.
        let once = if class.dirty { read + write } else { read };
        once * f64::from(class.more_uses + 1)
    }

    fn put_mru(&mut self, frame: FrameId, class: Class) {
        self.queues.put_mru(frame, class.queue());
    }

    fn put_midpoint(&mut self, frame: FrameId, class: Class) {
        self.queues.put_midpoint(frame, class.queue());
    }
}

impl<const N: usize> FramePolicy for GreedyDual<N> {
    fn insert(&mut self, frame: FrameId, _page: PageId, location: Location, access: Access) {
        self.insert_used(frame, location, access, 0);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        let Some(class) = self.class(frame) else { return };
        // The page's class names its queue, so a use may move it to the queue of one more use.
        let more = u8::from(self.options.frequency && class.more_uses + 1 < FREQUENCY_MAX);
        self.put_mru(frame, Class { more_uses: class.more_uses + more, ..class });
    }

    fn uses_seen(&self) -> u8 {
        if self.options.frequency { FREQUENCY_MAX } else { 1 }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.eviction_order().find(|&frame| accept(frame))
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.victim(evictable)
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        self.queues.remove(frame, evicted);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if let Some(class) = self.class(frame).filter(|_| self.options.write_back) {
            self.put_mru(frame, Class { dirty: true, ..class });
        }
    }

    fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason) {
        let Some(before) = self.class(frame) else { return };
        let class = Class { location, dirty: false, ..before };
        if class == before {
            // Written where it was, and clean for the policy before: its place says nothing new.
            return;
        }
        // Only where the SSD is not written back does a write move a page's home from the SSD to the HDD.
        // Such a page is not the next victim.
        let back_home = (before.location, location) == (Location::Ssd, Location::Hdd);
        match reason {
            CleanReason::Replacement if !back_home => {
                self.queues.put_lru(frame, class.queue());
            }
            _ => self.put_midpoint(frame, class),
        }
    }

    fn ssd_evicted(&mut self, frame: FrameId) {
        if let Some(class) = self.class(frame).filter(|class| class.location == Location::Ssd) {
            // The page now costs R_D to read again but was not used: the midpoint, not the MRU end (section
            // 3.1).
            self.put_midpoint(frame, Class { location: Location::Hdd, ..class });
        }
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        if let Some(class) = self.class(frame).filter(|class| class.location == Location::Ssd) {
            // By a change of the page, which is a use: Figure 2 loads it with H = L + R_D.
            self.put_mru(frame, Class { location: Location::Hdd, ..class });
        }
    }

    fn worth_ms(&self, frame: FrameId) -> Option<f64> {
        self.h(frame).map(|h| h - self.inflation())
    }

    fn set_costs(&mut self, costs: Costs) {
        // The new costs count for every page at once, not from its next use on: see `h_queues`.
        self.costs = costs;
        let values = std::array::from_fn(|no| self.value(Class::of(QueueNo(no as u8))));
        self.queues.set_values(values);
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()
    }
}
