//! The slots at this moment, for the simulator's coverage (feature `mutations`).

use super::{Slots, State};
use crate::moment::Moment;

impl Slots {
    /// Fills in what the slots know.
    pub(crate) fn moment(&self, moment: &mut Moment) {
        let count = |f: &dyn Fn(&super::Slot) -> bool| self.slots.iter().filter(|s| f(s)).count();
        moment.capturing = self.capturing;
        moment.starved = self.starved;
        moment.full = !self.has_room();
        (moment.writable, moment.waiting) = self.count_free();
        moment.writing = count(&|s| s.state == State::Writing);
        moment.abandoned = count(&|s| s.state == State::Writing && s.abandoned);
        moment.retired = count(&|s| s.state == State::Retired);
        moment.retired_read = count(&|s| s.state == State::Retired && s.readers > 0);
        moment.dirty = count(&|s| s.state == State::Live && s.dirty);
        moment.clean = count(&|s| s.state == State::Live && !s.dirty);
        moment.pending = self.pending.len();
        moment.going_home = self.going_home.len();
        moment.laps = self.circle.as_ref().map_or(0, |circle| circle.laps);
        moment.moving = self.moving.len();
        moment.moved_over = count(&|s| s.moving && s.state == State::Retired);
        moment.backing = count(&|s| s.state == State::Live && s.backs);
        let copying =
            |renews: bool| count(&|s| s.state == State::Writing && !s.abandoned && s.renews == renews);
        moment.renewing = copying(true);
        moment.reading = if self.on_read { copying(false) } else { 0 };
    }
}
