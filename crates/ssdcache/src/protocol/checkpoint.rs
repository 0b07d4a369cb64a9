//! Map checkpoints: what the header vouches for, and the order in which the parts are written (I9).

use super::Protocol;
use super::slots::Capture;
use crate::format::map::{MapBody, MapHeader};
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

/// The steps of a checkpoint. `doubtful`: the previous one, in the same area, was reported as failed, but any
/// part of it may have landed. A sound header over another body would look like a damaged map, so the headers
/// are wiped before the body is overwritten. So would a mark without a header, so the mark is wiped first.
///
/// The headers must never be durable before the body and the slots that they vouch for. The mark says that
/// the checkpoint is in force; its write ends before anything is written under the checkpoint, so the first
/// flush after that covers it.
pub(crate) fn steps(doubtful: bool) -> Vec<Step> {
    let wipe = [Step::WipeMark, Step::Flush, Step::WipeHeaders, Step::Flush];
    let write = [Step::Body, Step::Flush, Step::Headers, Step::Flush, Step::Mark];
    wipe.into_iter().filter(|_| doubtful).chain(write).collect()
}

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// Without the body's checksum.
    pub(crate) header: MapHeader,
    pub(crate) body: MapBody,
    pub(crate) steps: Vec<Step>,
}

impl Protocol {
    /// Captures a fuzzy checkpoint. `watermark`: no write whose stamp is larger has begun. `in_memory`: the
    /// oldest change that is dirty in memory, if that is known.
    pub(crate) fn begin_checkpoint(
        &mut self,
        watermark: Stamp,
        in_memory: Option<Option<Lsn>>,
        now: Millis,
    ) -> Checkpoint {
        let lsn_floor = self.next_lsn_floor(in_memory);
        let journal_from = self.home.journal_needed_from();
        let Capture { generation, body } = self.slots.begin_checkpoint(now);
        let slots = body.slots();
        let header = MapHeader { generation, watermark, journal_from, body_crc: 0, slots, lsn_floor };
        Checkpoint { header, body, steps: steps(self.map_doubtful) }
    }

    /// Ends a checkpoint. If it is durable (`ok`), its zone is in force and the journal is free up to its
    /// capture; otherwise the previous one still counts.
    pub(crate) fn end_checkpoint(&mut self, header: &MapHeader, ok: bool) {
        (self.map_doubtful, self.map_failed) = (!ok, !ok);
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
        for doubtful in [false, true] {
            let steps = steps(doubtful);
            let at = |step| steps.iter().position(|other| *other == step);
            let flushed = |from: Step, to: Step| {
                let between = at(from).zip(at(to)).map(|(from, to)| &steps[from..to]);
                between.is_some_and(|steps| steps.contains(&Step::Flush))
            };
            assert!(flushed(Step::Body, Step::Headers) && flushed(Step::Headers, Step::Mark));
            assert_eq!(flushed(Step::WipeMark, Step::WipeHeaders), doubtful);
            assert_eq!(flushed(Step::WipeHeaders, Step::Body), doubtful);
        }
    }
}
