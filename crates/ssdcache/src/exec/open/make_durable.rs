//! Makes durable what a recovery relies on, before it writes anything else (I13, I14).
//!
//! Readable is not durable. After a kill, what recovery reads may not be flushed, and its first write may
//! depend on it. After a failed flush it may never become durable, so recovery first rewrites it: the same
//! bytes in the same places, which a power cut cannot tear into anything that the failed flush could not have
//! left.
//!
//! A process can be killed between the failure of a flush and the note of it. So after any end except a clean
//! close, a flush may have failed, noted or not. Recovery rewrites everything that it relies on unless a
//! flush is known to have covered it. A sound map header proves that a flush has covered its body and the
//! slots that it vouches for. What remains are the headers and marks, the journal, the ring, and the slots of
//! the zone written since the checkpoint began, or being written when their entries were captured.

use crate::exec::check;
use crate::exec::io::single::{read_agreed, read_one, write_one};
use crate::exec::open::images::readable;
use crate::exec::open::{OpenParams, Reader, RecoveryFlushes};
use crate::format::layout::BLOCK_BYTES;
use crate::format::layout::JournalSeq;
use crate::protocol::recovery::Evidence;
use crate::remember::{Flushed, Unverified};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoClass, IoOp, SharedDevice};
use pagetier_page::PageId;
use std::ops::Range;
use std::sync::Arc;

/// The size of one rewrite in bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

impl OpenParams {
    /// What may never become durable although it can be read. `noted` is the part that the manifest records.
    pub(crate) fn unverified(&self, noted: &Unverified) -> Unverified {
        let unknown = !self.closed;
        let homes = noted.homes.clone();
        Unverified { hdd: noted.hdd || unknown, ssd: noted.ssd || unknown, homes }
    }
}

impl Reader<'_> {
    /// After a crash: adds the pages that lists in the ring name to the homes in `unverified`, and has that
    /// noted in the manifest, since the ring is about to be overwritten (I14).
    pub(super) async fn note_listed(&self, unverified: &mut Unverified) -> Result<(), DeviceError> {
        let homes = if self.params.closed { Vec::new() } else { self.listed() };
        let listed = Unverified { hdd: true, ssd: false, homes };
        if listed.homes.iter().all(|page| unverified.homes.binary_search(page).is_ok()) {
            return Ok(());
        }
        unverified.add(&listed);
        self.params.remember.note(&listed).await.map_err(|error| DeviceError {
            device: Arc::from(self.params.hdd.name()),
            op: IoOp::Write,
            offset: 0,
            len: 0,
            kind: DeviceErrorKind::Unusable(format!(
                "the pages that must be written again could not be recorded in the manifest: {error}"
            )),
        })
    }

    /// Rewrites what a failed flush of the SSD left unverified, then flushes both devices. Returns the number
    /// of pages and blocks rewritten.
    pub(crate) async fn make_durable(
        &self,
        evidence: &Evidence,
        unverified: &Unverified,
        flushes: &RecoveryFlushes,
    ) -> Result<u64, DeviceError> {
        let mut rewritten = 0;
        if unverified.ssd {
            for range in self.evidence_ranges(evidence) {
                rewritten += self.rewrite(range).await?;
            }
        }
        flushes.flush(&[Flushed::Ssd, Flushed::Hdd]).await?;
        Ok(rewritten)
    }

    /// The ranges of the SSD that this recovery relies on and that no flush may have covered.
    fn evidence_ranges(&self, evidence: &Evidence) -> Vec<Range<u64>> {
        let layout = self.params.layout;
        let mut ranges = Vec::new();
        if layout.slots > 0 {
            for area in 0..2 {
                let blocks = [0, 1].map(|copy| layout.map_header_at(area, copy));
                let blocks = blocks.into_iter().chain([layout.map_mark_at(area)]);
                ranges.extend(blocks.map(|at| at..at + BLOCK_BYTES));
            }
            let journal = layout.journal_at(JournalSeq(0));
            ranges.push(journal..journal + u64::from(layout.journal_blocks) * BLOCK_BYTES);
        }
        if layout.ring_pages > 0 {
            let page_bytes = layout.page_size.bytes() as u64;
            ranges.push(layout.ring_at(0)..layout.ring_at(0) + u64::from(layout.ring_pages) * page_bytes);
        }
        // A flush preceded the header, so the other slots that it names are durable. Apart from the ring,
        // which may be on another device.
        let mut slots: Vec<Range<u64>> = Vec::new();
        for slot in evidence.unflushed_slots() {
            let (at, end) = (layout.slot_at(slot), layout.slot_at(slot + 1));
            match slots.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = end,
                None => slots.push(at..end),
            }
        }
        ranges.extend(slots);
        ranges
    }

    /// Rewrites `range` of the SSD with its own contents. Skips blocks that cannot be read, since recovery
    /// does not rely on them. Returns the number of pages or blocks.
    async fn rewrite(&self, range: Range<u64>) -> Result<u64, DeviceError> {
        let (ssd, mut at) = (&self.params.ssd, range.start);
        while at < range.end {
            let end = range.end.min(at + CHUNK_BYTES);
            // One unreadable block must not keep its neighbours from being made durable.
            if !rewrite_same(ssd, at, end - at).await? {
                for block in (at..end).step_by(BLOCK_BYTES as usize) {
                    rewrite_same(ssd, block, BLOCK_BYTES).await?;
                }
            }
            at = end;
        }
        Ok((range.end - range.start).div_ceil(self.params.layout.page_size.bytes() as u64))
    }

    /// Without a ring: rewrites the sound homes of `pages` with their own contents. With one, they are
    /// written again once it is in use.
    pub(crate) async fn rewrite_homes(&self, pages: &[PageId]) -> Result<u64, DeviceError> {
        let (hdd, bytes) = (&self.params.hdd, self.params.layout.page_size.bytes());
        let mut rewritten = 0;
        if self.params.layout.ring_pages > 0 {
            return Ok(0);
        }
        for page in pages {
            let home = self.params.homes.place(*page);
            let Some(home) = home.filter(|home| home + bytes as u64 <= hdd.size()) else { continue };
            let (image, result) = read_one(hdd, home, IoBuf::zeroed(bytes), IoClass::Recovery).await;
            // Reading a bad home is an error, durable or not.
            if readable(result)? && check(self.params.seed, image.as_slice(), *page, None).is_ok() {
                write_one(hdd, home, image, IoClass::Recovery).await?;
                rewritten += 1;
            }
        }
        Ok(rewritten)
    }

    /// Wipes the image at offset `at` of the SSD.
    pub(crate) async fn void(&self, at: u64) -> Result<(), DeviceError> {
        let zeroes = IoBuf::zeroed(self.params.layout.page_size.bytes());
        write_one(&self.params.ssd, at, zeroes, IoClass::Recovery).await
    }
}

/// Rewrites `bytes` at `at` with their own contents; returns false if they cannot be read.
async fn rewrite_same(device: &SharedDevice, at: u64, bytes: u64) -> Result<bool, DeviceError> {
    // Two reads must agree: data that a transfer corrupted must not be written back.
    match read_agreed(device, at, bytes, &|_| false).await {
        Ok((image, _)) => write_one(device, at, image, IoClass::Recovery).await.map(|()| true),
        Err(error) => readable(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::io::single::ATTEMPTS_MAX;
    use pagetier_devio::{Device, IoBufs, IoOp};
    use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
    use std::sync::Arc;

    const BYTES: usize = 8192;

    #[tokio::test(start_paused = true)]
    async fn what_a_transfer_spoils_is_not_written_back() {
        for nth in 0..ATTEMPTS_MAX as u64 + 2 {
            let sim = Arc::new(SimDevice::new("ssd", 1 << 16, nth, &SimPower::new()));
            let mut content = IoBuf::zeroed(BYTES);
            content.as_mut_slice().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
            let written = IoBufs::from_iter([IoBuf::copy_of(content.as_slice())]);
            sim.write(0, written, IoClass::Recovery).await.result.expect("written");
            sim.inject(Fault::new(FaultEffect::BitFlip).on(IoOp::Read).from_op(sim.ops() + nth).times(1));
            let device: SharedDevice = Arc::clone(&sim) as SharedDevice;
            assert!(rewrite_same(&device, 0, BYTES as u64).await.expect("rewritten"));
            assert!(sim.snapshot()[..BYTES] == *content.as_slice(), "spoiled by read {nth}");
        }
    }
}
