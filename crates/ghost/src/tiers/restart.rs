//! A clean restart of the tiers: the pool is empty, the SSD is warm, and its policy knows what it saved, or
//! only which pages are there.

use super::{NONE, Place, Tiers};
use pagetier_policy::{CleanReason, FramePolicy, Millis, SlotId, SlotPolicy};

impl Tiers {
    /// Writes every dirty page and empties the pool, which continues under `pool`, an empty policy.
    pub fn close(&mut self, pool: Box<dyn FramePolicy>) {
        let mut buffered = vec![true; self.frames.len()];
        self.free_frames.iter().for_each(|&frame| buffered[frame as usize] = false);
        for frame in (0..self.frames.len() as u32).filter(|&frame| buffered[frame as usize]) {
            if self.frames[frame as usize].dirty {
                self.clean(frame, CleanReason::Recoverability);
            }
            self.report_logical(frame);
        }
        for frame in (0..self.frames.len()).filter(|&frame| buffered[frame]) {
            let (page, slot) = (self.frames[frame].page, self.frames[frame].slot);
            self.ssd.left_pool(page, self.now());
            if slot == NONE {
                self.places.remove(&page);
            } else {
                self.slots[slot as usize].frame = NONE;
                self.places.insert(page, Place::Slot(slot));
                self.frames[frame].slot = NONE;
            }
        }
        self.free_frames = (0..self.frames.len() as u32).rev().collect();
        self.dirty_since.clear();
        self.pool = pool;
        // The last checkpoint of a close ends the zone.
        for slot in self.zone.drain(..) {
            self.slots[slot.at()].in_zone = false;
        }
        self.zone_left = 0;
    }

    /// Opens the closed tiers with `ssd`, an empty policy. With `knows`, it takes over what its predecessor
    /// saved.
    pub fn reopen(&mut self, ssd: Box<dyn SlotPolicy>, knows: bool) {
        let before = std::mem::replace(&mut self.ssd, ssd);
        // From the slot written longest ago on, if the slots are a circle.
        let (tail, slots) = (self.tail, self.slots.len() as u32);
        for slot in (0..slots).map(|at| (tail + at) % slots) {
            if self.slots[slot as usize].used {
                self.ssd.recovered(self.slots[slot as usize].page, SlotId(slot));
            }
        }
        let mut saved = Vec::new();
        if knows && before.save(self.now(), &mut |bytes| saved.extend_from_slice(bytes)) {
            let mut left = &saved[..];
            let restored = self.ssd.restore(&mut |buf| {
                let n = buf.len().min(left.len());
                buf[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                n
            });
            debug_assert!(restored, "a policy takes over its own");
        }
        // A store's clock begins with its opening.
        self.opened = Millis(self.opened.0 + self.now().0);
    }
}
