//! The state of the protocol at a crash, by which the simulator measures its coverage (feature `probes`).

use super::Slots;
use super::slot::{Phase, Slot};

/// The state of the protocol at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(hidden)]
#[allow(missing_docs, reason = "not part of the interface; the names say it")]
pub struct Moment {
    pub capturing: bool,
    pub starved: bool,
    pub full: bool,
    pub writable: usize,
    pub waiting: usize,
    pub writing: usize,
    pub abandoned: usize,
    pub retired: usize,
    pub retired_read: usize,
    pub dirty: usize,
    pub clean: usize,
    pub pending: usize,
    pub going_home: usize,
    pub laps: u64,
    pub moving: usize,
    pub moved_over: usize,
    pub backing: usize,
    pub reading: usize,
    pub renewing: usize,
    pub writing_home: usize,
    pub admissions: usize,
    pub ring_held: u64,
    pub ring_pages: u32,
    pub journal_used: u64,
    pub journal_blocks: u32,
    pub ssd_error: bool,
    pub refusing: bool,
}

impl Slots {
    /// Fills in the fields that describe slots.
    pub(crate) fn moment(&self, moment: &mut Moment) {
        let count = |f: &dyn Fn(&Slot) -> bool| self.slots.iter().filter(|s| f(s)).count();
        moment.capturing = self.capturing;
        moment.starved = self.starved;
        moment.full = !self.has_capacity();
        (moment.writable, moment.waiting) = self.count_free();
        moment.writing = count(&Slot::is_writing);
        moment.abandoned = count(&|s| matches!(s.phase, Phase::Writing { abandoned: true, .. }));
        moment.retired = count(&Slot::is_retired);
        moment.retired_read = count(&|s| s.is_retired() && s.readers() > 0);
        moment.dirty = self.dirty_pages();
        moment.clean = self.pages() - moment.dirty;
        moment.pending = self.pending.len();
        moment.laps = self.laps();
        moment.moving = self.moving.len();
        moment.moved_over = count(&|s| s.is_retired() && s.stored().is_some_and(|stored| stored.moving));
        let copying =
            |renewing: bool| count(&|s| s.phase == Phase::Writing { abandoned: false, renews: renewing });
        moment.renewing = copying(true);
        moment.reading = if self.on_read { copying(false) } else { 0 };
    }
}
