//! The tables of a large SSD: their memory, and the CPU time of opening and checkpointing them.
//!
//! No device is involved. An SSD of 1 TiB has 64 M slots, more than a test machine has memory and disk for;
//! all figures here but one grow with the number of slots, so the last column is computed from them.

use super::{Length, Report, status};
use pagetier::{Costs, PageId, SpaceId, SsdPolicy};
use pagetier_page::{Stamp, StoreSeed};
use pagetier_policy::{Millis, SlotPolicyParams};
use pagetier_ssdcache::{Entry, Evidence, Image, MapBody, MapHeader, SlotParams, Slots};
use std::collections::BTreeMap;
use std::time::Instant;

const MIB: f64 = (1 << 20) as f64;
/// 1 TiB in pages of 16 KiB.
const TERABYTE_SLOTS: f64 = (1_u64 << 26) as f64;
const ZONE_PERCENT: f64 = 10.0;
const FRAMES: usize = 65_536;
/// The slots whose entries a checkpoint captures at a time, with the state locked.
const PIECE: usize = 8_192;
/// The one figure that does not grow with the slots.
const PIECE_LOCKED: &str = "a checkpoint: the longest of its pieces, under the lock";

pub(crate) fn report(report: &mut Report, measured: impl Fn(&str) -> Result<BTreeMap<String, f64>, String>) {
    let slots: u32 = Length::selected().pick(16_384, 1 << 20, 1 << 22);
    report.line(format_args!("\n## The tables of a large SSD, {slots} slots"));
    report.head(&["", "`none`", "`auto`", "per slot, `auto`", "1 TiB of 16 KiB pages, `auto`"]);
    let (none, auto) =
        match (measured(&format!("large none {slots}")), measured(&format!("large auto {slots}"))) {
            (Ok(none), Ok(auto)) => (none, auto),
            (Err(why), _) | (_, Err(why)) => {
                return report.line(format_args!("| not measured: {why} | | | | |"));
            }
        };
    for (name, unit, per_unit) in [
        ("memory, as the store counts it", "MiB", MIB),
        ("memory, resident", "MiB", MIB),
        ("a checkpoint's size", "MiB", MIB),
        ("opening: reading the map", "ms", 1e-3),
        ("opening: judging the zone's images", "ms", 1e-3),
        ("opening: filling the tables", "ms", 1e-3),
        ("a checkpoint: its begin, under the lock", "ms", 1e-3),
        ("of these the policy's choice of the zone", "ms", 1e-3),
        (PIECE_LOCKED, "ms", 1e-3),
        ("a checkpoint: all pieces and the checksum", "ms", 1e-3),
        ("a checkpoint: its end, under the lock", "ms", 1e-3),
        ("a checkpoint: the longest time under the lock", "ms", 1e-3),
    ] {
        if name == PIECE_LOCKED {
            let of = |policy: &BTreeMap<String, f64>| policy[name] / per_unit;
            let (none, auto) = (of(&none), of(&auto));
            report
                .line(format_args!("| {name} | {none:.2} {unit} | {auto:.2} {unit} | | {auto:.2} {unit} |"));
            continue;
        }
        let (per_slot, scale) = (auto[name] / f64::from(slots), if unit == "ms" { "ns" } else { "bytes" });
        let small = if unit == "ms" { per_slot * 1e9 } else { per_slot };
        report.line(format_args!(
            "| {name} | {:.1} {unit} | {:.1} {unit} | {small:.1} {scale} | {:.0} {unit} |",
            none[name] / per_unit,
            auto[name] / per_unit,
            per_slot * TERABYTE_SLOTS / per_unit
        ));
    }
}

/// A full SSD of `slots` slots, half of them newer than the HDD's: its checkpoint is written, and it is
/// opened again.
pub(crate) fn tables(policy: &str, slots: u32) -> BTreeMap<String, f64> {
    let mut took = BTreeMap::new();
    let page = |slot: u32| PageId::new(SpaceId(1), slot.wrapping_mul(0x9E37_79B1));
    let stamp = |slot: u32| Stamp::from_bits(u64::from(slot) + 1);
    let mut body = MapBody::empty(slots);
    for slot in 0..slots {
        body.set_entry(
            slot,
            Some(Entry { page: page(slot), stamp: stamp(slot), clean: slot.is_multiple_of(2) }),
            false,
        );
    }
    (0..slots).step_by(10).for_each(|slot| body.set_in_zone(slot));
    let (_, body_crc) = body.encode(StoreSeed::NONE);
    assert!(body_crc != 0 || slots == 0);
    let mut time = |name: &str, seconds: f64| {
        took.insert(name.to_owned(), seconds);
    };

    let began = Instant::now();
    let entries = body.entries().flatten().count();
    assert_eq!((body.encode(StoreSeed::NONE).1, entries), (body_crc, slots as usize));
    time("opening: reading the map", began.elapsed().as_secs_f64());

    let image = |slot: u32| Image { page: page(slot), stamp: stamp(slot), clean: slot.is_multiple_of(2) };
    let evidence = Evidence {
        zone: body.zone().map(|slot| (slot, image(slot))).collect(),
        map: body,
        watermark: stamp(slots),
        unreadable: Default::default(),
        closed: false,
        journal: Vec::new(),
        ring: Default::default(),
    };
    let began = Instant::now();
    let found = evidence.merge().entries;
    time("opening: judging the zone's images", began.elapsed().as_secs_f64());
    drop(evidence);

    let policy: SsdPolicy = policy.parse().expect("a policy");
    let params = SlotPolicyParams::new(Costs::PAPER, slots as usize, FRAMES);
    let before = status("VmRSS");
    let began = Instant::now();
    let mut tables = Slots::new(SlotParams::new(slots, ZONE_PERCENT), policy.build(&params), &found, 1);
    time("opening: filling the tables", began.elapsed().as_secs_f64());

    checkpoint(&mut tables, slots, &mut time);
    time("memory, resident", status("VmRSS") - before);
    time("memory, as the store counts it", tables.memory_bytes() as f64);
    assert_eq!(tables.pages(), slots as usize);
    took
}

/// Captures a checkpoint as the store does, which locks the tables for each of its parts.
fn checkpoint(tables: &mut Slots, slots: u32, time: &mut impl FnMut(&str, f64)) {
    let k = (f64::from(slots) * ZONE_PERCENT / 100.0) as usize;
    let began = Instant::now();
    tables.policy_mut().start_zone(k, &mut |_| true, Millis(0), &mut Vec::new());
    time("of these the policy's choice of the zone", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let capture = tables.begin_checkpoint(Millis(0));
    let begin = began.elapsed().as_secs_f64();
    time("a checkpoint: its begin, under the lock", begin);
    let (all, mut longest) = (Instant::now(), 0.0_f64);
    let words = capture.zone.iter().flat_map(|word| word.to_le_bytes());
    let (mut size, mut body_crc) = (0, StoreSeed::NONE.checksum(&words.collect::<Vec<_>>()));
    for from in (0..slots).step_by(PIECE) {
        let began = Instant::now();
        let piece = tables.capture(from..from + (slots - from).min(PIECE as u32));
        longest = longest.max(began.elapsed().as_secs_f64());
        body_crc = pagetier_page::crc32c_append(body_crc, piece.bytes());
        size += piece.bytes().len();
    }
    time("a checkpoint: all pieces and the checksum", all.elapsed().as_secs_f64());
    time(PIECE_LOCKED, longest);
    let header = MapHeader { body_crc, slots, ..MapHeader::default() };
    let zone = capture.zone.len() * size_of::<u64>();
    time("a checkpoint's size", (zone + size + header.encode(StoreSeed::NONE).len()) as f64);
    drop(capture);
    let began = Instant::now();
    tables.end_checkpoint(true);
    let end = began.elapsed().as_secs_f64();
    time("a checkpoint: its end, under the lock", end);
    time("a checkpoint: the longest time under the lock", begin.max(longest).max(end));
}
