//! The settings that the policy chooses among, and a page's rank under each.

use super::score::{HALF_LIVES, Seen, TICKS_PER_SLOT};
use crate::{Cause, Costs};

/// A way to rank pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The index of the half-life that ranks.
    pub(crate) rate: usize,
    /// The weight of the write that a dirty page's rejection takes.
    pub(crate) writes: f64,
    /// Ranks by recency instead, with pages read in their slot above all others, and admits every dirty page
    /// and, at second sight, every clean one.
    pub(crate) segmented: bool,
}

/// The weight of a write now against accesses, which are sums over a long time. Without it, dirty pages that
/// the SSD rejects are written to the HDD again and again; more lets them displace pages that are read.
const WRITES: f64 = 2.0;

const fn half_life(name: &'static str, rate: usize) -> Setting {
    Setting { name, rate, writes: WRITES, segmented: false }
}

/// All settings.
pub(crate) const SETTINGS: [Setting; 7] = [
    half_life("forever", 0),
    half_life("half-life-16", 1),
    half_life("half-life-4", 2),
    half_life("half-life-1", 3),
    Setting { name: "plain", rate: 0, writes: 0.0, segmented: false },
    half_life("half-life-0.25", 4),
    Setting { name: "second-sight", rate: 0, writes: 0.0, segmented: true },
];

/// The setting in force until the ghosts have been compared: `forever`, the cheapest one on young stores.
pub(crate) const FIRST: usize = 0;

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

/// The key of a page that holds a slot, on the SSD or in a ghost; `again`: it was read since it got the slot.
pub(crate) fn key_of_held(setting: &Setting, seen: &Seen, again: bool) -> f64 {
    let (sum, stamp) = seen.at_stamp(setting.rate);
    if !setting.segmented {
        return key(setting, sum, stamp);
    }
    if again { f64::from(stamp) } else { f64::from(stamp) - ONCE }
}

impl Scale {
    /// The key of a page considered for admission.
    pub(crate) fn key_of_candidate(&self, setting: &Setting, seen: &Seen, cause: Cause) -> f64 {
        if setting.segmented {
            // Most pages of a scan, or of a table that only grows, are seen once.
            let admits = cause == Cause::Cleaned || seen.is_seen_twice();
            return if admits { f64::INFINITY } else { f64::NEG_INFINITY };
        }
        let at_once = match cause {
            Cause::Cleaned => self.costs.hdd_write_ms - self.costs.ssd_write_ms,
            Cause::Evicted | Cause::Read => -self.costs.ssd_write_ms,
        };
        key(setting, seen.sum(setting.rate, self.tick) + setting.writes * at_once, self.tick)
    }
}

fn key(setting: &Setting, worth_ms: f64, tick: u32) -> f64 {
    // Worth nothing is worth nothing at any time: pages that were only scanned must not evict each other.
    if worth_ms <= 0.0 {
        return f64::NEG_INFINITY;
    }
    let half_life = HALF_LIVES[setting.rate];
    worth_ms.log2() + f64::from(tick) / (half_life * f64::from(TICKS_PER_SLOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { costs: Costs::PAPER, tick: 640 };

    #[test]
    fn a_clean_page_is_admitted_at_second_sight_and_a_dirty_one_at_once() {
        let setting = SETTINGS.iter().find(|setting| setting.segmented).unwrap();
        let mut seen = Seen::default();
        let mut admitted = |cause| {
            let key = |seen: &Seen| SCALE.key_of_candidate(setting, seen, cause) > 0.0;
            let first = key(&seen);
            seen.add(10, Costs::PAPER.read_saving_ms());
            (first, key(&seen))
        };
        assert_eq!(admitted(Cause::Evicted), (false, false));
        assert_eq!(admitted(Cause::Evicted), (false, true));
        assert_eq!(SCALE.key_of_candidate(setting, &Seen::default(), Cause::Cleaned), f64::INFINITY);
        // A scan's reads are worth nothing, before a read and after it.
        let mut scanned = Seen::default();
        for saved_ms in [0.0, Costs::PAPER.read_saving_ms(), 0.0] {
            scanned.add(10, saved_ms);
            assert!(!scanned.is_seen_twice());
        }
    }

    #[test]
    fn a_page_that_was_only_scanned_evicts_no_other_under_any_half_life() {
        let (mut old, mut new) = (Seen::default(), Seen::default());
        old.add(1, 0.0);
        new.add(640, 0.0);
        for setting in SETTINGS.iter().filter(|setting| !setting.segmented) {
            let held = key_of_held(setting, &old, false);
            let candidate = SCALE.key_of_candidate(setting, &new, Cause::Evicted);
            assert!(candidate <= held, "{}: {candidate} {held}", setting.name);
            // One random read makes the difference.
            new.add(640, Costs::PAPER.read_saving_ms());
            assert!(SCALE.key_of_candidate(setting, &new, Cause::Evicted) > held, "{}", setting.name);
            new = Seen::default();
            new.add(640, 0.0);
        }
    }
}
