//! Rewrites from the ring the homes whose writes failed, so that a temporary error does not hold ring places
//! forever.

use crate::exec::Core;
use crate::protocol::home_batches::FailedHome;
use pagetier_bufpool::TierError;
use pagetier_devio::{IoBuf, IoBufs, IoClass};

/// The pages being repaired, released on drop, even if the repair was cut short.
struct RingRepair<'a> {
    core: &'a Core,
    pages: Vec<FailedHome>,
}

impl Drop for RingRepair<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        self.pages.iter().for_each(|one| state.home.end_ring_repair(one.page));
        drop(state);
        self.core.changed.notify_waiters();
    }
}

impl Core {
    /// Rewrites from the ring the homes whose writes failed. On success at least one ring place waits for
    /// less than before, or another task is repairing them.
    ///
    /// # Errors
    /// No home could be written; the last error.
    pub(crate) async fn repair_from_ring(&self) -> Result<(), TierError> {
        let repair = RingRepair { core: self, pages: self.state.lock().home.begin_ring_repair() };
        let (mut repaired, mut failed) = (false, None);
        for one in &repair.pages {
            if one.optional {
                let wiped = self.wipe_from_ring(*one).await;
                repaired |= wiped.is_ok();
                failed = wiped.err().or(failed);
                continue;
            }
            let home = self.repair_home_from_ring(*one).await;
            repaired |=
                self.state.lock().home.note_ring_repair(one.page, home.is_ok(), self.hdd_flush.next());
            failed = home.err().or(failed);
        }
        // One place gained is enough: the caller looks again, and comes back for the others when it needs
        // their places (I25).
        failed.filter(|_| !repaired).map_or(Ok(()), Err)
    }

    /// Wipes an image whose home write never began. It may be in the ring or not, and is not durable: a home
    /// written from it could be torn by a power cut, and nothing would repair it (I4).
    async fn wipe_from_ring(&self, one: FailedHome) -> Result<(), TierError> {
        let cache = self.cache_device();
        let zeroes = IoBufs::from_iter([IoBuf::zeroed(self.page_size.bytes())]);
        let wiped = cache.device.write(cache.layout.ring_at(one.place), zeroes, IoClass::Ring).await;
        wiped.result.map_err(|source| TierError::Device { page: one.page, source })?;
        // Until it is certainly gone, the floor must not pass it: it would void the page's copy.
        self.flush_ssd().await.map_err(|source| TierError::Flush { source })?;
        let next = self.hdd_flush.next();
        self.state.lock().home.note_wiped_image(one.page, one.stamp, next);
        Ok(())
    }

    async fn repair_home_from_ring(&self, one: FailedHome) -> Result<(), TierError> {
        let page = one.page;
        // A page that was given up has no home that could be torn.
        let Some(offset) = self.homes.offset(page) else { return Ok(()) };
        let cache = self.cache_device();
        let (ssd, at) = (&cache.device, cache.layout.ring_at(one.place));
        let read = self.read_image(ssd, at, (page, one.stamp), self.buffer(), IoClass::WriteBack);
        let (image, result) = read.await;
        if let Err(error) = result {
            self.give_back(image);
            return Err(error);
        }
        // The repair is a home write like any other: list it before it starts (I14).
        let lsn = self.unflushed.unflushed(page).unwrap_or_default();
        if let Err(cause) = self.unflushed.begin(&[(page, one.stamp, lsn)]) {
            return Err(TierError::Refusing { cause });
        }
        let mut done = self.hdd.write(offset, IoBufs::from_iter([image]), IoClass::WriteBack).await;
        self.unflushed.ended(page, self.hdd_flush.next());
        done.bufs.drain(..).for_each(|image| self.give_back(image));
        done.result.map_err(|source| TierError::Device { page, source })
    }
}
