//! Interprets an input as changes to a store's bytes.

use super::specimen::{BLOCK, Copies, reseal};
use pagetier_page::StoreSeed;
use pagetier_ssdcache::{BLOCK_BYTES, JournalSeq, Layout, MapHeader};

/// The maximum number of changes per input.
const CHANGES_MAX: usize = 16;

/// Reads the bytes of an input in order; zeroes after its end.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    pub(super) fn word(&mut self) -> u64 {
        (0..4).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    pub(super) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Changes `copies` as `input` specifies.
pub(super) fn damage(copies: &mut Copies, input: &mut Input<'_>) {
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            return;
        }
        let layout = copies.layout;
        match input.byte() % 7 {
            // Plain bytes meet the checksums. The kinds that reseal a structure get past them, to its
            // fields.
            0 => overwrite(&mut copies.ssd, 0..layout.end(), input),
            1 => overwrite(&mut copies.hdd, 0..u64::MAX, input),
            2 => sealed_block(copies, input),
            3 => map_body(copies, input),
            4 => misdirected(copies, input),
            5 => zeroes(copies, input),
            _ => manifest(copies, input),
        }
    }
}

/// Changes only the ring's area: bytes, or whole images from elsewhere.
pub(super) fn damage_ring(copies: &mut Copies, input: &mut Input<'_>) {
    let layout = copies.layout;
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            return;
        }
        if input.byte().is_multiple_of(2) {
            overwrite(&mut copies.ssd, layout.ring_at(0)..layout.ring_at(layout.ring_pages), input);
        } else {
            let image = image(copies, input);
            let index = input.word() % u64::from(layout.ring_pages);
            put(&mut copies.ssd, layout.ring_at(index as u32), &image);
        }
    }
}

pub(super) fn put(bytes: &mut [u8], at: u64, new: &[u8]) {
    let from = (at as usize).min(bytes.len());
    let to = (from + new.len()).min(bytes.len());
    bytes[from..to].copy_from_slice(&new[..to - from]);
}

fn overwrite(bytes: &mut [u8], range: std::ops::Range<u64>, input: &mut Input<'_>) {
    // The offset falls within the device for every input. An offset that is drawn beyond it would make
    // most inputs change nothing.
    let end = range.end.min(bytes.len() as u64);
    let at = range.start + input.word() % (end - range.start).max(1);
    let len = usize::from(input.byte());
    put(bytes, at, input.take(len));
}

/// Changes a block of the SSD's metadata and makes its checksum match.
fn sealed_block(copies: &mut Copies, input: &mut Input<'_>) {
    let layout = copies.layout;
    let seed = copies.seed;
    let (at, seed) = match input.byte() % 6 {
        // A superblock says which seed the other checksums have, so its own has none.
        0 => (u64::from(input.byte() % 2) * BLOCK_BYTES, StoreSeed::NONE),
        1 => (layout.map_header_at(input.byte() % 2, 0), seed),
        2 => (layout.map_header_at(input.byte() % 2, 1), seed),
        3 => (layout.map_mark_at(input.byte() % 2), seed),
        _ => (layout.journal_at(JournalSeq(u64::from(input.byte()))), seed),
    };
    let block = &mut copies.ssd[at as usize..][..BLOCK];
    overwrite(block, 0..BLOCK_BYTES, input);
    reseal(seed, block);
}

/// Changes a map's body, and makes its header match.
fn map_body(copies: &mut Copies, input: &mut Input<'_>) {
    let layout = copies.layout;
    let at = layout.map_at(input.byte() % 2) as usize;
    let body = layout.map_body_bytes();
    overwrite(&mut copies.ssd[at + BLOCK..][..body as usize], 0..body, input);
    refit_map(copies.seed, &mut copies.ssd[at..], &layout);
}

/// Gives the map that starts at `area` a header that matches its body.
pub(super) fn refit_map(seed: StoreSeed, area: &mut [u8], layout: &Layout) {
    let body_crc = seed.checksum(&area[BLOCK..][..layout.map_body_bytes() as usize]);
    if let Some(header) = MapHeader::decode(seed, &area[..BLOCK]) {
        let header = MapHeader { body_crc, ..header }.encode(seed);
        // In both copies: with one alone, the store would use the other.
        for copy in 0..2 {
            let at = (layout.map_header_at(0, copy) - layout.map_at(0)) as usize;
            area[at..at + BLOCK].copy_from_slice(&header);
        }
    }
}

/// The place of some page on either device: the device, and the page's offset.
fn place<'c>(copies: &'c mut Copies, input: &mut Input<'_>) -> (&'c mut [u8], u64) {
    let (device, first) = match input.byte() % 2 {
        0 => (&mut copies.ssd, copies.layout.ring_at(0)),
        _ => (&mut copies.hdd, copies.homes_at),
    };
    let page_bytes = copies.layout.page_size.bytes() as u64;
    let pages = (device.len() as u64 - first) / page_bytes;
    (device, first + input.word() % pages.max(1) * page_bytes)
}

/// The image of some page on either device.
fn image(copies: &mut Copies, input: &mut Input<'_>) -> Vec<u8> {
    let page_bytes = copies.layout.page_size.bytes();
    let (device, at) = place(copies, input);
    device[at as usize..].iter().copied().take(page_bytes).collect()
}

/// Puts a whole page image in the place of another.
fn misdirected(copies: &mut Copies, input: &mut Input<'_>) {
    // A misdirected write passes its checksum: only the page number in its header gives it away.
    let image = image(copies, input);
    let (device, at) = place(copies, input);
    put(device, at, &image);
}

fn zeroes(copies: &mut Copies, input: &mut Input<'_>) {
    let device = if input.byte().is_multiple_of(2) { &mut copies.ssd } else { &mut copies.hdd };
    let at = input.word() % device.len().max(1) as u64;
    // A discarded range reads as zeroes, and may cover several structures at once.
    let len = input.word() as usize % 65_536;
    put(device, at, &vec![0; len]);
}

/// Changes the manifest's line, and makes its checksum match.
pub(super) fn manifest(copies: &mut Copies, input: &mut Input<'_>) {
    let at = input.word() % copies.manifest_line.len().max(1) as u64;
    let cut = usize::from(input.byte() % 8);
    let len = usize::from(input.byte() % 32);
    let from = at as usize;
    let to = (from + cut).min(copies.manifest_line.len());
    copies.manifest_line.splice(from..to, input.take(len).iter().copied());
}
