//! Map checkpoints: what the header vouches for, and the order in which the parts are written (I9).
//!
//! Zone, watermark and place in the journal are those of one moment, the begin; the entries are captured
//! after it, in pieces (I44).

use super::Protocol;
use super::slots::Capture;
use crate::format::map::MapHeader;
use pagetier_page::{Lsn, Stamp};
use pagetier_policy::Millis;

/// A step of writing a checkpoint. Each step ends before the next begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    WipeMark,
    WipeHeaders,
    Body,
    Flush,
    Headers,
    Mark,
}

/// The steps of a checkpoint. `unverified`: the one before, in the same area, was reported as failed, but any
/// part of it may have landed. A sound header over another body would look like a damaged map, so the headers
/// are wiped before the body is overwritten. So would a mark without a header, so the mark is wiped first.
///
/// The headers must never be durable before the body and the slots that they vouch for. The mark says that
/// the checkpoint is in force; its write ends before anything is written under the checkpoint, so the first
/// flush after that covers it.
pub(crate) fn steps(unverified: bool) -> Vec<Step> {
    let wipe = [Step::WipeMark, Step::Flush, Step::WipeHeaders, Step::Flush];
    let write = [Step::Body, Step::Flush, Step::Headers, Step::Flush, Step::Mark];
    wipe.into_iter().filter(|_| unverified).chain(write).collect()
}

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// Without the body's checksum and the floor of log positions, which are known once every entry was
    /// captured.
    pub(crate) header: MapHeader,
    /// The zone, a bit per slot.
    pub(crate) zone: Vec<u64>,
    pub(crate) steps: Vec<Step>,
    /// The oldest change in memory or in the ring; `None`: it is not known.
    besides_copies: Option<Option<Lsn>>,
}

impl Protocol {
    /// Begins a fuzzy checkpoint. `watermark`: no write whose stamp is larger has begun. `in_memory`: the
    /// oldest change that is dirty in memory, if that is known. The entries are to be captured next
    /// ([`Slots::capture`](super::slots::Slots::capture)), then comes [`Protocol::captured`].
    pub(crate) fn begin_checkpoint(
        &mut self,
        watermark: Stamp,
        in_memory: Option<Option<Lsn>>,
        now: Millis,
    ) -> Checkpoint {
        let besides_copies = in_memory.map(|lsn| lsn.into_iter().chain(self.home.oldest_lsn()).min());
        let journal_from = self.home.journal_needed_from();
        let Capture { generation, zone } = self.slots.begin_checkpoint(now);
        let slots = self.slots.total();
        let header =
            MapHeader { generation, watermark, journal_from, body_crc: 0, slots, lsn_floor: self.lsn_floor };
        Checkpoint { header, zone, steps: steps(self.map_unverified), besides_copies }
    }

    /// Notes in the header of `checkpoint`, whose entries have all been captured, a lower bound of the
    /// changes that the HDD lacks and a copy has, present or written later.
    pub(crate) fn captured(&self, checkpoint: &mut Checkpoint) {
        let Some(besides_copies) = checkpoint.besides_copies else { return };
        let oldest = besides_copies.into_iter().chain(self.slots.oldest_captured()).min();
        // With nothing dirty anywhere, all that is known of future changes is that they are newer.
        checkpoint.header.lsn_floor = oldest.filter(|lsn| *lsn != Lsn::BLANK).unwrap_or(self.lsn_floor);
    }

    /// Ends a checkpoint. If it is durable (`ok`), its zone is in force, and the journal is free up to what
    /// was needed at its begin; otherwise the previous one still counts.
    pub(crate) fn end_checkpoint(&mut self, header: &MapHeader, ok: bool) {
        (self.map_unverified, self.map_failed) = (!ok, !ok);
        self.slots.end_checkpoint(ok);
        if ok {
            self.home.free_journal(header.journal_from);
            self.lsn_floor = header.lsn_floor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_stands_between_a_header_and_all_that_it_vouches_for_and_before_its_mark() {
        for unverified in [false, true] {
            let steps = steps(unverified);
            let at = |step| steps.iter().position(|other| *other == step);
            let flushed = |from: Step, to: Step| {
                let between = at(from).zip(at(to)).map(|(from, to)| &steps[from..to]);
                between.is_some_and(|steps| steps.contains(&Step::Flush))
            };
            assert!(flushed(Step::Body, Step::Headers) && flushed(Step::Headers, Step::Mark));
            assert_eq!(flushed(Step::WipeMark, Step::WipeHeaders), unverified);
            assert_eq!(flushed(Step::WipeHeaders, Step::Body), unverified);
        }
    }
}
