//! What an opening writes before it recovers: who the devices belong to, and that it takes place.
//!
//! 1. A new store only: the manifest, with the store's id. Devices that bear it are its own, however the
//!    opening ends.
//! 2. Devices that are new are formatted.
//! 3. The manifest: the number of this opening; the id of a new SSD, and what is lost with the one before it.
//! 4. The HDD, then the SSD note the number. Each is flushed, which also makes durable what a killed process
//!    left readable.
//! 5. The manifest notes that they have. Before that nothing else is written.

use super::Builder;
use super::check::PreparedSsd;
use super::open::id_text;
use crate::calibrate::calibrate;
use crate::error::{Error, OpenError};
use crate::loss::added;
use crate::manifest::{Manifest, ManifestStore, OnlyCopies};
use crate::store::Meta;
use crate::unproved::InManifest;
use crate::volume::{DATA_AT, HddSuperblock};
use pagetier_devio::{DeviceError, Fence, IoOp, SharedDevice};
use pagetier_page::PageSize;
use pagetier_ssdcache::{Marks, Mutation, Unproved, format, mark};
use std::sync::Arc;

/// How much of a new HDD a calibration uses.
const SCRATCH_BYTES: u64 = 256 << 20;

impl Builder {
    /// See the module.
    #[expect(clippy::too_many_arguments, reason = "the parts of a store that has no object yet")]
    pub(super) async fn commit(
        &self,
        manifests: &Arc<ManifestStore>,
        fence: Fence,
        manifest: Manifest,
        lost: Option<OnlyCopies>,
        hdd: &SharedDevice,
        ssd: &SharedDevice,
        prepared: &PreparedSsd,
        page_size: PageSize,
    ) -> Result<Meta, OpenError> {
        let fresh = manifest.is_unused();
        let mut meta = Meta::new(Arc::clone(manifests), manifest, fence, self.broken());
        if fresh && !self.broken().is(Mutation::FirstOpeningUnnamed) {
            self.note(&mut meta, |_| ())?;
        }
        let formatted = prepared.format.as_ref();
        if let Some(superblock) = formatted {
            format(ssd, superblock, self.seed(&meta.manifest.store)).await?;
        }
        let mut costs_ms = None;
        let mut leftovers_to = meta.manifest.leftovers_to;
        if fresh {
            let (store, page_bytes) = (meta.manifest.store.clone(), page_size.bytes() as u64);
            HddSuperblock { store, page_bytes, marks: Marks::default() }.format(hdd).await?;
            costs_ms = self.measured(hdd, ssd, prepared, page_size).await?;
            leftovers_to = hdd.size();
        }
        self.note(&mut meta, |manifest| {
            manifest.epoch += 1;
            manifest.leftovers_to = leftovers_to;
            manifest.costs_ms = costs_ms.or_else(|| manifest.costs_ms.take());
            if self.broken().is(Mutation::LossForgotten) {
                manifest.loss = None;
            }
            if let Some(superblock) = formatted {
                manifest.ssd = (superblock.layout.slots > 0).then(|| id_text(superblock.ssd));
                // It holds nothing yet.
                manifest.ssd_pages = manifest.ssd_pages.take().map(|_| OnlyCopies::default());
            }
            if let Some(lost) = lost.filter(|_| !self.broken().is(Mutation::LossUnrecorded)) {
                manifest.loss = added(manifest.loss.take(), lost);
            }
        })?;
        let epoch = meta.manifest.epoch;
        if !self.broken().is(Mutation::RecoveryUnflushed) {
            self.mark_devices(manifests, &mut meta, hdd, ssd).await?;
        }
        self.note(&mut meta, |manifest| {
            manifest.opened = epoch;
            manifest.ssd_pages = None;
        })?;
        Ok(meta)
    }

    /// Step 4.
    async fn mark_devices(
        &self,
        manifests: &Arc<ManifestStore>,
        meta: &mut Meta,
        hdd: &SharedDevice,
        ssd: &SharedDevice,
    ) -> Result<(), OpenError> {
        let Manifest { epoch, closed, .. } = meta.manifest;
        let marks = Marks { opened: epoch, closed, manifest: meta.durable_generation };
        let hdd_bytes = hdd.size();
        let marked = HddSuperblock::mark(hdd, marks).await;
        marked
            .map_err(|e| self.marking_failed(manifests, e, Unproved { hdd: true, ..Unproved::default() }))?;
        meta.hdd_bytes_durable = hdd_bytes;
        let marked = mark(ssd, marks).await;
        marked.map_err(|e| self.marking_failed(manifests, e, Unproved { ssd: true, ..Unproved::default() }))
    }

    /// A flush that fails here takes with it what an earlier process has written: the next opening must know.
    fn marking_failed(
        &self,
        manifests: &Arc<ManifestStore>,
        error: DeviceError,
        unproved: Unproved,
    ) -> OpenError {
        if error.op == IoOp::Flush
            && let Some(tenure) = &self.tenure
            && let Err(unnoted) = InManifest::of(manifests, tenure).note(&unproved)
        {
            tracing::error!(%unnoted, "a failed flush could not be noted in the manifest");
        }
        error.into()
    }

    fn note(&self, meta: &mut Meta, edit: impl FnOnce(&mut Manifest)) -> Result<(), OpenError> {
        meta.replace(edit).map_err(|error| {
            let source = match error {
                Error::Manifest { source } => source,
                other => std::io::Error::other(other),
            };
            OpenError::directory(&self.directory.clone().unwrap_or_default(), "took no new manifest", source)
        })
    }

    /// What the devices of a new store cost, if they are to be measured.
    async fn measured(
        &self,
        hdd: &SharedDevice,
        ssd: &SharedDevice,
        prepared: &PreparedSsd,
        page_size: PageSize,
    ) -> Result<Option<[String; 4]>, OpenError> {
        let Some(budget) = self.calibrate.filter(|_| self.costs.is_none()) else { return Ok(None) };
        hdd.grow(DATA_AT + SCRATCH_BYTES)?;
        let slots_at = prepared.layout.slot_at(0);
        let costs = calibrate(hdd, DATA_AT, ssd, slots_at, page_size, budget).await?;
        tracing::info!(?costs, "calibrated");
        let all = [costs.hdd_read_ms, costs.hdd_write_ms, costs.ssd_read_ms, costs.ssd_write_ms];
        Ok(Some(all.map(|ms| ms.to_string())))
    }
}
