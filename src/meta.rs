//! The manifest in memory, and how it is saved.

use crate::error::Error;
use crate::manifest::{Manifest, ManifestStore};
use crate::rules::Rules;
use crate::volume::Volume;
use pagetier_devio::Fence;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The manifest in memory. Its mutex serialises changes and is held while the manifest is written.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) manifests: Arc<ManifestStore>,
    /// The contents last saved, with the generation last attempted.
    pub(crate) manifest: Manifest,
    /// Closed when the store is dropped: no manifest is written after that.
    pub(crate) fence: Fence,
    /// The last generation known to be durable.
    pub(crate) durable_generation: u64,
    /// The number of bytes the HDD is known to have after a crash. Its current size may be larger: a growth
    /// is durable only after a flush.
    pub(crate) hdd_bytes_durable: u64,
    /// A failed save may have taken effect and would remove a space: `sync` promises nothing until a save
    /// succeeds.
    pub(crate) doubtful: Arc<AtomicBool>,
    rules: Rules,
}

impl Meta {
    pub(crate) fn new(manifests: Arc<ManifestStore>, manifest: Manifest, fence: Fence, rules: Rules) -> Self {
        let durable_generation = manifest.generation;
        let doubtful = Arc::default();
        Self { manifests, manifest, fence, durable_generation, hdd_bytes_durable: 0, doubtful, rules }
    }

    /// Saves the manifest with the volume's table as it is in memory.
    pub(crate) fn save(&mut self, volume: &Volume) -> Result<(), Error> {
        self.change(volume, |_| ())
    }

    /// Like [`Meta::save`], after `edit`. On failure nothing has changed in memory; the disk may hold either
    /// version.
    pub(crate) fn change(&mut self, volume: &Volume, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        self.replace(|manifest| {
            volume.record(manifest);
            edit(manifest);
        })
    }

    /// Like [`Meta::change`], but without a volume, which does not exist early in an opening.
    pub(crate) fn replace(&mut self, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        let mut next = self.manifest.clone();
        edit(&mut next);
        next.generation = self.manifest.generation + 1;
        self.manifest.generation = next.generation;
        let closed = || Err(std::io::Error::other("the store was closed or dropped"));
        let slack = self.rules.slack(next.slack_after(&self.manifest));
        let saved = self.fence.while_open(|| self.manifests.save(&next, slack)).unwrap_or_else(closed);
        saved.map_err(|source| Error::Manifest { source })?;
        self.durable_generation = next.generation;
        self.manifest = next;
        self.doubtful.store(false, Ordering::Release);
        Ok(())
    }
}
