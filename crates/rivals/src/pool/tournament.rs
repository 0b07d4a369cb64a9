//! A tournament of quantities that grow linearly with a common clock; it yields the largest at any time.
//!
//! CFDC's clusters (section 3.1.2 of Ou, Jin & Härder) have priorities that fall with the global time, each
//! at its own rate, so a heap ordered at one time is out of order at another. Here each inner node of a
//! complete binary tree stores the winner of its subtree and the time until which it is certain to win: when
//! a runner-up would overtake. As the clock advances, only the nodes whose time has passed are played again.
//! A change costs O(log m) for m entries, the winner O(1), and each next entry O(log m). All arithmetic is
//! exact.

use pagetier_policy::collections::NIL;

/// A quantity: `slope · (now - since)`, or endless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Larger than all others, at any time.
    pub(crate) endless: bool,
    /// The slope's numerator.
    pub(crate) over: u64,
    /// The slope's denominator, at least 1.
    pub(crate) under: u64,
    /// The time at which the quantity was 0; not later than now.
    pub(crate) since: u64,
    /// Breaks ties: among equals the lower goes first.
    pub(crate) tie: u64,
}

/// The `until` of a winner that is never overtaken.
const NEVER: u64 = u64::MAX;

impl Entry {
    /// Whether `self` goes before `other` at time `now`.
    fn beats(&self, other: &Self, now: u64) -> bool {
        if self.endless != other.endless {
            return self.endless;
        }
        let (mine, theirs) = if self.endless {
            (0, 0)
        } else {
            // Cross-multiplied, so that the comparison is exact: rounding would let two clusters beat each
            // other.
            let age = |entry: &Self| i128::from(now) - i128::from(entry.since);
            (
                age(self) * i128::from(self.over) * i128::from(other.under),
                age(other) * i128::from(other.over) * i128::from(self.under),
            )
        };
        // The cluster of older timestamp goes first, then the lower position.
        if mine != theirs { mine > theirs } else { (self.since, self.tie) < (other.since, other.tie) }
    }

    /// The first time after `now` at which `self`, which loses to `winner`, may beat it.
    fn overtakes(&self, winner: &Self, now: u64) -> u64 {
        let mine = i128::from(self.over) * i128::from(winner.under);
        let theirs = i128::from(winner.over) * i128::from(self.under);
        // The loser does not grow faster, so it stays behind.
        if winner.endless || mine <= theirs {
            return NEVER;
        }
        // Both are equal at this time; nothing changes before it, whichever wins the tie.
        let equal =
            (mine * i128::from(self.since) - theirs * i128::from(winner.since)).div_euclid(mine - theirs);
        u64::try_from(equal).unwrap_or(NEVER).max(now + 1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The number of the winning entry, or [`NIL`].
    winner: u32,
    /// The winner holds before this time.
    until: u64,
}

impl Node {
    const EMPTY: Self = Self { winner: NIL, until: NEVER };
}

/// The entries by number, and the tree of matches.
#[derive(Debug)]
pub(crate) struct Tournament {
    entries: Vec<Option<Entry>>,
    /// A heap-shaped tree: node `i` has the children `2i` and `2i + 1`, the leaves come last.
    nodes: Vec<Node>,
    leaves: usize,
    now: u64,
}

impl Tournament {
    pub(crate) fn new() -> Self {
        Self { entries: vec![None], nodes: vec![Node::EMPTY; 2], leaves: 1, now: 0 }
    }

    /// Sets, changes or removes entry `at`.
    pub(crate) fn set(&mut self, at: usize, entry: Option<Entry>) {
        if at >= self.leaves {
            self.grow(at);
        }
        self.entries[at] = entry;
        let winner = if entry.is_some() { at as u32 } else { NIL };
        let mut node = self.leaves + at;
        self.nodes[node] = Node { winner, until: NEVER };
        // Only the matches on the way to the root can have changed.
        while node > 1 {
            node /= 2;
            self.play(node);
        }
    }

    /// Advances the clock to `now`, which is not before its present time.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = now;
        // A node's time is the earliest of its subtree: where it has not come, nothing below has changed
        // either.
        self.catch_up(1);
    }

    /// The entries by size, largest first, as of the last [`Tournament::advance`].
    pub(crate) fn largest_first(&self) -> impl Iterator<Item = usize> + '_ {
        // Subtrees whose winners have not been returned yet.
        let mut open = vec![1];
        std::iter::from_fn(move || {
            let before = |a: usize, b: usize| self.beats(self.nodes[a].winner, self.nodes[b].winner);
            let best = (0..open.len()).reduce(|a, b| if before(open[b], open[a]) { b } else { a })?;
            let mut node = open.swap_remove(best);
            let winner = self.nodes[node].winner;
            if winner == NIL {
                return None;
            }
            // The entries that the winner beat on its way up are the next contenders.
            while node < self.leaves {
                let left = 2 * node;
                let loser = if self.nodes[left].winner == winner { left + 1 } else { left };
                open.push(loser);
                node = 4 * node + 1 - loser;
            }
            Some(winner as usize)
        })
    }

    fn catch_up(&mut self, node: usize) {
        if self.nodes[node].until <= self.now {
            self.catch_up(2 * node);
            self.catch_up(2 * node + 1);
            self.play(node);
        }
    }

    /// Plays the match of the winners of both halves.
    fn play(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        let (winner, loser) = if self.beats(right.winner, left.winner) {
            (right.winner, left.winner)
        } else {
            (left.winner, right.winner)
        };
        let overtaken = match (self.entry(winner), self.entry(loser)) {
            (Some(winner), Some(loser)) => loser.overtakes(winner, self.now),
            _ => NEVER,
        };
        // Certain as long as this match and all below it are.
        self.nodes[node] = Node { winner, until: overtaken.min(left.until).min(right.until) };
    }

    fn beats(&self, a: u32, b: u32) -> bool {
        match (self.entry(a), self.entry(b)) {
            (Some(a), Some(b)) => a.beats(b, self.now),
            (a, _) => a.is_some(),
        }
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)?.as_ref()
    }

    #[cold]
    fn grow(&mut self, at: usize) {
        // Doubling: entries are numbered from 0, so all matches are played anew only log m times.
        self.leaves = (at + 1).next_power_of_two();
        self.entries.resize(self.leaves, None);
        self.nodes.clear();
        self.nodes.resize(2 * self.leaves, Node::EMPTY);
        for (at, entry) in self.entries.iter().enumerate() {
            if entry.is_some() {
                self.nodes[self.leaves + at].winner = at as u32;
            }
        }
        for node in (1..self.leaves).rev() {
            self.play(node);
        }
    }

    /// Plays every match again.
    pub(crate) fn validate(&self) -> Result<(), String> {
        for node in 1..self.leaves {
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            let Node { winner, until } = self.nodes[node];
            let best = if self.beats(right.winner, left.winner) { right.winner } else { left.winner };
            if until > self.now && winner != best {
                return Err(format!("match {node}: {winner} won until {until}, but {best} is before it"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(tournament: &Tournament) -> Vec<usize> {
        tournament.largest_first().collect()
    }

    #[test]
    fn the_steeper_overtakes_the_older_in_time() {
        let line = |over, since| Some(Entry { endless: false, over, under: 1, since, tie: 0 });
        let mut t = Tournament::new();
        t.set(0, line(1, 0));
        t.set(3, line(3, 10));
        for (now, first) in [(10, 0), (14, 0), (15, 0), (16, 3), (1000, 3)] {
            t.advance(now);
            assert_eq!(order(&t)[0], first, "at {now}");
        }
        t.set(1, Some(Entry { endless: true, over: 1, under: 9, since: 1000, tie: 0 }));
        assert_eq!(order(&t), [1, 3, 0]);
        t.set(1, None);
        t.set(3, None);
        assert_eq!(order(&t), [0]);
        t.set(0, None);
        assert_eq!(order(&t), [0usize; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_order_is_that_of_a_sort_at_any_time(
            steps in prop::collection::vec((0..40usize, 0..5u64, 1..6u64, 1..9u64, 0..8u32), 1..200),
        ) {
            let mut t = Tournament::new();
            let (mut all, mut now) = (vec![None::<Entry>; 40], 0);
            for (at, passed, over, under, kind) in steps {
                now += passed;
                let entry = Entry { endless: kind == 1, over, under, since: now, tie: at as u64 };
                let entry = (kind > 0).then_some(entry);
                all[at] = entry;
                t.advance(now);
                t.set(at, entry);
                t.validate().map_err(TestCaseError::fail)?;
                let mut sorted: Vec<usize> = (0..40).filter(|&at| all[at].is_some()).collect();
                sorted.sort_by(|&a, &b| {
                    let (a, b) = (all[a].unwrap(), all[b].unwrap());
                    if a.beats(&b, now) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
                });
                prop_assert_eq!(order(&t), sorted);
            }
        }
    }
}
