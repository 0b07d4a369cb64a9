//! Whether a device has anything for a flush to make durable.

/// The changes of one device: writes, discards, and changes of its size.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    begun: u64,
    /// Those whose result no caller has seen yet.
    open: usize,
    /// Whether the result of one will never be seen, since its future was dropped.
    detached: bool,
}

impl Changes {
    pub(crate) fn begin(&mut self) {
        self.begun += 1;
        self.open += 1;
    }

    /// `seen`: the change has ended, and its caller is about to see the result.
    pub(crate) fn end(&mut self, seen: bool) {
        self.open -= 1;
        self.detached |= !seen;
    }

    /// The number of changes begun so far, if all of them have ended. `operations`: those of any kind that
    /// are in flight.
    pub(crate) fn settled(&mut self, operations: usize) -> Option<u64> {
        if self.open > 0 {
            return None;
        }
        // A dropped future says nothing about its operation, which may complete at any later moment. It has
        // ended for certain once the device has no operation in flight.
        self.detached &= operations > 0;
        (!self.detached).then_some(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_settled_once_all_have_ended() {
        let mut changes = Changes::default();
        assert_eq!(changes.settled(3), Some(0), "reads change nothing");
        changes.begin();
        changes.begin();
        changes.end(true);
        assert_eq!(changes.settled(1), None);
        changes.end(true);
        assert_eq!(changes.settled(0), Some(2));
    }

    #[test]
    fn a_change_whose_future_was_dropped_has_ended_once_nothing_is_in_flight() {
        let mut changes = Changes::default();
        changes.begin();
        changes.end(false);
        assert_eq!(changes.settled(2), None);
        changes.begin();
        assert_eq!(changes.settled(0), None, "the second one has not entered the device yet");
        changes.end(true);
        assert_eq!(changes.settled(1), None);
        assert_eq!(changes.settled(0), Some(2));
        assert_eq!(changes.settled(1), Some(2), "what is in flight now began later: a read");
    }
}
