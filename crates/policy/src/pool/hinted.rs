//! Per-space hints of the embedder, applied around any pool policy.
//!
//! The *inner* policy knows only pages of the usual retention. The others are in two lists:
//!
//! - *Kept* pages, the one used longest ago first. They leave after all others. If they have more than three
//!   quarters of the frames, the first leaves before any other page, so that other spaces keep a working set.
//! - *Scan-only* pages, in the order in which they entered. The first leaves before any other page if they
//!   have more than an eighth of the frames, or if as many pages have been evicted since it entered: until
//!   then it may have been read ahead for a coming request. Uses do not count.
//!
//! Without hints every call goes to the inner policy unchanged. With them each event is O(1); a search for a
//! victim passes over at most [`LOOKS_MAX`] frames of a list that cannot leave now.

use super::{FramePolicy, FrameState, LookAhead};
use crate::collections::chains::{Chain, ChainLinks};
use crate::{Access, CleanReason, Costs, FrameId, Location, PageId, PolicyChoice, SpaceId, StateOf};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Kept pages leave at least this share of the frames to others: a quarter.
const OTHERS_SHARE: usize = 4;
/// Scan-only pages have this share of the frames: an eighth. Read-ahead keeps no more in flight.
const SCAN_SHARE: usize = 8;
/// The maximum number of frames of a list that a search passes over.
const LOOKS_MAX: usize = 64;

/// How long a page stays in memory, compared with others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Retention {
    /// As the pool's policy decides.
    #[default]
    Usual,
    /// It leaves after the pages of other spaces, as long as such pages take at most three quarters of the
    /// pool. Beyond that, the one used longest ago leaves first.
    KeepInMemory,
    /// It is used once: it enters as a page read by a scan, its uses do not count, and such pages displace
    /// others from at most an eighth of the pool.
    ScanOnly,
}

/// A tracked frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resident {
    /// The frame.
    pub frame: FrameId,
    /// Its page.
    pub page: PageId,
    /// Whether the page has an SSD copy.
    pub location: Location,
    /// Whether the page is dirty.
    pub dirty: bool,
}

/// What is known of the frame of a page with hints.
#[derive(Clone, Copy, Debug)]
struct Held {
    space: SpaceId,
    retention: Retention,
    /// The number of evictions when it entered.
    came: u64,
}

/// A pool policy under the hints for single spaces; see the module.
#[derive(Debug)]
pub struct HintedPool {
    inner: Box<dyn FramePolicy>,
    frames: usize,
    /// Those whose retention is not the usual one.
    spaces: FxHashMap<SpaceId, Retention>,
    /// By frame; `None`: the page has no hints.
    held: Vec<Option<Held>>,
    /// Of `kept` and `scans`.
    links: ChainLinks,
    kept: Chain,
    scans: Chain,
    evictions: u64,
}

impl HintedPool {
    /// `inner` for a pool of `frames` frames, without hints.
    #[must_use]
    pub fn new(inner: Box<dyn FramePolicy>, frames: usize) -> Self {
        Self {
            inner,
            frames,
            spaces: FxHashMap::default(),
            held: Vec::new(),
            links: ChainLinks::default(),
            kept: Chain::EMPTY,
            scans: Chain::EMPTY,
            evictions: 0,
        }
    }

    /// The policy of the pages of the usual retention.
    #[must_use]
    pub fn inner(&self) -> &dyn FramePolicy {
        &*self.inner
    }

    /// Replaces the inner policy by `inner`, which tracks the same frames.
    pub fn set_inner(&mut self, inner: Box<dyn FramePolicy>) {
        self.inner = inner;
    }

    /// Whether any space has hints.
    #[must_use]
    #[inline]
    pub fn has_hints(&self) -> bool {
        !self.spaces.is_empty()
    }

    /// Whether uses of the page in `frame` do not count.
    #[must_use]
    #[inline]
    pub fn ignores_uses_of(&self, frame: FrameId) -> bool {
        self.held_of(frame).is_some_and(|held| held.retention == Retention::ScanOnly)
    }

    /// Sets how long the pages of `space` stay. `resident`: all its tracked frames, in eviction order.
    /// O(their number).
    pub fn set_retention(&mut self, space: SpaceId, retention: Retention, resident: &[Resident]) {
        // Out of the lists before the hint changes: afterwards the lists would be looked for under the new
        // one.
        let before: Vec<Option<Held>> = resident.iter().map(|one| self.take_out(one.frame)).collect();
        // Frames that the caller does not list have lost their pages.
        for frame in (0..self.held.len() as u32).map(FrameId) {
            if self.held_of(frame).is_some_and(|held| held.space == space) {
                let _ = self.take_out(frame);
            }
        }
        if retention == Retention::Usual {
            self.spaces.remove(&space);
        } else {
            self.spaces.insert(space, retention);
        }
        for (one, before) in resident.iter().zip(before) {
            self.take_in(one.frame, one.page);
            match (before.is_none(), retention == Retention::Usual) {
                // The inner policy must not offer a frame that is kept or scan-only: its order would be
                // followed instead of the hint's.
                (true, false) => self.inner.remove(one.frame, false),
                // It tracks the frame from here on as if the page had just been loaded: of earlier uses
                // nothing is known.
                (false, true) => {
                    self.inner.insert(one.frame, one.page, one.location, Access::Random);
                    if one.dirty {
                        self.inner.dirtied(one.frame);
                    }
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn held_of(&self, frame: FrameId) -> Option<Held> {
        self.held.get(frame.at()).copied().flatten()
    }

    /// Whether the inner policy tracks the page in `frame`, if it is tracked.
    fn is_inside(&self, frame: FrameId) -> bool {
        self.held_of(frame).is_none()
    }

    /// Puts the frame of `page` into the list that the hint of its space names.
    fn take_in(&mut self, frame: FrameId, page: PageId) {
        // An embedder's policy may name a frame twice.
        let _ = self.take_out(frame);
        let Some(&retention) = self.spaces.get(&page.space) else { return };
        match retention {
            Retention::Usual => return,
            Retention::KeepInMemory => self.kept.put_last(&mut self.links, frame.0),
            Retention::ScanOnly => self.scans.put_last(&mut self.links, frame.0),
        }
        if frame.at() >= self.held.len() {
            self.held.resize(frame.at() + 1, None);
        }
        self.held[frame.at()] = Some(Held { space: page.space, retention, came: self.evictions });
    }

    /// Takes `frame` out of its list. Returns what was known of it.
    fn take_out(&mut self, frame: FrameId) -> Option<Held> {
        let held = self.held.get_mut(frame.at())?.take()?;
        match held.retention {
            Retention::Usual => {}
            Retention::KeepInMemory => self.kept.take_out(&mut self.links, frame.0),
            Retention::ScanOnly => self.scans.take_out(&mut self.links, frame.0),
        }
        Some(held)
    }

    fn kept_max(&self) -> usize {
        // A quarter stays with the others: an embedder may mark more pages than fit.
        self.frames - self.frames / OTHERS_SHARE
    }

    /// Whether the first scan-only page leaves before any other.
    fn scan_is_due(&self) -> bool {
        // Too many of them, or the first has had its time: as many evictions as its share holds.
        let share = (self.frames / SCAN_SHARE).max(1);
        let first = self.scans.iter(&self.links).next().and_then(|frame| self.held_of(FrameId(frame)));
        first.is_some_and(|held| self.scans.len() > share || held.came + share as u64 <= self.evictions)
    }

    fn first_of(
        &self,
        chain: &Chain,
        looks: usize,
        evictable: &mut dyn FnMut(FrameId) -> bool,
    ) -> Option<FrameId> {
        // Bounded: while a list's frames are all latched or dirty, each eviction would walk them again.
        chain.iter(&self.links).take(looks).map(FrameId).find(|frame| evictable(*frame))
    }

    /// Appends dirty frames among the first scan-only pages, and among the first kept ones if they are near
    /// their share: up to `full` in all.
    fn own_clean_set(
        &self,
        depth: usize,
        full: usize,
        state: &mut dyn FnMut(FrameId) -> FrameState,
        out: &mut Vec<FrameId>,
    ) {
        append_dirty(self.scans.iter(&self.links), depth, full, state, out);
        if self.kept.len() + 1 >= self.kept_max() {
            append_dirty(self.kept.iter(&self.links), depth, full, state, out);
        }
    }

    /// Takes `frame` out of its list. Returns whether the inner policy tracks it.
    fn vacated(&mut self, frame: FrameId, evicted: bool) -> bool {
        // The clock of the scan-only pages: how many victims the pool has needed since each entered.
        self.evictions += u64::from(evicted);
        self.take_out(frame).is_none()
    }
}

/// Appends the dirty ones of `frames` to `out`, until `depth` were clean or dirty, or it has `full`.
fn append_dirty(
    frames: impl Iterator<Item = u32>,
    depth: usize,
    full: usize,
    state: &mut dyn FnMut(FrameId) -> FrameState,
    out: &mut Vec<FrameId>,
) {
    let mut ahead = LookAhead::new(depth);
    for frame in frames.map(FrameId) {
        if ahead.is_over() || out.len() >= full {
            return;
        }
        // A kept page may be listed already, among those that leave early.
        if out.contains(&frame) {
            continue;
        }
        let state = state(frame);
        ahead.note(state);
        if state == FrameState::Dirty {
            out.push(frame);
        }
    }
}

impl FramePolicy for HintedPool {
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access) {
        if self.has_hints() {
            self.take_in(frame, page);
            if !self.is_inside(frame) {
                // It may still track the frame's former page, and would evict the frame by that one's worth.
                return self.inner.remove(frame, false);
            }
        }
        self.inner.insert(frame, page, location, access);
    }

    #[inline]
    fn hit(&mut self, frame: FrameId, write: bool) {
        let Some(held) = self.held_of(frame) else { return self.inner.hit(frame, write) };
        // The next request for a page that is used once comes too late to matter.
        if held.retention == Retention::ScanOnly {
            return;
        }
        self.kept.move_last(&mut self.links, frame.0);
    }

    fn uses_seen(&self) -> u8 {
        self.inner.uses_seen()
    }

    /// Scan-only pages, then those of the inner policy, then the kept ones. [`FramePolicy::victim`] follows
    /// this order within the shares.
    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.first_of(&self.scans, usize::MAX, accept)
            .or_else(|| self.inner.first_to_go(accept))
            .or_else(|| self.first_of(&self.kept, usize::MAX, accept))
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut first = None;
        // Beyond their share the kept pages go first, or they would crowd out all other spaces.
        if self.kept.len() > self.kept_max() {
            first = self.first_of(&self.kept, LOOKS_MAX, evictable);
        }
        if first.is_none() && self.scan_is_due() {
            first = self.first_of(&self.scans, LOOKS_MAX, evictable);
        }
        first
            .or_else(|| self.inner.victim(evictable))
            .or_else(|| self.first_of(&self.scans, usize::MAX, evictable))
            .or_else(|| self.first_of(&self.kept, usize::MAX, evictable))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if self.vacated(frame, evicted) {
            self.inner.remove(frame, evicted);
        }
    }

    fn evicted(&mut self, frame: FrameId, page: PageId) {
        if self.vacated(frame, true) {
            self.inner.evicted(frame, page);
        }
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.is_inside(frame) {
            self.inner.dirtied(frame);
        }
    }

    fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason) {
        if self.is_inside(frame) {
            self.inner.cleaned(frame, location, reason);
        }
    }

    fn ssd_evicted(&mut self, frame: FrameId) {
        if self.is_inside(frame) {
            self.inner.ssd_evicted(frame);
        }
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        if self.is_inside(frame) {
            self.inner.ssd_invalidated(frame);
        }
    }

    /// At most half of the dirty frames are those that leave early because of hints, so that neither kind
    /// waits for the other.
    fn clean_set(&mut self, depth: usize, max: usize, state: StateOf<'_>, out: &mut Vec<FrameId>) {
        if !self.has_hints() {
            return self.inner.clean_set(depth, max, state, out);
        }
        let (from, full) = (out.len(), out.len().saturating_add(max));
        self.own_clean_set(depth, from.saturating_add(max.div_ceil(2)), state, out);
        // Reported as busy to the inner policy, so that no frame is written twice at once.
        let own = out[from..].to_vec();
        let mut others = |frame| if own.contains(&frame) { FrameState::Busy } else { state(frame) };
        self.inner.clean_set(depth, full - out.len(), &mut others, out);
        // The kept pages come after those of the inner policy: if it has too few, they are the next victims.
        let behind = depth.saturating_sub(self.inner.len());
        append_dirty(self.kept.iter(&self.links), behind, full, state, out);
    }

    fn worth_ms(&self, frame: FrameId) -> Option<f64> {
        if self.is_inside(frame) { self.inner.worth_ms(frame) } else { None }
    }

    fn set_costs(&mut self, costs: Costs) {
        self.inner.set_costs(costs);
    }

    fn set_frames(&mut self, frames: usize) {
        self.frames = frames;
        self.inner.set_frames(frames);
    }

    fn choice(&self) -> Option<PolicyChoice> {
        self.inner.choice()
    }

    fn extra_memory_bytes(&self) -> usize {
        let held = self.held.capacity() * size_of::<Option<Held>>();
        self.inner.extra_memory_bytes() + held + self.links.memory_bytes()
    }

    fn len(&self) -> usize {
        self.inner.len() + self.kept.len() + self.scans.len()
    }

    fn validate(&self) -> Result<(), String> {
        let count = |so: &dyn Fn(&Held) -> bool| self.held.iter().flatten().filter(|held| so(held)).count();
        for (chain, retention) in [(&self.kept, Retention::KeepInMemory), (&self.scans, Retention::ScanOnly)]
        {
            let (listed, held) = (chain.iter(&self.links).count(), count(&|h| h.retention == retention));
            if listed != chain.len() || listed != held {
                return Err(format!("{held} frames {retention:?}, {listed} listed, {} counted", chain.len()));
            }
        }
        if count(&|h| !self.spaces.contains_key(&h.space)) > 0 {
            return Err("a frame of a space without hints is listed".to_owned());
        }
        self.inner.validate()
    }
}
