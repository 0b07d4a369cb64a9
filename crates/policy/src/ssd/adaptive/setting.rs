//! The settings that the policy chooses among, and a page's rank under each.

use super::score::{HALF_LIVES, Seen, TICKS_PER_SLOT};
use crate::{Cause, Costs};

/// A way to rank pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The index of the half-life that ranks.
    pub(crate) rate: usize,
    /// The weight of the write at hand.
    pub(crate) at_hand: f64,
    /// The weight of a write-back that a rewrite will probably save.
    pub(crate) rewrite: f64,
    /// Whether reads restored from the sketch count.
    pub(crate) sketch: bool,
    /// Ranks by recency instead, with pages read in their slot above all others, and admits every page.
    pub(crate) segmented: bool,
}

/// All settings. The write at hand weighs less with a short half-life, because it is added to sums over fewer
/// accesses.
pub(crate) const SETTINGS: [Setting; 7] = [
    Setting { name: "forever", rate: 0, at_hand: 3.0, rewrite: 2.0, sketch: true, segmented: false },
    Setting { name: "half-life-16", rate: 1, at_hand: 3.0, rewrite: 2.0, sketch: false, segmented: false },
    Setting { name: "half-life-4", rate: 2, at_hand: 2.0, rewrite: 2.0, sketch: false, segmented: false },
    Setting { name: "half-life-1", rate: 3, at_hand: 1.0, rewrite: 1.0, sketch: false, segmented: false },
    Setting { name: "plain", rate: 0, at_hand: 0.0, rewrite: 0.0, sketch: false, segmented: false },
    Setting { name: "half-life-0.25", rate: 4, at_hand: 1.0, rewrite: 1.0, sketch: false, segmented: false },
    Setting { name: "segmented-lru", rate: 0, at_hand: 0.0, rewrite: 0.0, sketch: false, segmented: true },
];

/// The setting in force until the ghosts have been compared.
pub(crate) const FIRST: usize = 4;

/// The setting with the next longer half-life; the same one if there is none (`forever`, `plain`), or if it
/// ranks by recency.
pub(crate) fn longer(setting: usize) -> usize {
    let rate = SETTINGS[setting].rate;
    SETTINGS.iter().position(|other| other.rate + 1 == rate).unwrap_or(setting)
}

/// The state of a page's slot, on the SSD or in a ghost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Whether the version is newer than the HDD's.
    pub(crate) newer: bool,
    /// Whether the page was read since it got the slot.
    pub(crate) again: bool,
}

impl Facts {
    pub(crate) const fn on_ssd(seen: &Seen, newer: bool) -> Self {
        Self { newer, again: seen.ghosts.again_on_ssd() }
    }

    pub(crate) const fn in_ghost(seen: &Seen, ghost: usize) -> Self {
        Self { newer: seen.ghosts.newer_in(ghost), again: seen.ghosts.again_in_ghost() }
    }
}

/// Exceeds every tick.
const ONCE: f64 = 4_294_967_296.0;

/// The costs and the current tick, which turn sums into keys.
///
/// A key is the logarithm of a page's worth plus the time of its last access in half-lives. Decay lowers all
/// logarithms at the same rate, so a key changes only when the page is accessed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) costs: Costs,
    pub(crate) tick: u32,
}

impl Scale {
    /// The key of a page that holds a slot.
    pub(crate) fn key_of_held(&self, setting: &Setting, seen: &Seen, facts: Facts) -> f64 {
        if setting.segmented {
            let last = f64::from(seen.at_stamp(setting.rate).1);
            return if facts.again { last } else { last - ONCE };
        }
        let copy = if facts.newer {
            setting.rewrite * seen.rewritten() * (self.costs.ssd_read_ms + self.costs.hdd_write_ms)
        } else {
            0.0
        };
        // The copy decays like the accesses: a key changes only when the page is accessed.
        let restored = if setting.sketch { seen.restored() * self.costs.read_saving_ms() } else { 0.0 };
        let (sum, stamp) = seen.at_stamp(setting.rate);
        key(setting, sum + restored + copy, stamp)
    }

    /// The key of a page considered for admission.
    pub(crate) fn key_of_candidate(&self, setting: &Setting, seen: &Seen, cause: Cause) -> f64 {
        if setting.segmented {
            return f64::INFINITY;
        }
        let at_once = match cause {
            Cause::Cleaned => self.costs.hdd_write_ms - self.costs.ssd_write_ms,
            Cause::Evicted | Cause::Read => -self.costs.ssd_write_ms,
        };
        key(setting, self.worth(setting, seen) + setting.at_hand * at_once, self.tick)
    }

    /// The page's current worth, in milliseconds.
    pub(crate) fn worth(&self, setting: &Setting, seen: &Seen) -> f64 {
        let restored = if setting.sketch { seen.restored() * self.costs.read_saving_ms() } else { 0.0 };
        seen.sum(setting.rate, self.tick) + restored
    }
}

fn key(setting: &Setting, worth_ms: f64, tick: u32) -> f64 {
    let half_life = HALF_LIVES[setting.rate];
    worth_ms.max(f64::MIN_POSITIVE).log2() + f64::from(tick) / (half_life * f64::from(TICKS_PER_SLOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_longer_half_life_is_the_neighbour_and_other_rankings_have_none() {
        let names = |at: usize| (SETTINGS[at].name, SETTINGS[longer(at)].name);
        let expected = [
            ("forever", "forever"),
            ("half-life-16", "forever"),
            ("half-life-4", "half-life-16"),
            ("half-life-1", "half-life-4"),
            ("plain", "plain"),
            ("half-life-0.25", "half-life-1"),
            ("segmented-lru", "segmented-lru"),
        ];
        assert_eq!(std::array::from_fn(names), expected);
    }
}
