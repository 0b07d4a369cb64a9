//! Looks at the devices past the store, for coverage: which versions of a page lie where.

use super::coverage::{State, States};
use super::model::Model;
use pagetier::PageId;
use pagetier_devio::SimMoment;
use pagetier_page::{HEADER_BYTES, Header, Stamp};
use pagetier_ssdcache::Layout;
use rustc_hash::FxHashMap;

/// Where the HDD's pages start.
const DATA_AT: u64 = 1 << 20;

/// The header of what stands at `offset`, and the version in its payload; unverified.
fn peek(device: &SimMoment, offset: u64) -> Option<(PageId, Stamp, u32)> {
    let mut bytes = [0; HEADER_BYTES + 4];
    device.read(offset, &mut bytes);
    let header = Header::peek(&bytes);
    let version = bytes.last_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b));
    (header.stamp != Stamp::ZERO).then_some((header.page, header.stamp, version))
}

/// Pages whose versions lie in places that a recovery has to tell apart.
pub(super) fn states(hdd: &SimMoment, ssd: &SimMoment, layout: &Layout, model: &Model) -> States {
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
    let mut at = DATA_AT;
    while at + page_bytes <= hdd.size() {
        let home = peek(hdd, at);
        at += page_bytes;
        let Some((page, stamp, version)) = home else { continue };
        states.add_if(oldest.get(&page).is_some_and(|s| *s < stamp), State::StaleCopy);
        let Some((on_ssd, of_ssd)) = newest.get(&page).filter(|(s, _)| *s > stamp) else { continue };
        let space = model.spaces.get(&page.space.0);
        let in_memory =
            space.and_then(|s| s.pages.get(&page.no)).map_or(0, super::model::PageModel::published);
        debug_assert!(*on_ssd > stamp);
        states.add_if(in_memory > *of_ssd && *of_ssd > version && version > 0, State::ThreePlaces);
    }
    states
}
