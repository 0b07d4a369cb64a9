//! The manifest in memory, and how it is saved.

use crate::changes::Change;
use crate::error::Error;
use crate::manifest::{Manifest, ManifestStore};
use crate::replace::Slack;
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
    /// A failed save may have taken effect after all, and would remove a space or free a page: `sync`
    /// promises nothing until a save succeeds.
    pub(crate) doubtful: Arc<AtomicBool>,
    /// The file may differ from `manifest`: the next save replaces it.
    differs: bool,
    rules: Rules,
}

impl Meta {
    pub(crate) fn new(manifests: Arc<ManifestStore>, manifest: Manifest, fence: Fence, rules: Rules) -> Self {
        let durable_generation = manifest.generation;
        let doubtful = Arc::default();
        let (differs, hdd_bytes_durable) = (true, 0);
        Self { manifests, manifest, fence, durable_generation, hdd_bytes_durable, doubtful, differs, rules }
    }

    /// Appends `change` to the file, or replaces the file if the change cannot be appended. The caller then
    /// applies the same change to the volume. On failure nothing has changed in memory; the disk may or may
    /// not hold the change.
    pub(crate) fn append(&mut self, volume: &Volume, change: &Change) -> Result<(), Error> {
        let appended = self.rules.appends(self.differs) && self.append_record(change)?;
        if appended {
            // The next opening applies the same record to the same manifest.
            return self.manifest.apply(change).map_err(|why| failed(std::io::Error::other(why)));
        }
        let mut applied = Ok(());
        self.replace_with(self.slack_for(change), |manifest| {
            volume.record(manifest);
            applied = manifest.apply(change);
        })?;
        applied.map_err(|why| failed(std::io::Error::other(why)))
    }

    fn slack_for(&self, change: &Change) -> Slack {
        match change {
            more if more.names_more() => self.rules.slack(Slack::Keep),
            less if less.names_less() => Slack::Use,
            _ => Slack::Half,
        }
    }

    fn append_record(&mut self, change: &Change) -> Result<bool, Error> {
        let slack = self.slack_for(change);
        let generation = self.manifest.generation + 1;
        let append = || self.manifests.append(generation, change, slack);
        let appended = self.fence.while_open(append).unwrap_or_else(closed);
        self.differs = appended.is_err();
        if !matches!(appended, Ok(false)) {
            self.manifest.generation = generation;
        }
        if matches!(appended, Ok(true)) {
            self.durable_generation = generation;
        }
        appended.map_err(failed)
    }

    /// Saves the manifest if the file may differ from it.
    pub(crate) fn settle(&mut self, volume: &Volume) -> Result<(), Error> {
        if self.differs { self.save(volume) } else { Ok(()) }
    }

    /// Changes the manifest in memory: the next save replaces the file.
    pub(crate) fn change_in_memory(&mut self, edit: impl FnOnce(&mut Manifest)) {
        edit(&mut self.manifest);
        self.differs = true;
    }

    /// Saves the manifest with the volume's page counts as they are in memory.
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
        self.replace_with(Slack::Use, edit)
    }

    fn replace_with(&mut self, least: Slack, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        let mut next = self.manifest.clone();
        edit(&mut next);
        next.generation = self.manifest.generation + 1;
        self.manifest.generation = next.generation;
        let slack = match next.slack_after(&self.manifest) {
            Slack::Use => least,
            other => self.rules.slack(other),
        };
        self.differs = true;
        let saved = self.fence.while_open(|| self.manifests.save(&next, slack)).unwrap_or_else(closed);
        saved.map_err(failed)?;
        self.differs = false;
        self.durable_generation = next.generation;
        self.manifest = next;
        self.doubtful.store(false, Ordering::Release);
        Ok(())
    }
}

fn closed<T>() -> std::io::Result<T> {
    Err(std::io::Error::other("the store was closed or dropped"))
}

fn failed(source: std::io::Error) -> Error {
    Error::Manifest { source: Arc::new(source) }
}
