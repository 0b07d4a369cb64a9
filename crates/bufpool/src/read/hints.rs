//! Per-space hints of the embedder: how long a space's pages stay in memory, and how many frames it may have.
//!
//! [`HintedPool`](pagetier_policy::pool::HintedPool) decides which page leaves. This file counts the frames
//! of each space with hints, as they are entered into the page table, so pages being read count too. A
//! request at the quota takes the frame of another page of the space. If all of these are dirty or being
//! read, it waits briefly. If none becomes free, or guards pin them, it takes a frame beyond the quota: no
//! hint may make a request fail. Read-ahead takes at most half of a quota, so that it does not displace the
//! pages that it has read.
//!
//! Without hints, a miss and an eviction cost one relaxed load each; a hit costs nothing.

use crate::read::evict::RETRY;
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::waits::stalls::On;
use pagetier_devio::listen;
use pagetier_page::{PageId, SpaceId};
use pagetier_policy::pool::{PoolHints, Resident};
use pagetier_policy::{FrameId, FramePolicy};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// How long a request at the quota waits for pages of its space to be written or read, at most.
const QUOTA_WAIT: Duration = Duration::from_millis(100);

/// How many of a space's pages one request tries to evict.
const TRIES: usize = 8;

impl<T: Tier> Pool<T> {
    /// Replaces the hints of `space`. They apply at once to its pages in memory. Clean pages beyond a quota
    /// leave at once, others as later requests need frames. Misses wait meanwhile: some milliseconds per ten
    /// thousand pages in memory.
    pub fn set_hints(&self, space: SpaceId, hints: PoolHints) {
        let (inner, frames) = (&self.inner, &self.inner.frames);
        let hints = PoolHints { frames_max: hints.frames_max.map(|max| max.max(1)), ..hints };
        let mut policy = inner.policy.lock();
        if self.hints(space) == hints {
            return;
        }
        inner.drain_hits(&mut policy);
        let mut resident = Vec::new();
        policy.first_to_go(&mut |frame| {
            let Some(f) = frames.all.get(frame.at()) else { return false };
            if let Some(page) = f.page().filter(|page| page.space == space) {
                let (location, dirty) = (inner.tier.location(page), f.word.is_dirty());
                resident.push(Resident { frame, page, location, dirty });
            }
            false
        });
        policy.set_hints(space, hints, &resident);
        // Nothing may enter or leave the table while the space's pages are counted, or the count would be
        // off for good.
        frames.table.quiet(|| frames.hints.set(space, hints, &frames.all));
        drop(policy);
        inner.trim(space);
    }

    /// The hints of `space`.
    #[must_use]
    pub fn hints(&self, space: SpaceId) -> PoolHints {
        self.inner.frames.hints.with(space, |hinted| hinted.hints).unwrap_or_default()
    }

    /// The number of frames that hold pages of `space`, or read them; `None` if it has no hints.
    #[must_use]
    pub fn frames_of(&self, space: SpaceId) -> Option<usize> {
        self.inner.frames.hints.held(space)
    }
}

/// What a space at its quota can give up.
pub(crate) enum Own {
    /// The frame of one of its pages, which has left.
    Frame(FrameId),
    /// A page can leave once it has been written or read.
    Later,
    /// Guards pin its pages.
    Nothing,
}

impl<T: Tier> PoolInner<T> {
    /// A frame of another page of the same space, for a space that has used up its quota. `None`: the request
    /// takes any frame.
    #[cold]
    pub(crate) async fn frame_within_quota(&self, page: PageId) -> Result<Option<FrameId>, PoolError> {
        let until = Instant::now() + QUOTA_WAIT;
        let mut waiting = None;
        loop {
            listen!(cleaned = self.cleaned);
            if self.closing.load(Ordering::Acquire) {
                return Err(PoolError::Closed);
            }
            if !self.frames.hints.exceeds_quota(page.space, 1) {
                return Ok(None);
            }
            match self.evict_own(page.space) {
                Own::Frame(frame) => return Ok(Some(frame)),
                // A request does not wait for pages that cannot be written.
                Own::Later if Instant::now() < until && self.last_failure.lock().is_none() => {}
                Own::Later | Own::Nothing => return Ok(None),
            }
            waiting.get_or_insert_with(|| self.stalls.wait(On::Frame, page));
            self.clean.notify_one();
            // Dropping a pin wakes no waiter: retry periodically.
            let again = tokio::time::sleep(RETRY);
            tokio::select! { biased; () = cleaned => {}, () = again => {} }
        }
    }

    /// Evicts pages of `space` that can leave now, until it has as many frames as its quota.
    fn trim(&self, space: SpaceId) {
        let frames = &self.frames;
        let evictable = &mut |f: FrameId| frames.all.get(f.at()).is_some_and(|f| f.word.is_evictable());
        while frames.hints.exceeds_quota(space, 0) {
            let mut policy = self.policy.lock();
            // One page per lock: other tasks get the policy in between.
            match policy.victim_of(space, evictable) {
                Some(victim) if self.evict_from(victim, &mut policy) => frames.give_back(victim),
                _ => return,
            }
        }
    }

    /// Evicts a page of `space`, or two while the space exceeds its quota (which may have just been lowered).
    pub(crate) fn evict_own(&self, space: SpaceId) -> Own {
        let mut policy = self.policy.lock();
        self.drain_hits(&mut policy);
        let frames = &self.frames.all;
        let (mut taken, mut later) = (None, false);
        for _ in 0..TRIES {
            // Asked of every page of the space: one that is dirty and unpinned could leave after a write,
            // so a short wait is worth it.
            let victim = policy.victim_of(space, &mut |f| {
                let Some(word) = frames.get(f.at()).map(|f| &f.word) else { return false };
                later |= word.is_unwritten() && word.pins() == 0;
                word.is_evictable()
            });
            let Some(victim) = victim else { break };
            if !self.evict_from(victim, &mut policy) {
                continue;
            }
            match taken {
                None => taken = Some(victim),
                Some(_) => self.frames.give_back(victim),
            }
            if taken != Some(victim) || !self.frames.hints.exceeds_quota(space, 1) {
                break;
            }
        }
        // The policy does not know pages that are being read yet.
        later |= self.frames.hints.held(space).is_some_and(|held| held > policy.frames_of(space));
        match taken {
            Some(frame) => Own::Frame(frame),
            None if later => Own::Later,
            None => Own::Nothing,
        }
    }
}
