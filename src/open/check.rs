//! Checks that the devices belong to the store and are in the state in which it left them; decides what to
//! do, and what is lost, otherwise.

use super::blank::refuse_data;
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::areas;
use crate::manifest::contents::Manifest;
use crate::manifest::id::{id_bytes, id_text, new_id};
use crate::manifest::only_copies::{OnlyCopies, added};
use crate::manifest::superblock::HddSuperblock;
use pagetier_bufpool::LogGate;
use pagetier_devio::SharedDevice;
use pagetier_page::{LogNeeds, Lsn, PageSize};
use pagetier_ssdcache::{Found, Layout, OpeningMarks, Superblock, identify, newest_label};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The option, for errors.
pub(super) const MANIFEST: &str = "manifest";

/// The space in which stores of earlier versions name their log.
const LOG_SPACE: &str = "pagetier-wal";

/// How the SSD, or the ring's file, will be used.
pub(super) struct PreparedSsd {
    pub(super) layout: Layout,
    /// The superblock to format it with, if it must be formatted.
    pub(super) format: Option<Superblock>,
}

/// The superblock of a blank device for the store of `manifest`. Its marks record that it took part in every
/// open so far.
pub(crate) fn blank_superblock(layout: Layout, manifest: &Manifest) -> Superblock {
    let marks = OpeningMarks { opened: manifest.opened, closed: manifest.closed, manifest: 0 };
    Superblock { store: id_bytes(&manifest.store), ssd: new_id(), layout, marks }
}

/// Why a device without a superblock that this version reads cannot be used.
pub(crate) fn unusable<S>(found: &Found<S>, device: String) -> OpenError {
    match found {
        Found::Format { found, reads } => {
            OpenError::Format { device, found: *found, reads: reads.to_string() }
        }
        Found::Striped => OpenError::Striped { device },
        _ => OpenError::Foreign { device },
    }
}

impl Config {
    /// The path of the SSD, if nothing is there.
    pub(crate) fn missing_ssd(&self) -> Option<PathBuf> {
        let at = self.at(&self.ssd_place(), "ssd.cache")?;
        matches!(at.stat(), Err(Errno::NOENT | Errno::NOTDIR)).then_some(at.shown)
    }

    pub(super) async fn check_hdd(
        &self,
        hdd: &SharedDevice,
        manifest: &Manifest,
        fresh: bool,
    ) -> Result<(), OpenError> {
        let device = hdd.name().to_owned();
        match newest_label::<HddSuperblock>(hdd).await?.0 {
            Found::Blank if fresh && (self.overwrites() || self.begun_on(hdd).await?) => Ok(()),
            // No store's superblock does not mean no data: a file system may begin further in.
            Found::Blank if fresh => refuse_data(hdd).await,
            Found::Blank => Err(OpenError::HddMissing { device }),
            Found::Superblock(found) if found.store == manifest.store => {
                // A first open that was cut short had formatted it for this very store.
                if fresh {
                    return Ok(());
                }
                if found.page_bytes != manifest.page_bytes {
                    let (asked, found) = (manifest.page_bytes, found.page_bytes);
                    let why = format!("it has pages of {asked} bytes, but {device} has pages of {found}");
                    return Err(OpenError::BadManifest { why });
                }
                // An older copy of the HDD has the right id and lacks what was written since (I20).
                self.check_marks("HDD", &device, found.marks, manifest)?;
                // The HDD durably had this size before the manifest named the extents.
                let needed = manifest.extents_end();
                if hdd.size() < needed {
                    return Err(OpenError::TooShort { device, tier: "HDD", bytes: hdd.size(), needed });
                }
                Ok(())
            }
            _ if fresh && self.overwrites() => Ok(()),
            Found::Superblock(_)
                if manifest.generation == 0 && self.seeks_manifest_elsewhere(hdd).await? =>
            {
                let why = if self.options.manifest.is_on_hdd() {
                    format!("the manifest of {device}'s store is in a directory")
                } else {
                    format!("{device} has its store's manifest: set the option to open that store")
                };
                Err(OpenError::BadOption { option: MANIFEST, why })
            }
            // The manifest was lost, and this open took the store for a new one. To say "another store's"
            // would mislead.
            Found::Superblock(_)
                if manifest.generation == 0
                    && (self.has_parts() || ["ssd.cache", "ring"].iter().any(|name| self.has_data(name))) =>
            {
                Err(self.manifest_missing())
            }
            Found::Superblock(found) => {
                Err(OpenError::OtherStore { device, found: found.store, expected: manifest.store.clone() })
            }
            other => Err(unusable(&other, device)),
        }
    }

    /// Whether the options name another place for the manifest than the one in which the store of `hdd` has
    /// it.
    async fn seeks_manifest_elsewhere(&self, hdd: &SharedDevice) -> Result<bool, OpenError> {
        Ok(self.has_manifest(hdd).await? != self.options.manifest.is_on_hdd())
    }

    /// Whether the HDD has what a first open that was cut short wrote before it came to the superblock.
    async fn begun_on(&self, hdd: &SharedDevice) -> Result<bool, OpenError> {
        Ok(self.options.manifest.is_on_hdd() && self.has_manifest(hdd).await?)
    }

    async fn has_manifest(&self, hdd: &SharedDevice) -> Result<bool, OpenError> {
        let found = areas::is_on(hdd).await;
        // A later version's areas are an error of their own.
        let unreadable = |e| OpenError::directory(Path::new(hdd.name()), "has an unreadable manifest", e);
        found.map_err(|e| e.downcast().unwrap_or_else(unreadable))
    }

    pub(super) async fn check_ssd(
        &self,
        ssd: &SharedDevice,
        manifest: &Manifest,
        page_size: PageSize,
        fresh: bool,
        alone: bool,
    ) -> Result<PreparedSsd, OpenError> {
        let on_hdd = manifest.ring_on_hdd.map(|ring| ring.pages);
        let formatted = |layout| PreparedSsd { layout, format: Some(blank_superblock(layout, manifest)) };
        if let Some(pages) = on_hdd.filter(|_| alone) {
            // A part of the HDD, which was checked. Its superblock may be that of another time without an
            // SSD, so it gets a new one.
            return Ok(formatted(Layout::ring_only(page_size, pages)));
        }
        let found = identify(ssd).await?;
        let ours = matches!(found, Found::Superblock(sb) if id_text(sb.store) == manifest.store);
        let blank = found == Found::Blank;
        if fresh && (ours || blank || self.overwrites()) {
            if blank && !self.overwrites() {
                refuse_data(ssd).await?;
            }
            return Ok(formatted(self.layout(page_size, on_hdd)?));
        }
        let refused = match self.usable(ssd, found, manifest, page_size) {
            Ok(layout) => {
                self.check_kept(&layout, page_size)?;
                return Ok(PreparedSsd { layout, format: None });
            }
            Err(error) => error,
        };
        // Accepting a loss gives up what an SSD of this store held. It does not permit overwriting a foreign
        // device, which needs an overwriting `Create`. (A new store's SSD was formatted above.)
        let given_up = self.options.accept_ssd_loss && (ours || blank || self.overwrites());
        // An older manifest is no loss of the SSD: the SSD is the newer one, and formatting it would destroy
        // the truth.
        if !given_up || matches!(refused, OpenError::StaleManifest { .. }) {
            return Err(refused);
        }
        if blank && !self.overwrites() {
            refuse_data(ssd).await?;
        }
        let layout = match manifest.ssd {
            Some(_) => self.layout(page_size, on_hdd)?,
            None => self.layout_of(0, page_size, None)?,
        };
        Ok(formatted(layout))
    }

    /// The layout that `found` records, provided it is the SSD that the store last used.
    fn usable(
        &self,
        ssd: &SharedDevice,
        found: Found,
        manifest: &Manifest,
        page_size: PageSize,
    ) -> Result<Layout, OpenError> {
        let device = ssd.name().to_owned();
        let sb = match found {
            Found::Superblock(sb) => sb,
            Found::Blank => {
                // The user may have put a new SSD in, or the wrong path in the options.
                return Err(manifest.ssd_missing(format!("is missing: {device} is blank"), &device));
            }
            other => return Err(unusable(&other, device)),
        };
        if id_text(sb.store) != manifest.store {
            let (found, expected) = (id_text(sb.store), manifest.store.clone());
            return Err(OpenError::OtherStore { device, found, expected });
        }
        // One SSD per store is in use; one that was replaced earlier has old pages under the store's id
        // (I29).
        if manifest.ssd.as_ref().is_some_and(|wanted| *wanted != id_text(sb.ssd)) {
            return Err(manifest.ssd_missing(format!("is missing: {device} is another one"), &device));
        }
        let Layout { page_size: found, ring_pages, .. } = sb.layout;
        if manifest.ring_on_hdd.is_some_and(|ring| ring.pages != ring_pages) {
            let why = format!("its ring has another size than that of {device}, {ring_pages} pages");
            return Err(OpenError::BadManifest { why });
        }
        if found != page_size {
            let (store, asked) = (page_size.bytes() as u64, found.bytes() as u64);
            return Err(OpenError::OtherPageSize { store, asked });
        }
        let tier = if sb.layout.slots > 0 { "SSD" } else { "ring" };
        self.check_marks(tier, &device, sb.marks, manifest)?;
        // Slots behind the end would read as errors one by one, long after the open.
        if ssd.size() < sb.layout.end() {
            let (bytes, needed) = (ssd.size(), sb.layout.end());
            return Err(OpenError::TooShort { device, tier, bytes, needed });
        }
        Ok(sb.layout)
    }

    /// Checks that manifest and device agree on the opens. An open is recorded in the manifest
    /// (`epoch`), on the devices, and again in the manifest (`opened`); a close on the devices, then in the
    /// manifest. After a crash at any point, a device is therefore neither behind `opened` and `closed` nor
    /// ahead of `epoch`.
    fn check_marks(
        &self,
        tier: &'static str,
        device: &str,
        marks: OpeningMarks,
        manifest: &Manifest,
    ) -> Result<(), OpenError> {
        let device = device.to_owned();
        let OpeningMarks { opened, closed, manifest: generation } = marks;
        // The device has seen an open that the manifest does not know: the manifest is the older one
        // (I20).
        if opened.max(closed) > manifest.epoch || generation > manifest.generation {
            return Err(OpenError::StaleManifest { device, tier, opened, known: manifest.epoch });
        }
        // Every device bears a mark before the manifest names it as `opened` or `closed`, so this one is an
        // older copy.
        if opened < manifest.opened || closed < manifest.closed {
            let (last, last_closed) = (manifest.opened, manifest.closed);
            return Err(OpenError::StaleDevice { device, tier, opened, closed, last, last_closed });
        }
        Ok(())
    }

    /// Asks the log gate whether it has the log that the pages need, which includes what is lost with an SSD.
    pub(super) fn check_log(
        &self,
        gate: Option<&dyn LogGate>,
        manifest: &Manifest,
        lost: Option<&OnlyCopies>,
    ) -> Result<(), OpenError> {
        let Some(gate) = gate else { return Ok(()) };
        let mut needs = LogNeeds::default();
        needs.recorded = manifest.log.map(Into::into);
        needs.epoch = manifest.epoch + 1;
        // Also of an open that a crash ended before it recorded its log, but not if a position of its
        // log may be known: LSNs must not begin below it. The loss of an SSD without a page names none.
        let of_pages = |loss: &OnlyCopies| !loss.runs.is_empty() || loss.redo_from.is_some();
        let has_lost = manifest.loss.as_ref().is_some_and(of_pages) || manifest.ssd_redo_from.is_some();
        needs.is_new = manifest.is_unused() || manifest.spaces.is_empty() && !has_lost;
        needs.named_in_pages = manifest.spaces.iter().any(|space| space.name == LOG_SPACE);
        let known = manifest.loss.clone();
        let lost = match lost {
            Some(lost) => added(known, lost.clone()),
            None => known,
        };
        needs.lost = lost.filter(|lost| !lost.is_none()).map(|lost| {
            let pages = lost.runs.iter().map(|(_, _, count)| u64::from(*count)).sum();
            (pages, lost.redo_from.map(Lsn))
        });
        needs.gives_up_log = self.options.accept_log_loss;
        needs.reads_only = self.read_only;
        gate.check(&needs).map_err(|source| OpenError::Log { source })
    }

    /// The pages that an open with `prepared` gives up; `None` if the SSD (or the ring's file) is the one
    /// that the store last used, or the store is new.
    pub(super) fn what_is_lost(&self, manifest: &Manifest, prepared: &PreparedSsd) -> Option<OnlyCopies> {
        // A ring on the HDD is never lost.
        let only_ring_on_hdd = manifest.ring_on_hdd.is_some() && manifest.ssd.is_none();
        if prepared.format.is_none() || manifest.is_unused() || only_ring_on_hdd {
            return None;
        }
        // A clean close has listed the only copies. After a crash any page may be one.
        let known = manifest.ssd_pages.clone().filter(|_| manifest.is_clean());
        let lost = known.unwrap_or_else(|| OnlyCopies::all_of(manifest)).redone_from(manifest.ssd_redo_from);
        tracing::warn!(
            runs = lost.runs.len(),
            coarse = lost.coarse,
            "the SSD that the store last used is given up; `ssd().loss()` lists the pages that may be lost"
        );
        Some(lost)
    }
}
