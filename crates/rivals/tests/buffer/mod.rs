//! The minimal buffer manager that the papers' pseudo-code assumes, under a policy: requests
//! come one by one, and a dirty victim is written when it is evicted.

use pagetier_policy::{
    Access, CleanReason, FrameId, FramePolicy, FramePolicyParams, FrameState, Location, PageId, PoolPolicy,
    SpaceId,
};
use std::collections::BTreeMap;

pub(crate) fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// The effects of a request: the pages written, in order, and the page evicted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Done {
    pub(crate) written: Vec<u32>,
    pub(crate) evicted: Option<u32>,
}

pub(crate) struct Buffer {
    pub(crate) policy: Box<dyn FramePolicy>,
    /// The page in each frame, and whether it is dirty.
    frames: Vec<Option<(u32, bool)>>,
    by_page: BTreeMap<u32, FrameId>,
}

impl Buffer {
    pub(crate) fn new(params: FramePolicyParams, policy: &str) -> Self {
        pagetier_rivals::register();
        let choice: PoolPolicy = policy.parse().expect("a policy of that name");
        let policy = choice.build(&params);
        Self { policy, frames: vec![None; params.frames], by_page: BTreeMap::new() }
    }

    pub(crate) fn request(&mut self, no: u32, write: bool) -> Done {
        let mut done = Done::default();
        let frame = match self.by_page.get(&no) {
            Some(&frame) => {
                self.policy.hit(frame, write);
                frame
            }
            None => {
                let frame = self.free_frame(&mut done);
                self.frames[frame.at()] = Some((no, false));
                self.by_page.insert(no, frame);
                self.policy.insert(frame, page(no), Location::Hdd, Access::Random);
                frame
            }
        };
        if write && !self.is_dirty(frame) {
            self.frames[frame.at()] = Some((no, true));
            self.policy.dirtied(frame);
        }
        self.policy.validate().unwrap();
        assert_eq!(self.policy.len(), self.by_page.len());
        done
    }

    fn free_frame(&mut self, done: &mut Done) -> FrameId {
        if let Some(free) = self.frames.iter().position(Option::is_none) {
            return FrameId(free as u32);
        }
        let chosen = self.policy.victim(&mut |_| true).expect("a full buffer has a victim");
        if self.is_dirty(chosen) {
            let mut set = Vec::new();
            let frames = &self.frames;
            let state = &mut |frame: FrameId| match frames[frame.at()] {
                Some((_, true)) => FrameState::Dirty,
                _ => FrameState::Clean,
            };
            self.policy.clean_set(1, usize::MAX, state, &mut set);
            assert_eq!(set.first(), Some(&chosen), "the victim is written first");
            set.iter().for_each(|&frame| done.written.push(self.clean(frame, CleanReason::Replacement)));
        }
        let frames = &self.frames;
        let victim = self.policy.victim(&mut |frame| !matches!(frames[frame.at()], Some((_, true))));
        assert_eq!(victim, Some(chosen), "what was written to be evicted is evicted");
        self.policy.remove(chosen, true);
        let gone = self.frames[chosen.at()].take().expect("tracked").0;
        self.by_page.remove(&gone);
        done.evicted = Some(gone);
        chosen
    }

    /// Performs a recoverability write of `no`, if it is buffered and dirty.
    pub(crate) fn flush(&mut self, no: u32) {
        if let Some(&frame) = self.by_page.get(&no)
            && self.is_dirty(frame)
        {
            self.clean(frame, CleanReason::Recoverability);
        }
    }

    fn clean(&mut self, frame: FrameId, reason: CleanReason) -> u32 {
        let (no, dirty) = self.frames[frame.at()].expect("tracked");
        assert!(dirty, "page {no} is clean");
        self.frames[frame.at()] = Some((no, false));
        self.policy.cleaned(frame, Location::Hdd, reason);
        no
    }

    fn is_dirty(&self, frame: FrameId) -> bool {
        matches!(self.frames[frame.at()], Some((_, true)))
    }

    /// Returns the pages in the order of eviction.
    pub(crate) fn order(&mut self) -> Vec<u32> {
        let (frames, mut order) = (&self.frames, Vec::new());
        self.policy.victim(&mut |frame| {
            order.push(frames[frame.at()].expect("tracked").0);
            false
        });
        order
    }
}
