//! The order in which waiting operations are served: demand, then prefetch, then the rest; first come, first
//! served within a rank; and no caller starves.

use crate::IoClass;
use std::collections::VecDeque;

/// The number of ranks.
pub(crate) const RANKS: usize = 3;

/// One pick in this many is out of turn, to prevent starvation.
const FAIRNESS: u32 = 4;

/// The rank of a class; 0 is served first.
#[must_use]
pub const fn rank(class: IoClass) -> usize {
    match class {
        // Rank 0 includes small I/O that other work waits for: writers wait for a map checkpoint, pages going
        // home for the journal. It also includes late write-backs, which relieve the disk by as much as they
        // load it.
        IoClass::Demand | IoClass::UrgentClean | IoClass::UrgentWriteBack | IoClass::Meta => 0,
        IoClass::Prefetch => 1,
        IoClass::Clean | IoClass::WriteBack | IoClass::Ring | IoClass::Recovery => 2,
    }
}

/// A queue ordered by rank.
#[derive(Debug)]
pub(crate) struct RankQueue<T> {
    ranks: [VecDeque<T>; RANKS],
    picks: u32,
}

impl<T> Default for RankQueue<T> {
    fn default() -> Self {
        Self { ranks: std::array::from_fn(|_| VecDeque::new()), picks: 0 }
    }
}

impl<T> RankQueue<T> {
    pub(crate) fn push(&mut self, class: IoClass, item: T) {
        self.ranks[rank(class)].push_back(item);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.picks = self.picks.wrapping_add(1);
        // The ranks alternate in being picked out of turn: with a single favoured rank, the third would
        // starve while the other two are never empty.
        let turn =
            if self.picks.is_multiple_of(FAIRNESS) { (self.picks / FAIRNESS) as usize % RANKS } else { 0 };
        let first = self.ranks[turn].pop_front();
        first.or_else(|| self.ranks.iter_mut().find_map(VecDeque::pop_front))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_goes_first_but_no_class_starves() {
        let mut queue = RankQueue::default();
        queue.push(IoClass::Clean, "clean");
        queue.push(IoClass::Prefetch, "prefetch");
        for _ in 0..20 {
            queue.push(IoClass::Demand, "demand");
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order.len(), 22);
        assert_eq!(order.iter().position(|o| *o == "prefetch"), Some(3));
        assert_eq!(order.iter().position(|o| *o == "clean"), Some(7));
        assert!(queue.is_empty());
    }

    #[test]
    fn the_middle_does_not_starve_between_two_that_are_never_empty() {
        let mut queue = RankQueue::default();
        queue.push(IoClass::Prefetch, "prefetch");
        let served = (0..100).position(|_| {
            queue.push(IoClass::Demand, "demand");
            queue.push(IoClass::Clean, "clean");
            queue.pop() == Some("prefetch")
        });
        assert!(served.is_some_and(|at| at < 20));
    }
}
