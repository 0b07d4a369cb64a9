//! How long the log may become: what a recovery after a crash reads, what is kept for the loss of the SSD,
//! and what its medium takes. Asks for checkpoints in time, and lets changes wait for them.

use super::{Shared, Wal};
use crate::log::segments::Segments;
use crate::options::Keep;
use pagetier::{Loss, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;

/// The pause after a checkpoint that could not make enough space, as during a backup, which holds the log.
pub(crate) const PAUSE_HELD: Duration = Duration::from_secs(1);
/// The pause of what waits for space in a log that is long, and that a checkpoint could not shorten.
const PAUSE_LONG: Duration = Duration::from_millis(50);

/// How far a log may grow, in sixteenths of its limit, while pages that an open found on the SSD go home.
const SHARED_TO: u64 = 14;

/// The part of a log that a recovery reads, from the start of a segment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RedoSpan {
    /// Where it begins.
    pub from: Lsn,
    /// Its length.
    pub bytes: u64,
}

impl Wal {
    /// What a recovery would read after `loss` at this moment, records in memory included, which a crash
    /// loses. After a crash that is the log from the position on that the store has recorded, whatever
    /// the log is kept for, and whatever a [`Hold`](crate::Hold) or an archive retains; after the loss of
    /// the SSD it is all of the log. `None` for the loss of the SSD if the log is not kept for that.
    #[must_use]
    pub fn to_redo(&self, loss: Loss) -> Option<RedoSpan> {
        let oldest = self.oldest().0;
        let from = match loss {
            Loss::Crash => oldest.max(self.0.redo.load(Ordering::Acquire)),
            _ if self.keep() == Keep::ForSsdLoss => oldest,
            _ => return None,
        };
        Some(RedoSpan { from: Lsn(from), bytes: self.end().0.saturating_sub(from) })
    }

    /// Whether the log should become as short as it can be, for the space that this gives back.
    pub(crate) fn is_tight(&self) -> bool {
        self.0.tight.load(Ordering::Acquire)
    }

    /// The position up to which the log should go: its medium has little space left, or it may be no longer.
    pub(crate) fn to_go(&self) -> Option<Lsn> {
        Some(Lsn(self.0.to_go.load(Ordering::Acquire))).filter(|lsn| lsn.0 > 0)
    }

    /// The position up to which the oldest segment alone would go.
    pub(crate) fn next_to_go(&self) -> Lsn {
        Lsn(self.0.next_to_go.load(Ordering::Acquire))
    }

    /// While pages that were on the SSD at the open hold the log: up to where they do, and how many
    /// segments the log may grow by. Once per segment.
    pub(crate) fn share_due(&self) -> Option<(Lsn, u64)> {
        let (kept, found) = (self.0.kept.load(Ordering::Acquire), self.0.found.load(Ordering::Acquire));
        if self.keep() != Keep::ForSsdLoss || kept == 0 || kept >= found {
            return None;
        }
        let (segment, end) = (self.0.options.segment_bytes(), self.0.end.load(Ordering::Acquire));
        let left =
            (self.0.options.kept_bytes() / 16 * SHARED_TO).saturating_sub(end.saturating_sub(kept)) / segment;
        let is_new = self.0.shared.swap(end / segment, Ordering::AcqRel) != end / segment;
        is_new.then_some((Lsn(found), left.max(1)))
    }

    /// The position up to which pages are to be written because the log has too many segments for its
    /// capacity, however short they are; 0: it has not.
    pub(crate) fn crowded(&self) -> u64 {
        self.0.crowded.load(Ordering::Acquire)
    }

    /// Whether the log may have few segments more.
    pub(crate) fn is_scarce(&self) -> bool {
        self.0.scarce.load(Ordering::Acquire)
    }

    /// Whether changes should wait for a checkpoint.
    pub(crate) fn is_long(&self) -> bool {
        self.len_bytes() > self.0.options.capacity_bytes || self.is_scarce()
    }

    /// The log since the position from which a crash needs it, as of the last truncation, in bytes: what the
    /// capacity limits.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.0.end.load(Ordering::Acquire).saturating_sub(self.0.needed.load(Ordering::Acquire))
    }

    /// Waits until the log has grown by another fraction of its capacity, or by a segment.
    pub async fn grown(&self) {
        self.0.grown.notified().await;
    }

    /// The notification that [`Wal::grown`] waits for. A task that waits for it does not keep the log open.
    pub(crate) fn growth(&self) -> Arc<Notify> {
        Arc::clone(&self.0.grown)
    }

    /// Wakes the current or the next call of [`Wal::grown`].
    pub fn signal_grown(&self) {
        self.0.grown.notify_one();
    }

    /// Waits until the log is below its capacity and its medium takes more, or until it is abandoned.
    /// Callers must hold no locks and no pages.
    pub async fn has_space(&self) {
        let full = || self.is_long() && !self.is_abandoned();
        while full() {
            let truncated = self.0.truncated.notified();
            tokio::pin!(truncated);
            truncated.as_mut().enable();
            if !full() {
                return;
            }
            self.signal_grown();
            truncated.await;
            if full() {
                // The checkpoint could not make enough space, as during a backup, which holds the log. One
                // after the other would find the same.
                let pause = tokio::time::sleep(if self.is_scarce() { PAUSE_HELD } else { PAUSE_LONG });
                tokio::pin!(pause);
                loop {
                    let truncated = self.0.truncated.notified();
                    tokio::pin!(truncated);
                    truncated.as_mut().enable();
                    if !full() {
                        return;
                    }
                    tokio::select! {
                        () = &mut pause => break,
                        () = truncated => {}
                    }
                }
            }
        }
    }

    /// Releases all tasks that wait for space, because no checkpoint will follow.
    pub fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::Release);
        self.0.truncated.notify_waiters();
    }

    /// Whether [`Wal::abandon`] was called.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.0.abandoned.load(Ordering::Acquire)
    }
}

impl Shared {
    /// Notes how much of the medium's space is used; asks for a checkpoint if that is most.
    pub(super) fn note_space(&self, segments: &Segments) {
        // A full medium alone is no reason if the log is kept for a crash: pages in memory need it, and the
        // checkpoint that a full medium asks for writes them all.
        let is_full = self.tight.load(Ordering::Acquire) && self.options.keep == Keep::ForSsdLoss;
        let kept = self.kept.load(Ordering::Acquire);
        // One segment after the other goes once half of what may be kept is in use. After an open there is
        // space for more: pages go home in shares then.
        let sixteenth = self.options.kept_bytes() / 16;
        let (usual, long) = if kept < self.found.load(Ordering::Acquire) { (SHARED_TO, 15) } else { (8, 10) };
        // Of a device, whose slots may be made for larger logs, they have a limit of their own.
        let whole = self.options.segment_bytes().min(self.options.kept_bytes() / 32);
        let within = |bytes| segments.within(bytes, whole);
        let beyond = |bytes| within(bytes).filter(|start| kept <= *start && segments.oldest() < *start);
        let capacity = self.options.capacity_bytes;
        let is_crowded = segments.bytes_from(self.needed.load(Ordering::Acquire), whole) > capacity / 4 * 3;
        let crowded = if is_crowded { within(capacity / 8 * 5).unwrap_or(0) } else { 0 };
        let to_go = segments.half(is_full, whole).max(beyond(sixteenth * usual)).unwrap_or(0);
        // A segment that has no successor with a record cannot go: waiting would keep the record out.
        let end = self.end.load(Ordering::Acquire);
        let is_long = beyond(sixteenth * long).is_some_and(|start| start < end);
        self.scarce.store(is_long || segments.are_scarce(), Ordering::Release);
        self.next_to_go.store(segments.after(kept).unwrap_or(0), Ordering::Release);
        self.second.store(segments.after(0).unwrap_or(u64::MAX), Ordering::Release);
        self.redo.store(segments.holding(self.from.load(Ordering::Acquire) + 1), Ordering::Release);
        let more = to_go > self.to_go.swap(to_go, Ordering::AcqRel);
        if crowded > self.crowded.swap(crowded, Ordering::AcqRel) || more {
            self.grown.notify_one();
        }
    }
}
