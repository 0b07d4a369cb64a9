//! The manifest in memory, and how it is saved.

use crate::error::Error;
use crate::manifest::changes::{Change, Slack};
use crate::manifest::contents::Manifest;
use crate::manifest::file::NotOurs;
use crate::manifest::manifest_store::{Hold, ManifestStore};
use crate::ownership::lock::Ownership;
use crate::volume::table::Volume;
use pagetier_devio::task::Boxed;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The manifest in memory. Its mutex serialises changes and is held while the manifest is written.
///
/// A save whose future is dropped continues, and counts as one that failed: what it wrote is unverified, so
/// the next save replaces the file, and the next `sync` sees to it that there is one (I41).
#[derive(Debug)]
pub(crate) struct ManifestState {
    pub(crate) manifests: Arc<ManifestStore>,
    /// The contents last saved, with the generation last attempted.
    pub(crate) manifest: Manifest,
    /// Ends when the store is dropped: no save begins after that.
    pub(crate) ownership: Arc<Ownership>,
    /// The last generation known to be durable.
    pub(crate) durable_generation: u64,
    /// The number of bytes the HDD is known to have after a crash. Its current size may be larger: a growth
    /// is durable only after a flush.
    pub(crate) hdd_bytes_durable: u64,
    /// A failed save may have taken effect after all, and would drop a space or free a page: `sync`
    /// promises nothing until a save succeeds.
    pub(crate) doubtful: Arc<AtomicBool>,
    /// The file may differ from `manifest`: the next save replaces it.
    differs: bool,
}

impl ManifestState {
    pub(crate) fn new(manifests: Arc<ManifestStore>, manifest: Manifest, ownership: Arc<Ownership>) -> Self {
        let durable_generation = manifest.generation;
        let doubtful = Arc::default();
        let (differs, hdd_bytes_durable) = (true, 0);
        Self { manifests, manifest, ownership, durable_generation, hdd_bytes_durable, doubtful, differs }
    }

    /// Appends `change` to the file, or replaces the file if the change cannot be appended. The caller then
    /// applies the same change to the volume. On failure nothing has changed in memory; the disk may or may
    /// not hold the change.
    pub(crate) async fn append(&mut self, volume: &Volume, change: &Change) -> Result<(), Error> {
        // After a failed save the file may hold more or less than the manifest in memory: a record behind it
        // would apply to the wrong contents (I41).
        let appended = !self.differs && self.append_record(change).await?;
        if appended {
            // The next open applies the same record to the same manifest.
            return self.manifest.apply(change).map_err(|why| failed(io::Error::other(why)));
        }
        // No room in the tail, or the file is unverified: write everything anew, the change included.
        let mut applied = Ok(());
        let replaced = self.replace_with(self.slack_for(change), |manifest| {
            volume.record(manifest);
            applied = manifest.apply(change);
        });
        replaced.await?;
        applied.map_err(|why| failed(io::Error::other(why)))
    }

    fn slack_for(&self, change: &Change) -> Slack {
        match change {
            // Growing must leave room for what shrinking needs: on a full disk, dropping a space must still
            // work (I36).
            Change::Add { .. } | Change::Grow { .. } => Slack::Keep,
            Change::Cut { .. } | Change::BeginDrop { .. } | Change::EndDrop { .. } => Slack::Use,
            _ => Slack::Half,
        }
    }

    async fn append_record(&mut self, change: &Change) -> Result<bool, Error> {
        let slack = self.slack_for(change);
        // Raised even if the attempt fails: the file may have the record, and two different changes must not
        // carry one generation.
        let before = self.manifest.generation;
        self.manifest.generation += 1;
        let generation = self.manifest.generation;
        let appended =
            self.saved(|manifests, hold| manifests.append(generation, change, slack, hold)).await?;
        self.differs = false;
        if appended {
            self.durable_generation = generation;
        } else {
            // Nothing was written, so the number is still unused.
            self.manifest.generation = before;
        }
        Ok(appended)
    }

    /// Performs the save that `begin` begins. Until it has succeeded, the file differs from the manifest in
    /// memory.
    async fn saved<T>(
        &mut self,
        begin: impl FnOnce(&Arc<ManifestStore>, Hold) -> Boxed<'static, io::Result<T>>,
    ) -> Result<T, Error> {
        // Before the save begins: if this future is dropped while it runs, the next change must not trust the
        // file (I41).
        self.differs = true;
        // A dropped store may have a successor that has already read the manifest: no save may begin any
        // more. One that has begun takes the locks along (I18, I41).
        let begun = self.ownership.begin(|hold| begin(&self.manifests, hold));
        let save = begun.ok_or_else(|| failed(io::Error::other("the store was closed or dropped")))?;
        let unfinished = Unfinished { doubtful: &self.doubtful };
        let saved = save.await;
        // The save has ended, whatever its result: only a caller that gave up leaves it unverified.
        std::mem::forget(unfinished);
        saved.map_err(failed)
    }

    /// Saves the manifest if the file may differ from it.
    pub(crate) async fn settle(&mut self, volume: &Volume) -> Result<(), Error> {
        if self.differs { self.save(volume).await } else { Ok(()) }
    }

    /// Changes the manifest in memory: the next save replaces the file.
    pub(crate) fn change_in_memory(&mut self, edit: impl FnOnce(&mut Manifest)) {
        edit(&mut self.manifest);
        self.differs = true;
    }

    /// Saves the manifest with the volume's page counts as they are in memory.
    pub(crate) async fn save(&mut self, volume: &Volume) -> Result<(), Error> {
        self.change(volume, |_| ()).await
    }

    /// Like [`ManifestState::save`], after `edit`. On failure nothing has changed in memory; the disk may
    /// hold either version.
    pub(crate) async fn change(
        &mut self,
        volume: &Volume,
        edit: impl FnOnce(&mut Manifest),
    ) -> Result<(), Error> {
        let edited = self.replace(|manifest| {
            volume.record(manifest);
            edit(manifest);
        });
        edited.await
    }

    /// Like [`ManifestState::change`], but without a volume, which does not exist early in an open.
    pub(crate) async fn replace(&mut self, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        self.replace_with(Slack::Use, edit).await
    }

    async fn replace_with(&mut self, least: Slack, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        // Edited as a copy: if the save fails, memory keeps the old contents, and the caller has changed
        // nothing.
        let mut next = self.manifest.clone();
        edit(&mut next);
        next.set_format();
        next.generation = self.manifest.generation + 1;
        self.manifest.generation = next.generation;
        // The contents may name more than the caller says, for example after a record that could not be
        // appended. The stricter of the two counts.
        let slack = match next.slack_after(&self.manifest) {
            Slack::Use => least,
            other => other,
        };
        let next = self.saved(|manifests, hold| manifests.save(next, slack, hold)).await?;
        self.differs = false;
        self.durable_generation = next.generation;
        self.manifest = next;
        // The whole file is ours and durable: whatever an earlier save may have left is overwritten.
        self.doubtful.store(false, Ordering::Release);
        Ok(())
    }
}

/// Dropped: the caller of a save does not wait for its end.
struct Unfinished<'a> {
    doubtful: &'a AtomicBool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.doubtful.store(true, Ordering::Release);
    }
}

fn failed(source: io::Error) -> Error {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<NotOurs>()) {
        Some(NotOurs { path }) => Error::ForeignManifest { path: path.clone() },
        None => Error::Manifest { source: Arc::new(source) },
    }
}
