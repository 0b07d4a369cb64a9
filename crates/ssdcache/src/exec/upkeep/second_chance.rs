//! Second chances: copies pages to the front of the circle when their slots are about to be reused.
//!
//! A copy is written like any other version: with a fresh stamp, into a slot of the zone. The old slot is
//! then retired, and free after the next flush. If the page is rewritten meanwhile, the copy does not count.

use crate::exec::Core;
use crate::exec::io::join_all::join_all;
use crate::protocol::slots::Move;
use pagetier_bufpool::TierError;
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::Lsn;

/// Ends its moves on drop, even if they were cut short.
struct Moving<'a> {
    core: &'a Core,
    moves: Vec<Move>,
    /// Whether the images were sent to their new slots.
    copied: bool,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if self.moves.is_empty() {
            return;
        }
        let now = self.core.now();
        let mut state = self.core.state.lock();
        self.moves.drain(..).for_each(|one| state.slots.end_move(one, self.copied, now));
        drop(state);
        self.core.changed.notify_waiters();
    }
}

impl Core {
    /// Judges the next slots that are due, and copies the pages that get a second chance. The caller holds
    /// the write-back's duty, so none of these pages is being written home.
    pub(crate) async fn give_second_chances(&self) {
        while let Some(moves) = self.reclaim() {
            // Writers may wait for the judgement.
            self.changed.notify_waiters();
            if !moves.is_empty() {
                self.move_all(moves).await;
            }
        }
    }

    fn reclaim(&self) -> Option<Vec<Move>> {
        let now = self.now();
        let mut state = self.state.lock();
        let usable = state.ssd_error.is_none() && self.refusing.cause().is_none();
        if usable { state.reclaim(now, &mut || self.stamps.fresh()) } else { None }
    }

    async fn move_all(&self, moves: Vec<Move>) {
        let mut reading = Moving { core: self, moves, copied: false };
        let images = self.read_moving(&reading.moves).await;
        // Two guards, because a dropped call leaves two kinds of slots: one whose image was not sent yet is
        // free again, one whose write may still land is not.
        let mut writing = Moving { core: self, moves: Vec::with_capacity(images.len()), copied: true };
        let (mut slots, mut bad) = (Vec::with_capacity(images.len()), Vec::new());
        for (one, image) in reading.moves.drain(..).zip(images) {
            match image {
                Some(image) => {
                    slots.push((one.to, image, Lsn(0)));
                    writing.moves.push(one);
                }
                None => bad.push(one),
            }
        }
        reading.moves = bad;
        drop(reading);
        self.write_copies(slots).await;
    }

    /// Reads the images, in order; `None`: the image is bad.
    async fn read_moving(&self, moves: &[Move]) -> Vec<Option<IoBuf>> {
        let ssd = self.ssd();
        let reads = moves.iter().map(|Move { from, .. }| {
            let (at, version, buf) = (self.slot_at(from.slot), (from.page, from.stamp), self.buffer());
            let read = self.read_image(&ssd, at, version, buf, IoClass::WriteBack);
            async move {
                let (image, result) = read.await;
                if let Err(TierError::Device { source, .. }) = &result {
                    self.ssd_failed(source);
                }
                result.is_ok().then_some(image)
            }
        });
        join_all(reads).await
    }
}
