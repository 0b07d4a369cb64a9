//! Homes whose writes failed are mended from the ring, so that an error that has passed does not keep its
//! places for ever.

use crate::core::Core;
use crate::mutation::Mutation;
use crate::read::read_one;
use crate::ring::FailedHome;
use pagetier_bufpool::TierError;
use pagetier_devio::{IoBufs, IoClass};

/// Pages that are being mended; let go of also when that is dropped.
struct Mending<'a> {
    core: &'a Core,
    pages: Vec<FailedHome>,
}

impl Drop for Mending<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        for one in &self.pages {
            state.homeward.remove(&one.page);
            state.slots.release_home(one.page);
        }
        drop(state);
        self.core.changed.notify_waiters();
    }
}

impl Core {
    /// Writes the homes once more whose writes failed, from the ring. Afterwards some place of the ring waits
    /// for a flush only, or for less, that waited for more; or another task is at it.
    ///
    /// # Errors
    /// Of the homes that can be written now, none was: why not the last one.
    pub(crate) async fn mend_homes(&self) -> Result<(), TierError> {
        if self.broken.is(Mutation::FailedHomeKept) {
            return Err(TierError::Refusing { cause: "homes are not mended".into() });
        }
        let mending = {
            let mut state = self.state.lock();
            let mut pages = state.ring.failed();
            pages.retain(|one| !state.homeward.contains(&one.page));
            for one in &pages {
                state.homeward.insert(one.page);
                state.slots.hold_home(one.page);
            }
            Mending { core: self, pages }
        };
        let (mut mended, mut failed) = (false, None);
        for one in &mending.pages {
            let home = self.mend_home(*one).await;
            let mut state = self.state.lock();
            // A discarded page's home is of no value: one more attempt is all it gets.
            if home.is_ok() || state.ring.is_discarded(one.page) {
                state.ring.reached_home(one.page, self.hdd_flush.next());
                mended = true;
            }
            failed = home.err().or(failed);
        }
        failed.filter(|_| !mended).map_or(Ok(()), Err)
    }

    async fn mend_home(&self, one: FailedHome) -> Result<(), TierError> {
        let page = one.page;
        let Some(offset) = self.homes.offset(page) else { return Ok(()) };
        let (ssd, at) = (self.ssd(), self.layout().ring_at(one.place));
        let (image, result) = read_one(&ssd, at, self.buffer(), IoClass::WriteBack).await;
        if let Err(source) = result {
            self.give_back(image);
            return Err(TierError::Device { page, source });
        }
        if let Err(defect) = self.check(image.as_slice(), page, Some(one.stamp)) {
            self.give_back(image);
            return Err(self.corrupt(page, &ssd, at, defect));
        }
        let lsn = self.home_writes.unflushed(page).unwrap_or_default();
        if let Err(cause) = self.home_writes.begin(&[(page, one.stamp, lsn)]) {
            return Err(TierError::Refusing { cause });
        }
        let mut done = self.hdd.write(offset, IoBufs::from_iter([image]), IoClass::WriteBack).await;
        self.home_writes.ended(page, self.hdd_flush.next());
        done.bufs.drain(..).for_each(|image| self.give_back(image));
        done.result.map_err(|source| TierError::Device { page, source })
    }
}
