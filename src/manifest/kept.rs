//! Where the manifest is kept: in a directory, or in memory. Small changes are appended as records
//! ([`tail`]). Other changes, and those that the tail has no room for, replace the manifest atomically as a
//! whole.

use super::changes::{Change, Record};
use super::contents::{Manifest, decode, encode, with_size};
use super::file::ManifestFile;
use super::memory::MemoryManifest;
use super::only_copies::UnprovedRecord;
use super::saver::Saver;
use super::slack::Slack;
use super::tail;
use crate::error::OpenError;
use crate::tenure::held_dir::HeldDir;
use pagetier_devio::InFlight;
use pagetier_devio::task::Boxed;
use std::future::ready;
use std::io;
use std::sync::Arc;

/// The manifest's place, and its record of failed flushes, which changes independently of the rest.
#[derive(Debug)]
pub(crate) struct ManifestStore {
    place: Place,
    /// The record in a directory's manifest; locked while the manifest is written.
    unproved: parking_lot::Mutex<Option<UnprovedRecord>>,
}

#[derive(Debug)]
enum Place {
    Directory {
        file: ManifestFile,
        saver: Saver,
    },
    /// In memory: the store lives as long as the process, or any holder of the cell.
    Memory(Arc<MemoryManifest>),
}

/// Keeps the store's locks until a save has ended, even if the store is dropped meanwhile.
pub(crate) type Hold = Vec<InFlight>;

impl ManifestStore {
    pub(crate) fn memory(cell: Arc<MemoryManifest>) -> Self {
        Self::at(Place::Memory(cell))
    }

    pub(crate) fn directory(directory: Arc<HeldDir>, saver: Saver) -> Self {
        Self::at(Place::Directory { file: ManifestFile::new(directory), saver })
    }

    fn at(place: Place) -> Self {
        Self { place, unproved: parking_lot::Mutex::default() }
    }

    /// The manifest of a store whose lock is held; `None` before there is one.
    pub(crate) fn load(&self) -> Result<Option<Manifest>, OpenError> {
        let bytes = match &self.place {
            Place::Memory(cell) => cell.bytes(),
            // From here on, saves compare `manifest.json` with this file, so that they never write over
            // another store's (I40).
            Place::Directory { file, .. } => file.adopt().map_err(|e| unreadable(file, e))?,
        };
        let manifest = bytes.map(|b| decode(&b)).transpose()?;
        // Saves take the record from here, not from the caller's manifest: that copy may date from before a
        // flush failed.
        *self.unproved.lock() = manifest.as_ref().and_then(|m| m.unproved.clone());
        Ok(manifest)
    }

    /// The manifest's present bytes; `None` before there is one.
    pub(crate) fn bytes(&self) -> Result<Option<Vec<u8>>, OpenError> {
        match &self.place {
            Place::Memory(cell) => Ok(cell.bytes()),
            Place::Directory { file, .. } => file.read().map_err(|e| unreadable(file, e)),
        }
    }

    /// Begins `save`, which holds `hold` until it ends. Its result arrives later: it runs beside the
    /// runtime's tasks, after the saves that began before it, and to its end. A manifest in memory is saved
    /// at once, so that stores on simulated devices need no threads.
    fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        hold: Hold,
        save: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Boxed<'static, io::Result<T>> {
        let Place::Directory { saver, .. } = &self.place else { return Box::pin(ready(save(self))) };
        let store = Arc::clone(self);
        let begun = saver.begin(move || {
            let saved = save(&store);
            // Before the caller learns of it: a store that is closed leaves no file open.
            drop((store, hold));
            saved
        });
        Box::pin(async { begun.await.unwrap_or_else(|| Err(io::Error::other("a save panicked"))) })
    }

    /// Replaces the manifest durably, except [`Manifest::unproved`], which it keeps; returns it. After an
    /// error either version may be found later, and so it may if the result is dropped.
    pub(crate) fn save(
        self: &Arc<Self>,
        mut manifest: Manifest,
        slack: Slack,
        hold: Hold,
    ) -> Boxed<'static, io::Result<Manifest>> {
        self.begin(hold, move |store| {
            // Read under the lock, at the moment of the save: a flush may have failed since the caller copied
            // the manifest, and a save without its record would make the store trust what was never durable
            // (I14).
            let noted = store.unproved.lock();
            manifest.unproved = store.noted(&noted);
            store.replace(&manifest, slack).map(|()| manifest)
        })
    }

    /// Appends `change`, which gives the manifest this generation. Returns true once it is durable; false,
    /// without effect, when there is no room and the manifest must be replaced. After an error a later
    /// opening may or may not find the change, and the next change must replace the manifest; the same holds
    /// if the result is dropped.
    pub(crate) fn append(
        self: &Arc<Self>,
        generation: u64,
        change: &Change,
        slack: Slack,
        hold: Hold,
    ) -> Boxed<'static, io::Result<bool>> {
        let change = change.clone();
        self.begin(hold, move |store| {
            // Excludes a replacement of the manifest meanwhile.
            let _noted = store.unproved.lock();
            // The number makes a gap visible: a record that was lost between two others must not go unnoticed
            // (I27).
            let json = |n| serde_json::to_vec(&Record { n, generation, change });
            match &store.place {
                Place::Memory(cell) => cell.append(json),
                Place::Directory { file, .. } => file.append(json, slack),
            }
        })
    }

    /// What failed flushes left unproved.
    pub(crate) fn unproved(&self) -> Option<UnprovedRecord> {
        self.noted(&self.unproved.lock())
    }

    /// Changes what failed flushes left unproved, durably; keeps the rest of the manifest.
    pub(crate) fn change_unproved(
        self: &Arc<Self>,
        change: impl FnOnce(Option<UnprovedRecord>) -> Option<UnprovedRecord> + Send + 'static,
        hold: Hold,
    ) -> Boxed<'static, io::Result<()>> {
        self.begin(hold, move |store| {
            let mut noted = store.unproved.lock();
            let unproved = change(store.noted(&noted));
            // Starts from the file, not from the manifest in memory: a flush may fail while the store is
            // half-way through a change, which this save must not make durable.
            let bytes = match &store.place {
                Place::Memory(cell) => cell.bytes(),
                Place::Directory { file, .. } => file.read_ours()?,
            };
            let manifest = bytes.map(|b| decode(&b)).transpose().map_err(io::Error::other)?;
            let manifest = manifest.ok_or_else(|| io::Error::other("there is no manifest"))?;
            store.replace(&Manifest { unproved: unproved.clone(), ..manifest }, Slack::Use)?;
            // Only after the save: if it failed, the next save must still carry the old record.
            *noted = unproved;
            Ok(())
        })
    }

    /// The record in effect. A manifest in memory is not locked against a second store, so its own record
    /// counts.
    fn noted(&self, in_directory: &Option<UnprovedRecord>) -> Option<UnprovedRecord> {
        match &self.place {
            Place::Directory { .. } => in_directory.clone(),
            Place::Memory(cell) => cell.bytes().and_then(|b| decode(&b).ok()).and_then(|m| m.unproved),
        }
    }

    fn replace(&self, manifest: &Manifest, slack: Slack) -> io::Result<()> {
        match &self.place {
            Place::Memory(cell) => cell.put(encode(manifest)?),
            Place::Directory { file, .. } => {
                let json = serde_json::to_vec(manifest)?;
                file.replace(&|size| tail::sealed(&with_size(&json, size), 0), slack)
            }
        }
    }
}

fn unreadable(file: &ManifestFile, error: io::Error) -> OpenError {
    OpenError::directory(file.directory().path(), "has an unreadable manifest", error)
}
