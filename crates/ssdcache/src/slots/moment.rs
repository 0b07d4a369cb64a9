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
        moment.writable = self.writable.len();
        moment.waiting = self.waiting.len();
        moment.writing = count(&|s| s.state == State::Writing);
        moment.abandoned = count(&|s| s.state == State::Writing && s.abandoned);
        moment.retired = count(&|s| s.state == State::Retired);
        moment.retired_read = count(&|s| s.state == State::Retired && s.readers > 0);
        moment.dirty = count(&|s| s.state == State::Live && s.dirty);
        moment.clean = count(&|s| s.state == State::Live && !s.dirty);
        moment.pending = self.pending.len();
        moment.going_home = self.going_home.len();
    }
}
