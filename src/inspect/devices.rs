//! Describes what a store's devices hold: superblocks, manifest, map checkpoints, journal, ring. Only reads,
//! and verifies no pages: [`Builder::open_read_only`] and a scrub do.

use crate::config::builder::Builder;
use crate::config::choices::Place;
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::contents::{Manifest, SpaceRecord};
use crate::manifest::extents::{EXTENT_PAGES, HOLE};
use crate::manifest::id::id_text;
use crate::manifest::superblock::{HddSuperblock, SUPERBLOCK_BYTES};
use crate::open::caveats::{self, Caveat};
use crate::volume::hdd_ring::HddRing;
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, OpenOptions, SharedDevice};
use pagetier_page::{PageSize, StoreSeed};
use pagetier_ssdcache::{
    BLOCK_BYTES, Block, Found, HomeWrites, JournalSeq, Label, Layout, MapHeader, OpeningMarks, Superblock,
    decode_mark, identify,
};
use serde::{Serialize, Serializer};
use std::fmt::{Display, Formatter, Result as Shown};

/// The structures on a store's devices. See [`Builder::inspect`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The manifest, its tail included.
    pub manifest: ManifestInspection,
    /// The HDD, or why it cannot be read. In JSON, an object with the one field `error` then.
    #[serde(serialize_with = "or_error")]
    pub hdd: Result<HddInspection, String>,
    /// The SSD, or the ring's file of a store without one; or why it cannot be read, as for the HDD.
    #[serde(serialize_with = "or_error")]
    pub ssd: Result<SsdInspection, String>,
    /// What keeps a crash from tearing the homes of pages, once the store is open on these devices.
    pub home_writes: HomeWrites,
    /// Guarantees that this configuration or file system does not provide.
    pub not_promised: Vec<Caveat>,
}

/// One object either way: `Ok` and `Err` are Rust's words.
fn or_error<T: Serialize, S: Serializer>(of: &Result<T, String>, to: S) -> Result<S::Ok, S::Error> {
    match of {
        Ok(found) => found.serialize(to),
        Err(error) => to.collect_map([("error", error)]),
    }
}

/// The manifest's contents.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ManifestInspection {
    /// The store's id.
    pub store: String,
    /// The page size in bytes.
    pub page_bytes: u64,
    /// The number of times the manifest was replaced or appended to, failed attempts included.
    pub generation: u64,
    /// The last open that began.
    pub epoch: u32,
    /// The last open that both devices have recorded.
    pub opened: u32,
    /// The last open that ended in a clean close.
    pub closed: u32,
    /// Whether the last open ended in a clean close; otherwise the next one recovers.
    pub clean: bool,
    /// The SSD's id; `None`: the store has none.
    pub ssd: Option<String>,
    /// Pages listed as lost with SSDs that were given up.
    pub lost_pages: u64,
    /// Whether a flush failed, or a recovery did not end, so that some writes may not be durable: the next
    /// open repeats them. `verify` does not change this.
    pub unverified: bool,
    /// The extents of the HDD up to the volume's end, those that no space has included.
    pub extents: u64,
    /// How many of the extents no space has.
    pub extents_free: u64,
    /// The spaces, in id order.
    pub spaces: Vec<SpaceInspection>,
}

/// A space in the manifest.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SpaceInspection {
    /// Its id, which page ids bear.
    pub id: u32,
    /// Its name; a space that is being dropped may share it with a newer one.
    pub name: String,
    /// The number of its pages; after a crash there may be more.
    pub pages: u32,
    /// The number of its free pages below that, whose numbers are used again; after a crash there may be
    /// others.
    pub free: u32,
    /// The number of pages that its extents on the HDD hold: those given back have no space there.
    pub room: u64,
    /// The number of runs of extents: with few, scans rarely move the arm.
    pub runs: usize,
    /// Whether it is being dropped.
    pub dropping: bool,
}

/// What the HDD holds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HddInspection {
    /// Its path or name.
    pub device: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The size that the manifest's extents need.
    pub needed_bytes: u64,
    /// The space for new pages before the HDD has to grow, in bytes: behind the extents, and in the free
    /// ones. It does not count free pages inside spaces, which have room already.
    pub unallocated_bytes: u64,
    /// The two copies of the superblock.
    pub superblocks: Vec<SuperblockInspection>,
    /// The marks of the newer sound copy.
    pub marks: Option<OpeningMarks>,
    /// Whether it belongs to this store.
    pub ours: bool,
}

/// State of a superblock's location.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SuperblockState {
    /// Nothing: the device ends before it.
    #[default]
    Missing,
    /// A superblock, of this store or another.
    Sound,
    /// Zeroes.
    Blank,
    /// A superblock of a format that this version does not read.
    OtherFormat,
    /// A member of a striped set of an earlier version.
    Striped,
    /// A damaged superblock, or other data.
    Foreign,
}

/// A copy of a superblock.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SuperblockInspection {
    /// The state of this copy.
    pub state: SuperblockState,
    /// The id of the store that it belongs to.
    pub store: Option<String>,
    /// The SSD's id; `None` for an HDD.
    pub ssd: Option<String>,
    /// The last open that the device took part in.
    pub opened: Option<u32>,
    /// The last close that it took part in.
    pub closed: Option<u32>,
    /// The format, if this version does not read it.
    pub format: Option<u32>,
    /// Whether the device is shorter than the superblock says.
    pub is_cut: bool,
}

impl SuperblockInspection {
    /// Of a superblock that this version does not read, or none.
    fn other<S>(found: &Found<S>) -> Self {
        let (state, format) = match found {
            Found::Superblock(_) => (SuperblockState::Sound, None),
            Found::Blank => (SuperblockState::Blank, None),
            Found::Format { found, .. } => (SuperblockState::OtherFormat, Some(*found)),
            Found::Striped => (SuperblockState::Striped, None),
            Found::Foreign => (SuperblockState::Foreign, None),
        };
        Self { state, format, ..Self::default() }
    }
}

impl Display for SuperblockInspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> Shown {
        match self.state {
            SuperblockState::Missing => f.write_str("beyond the end of the device")?,
            SuperblockState::Sound => {
                write!(f, "sound, of store {}", self.store.as_deref().unwrap_or("unknown"))?;
                match (&self.ssd, self.opened, self.closed) {
                    (Some(ssd), ..) => write!(f, ", device {ssd}")?,
                    (None, Some(opened), Some(closed)) => write!(f, ", opened {opened}, closed {closed}")?,
                    _ => {}
                }
            }
            SuperblockState::Blank => Found::<()>::Blank.fmt(f)?,
            SuperblockState::OtherFormat => {
                write!(f, "of format {}, which this version does not read", self.format.unwrap_or(0))?;
            }
            SuperblockState::Striped => Found::<()>::Striped.fmt(f)?,
            SuperblockState::Foreign => Found::<()>::Foreign.fmt(f)?,
        }
        if self.is_cut { f.write_str("; the device is shorter than that") } else { Ok(()) }
    }
}

/// What the SSD, or the ring's file, holds.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SsdInspection {
    /// Its path or name.
    pub device: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its superblock.
    pub superblock: SuperblockInspection,
    /// Whether it belongs to this store and is the SSD that the manifest names.
    pub ours: bool,
    /// The superblock's marks.
    pub marks: Option<OpeningMarks>,
    /// The number of slots.
    pub slots: u32,
    /// The number of pages in the ring.
    pub ring_pages: u32,
    /// The number of sound page images in the ring.
    pub ring_images: u32,
    /// The number of blocks in the journal.
    pub journal_blocks: u32,
    /// The journal's sound blocks; `None`: it has none.
    pub journal: Option<JournalInspection>,
    /// The two map areas.
    pub maps: Vec<MapInspection>,
}

/// The sound blocks of the journal.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct JournalInspection {
    /// How many blocks are sound.
    pub blocks: u64,
    /// Their lowest sequence number.
    pub first: u64,
    /// Their highest sequence number.
    pub last: u64,
    /// The number of records in them.
    pub records: u64,
}

/// A map area.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MapInspection {
    /// `A` or `B`.
    pub area: char,
    /// How many of the two copies of its header are sound.
    pub headers: usize,
    /// The checkpoint's generation.
    pub generation: Option<u64>,
    /// Slot writes with a larger stamp began after the capture.
    pub watermark: Option<u64>,
    /// The first journal block after the capture.
    pub journal_from: Option<u64>,
    /// The generation of the other area's checkpoint that this area's mark declares in force.
    pub mark_of: Option<u64>,
}

impl Builder {
    /// Reads the structures on the devices of an existing store, without writing or locking. If the store is
    /// open elsewhere, the parts may date from different moments.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let inspection = pagetier::PageStore::builder().directory("/var/lib/db").inspect().await?;
    /// println!("{inspection}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no store, or its manifest cannot be read. Devices that cannot be read are part of the result.
    pub async fn inspect(self) -> Result<Inspection, OpenError> {
        let mut config = self.config;
        config.hold_directories()?;
        let hdd = config.device_to_inspect(config.hdd_place(), "hdd.vol");
        let manifests = config.kept_manifest(hdd.as_ref().ok().cloned()).ok_or_else(|| config.not_found())?;
        let manifest = manifests.load().await?.ok_or_else(|| config.no_manifest())?;
        let ring = hdd.as_ref().ok().and_then(|hdd| manifest.ring_on(hdd));
        let writes_whole = hdd.as_ref().is_ok_and(|hdd| hdd.writes_whole(manifest.page_bytes as usize));
        let hdd = match hdd {
            Ok(device) => hdd_of(&device, &manifest).await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        let ssd = match (&manifest.ssd, &ring) {
            (Some(_), _) => config.device_to_inspect(config.ssd_place(), "ssd.cache"),
            (None, Some(ring)) => {
                PageSize::new(manifest.page_bytes).map(|size| ring.alone(size)).map_err(|e| e.to_string())
            }
            (None, None) => config.device_to_inspect(config.ring_place(), "ring"),
        };
        let ssd = match ssd {
            Ok(device) => ssd_of(&device, &manifest, ring.as_ref()).await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        // Unless it cannot be read, which says nothing about the ring.
        let is_sound = |ssd: &SsdInspection| ssd.superblock.state == SuperblockState::Sound;
        let ringed = |ssd: &SsdInspection| !is_sound(ssd) || ssd.ring_pages > 0;
        let has_ring = ssd.as_ref().map_or(true, ringed);
        let home_writes = match has_ring {
            _ if writes_whole => HomeWrites::Whole,
            true => HomeWrites::Ringed,
            false => HomeWrites::InPlace,
        };
        let mut not_promised =
            caveats::of_store(has_ring, manifest.ssd.is_some(), config.is_on_other_file_system());
        not_promised.extend(caveats::of_system());
        Ok(Inspection { manifest: manifest_of(&manifest), hdd, ssd, home_writes, not_promised })
    }
}

impl Config {
    fn device_to_inspect(&self, place: Place, default: &str) -> Result<SharedDevice, String> {
        if let Place::Device(device) = place {
            return Ok(device);
        }
        let at = self.at(&place, default).ok_or("it is not given")?;
        let options = OpenOptions {
            direct: self.options.direct_io,
            backend: self.options.io,
            read_only: true,
            ..OpenOptions::default()
        };
        at.open_device(&options).map(|opened| opened.device).map_err(|error| error.to_string())
    }
}

fn manifest_of(m: &Manifest) -> ManifestInspection {
    let space = |s: &SpaceRecord| SpaceInspection {
        id: s.id,
        name: s.name.clone(),
        pages: s.pages,
        free: s.free.pages() - s.free.pages_from(s.pages),
        room: s.runs.iter().filter(|(first, _)| *first != HOLE).map(|(_, count)| count).sum::<u64>()
            * u64::from(EXTENT_PAGES),
        runs: s.runs.len(),
        dropping: s.dropping,
    };
    // A public type of its own, so that the manifest's fields may change without breaking programs that
    // inspect.
    let lost = m.loss.iter().flat_map(|loss| &loss.runs).map(|(_, _, count)| u64::from(*count));
    ManifestInspection {
        store: m.store.clone(),
        page_bytes: m.page_bytes,
        generation: m.generation,
        epoch: m.epoch,
        opened: m.opened,
        closed: m.closed,
        clean: m.is_clean(),
        ssd: m.ssd.clone(),
        lost_pages: lost.sum(),
        unverified: m.unverified.is_some(),
        extents: m.extents_used,
        extents_free: extents_free(m),
        spaces: m.spaces.iter().map(space).collect(),
    }
}

/// The number of extents that no space has.
fn extents_free(m: &Manifest) -> u64 {
    m.extents_free.iter().map(|(_, count)| count).sum()
}

async fn read(device: &SharedDevice, at: u64, len: usize) -> Result<IoBuf, DeviceError> {
    let mut done = device.read(at, IoBufs::from_iter([IoBuf::zeroed(len)]), IoClass::Recovery).await;
    done.result?;
    Ok(done.bufs.pop().unwrap_or_else(|| IoBuf::zeroed(0)))
}

async fn hdd_of(device: &SharedDevice, manifest: &Manifest) -> Result<HddInspection, DeviceError> {
    let (mut superblocks, mut marks, mut ours) = (Vec::new(), None, false);
    for copy in 0..2 {
        // Both copies are reported, not only the newer: one damaged copy is what an operator wants to know
        // before the second goes.
        let at = copy * SUPERBLOCK_BYTES as u64;
        if device.size() < at + SUPERBLOCK_BYTES as u64 {
            superblocks.push(SuperblockInspection::default());
            continue;
        }
        let block = read(device, at, SUPERBLOCK_BYTES).await?;
        superblocks.push(match HddSuperblock::decode(block.as_slice()) {
            Found::Superblock(found) => {
                ours |= found.store == manifest.store;
                marks = marks.max(Some(found.marks));
                let OpeningMarks { opened, closed, .. } = found.marks;
                SuperblockInspection {
                    state: SuperblockState::Sound,
                    store: Some(found.store),
                    opened: Some(opened),
                    closed: Some(closed),
                    ..SuperblockInspection::default()
                }
            }
            other => SuperblockInspection::other(&other),
        });
    }
    let extent_bytes = u64::from(EXTENT_PAGES) * manifest.page_bytes;
    let needed_bytes = manifest.extents_end();
    let behind = device.size().saturating_sub(needed_bytes);
    Ok(HddInspection {
        device: device.name().to_owned(),
        bytes: device.size(),
        needed_bytes,
        unallocated_bytes: behind.saturating_add(extents_free(manifest).saturating_mul(extent_bytes)),
        superblocks,
        marks,
        ours,
    })
}

async fn ssd_of(
    device: &SharedDevice,
    manifest: &Manifest,
    ring: Option<&HddRing>,
) -> Result<SsdInspection, DeviceError> {
    // Filled as far as the structures can be read: a damaged superblock is a finding, not an error.
    let mut all =
        SsdInspection { device: device.name().to_owned(), bytes: device.size(), ..SsdInspection::default() };
    let found = match identify(device).await? {
        Found::Superblock(found) => found,
        other => return Ok(SsdInspection { superblock: SuperblockInspection::other(&other), ..all }),
    };
    let Superblock { layout, marks, .. } = found;
    let (store, ssd) = (id_text(found.store), id_text(found.ssd));
    let named = manifest.ssd.as_ref().is_none_or(|named| *named == ssd);
    all.ours = store == manifest.store && named;
    all.superblock = SuperblockInspection {
        state: SuperblockState::Sound,
        store: Some(store),
        ssd: Some(ssd),
        opened: Some(marks.opened),
        closed: Some(marks.closed),
        ..SuperblockInspection::default()
    };
    all.marks = Some(marks);
    (all.slots, all.ring_pages) = (layout.slots, layout.ring_pages);
    all.journal_blocks = layout.journal_blocks;
    // The layout may be nonsense. Reading by it would only report errors of the device.
    if device.size() < layout.end() || !layout.is_sound() {
        all.superblock.is_cut = true;
        return Ok(all);
    }
    let seed = found.seed();
    all.journal = journal_of(device, &layout, seed).await?;
    for area in 0..if layout.slots > 0 { 2 } else { 0 } {
        all.maps.push(map_of(device, &layout, seed, area).await?);
    }
    let ring = ring.filter(|ring| layout.slots > 0 && ring.pages() == layout.ring_pages);
    let ringed = ring.map(|ring| ring.in_front_of(SharedDevice::clone(device), &layout));
    all.ring_images = ring_of(ringed.as_ref().unwrap_or(device), &layout, seed).await?;
    Ok(all)
}

async fn journal_of(
    device: &SharedDevice,
    layout: &Layout,
    seed: StoreSeed,
) -> Result<Option<JournalInspection>, DeviceError> {
    let mut all: Option<JournalInspection> = None;
    for index in 0..u64::from(layout.journal_blocks) {
        let bytes = read(device, layout.journal_at(JournalSeq(index)), BLOCK_BYTES as usize).await?;
        let Some(block) = Block::decode(seed, bytes.as_slice()) else { continue };
        let (seq, records) = (block.seq.0, block.records.len() as u64);
        let one = all.get_or_insert(JournalInspection { blocks: 0, first: seq, last: seq, records: 0 });
        (one.blocks, one.records) = (one.blocks + 1, one.records + records);
        (one.first, one.last) = (one.first.min(seq), one.last.max(seq));
    }
    Ok(all)
}

async fn map_of(
    device: &SharedDevice,
    layout: &Layout,
    seed: StoreSeed,
    area: u8,
) -> Result<MapInspection, DeviceError> {
    let mut headers = Vec::new();
    for copy in 0..2 {
        let block = read(device, layout.map_header_at(area, copy), BLOCK_BYTES as usize).await?;
        let header = MapHeader::decode(seed, block.as_slice());
        // Generations alternate between the areas, so a header of the wrong parity is a leftover.
        headers.extend(header.filter(|h| h.generation % 2 == u64::from(area)));
    }
    let newest = headers.iter().max_by_key(|h| h.generation);
    let mark = read(device, layout.map_mark_at(area), BLOCK_BYTES as usize).await?;
    Ok(MapInspection {
        area: if area == 0 { 'A' } else { 'B' },
        headers: headers.len(),
        generation: newest.map(|h| h.generation),
        watermark: newest.map(|h| h.watermark.bits()),
        journal_from: newest.map(|h| h.journal_from.0),
        mark_of: decode_mark(seed, mark.as_slice()),
    })
}

async fn ring_of(device: &SharedDevice, layout: &Layout, seed: StoreSeed) -> Result<u32, DeviceError> {
    let mut sound = 0;
    for index in 0..layout.ring_pages {
        let image = read(device, layout.ring_at(index), layout.page_size.bytes()).await?;
        // The ring does not say which page a place has: the image itself must.
        let page = pagetier_page::Header::peek(image.as_slice()).page;
        sound += u32::from(pagetier_page::verify(seed, image.as_slice(), page).is_ok());
    }
    Ok(sound)
}

impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> Shown {
        let m = &self.manifest;
        writeln!(
            f,
            "manifest  store {}, pages of {} bytes, generation {}",
            m.store, m.page_bytes, m.generation
        )?;
        // Capitals are for what an operator must not overlook; a program reads the fields.
        let end = if m.clean { "closed cleanly" } else { "not closed: the next open recovers" };
        writeln!(f, "          session {} of {}, last close {}: {end}", m.opened, m.epoch, m.closed)?;
        writeln!(f, "          SSD: {}", m.ssd.as_deref().unwrap_or("none"))?;
        if m.lost_pages > 0 {
            writeln!(f, "          LISTS {} PAGES AS LOST with an SSD that was given up", m.lost_pages)?;
        }
        if m.unverified {
            let why = "a flush failed, or a recovery did not end";
            writeln!(f, "          {why}: the next open writes again what may not be durable")?;
        }
        let (used, free) = (m.extents, m.extents_free);
        writeln!(f, "          {used} extents of {EXTENT_PAGES} pages, {free} of them free")?;
        // What a recovery would find is not known here: `stat` and `verify` recover in memory.
        let then = if m.clean { "" } else { " when the manifest was saved" };
        for s in &m.spaces {
            let dropping = if s.dropping { ", being dropped" } else { "" };
            writeln!(
                f,
                "space     {} \"{}\": {} pages{then}, {} of them free, room for {}, {} runs{dropping}",
                s.id, s.name, s.pages, s.free, s.room, s.runs
            )?;
        }
        match &self.hdd {
            Err(why) => writeln!(f, "hdd       UNREADABLE: {why}")?,
            Ok(hdd) => hdd.fmt(f)?,
        }
        match &self.ssd {
            Err(why) => writeln!(f, "ssd       UNREADABLE: {why}")?,
            Ok(ssd) => ssd.fmt(f)?,
        }
        writeln!(f, "homes     are written {}", self.home_writes)?;
        for caveat in &self.not_promised {
            writeln!(f, "promised  not: {caveat}")?;
        }
        Ok(())
    }
}

impl Display for HddInspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> Shown {
        let ours = if self.ours { "" } else { ": NOT THIS STORE'S" };
        // Say it beside the numbers, since this store will refuse to open.
        let short = if self.bytes < self.needed_bytes { ": TOO SHORT" } else { "" };
        writeln!(f, "hdd       {}{ours}", self.device)?;
        writeln!(
            f,
            "          {} bytes, {} needed{short}, {} for new pages",
            self.bytes, self.needed_bytes, self.unallocated_bytes
        )?;
        for (copy, what) in self.superblocks.iter().enumerate() {
            writeln!(f, "          superblock {copy}: {what}")?;
        }
        Ok(())
    }
}

impl Display for SsdInspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> Shown {
        let (name, ours) =
            (if self.slots > 0 { "ssd " } else { "ring" }, if self.ours { "" } else { ": NOT THIS STORE'S" });
        writeln!(f, "{name}      {}{ours}", self.device)?;
        writeln!(f, "          {} bytes; superblock {}", self.bytes, self.superblock)?;
        if let Some(marks) = &self.marks {
            writeln!(f, "          opened {}, closed {}", marks.opened, marks.closed)?;
        }
        writeln!(
            f,
            "          {} slots, ring {} pages ({} sound images)",
            self.slots, self.ring_pages, self.ring_images
        )?;
        match &self.journal {
            None => writeln!(f, "journal   {} blocks, none written", self.journal_blocks)?,
            Some(j) => writeln!(
                f,
                "journal   {} of {} blocks sound, numbers {} to {}, {} records",
                j.blocks, self.journal_blocks, j.first, j.last, j.records
            )?,
        }
        for map in &self.maps {
            // A device without a map (the ring's file) has no areas, and the loop prints nothing.
            let shown = |value: Option<u64>| value.map_or_else(|| "none".to_owned(), |v| v.to_string());
            writeln!(
                f,
                "map {}     generation {} ({} of 2 headers sound), journal from {}; marks {} as in force",
                map.area,
                shown(map.generation),
                map.headers,
                shown(map.journal_from),
                shown(map.mark_of)
            )?;
        }
        Ok(())
    }
}
