//! Reads the newest version below memory for a backup: verified, and without telling the policy.
//!
//! The pool keeps a page in memory while it is written, so its own reads never overlap a write of the same
//! page. These reads may: a home that is being written may be found torn, and is read again.

use crate::exec::Core;
use crate::exec::read::{SlotHold, read_one};
use crate::protocol::Protocol;
use crate::protocol::slots::Located;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceErrorKind, IoBuf, IoClass};
use pagetier_page::{Defect, PageId, Stamp};

/// The maximum number of reads of a home that does not verify: a write may have been under way each time.
const READS_MAX: usize = 16;

impl Core {
    /// Reads the newest version of `page` below memory at the time of the call, or a later one, whole.
    /// `None`: the page was never written. Cancel-safe.
    pub(crate) async fn read_version(&self, page: PageId) -> Result<Option<IoBuf>, TierError> {
        let mut reads = 0;
        loop {
            // Wait until no copy of the page is on its way to the SSD.
            let found = |state: &mut Protocol| {
                Some(state.slots.begin_read(page)).filter(|at| *at != Located::Pending)
            };
            let clean = match self.when_some(found).await {
                Located::Slot { slot, stamp, dirty } => {
                    let hold = SlotHold { core: self, slot };
                    match self.read_held_slot(page, hold, stamp).await {
                        Ok(buf) => return Ok(Some(buf)),
                        Err(error) if dirty => return Err(error),
                        Err(error) => Some(error),
                    }
                }
                _ => None,
            };
            self.when(|state| !state.home.is_writing(page)).await;
            reads += 1;
            match self.read_home_version(page).await {
                Ok(found) => return Ok(found),
                Err(error) if reads >= READS_MAX => return Err(clean.unwrap_or(error)),
                Err(_) => {}
            }
        }
    }

    async fn read_held_slot(
        &self,
        page: PageId,
        hold: SlotHold<'_>,
        stamp: Stamp,
    ) -> Result<IoBuf, TierError> {
        // While the slot is held, the device is not exchanged.
        let cache = self.cache_device();
        let offset = cache.layout.slot_at(hold.slot.0);
        let (buf, result) = read_one(&cache.device, offset, self.buffer(), IoClass::Recovery).await;
        drop(hold);
        result.map_err(|source| TierError::Device { page, source })?;
        match self.check(buf.as_slice(), page, Some(stamp)) {
            Ok(_) => Ok(buf),
            Err(defect) => Err(self.corrupt(page, &cache.device, offset, defect)),
        }
    }

    async fn read_home_version(&self, page: PageId) -> Result<Option<IoBuf>, TierError> {
        let Some(offset) = self.homes.offset(page) else { return Err(TierError::NoSuchPage { page }) };
        let (buf, result) = read_one(&self.hdd, offset, self.buffer(), IoClass::Recovery).await;
        match result {
            Ok(()) => {}
            // The page was allocated, but the HDD was never grown to its home.
            Err(source) if matches!(source.kind, DeviceErrorKind::UnexpectedEof { .. }) => return Ok(None),
            Err(source) => return Err(TierError::Device { page, source }),
        }
        if let Some(written) = self.missing(page, &buf) {
            return self.read_ring_version(page, written, offset, &buf).await.map(Some);
        }
        match self.check(buf.as_slice(), page, None) {
            Ok(_) => Ok(Some(buf)),
            Err(Defect::Blank) => Ok(None),
            Err(defect) => Err(self.corrupt(page, &self.hdd, offset, defect)),
        }
    }

    /// Reads version `written`, which was written to the home but is missing there, from the ring.
    async fn read_ring_version(
        &self,
        page: PageId,
        written: Stamp,
        offset: u64,
        home: &IoBuf,
    ) -> Result<IoBuf, TierError> {
        let Some(place) = self.state.lock().home.place_of(page, written) else {
            let found = self.check(home.as_slice(), page, Some(written));
            let defect = found.err().unwrap_or(Defect::WrongStamp { expected: written, found: written });
            return Err(self.corrupt(page, &self.hdd, offset, defect));
        };
        let (ssd, at) = (self.ssd(), self.layout().ring_at(place));
        let (buf, result) = read_one(&ssd, at, self.buffer(), IoClass::Recovery).await;
        result.map_err(|source| TierError::Device { page, source })?;
        match self.check(buf.as_slice(), page, Some(written)) {
            Ok(_) => Ok(buf),
            Err(defect) => Err(self.corrupt(page, &ssd, at, defect)),
        }
    }
}
