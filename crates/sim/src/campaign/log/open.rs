//! Opens a store with its log, and checks everything that it shows.

use super::disk::LogDisk;
use super::media::Inline;
use super::model::{Found, Model, SpaceState};
use super::terms::Terms;
use super::watch::Watch;
use crate::campaign::draw::plan::Plan;
use crate::campaign::world::disks::{Disks, SharedDisks};
use pagetier::{Builder, Error, MemoryManifest, PageId, PageStore, SpaceId};
use pagetier_devio::SharedDevice;
use pagetier_testing::SimDevice;
use pagetier_wal::{LoggedStore, Media, Wal, blocking};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The time in which a store that was dropped, or refused, ends its operations.
pub(super) const LEAVES: Duration = Duration::from_secs(10);

/// Which parts an open gets other than the store's own.
#[derive(Default)]
pub(super) struct Parts {
    /// The log.
    pub(super) log: Option<LogDisk>,
    /// The SSD, and the ring, are lost; true: a blank SSD is in their place.
    pub(super) lost: Option<bool>,
    /// Where the log is archived.
    pub(super) archive: Option<PathBuf>,
}

/// Opens the store, perhaps with other parts.
pub(super) async fn open(watch: &Arc<Watch>, plan: &Plan, parts: &Parts) -> Result<LoggedStore, String> {
    let log = match &parts.log {
        Some(log) => log.media(|device| Arc::clone(device) as SharedDevice),
        None => watch.log_media(),
    };
    let builder = plan.builder_on(watch.devices(), &watch.manifest);
    let builder = match parts.lost {
        None => builder,
        Some(blank) => without_ssd(builder, plan, &watch.manifest, watch, blank),
    };
    on(watch, builder, log, (Terms::of(plan), parts.archive.as_deref())).await
}

fn without_ssd(
    whole: Builder,
    plan: &Plan,
    manifest: &Arc<MemoryManifest>,
    watch: &Arc<Watch>,
    blank: bool,
) -> Builder {
    let device = |name| Arc::new(SimDevice::new(name, 0, 9, &watch.power)) as SharedDevice;
    if blank {
        return whole.ssd(device("ssd")).accept_ssd_loss(true);
    }
    let builder = plan.with_manifest(manifest).hdd(watch.devices().hdd);
    let builder = builder.ssd_bytes(0).accept_ssd_loss(true);
    if plan.on_hdd > 0 { builder } else { builder.ring_device(device("ring")) }
}

/// Opens the store that `builder` describes with the log on this medium, kept on these terms and archived.
pub(super) async fn on(
    watch: &Arc<Watch>,
    builder: Builder,
    log: io::Result<Box<dyn Media>>,
    (terms, archive): (Terms, Option<&Path>),
) -> Result<LoggedStore, String> {
    let media = log.map_err(|error| format!("log: {error}"))?;
    let wal = Wal::on(Box::new(Inline::new(media, watch)), terms.options()).map_err(|e| causes(&e))?;
    // Before the store opens: from then on the log may be shortened, and no segment may go before the
    // archive has it (I46).
    archive.map_or(Ok(()), |archive| wal.archive_to(archive)).map_err(|e| causes(&e))?;
    LoggedStore::on(builder, wal).await.map_err(|error| {
        // No error may be without advice: each one that occurs here is asked for it.
        let _ = error.advice();
        causes(&error)
    })
}

/// An error with its causes.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    pagetier::errors::Causes(error).to_string()
}

/// What a check of an opened store has seen.
pub(super) struct Seen {
    pub(super) pages: u64,
    found: BTreeMap<PageId, Found>,
}

impl Seen {
    /// Continues the model from what was found.
    pub(super) fn settle(mut self, model: &mut Model, end: u64) {
        model.settle(end, |page| self.found.remove(&page).unwrap_or(Found::Absent));
    }
}

/// Checks that the store shows every record up to where its log was recovered, and none after it; that this
/// is at least up to `floor`; and that nothing was freed twice or not at all. `newer`: pages may be newer
/// than the log, whose last records were lost.
pub(super) async fn check(
    db: &LoggedStore,
    model: &mut Model,
    floor: u64,
    newer: bool,
) -> Result<(Seen, u64), String> {
    let end = db.wal().end().0;
    if end < floor {
        return Err(format!("the log ends at {end}, though it was acknowledged up to {floor}"));
    }
    // Spaces first: pages are absent rightly if theirs is gone.
    spaces(db, model)?;
    let mut seen = Seen { pages: 0, found: BTreeMap::new() };
    for page in model.known_pages() {
        seen.pages += 1;
        let found = look(db, page).await?;
        model.judge(page, &found, end, newer)?;
        seen.found.insert(page, found);
    }
    // A log that has lost its end says nothing about the commits there.
    if !newer && !model.uncertain {
        let commits: Vec<u64> = db.recovered().commits.keys().map(|lsn| lsn.0).collect();
        let expected = model.to_repeat(end);
        if commits != expected {
            return Err(format!("the commits to repeat are {commits:?}, expected {expected:?}"));
        }
    }
    // Redo makes up for every page that was lost, and the recovery then acknowledges the loss.
    if db.ssd().loss().is_some() {
        return Err("a loss of the SSD is still reported after a recovery".to_owned());
    }
    db.validate()?;
    Ok((seen, end))
}

/// What a page reads as.
pub(super) async fn look(store: &PageStore, page: PageId) -> Result<Found, String> {
    match store.get(page).await {
        Ok(guard) => Ok(Found::Bytes(guard[..].into())),
        Err(Error::NoSuchPage { .. }) => Ok(Found::Absent),
        Err(error) => Err(format!("page {page}: {}", causes(&error))),
    }
}

/// Checks that the spaces are there which no record drops.
fn spaces(db: &LoggedStore, model: &mut Model) -> Result<(), String> {
    for (id, name, state) in model.spaces() {
        let there = db.spaces().find(&name) == Some(id);
        match (state, there) {
            (SpaceState::Live, false) => return Err(format!("space {name} is gone")),
            (SpaceState::Gone, true) => return Err(format!("space {name} was dropped, but is there")),
            (SpaceState::Leaving, false) => model.space_is(id, SpaceState::Gone),
            // No durable record drops it: the space goes on as if no call had begun to.
            (SpaceState::Leaving, true) => model.space_is(id, SpaceState::Live),
            _ => {}
        }
    }
    Ok(())
}

/// The first space of a new store.
pub(super) async fn create_space(
    db: &LoggedStore,
    model: &parking_lot::Mutex<Model>,
) -> Result<SpaceId, Error> {
    let name = model.lock().space_name();
    let id = db.spaces().create(&name).await?;
    model.lock().created(id, name);
    Ok(id)
}

/// The media of a store on several threads.
pub(in crate::campaign) struct SharedMedia {
    disks: SharedDisks,
    log: SharedDevice,
    manifest: Arc<MemoryManifest>,
}

impl SharedMedia {
    pub(in crate::campaign) fn of(pages: Disks, log: SimDevice) -> Self {
        Self { disks: pages.shared(), log: Arc::new(log), manifest: Arc::default() }
    }
}

/// Opens a store with its log, whose calls block threads of their own.
pub(in crate::campaign) async fn open_shared(
    plan: &Plan,
    media: &SharedMedia,
) -> Result<LoggedStore, String> {
    let (builder, wal) = shared_parts(plan, media).await?;
    LoggedStore::on(builder, wal).await.map_err(|error| causes(&error))
}

/// The same for threads without a runtime.
pub(in crate::campaign) async fn open_shared_blocking(
    plan: &Plan,
    media: &SharedMedia,
) -> Result<blocking::LoggedStore, String> {
    let (builder, wal) = shared_parts(plan, media).await?;
    blocking::LoggedStore::on(builder, wal).map_err(|error| causes(&error))
}

async fn shared_parts(plan: &Plan, media: &SharedMedia) -> Result<(Builder, Wal), String> {
    let terms = Terms::of(plan);
    let wal = Wal::on_device(Arc::clone(&media.log), terms.options()).await.map_err(|e| causes(&e))?;
    Ok((plan.builder_on(media.disks.clone(), &media.manifest), wal))
}
