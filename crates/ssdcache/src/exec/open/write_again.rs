//! Writes homes again that a failed flush of the HDD has left unverified, and of which there may be no image.

use crate::exec::Core;
use crate::exec::io::single::read_one;
use crate::exec::open::images::readable;
use crate::exec::open::repair::REPAIRS_MAX;
use crate::exec::write::write_home::{HomeBound, Outcome};
use crate::format::journal::{Backing, RECORDS_MAX};
use futures_util::StreamExt;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoClass, IoOp};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::Location;
use parking_lot::Mutex;
use std::pin::pin;

impl Core {
    /// With a ring: writes the sound homes of `pages` again, as new versions that take the usual way. Were
    /// the same bytes written in place, a power cut could tear them: the medium may have an older version,
    /// which a `sync` has covered, and if the HDD wrote pages whole, the ring has no image (I48). Returns
    /// their number.
    pub(super) async fn write_again(&self, pages: &[PageId]) -> Result<u64, DeviceError> {
        let ring_pages = self.layout().ring_pages as usize;
        if ring_pages == 0 {
            return Ok(0);
        }
        let mut rewritten = 0;
        // No maintenance runs yet that would make room in the journal, so few at a time.
        for some in pages.chunks(ring_pages.div_ceil(2).min(RECORDS_MAX)) {
            let bound = self.read_homes(some).await?;
            rewritten += bound.len() as u64;
            if let Err((refused, error)) = self.write_versions(bound).await {
                if !self.wants_ring(&error) {
                    return Err(self.device_error(error));
                }
                self.use_ring().await;
                self.write_versions(refused).await.map_err(|(_, error)| self.device_error(error))?;
            }
            self.flush_hdd().await?;
            if self.has_slots() && self.state.lock().home.journal_is_high() {
                self.checkpoint().await?;
            }
        }
        Ok(rewritten)
    }

    /// The sound homes of `pages`, except of those whose newest version is in a slot.
    async fn read_homes(&self, pages: &[PageId]) -> Result<Vec<HomeBound>, DeviceError> {
        let homes = pages.iter().copied().map(|page| async move {
            let home = self
                .homes
                .offset(page)
                .filter(|home| home + self.page_size.bytes() as u64 <= self.hdd.size());
            let only = self.state.lock().slots.is_only_copy(page);
            let Some(home) = home.filter(|_| !only) else { return Ok(None) };
            let (image, result) = read_one(&self.hdd, home, self.buffer(), IoClass::Recovery).await;
            // Reading a bad home is an error, durable or not.
            let sound = readable(result)? && self.check(image.as_slice(), page, None).is_ok();
            Ok(sound.then(|| HomeBound::new(page, image, Lsn(0))))
        });
        let mut homes = pin!(futures_util::stream::iter(homes).buffer_unordered(REPAIRS_MAX));
        let mut bound = Vec::new();
        while let Some(one) = homes.next().await {
            bound.extend(one?);
        }
        Ok(bound)
    }

    /// Writes `bound` home. Returns what failed, and the first error.
    async fn write_versions(&self, bound: Vec<HomeBound>) -> Result<(), (Vec<HomeBound>, TierError)> {
        let failed: Mutex<(Vec<HomeBound>, Option<TierError>)> = Mutex::default();
        let each = |page, image, outcome| match outcome {
            Outcome::Failed(error) => {
                let mut failed = failed.lock();
                failed.0.push(HomeBound::new(page, image, Lsn(0)));
                failed.1.get_or_insert(error);
            }
            // Its copy is of an older version now (I17).
            _ => {
                let slots = &mut self.state.lock().slots;
                if slots.location(page) == Location::Ssd {
                    slots.discard(page);
                }
                self.give_back(image);
            }
        };
        self.write_home(Backing::Ring, bound, IoClass::Recovery, &each).await;
        let (failed, error) = failed.into_inner();
        error.map_or(Ok(()), |error| Err((failed, error)))
    }

    fn device_error(&self, error: TierError) -> DeviceError {
        match error {
            TierError::Device { source, .. } | TierError::Flush { source } => source,
            other => {
                let (device, kind) = (self.hdd.name().into(), DeviceErrorKind::Unusable(other.to_string()));
                DeviceError { device, op: IoOp::Write, offset: 0, len: 0, kind }
            }
        }
    }
}
