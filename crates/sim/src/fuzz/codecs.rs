//! The fuzz targets.

use super::damage::{Input, damage, damage_ring, put, refit_map};
use super::specimen::{BLOCK, Copies, reseal, sealed_manifest, specimen_of};
use pagetier_page::{
    Defect, Flags, HEADER_BYTES, Header, PageId, SpaceId, Stamp, StoreSeed, format_homes, seal, verify,
};
use pagetier_ssdcache::{
    Backing, Block, Found, HddFlush, HomeBatches, JournalSeq, Label, MapBody, MapHeader, Places, RECORDS_MAX,
    Superblock,
};
use serde_json::Value;
use std::collections::VecDeque;

/// The bytes of an input, padded with zeroes to `len`.
fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    bytes.iter().copied().chain(std::iter::repeat(0)).take(len).collect()
}

/// A page image: an image that verifies belongs to the requested page and to no other, and any change to it
/// is detected.
pub fn page_header(input: &[u8]) {
    let mut image = padded(input, BLOCK);
    // The image says which page it is: a fuzzer would hardly hit on a given number, and every input would
    // fail at that check.
    let asked = Header::peek(&image).page;
    let other = PageId::new(asked.space, asked.no ^ 1);
    let seed = StoreSeed::of_store([7; 16]);
    // The second round has the image that the first one sealed.
    for _ in 0..2 {
        assert!(verify(seed, &image, other).is_err());
        match verify(seed, &image, asked) {
            Ok(header) => {
                assert_eq!((header.page, header), (asked, Header::peek(&image)));
                assert_eq!(verify(seed, &image, other), Err(Defect::WrongPage { found: asked }));
                let bit = input.iter().fold(0_usize, |sum, b| (sum * 31 + usize::from(*b)) % (BLOCK * 8));
                image[bit / 8] ^= 1 << (bit % 8);
                assert!(verify(seed, &image, asked).is_err(), "bit {bit} flipped");
                image[bit / 8] ^= 1 << (bit % 8);
            }
            Err(defect) => assert!(!defect.to_string().is_empty()),
        }
        // A formatted home reads as unwritten for its own page only. For another page it is damage.
        let mut home = vec![0; BLOCK];
        format_homes(seed, &mut home, BLOCK, asked);
        assert_eq!(verify(seed, &home, asked), Err(Defect::Unwritten));
        assert!(verify(seed, &home, other).is_err_and(|defect| !defect.is_unwritten(true)));
        let stamp = Stamp::from_bits(u64::from(image[HEADER_BYTES]));
        seal(seed, &mut image, stamp, Flags::NONE);
        assert!(verify(seed, &image, asked).is_ok(), "a sealed image verifies");
    }
}

/// Opens a store on changed bytes of a closed or a crashed store.
fn opened(input: &mut Input<'_>, change: impl FnOnce(&mut Copies, &mut Input<'_>)) {
    let specimen = specimen_of(input.byte().is_multiple_of(2));
    let mut copies = specimen.copies();
    change(&mut copies, input);
    specimen.open(copies);
}

/// The SSD's superblock, in both copies.
pub fn ssd_superblock(input: &[u8]) {
    let raw = padded(input, BLOCK);
    let mut sealed = raw.clone();
    reseal(StoreSeed::NONE, &mut sealed);
    // No fuzzer guesses a checksum: only a sealed block gets as far as its fields.
    for block in [&raw, &sealed] {
        if let Found::Superblock(superblock) = Superblock::decode(block) {
            assert_eq!(Superblock::decode(&superblock.encode()), Found::Superblock(superblock));
        }
    }
    opened(&mut Input::new(input), |copies, input| {
        // Keep the store's own magic and ids, so that decoding reaches the fields after them.
        let fields = input.take(24);
        // Both copies get the same change, since an open would otherwise use the intact one.
        for at in [0, BLOCK] {
            let block = &mut copies.ssd[at..at + BLOCK];
            put(block, 48, fields);
            let numbers = pagetier_ssdcache::Layout {
                slots: word(block, 52),
                journal_blocks: word(block, 56),
                ring_pages: word(block, 60),
                ..copies.layout
            };
            if input.byte().is_multiple_of(2) {
                // A decode compares the end with that of its own layout. This half of the inputs passes,
                // and reaches the checks of the layout itself.
                block[64..72].copy_from_slice(&numbers.end().to_le_bytes());
            }
            reseal(StoreSeed::NONE, block);
        }
    });
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub fn hdd_superblock(input: &[u8]) {
    opened(&mut Input::new(input), |copies, input| {
        // The other half keeps a checksum that does not match, as bit rot leaves it.
        let sealed = input.byte().is_multiple_of(2);
        let at = usize::from(input.byte());
        let block = &mut copies.hdd[..BLOCK];
        put(block, at as u64, input.take(BLOCK));
        if sealed {
            reseal(StoreSeed::NONE, block);
        }
    });
}

/// A map checkpoint: its header, and its body from some slot on.
pub fn map(input: &[u8]) {
    let Copies { layout, seed, .. } = specimen_of(false).copies();
    let mut area = padded(input, layout.map_area_bytes() as usize);
    area[..8].copy_from_slice(b"PGTIERMP");
    reseal(seed, &mut area[..BLOCK]);
    refit_map(seed, &mut area, &layout);
    if let Some(header) = MapHeader::decode(seed, &area) {
        assert_eq!(MapHeader::decode(seed, &header.encode(seed)), Some(header));
        if let Some(body) = MapBody::decode(seed, &area[BLOCK..], &header, &layout) {
            assert_eq!(body.slots(), layout.slots);
            let (bytes, body_crc) = body.encode(seed);
            assert_eq!(MapBody::decode(seed, bytes, &MapHeader { body_crc, ..header }, &layout), Some(body));
        }
    }
    opened(&mut Input::new(input), |copies, input| {
        for area in 0..2 {
            let at = layout.map_at(area) as usize;
            // Generation, watermark and the journal's start; entries are page, stamp, page, stamp.
            let len = usize::from(input.byte() % 25);
            put(&mut copies.ssd, at as u64 + 16, input.take(len));
            reseal(copies.seed, &mut copies.ssd[at..at + BLOCK]);
            let body = layout.map_body_bytes() as usize;
            let from = input.word() as usize % body;
            let len = usize::from(input.byte()).min(body - from);
            put(&mut copies.ssd, (at + BLOCK + from) as u64, input.take(len));
            refit_map(copies.seed, &mut copies.ssd[at..], &layout);
        }
    });
}

/// Journal blocks with their headers and records.
pub fn journal(input: &[u8]) {
    let seed = StoreSeed::of_store([7; 16]);
    let mut raw = padded(input, BLOCK);
    let _ = Block::decode(seed, &raw);
    // A shorter block was torn: it must not decode, even if its bytes with zeroes behind them would.
    assert_eq!(
        Block::decode(seed, input).is_some(),
        input.len() >= BLOCK && Block::decode(seed, &raw).is_some()
    );
    raw[..8].copy_from_slice(b"PGTIERJL");
    reseal(seed, &mut raw);
    if let Some(block) = Block::decode(seed, &raw) {
        assert!(block.records.len() <= RECORDS_MAX);
        assert_eq!(Block::decode(seed, &block.encode(seed)), Some(block));
    }
    opened(&mut Input::new(input), |copies, input| {
        for _ in 0..4 {
            let at = copies.layout.journal_at(JournalSeq(u64::from(input.byte()))) as usize;
            let block = &mut copies.ssd[at..at + BLOCK];
            block[..8].copy_from_slice(b"PGTIERJL");
            let len = usize::from(input.byte());
            put(block, 12, input.take(len));
            reseal(copies.seed, block);
        }
    });
}

/// The ring: its bookkeeping under any order of events, then its area on a store's SSD.
pub fn ring(input: &[u8]) {
    let mut input = Input::new(input);
    ring_events(&mut input);
    opened(&mut input, damage_ring);
}

/// Checks that a ring page is held by one batch at a time: from the batch's beginning to the first flush
/// after its home writes and those of all earlier batches.
fn ring_events(input: &mut Input<'_>) {
    let mut home = HomeBatches::new(u32::from(input.byte() % 16) + 1, 0, 0, Default::default());
    let mut held: VecDeque<(Places, Option<u64>)> = VecDeque::new();
    let mut flushes = 0;
    for stamp in 1..=u64::from(input.byte() % 64) {
        match input.byte() % 3 {
            0 => {
                let count = 1 + usize::from(input.byte()) % home.batch_max(Backing::Ring);
                if home.fits(Backing::Ring, count).is_ok() {
                    let version = |no| (PageId::new(SpaceId(1), no), Stamp::from_bits(stamp));
                    let versions = (0..count as u32).map(version).collect();
                    let places = home.begin(Backing::Ring, versions, Stamp::from_bits(stamp), None);
                    assert_eq!(places.ring.len(), count);
                    let mut taken = held.iter().flat_map(|(other, _)| &other.ring);
                    assert!(taken.all(|page| !places.ring.contains(page)), "a page is held twice");
                    held.push_back((places, None));
                }
            }
            1 if !held.is_empty() => {
                let which = usize::from(input.byte()) % held.len();
                let (places, until) = &mut held[which];
                if until.is_none() {
                    // A flush that has ended covers nothing that is written later: the next one does.
                    *until = Some(flushes + 1);
                    home.end_recording(places.id);
                    home.end_home_writes(places.id, true, Vec::new(), HddFlush(flushes + 1));
                }
            }
            _ => {
                flushes += 1;
                home.flushed(HddFlush(flushes));
                while held.front().is_some_and(|(_, until)| until.is_some_and(|flush| flush <= flushes)) {
                    held.pop_front();
                }
            }
        }
        let (floor, _) = home.journal_floor(Stamp::from_bits(u64::MAX));
        assert_eq!(floor == Stamp::from_bits(u64::MAX), held.is_empty());
        assert!(!home.ring_flush_is_due() || !held.is_empty());
        home.validate().expect("sound home batches");
    }
}

/// The manifest: the input as it is, and as a line with a matching checksum.
pub fn manifest(input: &[u8]) {
    let specimen = specimen_of(!input.len().is_multiple_of(2));
    specimen.open_as(specimen.copies(), input.to_vec());
    specimen.open_as(specimen.copies(), sealed_manifest(&adopted(input, &specimen.copies().manifest_line)));
    let mut edited = specimen.copies();
    let mut edits = Input::new(input);
    while !edits.is_empty() {
        super::damage::manifest(&mut edited, &mut edits);
    }
    specimen.open(edited);
}

/// The manifest in `input` with the specimen's ids, if it is JSON: an open refuses other ids before it
/// reads anything else.
fn adopted(input: &[u8], specimen: &[u8]) -> Vec<u8> {
    let parsed = (serde_json::from_slice(input), serde_json::from_slice::<Value>(specimen));
    let (Ok(Value::Object(mut fields)), Ok(specimen)) = parsed else { return input.to_vec() };
    for id in ["store", "ssd"] {
        let _ = fields.insert(id.to_owned(), specimen[id].clone());
    }
    Value::Object(fields).to_string().into_bytes()
}

/// Arbitrary changes anywhere.
pub fn store(input: &[u8]) {
    opened(&mut Input::new(input), damage);
}
