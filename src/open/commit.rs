//! The writes of an open before recovery: they record which store owns the devices, and that an open
//! has begun.
//!
//! 1. New store only: save the manifest with the store's id. Devices that carry the id belong to the store,
//!    however the open ends.
//! 2. Format the new devices. Before a new ring of a store without SSD, save what is lost with the previous
//!    one.
//! 3. Save the manifest: the number of this open, the id of a new SSD, and what is lost with the previous
//!    SSD.
//! 4. Record the number on the HDD, then on the SSD, and flush each. The flush also makes durable what a
//!    killed process left readable.
//! 5. Save the manifest: the devices have recorded the open. Nothing else is written before this.

use super::check::PreparedSsd;
use crate::config::calibrate::calibrate;
use crate::config::choices::CostSource;
use crate::config::store_config::Config;
use crate::error::{Error, OpenError};
use crate::manifest::contents::Manifest;
use crate::manifest::id::id_text;
use crate::manifest::manifest_store::ManifestStore;
use crate::manifest::only_copies::OnlyCopies;
use crate::manifest::superblock::HddSuperblock;
use crate::ownership::lock::Ownership;
use crate::store::record::manifest_state::ManifestState;
use crate::store::record::unverified::InManifest;
use pagetier_devio::{DeviceError, IoOp, SharedDevice};
use pagetier_page::PageSize;
use pagetier_ssdcache::{OldRing, OpeningMarks, Superblock, Unverified, format, mark};
use std::sync::Arc;
use std::time::Duration;

/// The size of the part of a new HDD that a calibration uses.
const SCRATCH_BYTES: u64 = 256 << 20;

impl Config {
    /// Performs the steps of the module's list.
    #[expect(clippy::too_many_arguments, reason = "the parts of a store that has no object yet")]
    pub(super) async fn commit(
        &self,
        manifests: &Arc<ManifestStore>,
        ownership: &Arc<Ownership>,
        manifest: Manifest,
        mut lost: Option<OnlyCopies>,
        (hdd, ssd): (&SharedDevice, &SharedDevice),
        prepared: &PreparedSsd,
        page_size: PageSize,
    ) -> Result<ManifestState, OpenError> {
        let fresh = manifest.is_unused();
        let mut meta = ManifestState::new(Arc::clone(manifests), manifest, Arc::clone(ownership));
        // Keep the lock's file before the save, which continues if the open is dropped: without the file it
        // would race with the save of the next open.
        let created = ownership.keep_created();
        // The ids must be durable before a device bears them: after a crash in between, the retry would find
        // devices of a store that it does not know (I20).
        if fresh && let Err(error) = self.note(&mut meta, |_| ()).await {
            ownership.created_in_vain(created);
            return Err(error);
        }
        let formatted = prepared.format.as_ref();
        // The manifest names no ring as it names an SSD: once formatted, a ring passes for the one that the
        // store last used, and the next open would list nothing. So what is lost with it is listed first.
        if formatted.is_some_and(|superblock| superblock.layout.slots == 0)
            && let Some(lost) = lost.take()
        {
            self.note(&mut meta, |manifest| manifest.lose(lost)).await?;
        }
        if let Some(superblock) = formatted {
            // Of a ring on the HDD, whose images may be all that repairs a torn home, only a new store's is
            // empty.
            let keeps = meta.manifest.ring_on_hdd.is_some() && !fresh;
            let ring = if keeps { OldRing::Kept } else { OldRing::Wiped };
            format(ssd, superblock, self.seed(&meta.manifest.store), ring).await?;
        }
        let mut costs_ms = None;
        if fresh {
            let (store, page_bytes) = (meta.manifest.store.clone(), page_size.bytes() as u64);
            let extents_at = meta.manifest.extents_at();
            HddSuperblock { store, page_bytes, marks: OpeningMarks::default() }
                .format(hdd, extents_at)
                .await?;
            costs_ms = self.measured(&meta.manifest, hdd, ssd, prepared, page_size).await?;
        }
        let begin = |manifest: &mut Manifest| {
            // Save the epoch before anything is written under it: a second open that wrote stamps of the same
            // epoch would make recovery choose between two versions at random (I11).
            manifest.epoch += 1;
            manifest.costs_ms = costs_ms.or_else(|| manifest.costs_ms.take());
            if let Some(superblock) = formatted {
                manifest.ssd = (superblock.layout.slots > 0).then(|| id_text(superblock.ssd));
                // A new SSD holds nothing yet.
                manifest.ssd_pages = manifest.ssd_pages.take().map(|_| OnlyCopies::default());
            }
            manifest.ssd_at = manifest.ssd.is_some().then(|| self.ssd_at(&self.ssd_place(), ssd));
            // In the same save that names the new SSD, so that no crash separates them (I21).
            if let Some(lost) = lost {
                manifest.lose(lost);
            }
        };
        self.note(&mut meta, begin).await?;
        let epoch = meta.manifest.epoch;
        self.mark_devices(&mut meta, hdd, ssd).await?;
        let opened = |manifest: &mut Manifest| {
            // Last: from now on, a device without this mark is an older copy.
            manifest.opened = epoch;
            manifest.ssd_pages = None;
        };
        self.note(&mut meta, opened).await?;
        Ok(meta)
    }

    /// Step 4 of the module's list.
    async fn mark_devices(
        &self,
        meta: &mut ManifestState,
        hdd: &SharedDevice,
        ssd: &SharedDevice,
    ) -> Result<(), OpenError> {
        let Manifest { epoch, closed, .. } = meta.manifest;
        let marks = OpeningMarks { opened: epoch, closed, manifest: meta.durable_generation };
        // Read before the mark, whose flush makes this size durable. An open does not grow anything (I36).
        let hdd_bytes = hdd.size();
        if let Err(error) = mark::<HddSuperblock>(hdd, marks).await {
            // A failed flush may have lost writes of any earlier process, so the whole device counts as
            // unverified (I14).
            let unverified = Unverified { hdd: true, ..Unverified::default() };
            return Err(marking_failed(meta, error, unverified).await);
        }
        meta.hdd_bytes_durable = hdd_bytes;
        if let Err(error) = mark::<Superblock>(ssd, marks).await {
            let unverified = Unverified { ssd: true, ..Unverified::default() };
            return Err(marking_failed(meta, error, unverified).await);
        }
        Ok(())
    }

    async fn note(
        &self,
        meta: &mut ManifestState,
        edit: impl FnOnce(&mut Manifest),
    ) -> Result<(), OpenError> {
        meta.replace(edit).await.map_err(|error| {
            let source = match error {
                Error::Manifest { source } => std::io::Error::new(source.kind(), source),
                other => std::io::Error::other(other),
            };
            OpenError::directory(&meta.manifests.path(), "does not accept a new manifest", source)
        })
    }

    /// Measures the costs of a new store's devices, if the options ask for it.
    async fn measured(
        &self,
        meta: &Manifest,
        hdd: &SharedDevice,
        ssd: &SharedDevice,
        prepared: &PreparedSsd,
        page_size: PageSize,
    ) -> Result<Option<[String; 4]>, OpenError> {
        // An existing store's devices are not written to.
        let CostSource::CalibratedMs(budget_ms) = self.options.costs else { return Ok(None) };
        let (budget, extents_at) = (Duration::from_millis(budget_ms), meta.extents_at());
        // A new file ends at its superblock: the measurement needs something to write and read.
        hdd.grow(extents_at + SCRATCH_BYTES)?;
        // A ring alone has no slots. In a file of its own it may grow; on the HDD the figures are the HDD's.
        let ring_on_hdd = prepared.layout.slots == 0 && meta.ring_on_hdd.is_some();
        let (ssd, slots_at) = if ring_on_hdd { (hdd, extents_at) } else { (ssd, prepared.layout.slot_at(0)) };
        let costs = calibrate(hdd, extents_at, ssd, slots_at, page_size, budget).await?;
        tracing::info!(?costs, "the devices' costs were measured");
        let all = [costs.hdd_read_ms, costs.hdd_write_ms, costs.ssd_read_ms, costs.ssd_write_ms];
        Ok(Some(all.map(|ms| ms.to_string())))
    }
}

/// Records a failed flush. It may have lost what an earlier process wrote, so the next open must know.
async fn marking_failed(meta: &ManifestState, error: DeviceError, unverified: Unverified) -> OpenError {
    if error.op == IoOp::Flush
        && let Err(unnoted) = InManifest::of(&meta.manifests, &meta.ownership).note(&unverified).await
    {
        tracing::error!(
            %unnoted,
            "a flush failed and could not be recorded in the manifest: reboot before you open the store again"
        );
    }
    error.into()
}
