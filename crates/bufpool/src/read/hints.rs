//! How long the pages of single spaces stay in memory, as the embedder hints.
//!
//! [`HintedPool`](pagetier_policy::pool::HintedPool) decides which page leaves; a space whose pages are used
//! once is read as by a scan. Without hints, a miss costs one relaxed load, and a hit nothing.

use crate::state::handle::Pool;
use crate::tier::Tier;
use pagetier_page::SpaceId;
use pagetier_policy::FramePolicy;
use pagetier_policy::pool::{Resident, Retention};

impl<T: Tier> Pool<T> {
    /// Sets how long the pages of `space` stay in memory, from now on and for those that are there. Blocks
    /// misses for a few milliseconds per 10,000 resident pages.
    pub fn set_retention(&self, space: SpaceId, retention: Retention) {
        let (inner, frames) = (&self.inner, &self.inner.frames);
        // Under the policy's lock: of two calls at once, both must end with the same one.
        let mut policy = inner.policy.lock();
        if frames.hints.retention(space) == retention {
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
        policy.set_retention(space, retention, &resident);
        frames.hints.set(space, retention);
    }
}
