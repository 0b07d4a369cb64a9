//! Reads the newest version below memory for a backup: verified, and without informing the policy.
//!
//! The pool keeps a page in memory while it is written, so its own reads never overlap a write of the same
//! page. These reads may: a home that is being written may be found torn, and is read again.

use crate::exec::Core;
use crate::exec::io::single::read_one;
use crate::exec::read::fetch::SlotHold;
use crate::exec::tier::SsdTier;
use crate::protocol::slots::Located;
use pagetier_bufpool::TierError;
use pagetier_devio::task::Boxed;
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::PageId;

/// The maximum number of reads of a home that does not verify: a write may have been under way each time.
const READS_MAX: usize = 16;

impl SsdTier {
    /// Reads the newest version of `page` below memory, or a later one, whole and verified, with its header.
    /// Affects neither pool nor policy. `None`: the page was never written. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist or cannot be read, or its only copy is corrupt.
    pub fn read_version(&self, page: PageId) -> Boxed<'_, Result<Option<IoBuf>, TierError>> {
        Box::pin(async move {
            let core = &*self.core;
            let mut reads = 0;
            loop {
                let clean = match core.locate(page).await {
                    Located::Slot { slot, stamp, dirty } => {
                        let hold = SlotHold { core, slot };
                        match core.read_copy(hold, page, stamp).await {
                            Ok(buf) => return Ok(Some(buf)),
                            // The home has an older version, which a backup must not take for this one.
                            Err(error) if dirty => return Err(error),
                            Err(error) => Some(error),
                        }
                    }
                    _ => None,
                };
                // A home in the middle of its write reads as torn. Another write may begin right after this
                // wait, so a bad home counts only after many reads.
                core.when(|state| !state.home.is_writing(page)).await;
                reads += 1;
                match core.read_home_version(page).await {
                    Ok(found) => return Ok(found),
                    Err(error) if reads >= READS_MAX => return Err(clean.unwrap_or(error)),
                    Err(_) => {}
                }
            }
        })
    }
}

impl Core {
    async fn read_home_version(&self, page: PageId) -> Result<Option<IoBuf>, TierError> {
        let Some(offset) = self.homes.source(page) else { return Err(TierError::NoSuchPage { page }) };
        let (buf, result) = read_one(&self.hdd, offset, self.buffer(), IoClass::Recovery).await;
        match result {
            Ok(()) => {}
            Err(source) if self.is_unwritten_end(page, &source) => return Ok(None),
            Err(source) => return Err(TierError::Device { page, source }),
        }
        if let Some(written) = self.missing(page, &buf) {
            let (buf, result) = self.read_from_ring(page, written, offset, buf, IoClass::Recovery).await;
            return result.map(|()| Some(buf));
        }
        match self.check(buf.as_slice(), page, None) {
            Ok(_) => Ok(Some(buf)),
            Err(defect) if self.is_unwritten(page, defect) => Ok(None),
            Err(defect) => Err(self.corrupt(page, &self.hdd, offset, defect)),
        }
    }
}
