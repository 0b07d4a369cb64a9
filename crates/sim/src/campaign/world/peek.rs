//! Inspects the devices behind the store's back, for coverage: which versions of a page are where.

use super::builder::AREAS;
use crate::campaign::contract::model::Model;
use crate::campaign::report::coverage::{State, States};
use pagetier::{MemoryManifest, PageId, PageSize};
use pagetier_page::{HEADER_BYTES, Header, Stamp, StoreSeed, verify};
use pagetier_ssdcache::{BLOCK_BYTES, Found, Label, Layout, MapBody, MapHeader, Superblock};
use pagetier_testing::SimMoment;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use std::cell::OnceCell;

/// Whether the HDD has the manifest, and with it the ring.
fn has_areas(hdd: &SimMoment) -> bool {
    let mut magics = [[0; 8]; 4];
    for (nth, magic) in (0..).zip(&mut magics) {
        hdd.read(AREAS.start + nth * BLOCK_BYTES, magic);
    }
    // A save may be rewriting headers at this moment, and one of the four is whole at any time.
    magics.contains(b"PGTIERMF")
}

/// The offset of the first page on the HDD.
fn first_page(hdd: &SimMoment, layout: &Layout) -> u64 {
    let ring = Layout::ring_only(layout.page_size, layout.ring_pages);
    if has_areas(hdd) { (AREAS.end + ring.end()).next_multiple_of(64 << 10) } else { 1 << 20 }
}

/// The pages and stamps of the images in the ring.
fn ringed(hdd: &SimMoment, ssd: &SimMoment, layout: &Layout) -> Vec<(PageId, Stamp)> {
    let (device, at) = match has_areas(hdd) {
        true => (hdd, AREAS.end + Layout::ring_only(layout.page_size, layout.ring_pages).ring_at(0)),
        false => (ssd, layout.ring_at(0)),
    };
    let place = |index| at + u64::from(index) * layout.page_size.bytes() as u64;
    let image = |index| peek(device, place(index)).map(|(page, stamp, _)| (page, stamp));
    (0..layout.ring_pages).filter_map(image).collect()
}

/// The header at `offset`, and the version in the payload; unverified.
fn peek(device: &SimMoment, offset: u64) -> Option<(PageId, Stamp, u32)> {
    let mut bytes = [0; HEADER_BYTES + 4];
    device.read(offset, &mut bytes);
    let header = Header::peek(&bytes);
    let version = bytes.last_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b));
    (header.stamp != Stamp::ZERO).then_some((header.page, header.stamp, version))
}

/// The seed of the checksums in the store with this manifest.
pub(super) fn seed_of(manifest: &MemoryManifest) -> Option<StoreSeed> {
    #[derive(Deserialize)]
    struct Named {
        store: String,
    }
    let bytes = manifest.to_bytes()?;
    // The contents are the first line, and records of later changes follow in lines of their own.
    let Named { store } = serde_json::from_slice(bytes.split(|b| *b == b'\n').next()?).ok()?;
    let id = u128::from_str_radix(&store.replace('-', ""), 16).ok()?;
    Some(StoreSeed::of_store(id.to_be_bytes()))
}

/// Whether `image` is a sound image of the store with this seed, and not one that another store left.
pub(super) fn is_own(seed: Option<StoreSeed>, image: &[u8]) -> bool {
    seed.is_some_and(|seed| verify(seed, image, Header::peek(image).page).is_ok())
}

/// Checks that no image anywhere on the device holds a change beyond `durable`, the log's durable position.
///
/// # Errors
/// The first such image.
pub(super) fn behind_log(
    device: &SimMoment,
    page_size: PageSize,
    manifest: &MemoryManifest,
    durable: u64,
) -> Result<(), String> {
    let seed = OnceCell::new();
    let page_bytes = page_size.bytes() as u64;
    let mut image = vec![0; page_size.bytes()];
    for at in (0..device.size() / page_bytes).map(|no| no * page_bytes) {
        // Read whole images, and verify them, only of pages whose header is suspicious: this runs at every
        // moment.
        device.read(at, &mut image[..HEADER_BYTES]);
        let Header { page, lsn, .. } = Header::peek(&image);
        if lsn.0 <= durable {
            continue;
        }
        device.read(at, &mut image);
        if is_own(*seed.get_or_init(|| seed_of(manifest)), &image) {
            let what = format!("page {page} is at {at} with LSN {}", lsn.0);
            return Err(format!("{what}, the log is durable up to {durable}"));
        }
    }
    Ok(())
}

/// The states in which versions of a page are in several places that a recovery must distinguish.
pub(crate) fn states(hdd: &SimMoment, ssd: &SimMoment, layout: &Layout, model: &Model) -> States {
    let mut states = States::default();
    let page_bytes = layout.page_size.bytes() as u64;
    let mut newest: FxHashMap<PageId, (Stamp, u32)> = FxHashMap::default();
    let mut oldest: FxHashMap<PageId, Stamp> = FxHashMap::default();
    for slot in 0..layout.slots {
        let Some((page, stamp, version)) = peek(ssd, layout.slot_at(slot)) else { continue };
        let best = newest.entry(page).or_insert((stamp, version));
        *best = (*best).max((stamp, version));
        let least = oldest.entry(page).or_insert(stamp);
        *least = (*least).min(stamp);
    }
    let voided = candidates(ssd, layout);
    let mut ring: FxHashMap<PageId, Stamp> = FxHashMap::default();
    for (page, stamp) in ringed(hdd, ssd, layout) {
        let best = ring.entry(page).or_insert(stamp);
        *best = (*best).max(stamp);
    }
    let mut at = first_page(hdd, layout);
    while at + page_bytes <= hdd.size() {
        let home = peek(hdd, at);
        at += page_bytes;
        let Some((page, stamp, version)) = home else { continue };
        // Map and zone vouch for a copy on the SSD that is older than the home, and the ring has no image
        // that says so: only the journal does.
        let void = voided.get(&page).is_some_and(|s| *s < stamp)
            && ring.get(&page).is_none_or(|s| *s < voided[&page]);
        states.add_if(void && newest.get(&page).is_none_or(|(s, _)| *s < stamp), State::JournalNeeded);
        states.add_if(oldest.get(&page).is_some_and(|s| *s < stamp), State::StaleCopy);
        let Some((on_ssd, of_ssd)) = newest.get(&page).filter(|(s, _)| *s > stamp) else { continue };
        let space = model.spaces.get(&page.space.0);
        let in_memory = space.and_then(|s| s.pages.get(&page.no)).map_or(0, |p| p.published);
        debug_assert!(*on_ssd > stamp);
        states.add_if(in_memory > *of_ssd && *of_ssd > version && version > 0, State::ThreePlaces);
    }
    states
}

/// The offsets of pages' homes; with `ringed`, only of pages with images in the ring.
pub(crate) fn homes(hdd: &SimMoment, ssd: &SimMoment, layout: &Layout, ringed: bool) -> Vec<u64> {
    let in_ring: Vec<PageId> = self::ringed(hdd, ssd, layout).into_iter().map(|(page, _)| page).collect();
    let page_bytes = layout.page_size.bytes() as u64;
    let first = first_page(hdd, layout);
    let places = (0..).map(|no| first + no * page_bytes).take_while(|at| at + page_bytes <= hdd.size());
    let homes = places.filter_map(|at| peek(hdd, at).map(|(page, ..)| (page, at)));
    homes.filter(|(page, _)| !ringed || in_ring.contains(page)).map(|(_, at)| at).collect()
}

/// The newest copy of each page that a recovery could use without the journal.
fn candidates(ssd: &SimMoment, layout: &Layout) -> FxHashMap<PageId, Stamp> {
    let mut newest = FxHashMap::default();
    let Some((header, body)) = newest_map(ssd, layout) else { return newest };
    for slot in 0..layout.slots {
        let named = body.entry(slot);
        let Some((page, stamp, _)) = peek(ssd, layout.slot_at(slot)) else { continue };
        // A recovery's rule for slots (I11), without the journal and the ring, which void copies (I3).
        let as_named = named.is_some_and(|e| (e.page, e.stamp) == (page, stamp));
        if as_named || (body.in_zone(slot) && stamp > header.watermark) {
            let best = newest.entry(page).or_insert(stamp);
            *best = (*best).max(stamp);
        }
    }
    newest
}

fn newest_map(ssd: &SimMoment, layout: &Layout) -> Option<(MapHeader, MapBody)> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    ssd.read(0, &mut block);
    let Found::Superblock(superblock) = Superblock::decode(&block) else { return None };
    let seed = superblock.seed();
    let area = |area: u8| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        ssd.read(layout.map_at(area), &mut block);
        let header = MapHeader::decode(seed, &block)?;
        let mut body = vec![0; (layout.map_area_bytes() - BLOCK_BYTES) as usize];
        ssd.read(layout.map_at(area) + BLOCK_BYTES, &mut body);
        Some((header, MapBody::decode(seed, &body, &header, layout)?))
    };
    if layout.slots == 0 {
        return None;
    }
    // Without the proof that an open demands (I10): this only counts states.
    [0, 1].into_iter().filter_map(area).max_by_key(|(header, _)| header.generation)
}
