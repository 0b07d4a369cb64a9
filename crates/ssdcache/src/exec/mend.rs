//! Homes whose writes failed are mended from the ring, so that an error that has passed does not keep its
//! places for ever.

use crate::exec::Core;
use crate::exec::read::read_one;
use crate::mutation::Mutation;
use crate::protocol::home_batches::FailedHome;
use pagetier_devio::{IoBufs, IoClass};

/// Pages that are being mended; let go of also when that is dropped.
struct Mending<'a> {
    core: &'a Core,
    pages: Vec<FailedHome>,
}

impl Drop for Mending<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        self.pages.iter().for_each(|one| state.home.end_mend(one.page));
        drop(state);
        self.core.changed.notify_waiters();
    }
}

impl Core {
    /// Writes the homes once more whose writes failed, from the ring. True: some place of the ring waits for
    /// a flush only, or for less, that waited for more.
    pub(crate) async fn mend_homes(&self) -> bool {
        if self.broken.is(Mutation::FailedHomeKept) {
            return false;
        }
        let mending = Mending { core: self, pages: self.state.lock().home.begin_mend() };
        let mut mended = false;
        for one in &mending.pages {
            let home = self.mend_home(*one).await;
            mended |= self.state.lock().home.mended(one.page, home, self.hdd_flush.next());
        }
        mended
    }

    async fn mend_home(&self, one: FailedHome) -> bool {
        let Some(offset) = self.homes.offset(one.page) else { return true };
        let (ssd, at) = (self.ssd(), self.layout().ring_at(one.place));
        let (image, result) = read_one(&ssd, at, self.buffer(), IoClass::WriteBack).await;
        if result.is_err() || self.check(image.as_slice(), one.page, Some(one.stamp)).is_err() {
            self.give_back(image);
            return false;
        }
        let lsn = self.unflushed.unflushed(one.page).unwrap_or_default();
        if self.unflushed.begin(&[(one.page, one.stamp, lsn)]).is_err() {
            return false;
        }
        let mut done = self.hdd.write(offset, IoBufs::from_iter([image]), IoClass::WriteBack).await;
        self.unflushed.ended(one.page, self.hdd_flush.next());
        done.bufs.drain(..).for_each(|image| self.give_back(image));
        done.result.is_ok()
    }
}
