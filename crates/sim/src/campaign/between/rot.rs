//! Bit rot at rest: a bit, a sector or a block of one structure changes, or is zeroed, between two lives. The
//! store repairs the damage, or names it in an error; it never returns an older page, and never misses one.

use crate::campaign::draw::hazard::Hazard;
use crate::campaign::report::coverage::State;
use crate::campaign::report::totals::Totals;
use crate::campaign::world::crash::{Crash, Moment};
use crate::campaign::world::examine::{Lenient, check, in_virtual_time};
use crate::campaign::world::peek;
use clap::ValueEnum;
use pagetier::{MemoryManifest, OpenError};
use pagetier_devio::Device;
use pagetier_ssdcache::{BLOCK_BYTES, Layout};
use pagetier_testing::SimDevice;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::ops::Range;
use std::sync::Arc;

/// The structure that becomes corrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Structure {
    HddSuperblock,
    Home,
    /// A home of a page that has an image in the ring.
    RingedHome,
    SsdSuperblock,
    MapHeader,
    MapBody,
    Journal,
    Ring,
    Slot,
    Manifest,
}

impl Structure {
    /// The word that an error about the structure must contain.
    const fn device(self) -> &'static str {
        match self {
            Self::HddSuperblock | Self::Home | Self::RingedHome => "hdd",
            Self::Manifest => "manifest",
            _ => "ssd",
        }
    }

    /// Whether damage to it after a crash is indistinguishable from a write that the crash tore or prevented.
    const fn is_written_before_crashes(self) -> bool {
        matches!(self, Self::Journal | Self::Ring | Self::Slot)
    }

    /// Its range on its device; empty if it does not exist. `which`: of two maps, and of two
    /// copies of its header.
    fn range(self, layout: &Layout, hdd_bytes: u64, which: u8) -> Range<u64> {
        let (area, copy) = (which & 1, which >> 1);
        match self {
            Self::HddSuperblock => 0..4096.min(hdd_bytes),
            Self::SsdSuperblock => 0..layout.map_at(0),
            Self::MapHeader | Self::MapBody if layout.slots == 0 => 0..0,
            Self::MapHeader => {
                let at = layout.map_header_at(area, copy);
                at..at + BLOCK_BYTES
            }
            Self::MapBody => layout.map_at(area) + BLOCK_BYTES..layout.map_header_at(area, 1),
            Self::Journal => {
                layout.map_at(2)..layout.map_at(2) + u64::from(layout.journal_blocks) * BLOCK_BYTES
            }
            Self::Ring => layout.ring_at(0)..layout.ring_at(layout.ring_pages),
            Self::Slot => layout.slot_at(0)..layout.end(),
            Self::Home | Self::RingedHome | Self::Manifest => 0..0,
        }
    }
}

/// Corrupts a structure of a crashed store, and recovers the store.
pub(crate) fn examine(crash: Crash<'_>, rng: &mut SmallRng, totals: &mut Totals) -> Result<(), String> {
    let Crash { plan, moment, outcome } = crash;
    let disks = crash.devices();
    let (hdd, ssd) = (&disks.hdd, &disks.ssd);
    let layout = plan.layout();
    // The ring may have images of several versions of such a page, and a repair must take the newest
    // (I22).
    let structure = if plan.hazard == Hazard::RottenHomes && rng.random_bool(0.7) {
        Structure::RingedHome
    } else {
        let all = Structure::value_variants();
        all[rng.random_range(0..all.len())]
    };
    if structure.is_written_before_crashes() && !moment.states.has(State::AfterClose) {
        return Ok(());
    }
    let extent =
        ["a bit", "a sector", "a block", "a sector of zeroes", "a block of zeroes"][rng.random_range(0..5)];
    let mut manifest = moment.manifest.fork();
    if structure == Structure::Manifest {
        let Some(corrupt) = corrupt_manifest(&manifest, extent, rng) else { return Ok(()) };
        manifest = corrupt;
    } else {
        let range = match structure {
            Structure::RingedHome | Structure::Home => home(moment, &layout, structure, rng),
            // It is on the HDD, as the manifest is.
            Structure::Ring if plan.on_hdd > 0 => return Ok(()),
            _ => structure.range(&layout, hdd.size(), rng.random_range(0..4)),
        };
        if range.is_empty() {
            return Ok(());
        }
        let device = if structure.device() == "hdd" { hdd } else { ssd };
        spoil(device, range, extent, rng);
    }
    let what = format!("{extent} of {structure:?}");
    let ended = in_virtual_time(async {
        let store = match plan.builder_on(disks.shared(), &Arc::new(manifest)).open().await {
            Ok(store) => store,
            // Any structure may be the one without which no open can go on, if the operator learns which.
            Err(error) => return refusal(&error, structure.device()).map(|()| None),
        };
        // Damage may cost an only copy, and reading it is an error then. An older version in its place
        // stays a violation (I10, I23).
        let lenient = Lenient { corrupt: true, volatile: outcome.keeps_power(), ..Lenient::default() };
        let mut checked = check(&store, &Mutex::new(moment.model.clone()), lenient).await?;
        checked.meet(&crash);
        Ok(Some(checked))
    });
    match ended.map_err(|wrong| format!("after rot, {what}: {wrong}"))? {
        None => totals.tamper(&what, "refused"),
        Some(checked) => {
            totals.crash(&checked);
            let how = if checked.corrupt > 0 { "pages named as corrupt" } else { "nothing missing" };
            totals.tamper(&what, how);
        }
    }
    Ok(())
}

/// Checks that the error names the location of the damage: this device, or the manifest.
pub(crate) fn refusal(error: &OpenError, place: &str) -> Result<(), String> {
    let text = pagetier::errors::Causes(error).to_string().to_lowercase();
    if text.contains(place) { Ok(()) } else { Err(format!("the error does not name the {place}: {error}")) }
}

/// The range of a home, or of one whose page is in the ring; empty if there is none.
fn home(moment: &Moment, layout: &Layout, structure: Structure, rng: &mut SmallRng) -> Range<u64> {
    let ringed = structure == Structure::RingedHome;
    let homes = peek::homes(&moment.hdd, &moment.ssd, layout, ringed);
    if homes.is_empty() {
        return 0..0;
    }
    let at = homes[rng.random_range(0..homes.len())];
    at..at + layout.page_size.bytes() as u64
}

fn spoil(device: &SimDevice, range: Range<u64>, extent: &str, rng: &mut SmallRng) {
    let at = rng.random_range(range);
    match extent {
        "a bit" => device.flip_bit(at, rng.random_range(0..8)),
        "a sector" => device.rot(at / 512 * 512..at / 512 * 512 + 512, rng.random()),
        // As a wrong discard leaves them, or a file system that lost the extent.
        "a sector of zeroes" => device.implant(at / 512 * 512, &[0; 512]),
        "a block of zeroes" => device.implant(at / 4096 * 4096, &[0; 4096]),
        _ => device.rot(at / 4096 * 4096..at / 4096 * 4096 + 4096, rng.random()),
    }
}

fn corrupt_manifest(manifest: &MemoryManifest, extent: &str, rng: &mut SmallRng) -> Option<MemoryManifest> {
    let mut bytes = manifest.to_bytes().filter(|bytes| !bytes.is_empty())?;
    let at = rng.random_range(0..bytes.len());
    if extent == "a bit" {
        bytes[at] ^= 1 << rng.random_range(0..8);
    } else {
        let to = (at + 512).min(bytes.len());
        rng.fill(&mut bytes[at..to]);
    }
    Some(MemoryManifest::from_bytes(bytes))
}
