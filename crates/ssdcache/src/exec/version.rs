//! Reads the newest version below memory for a backup: verified, and without informing the policy.
//!
//! The pool keeps a page in memory while it is written, so its own reads never overlap a write of the same
//! page. These reads may: a home that is being written may be found torn, and is read again.

use crate::exec::Core;
use crate::exec::read::SlotHold;
use crate::exec::single::read_one;
use crate::protocol::slots::Located;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceErrorKind, IoBuf, IoClass};
use pagetier_page::{Defect, PageId};

/// The maximum number of reads of a home that does not verify: a write may have been under way each time.
const READS_MAX: usize = 16;

impl Core {
    /// Reads the newest version of `page` below memory at the time of the call, or a later one, whole.
    /// `None`: the page was never written. Cancel-safe.
    pub(crate) async fn read_version(&self, page: PageId) -> Result<Option<IoBuf>, TierError> {
        let mut reads = 0;
        loop {
            let clean = match self.locate(page).await {
                Located::Slot { slot, stamp, dirty } => {
                    let hold = SlotHold { core: self, slot };
                    match self.read_copy(hold, page, stamp).await {
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

    async fn read_home_version(&self, page: PageId) -> Result<Option<IoBuf>, TierError> {
        let Some(offset) = self.homes.source(page) else { return Err(TierError::NoSuchPage { page }) };
        let (buf, result) = read_one(&self.hdd, offset, self.buffer(), IoClass::Recovery).await;
        match result {
            Ok(()) => {}
            // The page was allocated, but the HDD was never grown to its home.
            Err(source) if matches!(source.kind, DeviceErrorKind::UnexpectedEof { .. }) => return Ok(None),
            Err(source) => return Err(TierError::Device { page, source }),
        }
        if let Some(written) = self.missing(page, &buf) {
            let (buf, result) = self.read_from_ring(page, written, offset, buf, IoClass::Recovery).await;
            return result.map(|()| Some(buf));
        }
        match self.check(buf.as_slice(), page, None) {
            Ok(_) => Ok(Some(buf)),
            Err(Defect::Blank) => Ok(None),
            Err(defect) => Err(self.corrupt(page, &self.hdd, offset, defect)),
        }
    }
}
