//! Where the manifest is kept: in areas of a file or of the volume, or in memory. Small changes are appended
//! as records ([`tail`](super::tail)). Other changes, and those that the tail has no room for, replace the
//! manifest atomically as a whole.

use super::areas::Areas;
use super::changes::{Change, Record, Slack};
use super::contents::{Manifest, decode, encode};
use super::medium::Medium;
use super::memory::MemoryManifest;
use super::only_copies::UnverifiedRecord;
use super::saver::{Saver, at_once};
use crate::error::OpenError;
use pagetier_devio::task::Boxed;
use pagetier_devio::{InFlight, SharedDevice};
use std::future::ready;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The manifest's place, and its record of failed flushes, which changes independently of the rest.
#[derive(Debug)]
pub(crate) struct ManifestStore {
    place: Place,
    /// The record in the manifest of a directory or a volume. Saves, which run one at a time, change it.
    unverified: parking_lot::Mutex<Option<UnverifiedRecord>>,
}

#[derive(Debug)]
enum Place {
    /// In the directory, or at the head of the HDD.
    Areas(Box<Areas>, Saver),
    /// In memory: the store lives as long as the process, or any holder of the cell.
    Memory(Arc<MemoryManifest>),
}

/// Keeps the store's locks until a save has ended, even if the store is dropped meanwhile.
pub(crate) type Hold = Vec<InFlight>;

impl ManifestStore {
    pub(crate) fn memory(cell: Arc<MemoryManifest>) -> Self {
        Self::at(Place::Memory(cell))
    }

    pub(crate) fn areas(areas: Areas, saver: Saver) -> Self {
        Self::at(Place::Areas(Box::new(areas), saver))
    }

    fn at(place: Place) -> Self {
        Self { place, unverified: parking_lot::Mutex::default() }
    }

    /// The manifest of a store whose lock is held; `None` before there is one.
    pub(crate) async fn load(&self) -> Result<Option<Manifest>, OpenError> {
        let manifest = self.bytes().await?.map(|b| decode(&b)).transpose()?;
        // Saves take the record from here, not from the caller's manifest: that copy may date from before a
        // flush failed.
        *self.unverified.lock() = manifest.as_ref().and_then(|m| m.unverified.clone());
        Ok(manifest)
    }

    /// The manifest's present bytes; `None` before there is one.
    pub(crate) async fn bytes(&self) -> Result<Option<Vec<u8>>, OpenError> {
        let areas = match &self.place {
            Place::Memory(cell) => return Ok(cell.bytes()),
            Place::Areas(areas, _) => areas,
        };
        areas.load().await.map_err(|e| match (e.downcast::<OpenError>(), areas.medium()) {
            (Ok(format), _) => format,
            (Err(e), Medium::File(_)) if e.kind() == io::ErrorKind::InvalidData => {
                OpenError::BadManifest { why: e.to_string() }
            }
            (Err(e), _) => OpenError::directory(&self.path(), "has an unreadable manifest", e),
        })
    }

    /// Where it is, for errors.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.place {
            Place::Areas(areas, _) => areas.medium().path(),
            Place::Memory(_) => PathBuf::new(),
        }
    }

    /// The HDD, if it has the manifest.
    pub(crate) fn volume_device(&self) -> Option<&SharedDevice> {
        match &self.place {
            Place::Areas(areas, _) => areas.medium().hdd(),
            Place::Memory(_) => None,
        }
    }

    /// The end of the manifest's areas on the HDD, in bytes; `None`: it is elsewhere.
    pub(crate) fn areas_end(&self) -> Option<u64> {
        match &self.place {
            Place::Areas(areas, _) => areas.medium().hdd().map(|_| areas.end()),
            Place::Memory(_) => None,
        }
    }

    /// Begins `save`, which holds `hold` until it ends. Its result arrives later: it runs beside the
    /// runtime's tasks, after the saves that began before it, and to its end. A manifest in memory is saved
    /// at once, so that stores on simulated devices need no threads.
    fn begin<T: Send + 'static, F: Future<Output = io::Result<T>> + Send + 'static>(
        self: &Arc<Self>,
        hold: Hold,
        save: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) -> Boxed<'static, io::Result<T>> {
        let store = Arc::clone(self);
        match &self.place {
            Place::Memory(_) => Box::pin(ready(at_once(save(store)))),
            Place::Areas(_, saver) => saver.begin(async move {
                let saved = save(store).await;
                // Release it before the caller learns of the end: a store that is closed leaves no file open.
                drop(hold);
                saved
            }),
        }
    }

    /// Replaces the manifest durably, except [`Manifest::unverified`], which it keeps; returns it. After an
    /// error either version may be found later, and so it may if the result is dropped.
    pub(crate) fn save(
        self: &Arc<Self>,
        mut manifest: Manifest,
        slack: Slack,
        hold: Hold,
    ) -> Boxed<'static, io::Result<Manifest>> {
        self.begin(hold, move |store| async move {
            // Read at the moment of the save, which no other accompanies: a flush may have failed since the
            // caller copied the manifest, and a save without its record would make the store trust what was
            // never durable (I14).
            manifest.unverified = store.unverified();
            store.replace(&manifest, slack).await.map(|()| manifest)
        })
    }

    /// Appends `change`, which gives the manifest this generation. Returns true once it is durable; false,
    /// without effect, when there is no room and the manifest must be replaced. After an error a later
    /// open may or may not find the change, and the next change must replace the manifest; the same holds
    /// if the result is dropped.
    pub(crate) fn append(
        self: &Arc<Self>,
        generation: u64,
        change: &Change,
        slack: Slack,
        hold: Hold,
    ) -> Boxed<'static, io::Result<bool>> {
        let change = change.clone();
        self.begin(hold, move |store| async move {
            // The number makes a gap visible: a record that was lost between two others must not go unnoticed
            // (I41).
            let json = |n| serde_json::to_vec(&Record { n, generation, change });
            match &store.place {
                Place::Memory(cell) => cell.append(json),
                Place::Areas(areas, _) => areas.append(json, slack).await,
            }
        })
    }

    /// What failed flushes left unverified.
    pub(crate) fn unverified(&self) -> Option<UnverifiedRecord> {
        match &self.place {
            Place::Areas(..) => self.unverified.lock().clone(),
            // A manifest in memory is not locked against a second store, so its own record counts.
            Place::Memory(cell) => cell.bytes().and_then(|b| decode(&b).ok()).and_then(|m| m.unverified),
        }
    }

    /// Changes what failed flushes left unverified, durably; keeps the rest of the manifest.
    pub(crate) fn change_unverified(
        self: &Arc<Self>,
        change: impl FnOnce(Option<UnverifiedRecord>) -> Option<UnverifiedRecord> + Send + 'static,
        hold: Hold,
    ) -> Boxed<'static, io::Result<()>> {
        self.begin(hold, move |store| async move {
            let unverified = change(store.unverified());
            // Start from the manifest on the disk, not from the one in memory: a flush may fail while the
            // store is half-way through a change, which this save must not make durable.
            let bytes = match &store.place {
                Place::Memory(cell) => cell.bytes(),
                Place::Areas(areas, _) => areas.read().await?,
            };
            let manifest = bytes.map(|b| decode(&b)).transpose().map_err(io::Error::other)?;
            let manifest = manifest.ok_or_else(|| io::Error::other("there is no manifest"))?;
            let noted = Manifest { unverified: unverified.clone(), ..manifest };
            store.replace(&noted, Slack::Use).await?;
            // Only after the save: if it failed, the next save must still carry the old record.
            *store.unverified.lock() = unverified;
            Ok(())
        })
    }

    async fn replace(&self, manifest: &Manifest, slack: Slack) -> io::Result<()> {
        match &self.place {
            Place::Memory(cell) => cell.put(encode(manifest)?),
            Place::Areas(areas, _) => areas.replace(&serde_json::to_vec(manifest)?, slack).await,
        }
    }
}
