//! The ageing of counts: after a fixed number of accesses, or once they predict the accesses worse than the
//! latest counts alone do.
//!
//! Halved counts follow a hot set that moves, but lose half of the information about one that stays. The
//! accesses show which of the two a workload is: the forecast that estimates the pages' probabilities better
//! encodes the coming accesses in fewer bits (the prequential comparison of Dawid 1984). Two forecasts are
//! kept for a sample of pages: by all counts, aged as the ranking's are, and by those of the last stretch of
//! accesses alone. If the second is the better one at the end of a stretch, the counts are *outdated*, and
//! are halved.

use crate::PageId;
use crate::collections::page_index::mixed;
use rustc_hash::FxHashMap;

/// The rule that halves the counts of pages and groups. Accesses are physical: random reads from a device,
/// and writes to one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ageing {
    /// After this many accesses per slot, each time.
    Every(u32),
    /// At the end of a stretch of this many accesses per slot, if the counts of the stretch before it
    /// predicted its accesses clearly better than all counts did.
    WhenOutdated(u32),
}

impl Ageing {
    /// When outdated, with stretches of ten accesses per slot.
    pub const DEFAULT: Self = Self::WhenOutdated(10);
}

/// The maximum number of pages sampled for the forecasts.
const SAMPLE_MAX: usize = 1024;

/// A page leaves the sample after this many stretches without an access: pages that are not accessed again
/// must not fill it.
const QUIET_MAX: u8 = 16;

/// The bits that the forecast by the latest accesses must save before all counts are outdated: odds of a
/// thousand to one. With few accesses per page, a forecast may lead by a few bits by chance.
const EVIDENCE_BITS: f64 = 10.0;

/// The halving that is due after an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Nothing,
    /// The sketch is to be halved.
    Sketch,
    /// The counts are to be halved, and the sketch with them.
    Counts,
}

/// Decides after each access what is due.
#[derive(Debug)]
pub(crate) struct Ager {
    counts: Option<(Clock, Option<Forecasts>)>,
    sketch: Option<Clock>,
}

impl Ager {
    /// `counts` is `None` if the counts do not age; `sketch_per_slot` is the sketch's period in accesses per
    /// slot, or `None`.
    pub(crate) fn new(counts: Option<Ageing>, sketch_per_slot: Option<u32>, slots: usize) -> Self {
        let counts = counts.map(|ageing| match ageing {
            Ageing::Every(per_slot) => (Clock::new(per_slot, slots), None),
            Ageing::WhenOutdated(per_slot) => (Clock::new(per_slot, slots), Some(Forecasts::default())),
        });
        Self { counts, sketch: sketch_per_slot.map(|per_slot| Clock::new(per_slot, slots)) }
    }

    /// Records an access to `page`.
    pub(crate) fn accessed(&mut self, page: PageId) -> Due {
        let sketch = self.sketch.as_mut().is_some_and(Clock::tick);
        let counts = self.counts.as_mut().is_some_and(|(clock, forecasts)| {
            if let Some(forecasts) = forecasts {
                forecasts.saw(page);
            }
            // `tick` first: a stretch ends by the clock, whether or not there are forecasts to compare.
            clock.tick() && forecasts.as_mut().is_none_or(Forecasts::end_stretch)
        });
        if counts && let Some(sketch) = &mut self.sketch {
            // Halving the counts halves the sketch with them; its own period would halve it twice.
            sketch.restart();
        }
        match (counts, sketch) {
            (true, _) => Due::Counts,
            (false, true) => Due::Sketch,
            (false, false) => Due::Nothing,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let forecasts = self.counts.as_ref().and_then(|(_, forecasts)| forecasts.as_ref());
        forecasts.map_or(0, Forecasts::memory_bytes)
    }
}

/// A periodic countdown of accesses.
#[derive(Debug)]
struct Clock {
    every: u64,
    left: u64,
}

impl Clock {
    fn new(per_slot: u32, slots: usize) -> Self {
        let every = (u64::from(per_slot) * slots as u64).max(1);
        Self { every, left: every }
    }

    /// Counts one access; returns whether the period ended.
    fn tick(&mut self) -> bool {
        self.left -= 1;
        let come = self.left == 0;
        if come {
            self.restart();
        }
        come
    }

    fn restart(&mut self) {
        self.left = self.every;
    }
}

/// The accesses to one sampled page.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Accesses before this stretch, halved as the ranking's counts are.
    all: f64,
    /// Accesses in the stretch before this one.
    last: u32,
    /// Accesses in this stretch.
    now: u32,
    /// Stretches since the last access.
    quiet: u8,
}

/// Both forecasts, for a sample of pages: those whose hash is below a limit. The limit is halved when the
/// sample grows too large and doubled when it becomes small.
#[derive(Debug)]
struct Forecasts {
    seen: FxHashMap<PageId, Seen>,
    below: u64,
}

impl Default for Forecasts {
    fn default() -> Self {
        Self { seen: FxHashMap::default(), below: u64::MAX }
    }
}

impl Forecasts {
    fn saw(&mut self, page: PageId) {
        if sampled(page, self.below) {
            let seen = self.seen.entry(page).or_default();
            seen.now = seen.now.saturating_add(1);
            if self.seen.len() > SAMPLE_MAX {
                // Half of the hashes: each page stays in the sample or leaves it for good, so that what is
                // known of it is complete.
                self.below /= 2;
                let below = self.below;
                self.seen.retain(|&page, _| sampled(page, below));
            }
        }
    }

    /// Ends a stretch, and returns whether all counts are outdated. If so, halves the forecast's counts too.
    fn end_stretch(&mut self) -> bool {
        // Before the counts move on: the comparison is about the stretch that ends here.
        let outdated = self.bits_saved() > EVIDENCE_BITS;
        let kept = if outdated { 0.5 } else { 1.0 };
        self.seen.retain(|_, seen| {
            let quiet = if seen.now > 0 { 0 } else { seen.quiet + 1 };
            *seen = Seen { all: (seen.all + f64::from(seen.now)) * kept, last: seen.now, now: 0, quiet };
            quiet < QUIET_MAX
        });
        if self.seen.len() < SAMPLE_MAX / 4 {
            // Pages that join now have no past in the sample: they count from the next stretch on.
            self.below = self.below.saturating_mul(2);
        }
        outdated
    }

    /// Returns the bits saved when encoding this stretch's accesses by the counts of the stretch before it
    /// instead of all earlier counts. Each page counts half an access more than observed (Krichevsky &
    /// Trofimov 1981), so that no probability is zero. New pages, which neither forecast can know, are left
    /// out.
    fn bits_saved(&self) -> f64 {
        // A new page surprises both forecasts alike; counting it would only add noise.
        let known = || self.seen.values().filter(|seen| seen.all > 0.0);
        let pages = known().count() as f64;
        let all: f64 = known().map(|seen| seen.all).sum();
        let last: f64 = known().map(|seen| f64::from(seen.last)).sum();
        let saved = |seen: &Seen| {
            let by_last = (f64::from(seen.last) + 0.5) / (last + 0.5 * pages);
            let by_all = (seen.all + 0.5) / (all + 0.5 * pages);
            f64::from(seen.now) * (by_last / by_all).log2()
        };
        known().map(saved).sum()
    }

    fn memory_bytes(&self) -> usize {
        self.seen.capacity() * (size_of::<(PageId, Seen)>() + 1)
    }
}

/// The index places pages by the high bits of the same hash, and the ghosts sample by another hash; the
/// multiplication keeps this sample independent of both.
fn sampled(page: PageId, below: u64) -> bool {
    mixed(page).wrapping_mul(0x9E37_79B9_7F4A_7C15) < below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;
    use proptest::prelude::*;

    fn p(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// Returns what is due after each access.
    fn dues(ager: &mut Ager, pages: impl IntoIterator<Item = u32>) -> Vec<Due> {
        pages.into_iter().map(|no| ager.accessed(p(no))).collect()
    }

    /// Returns how often a run's counts were found outdated.
    fn outdated(pages: impl IntoIterator<Item = u32>) -> usize {
        let mut ager = Ager::new(Some(Ageing::WhenOutdated(10)), None, 100);
        dues(&mut ager, pages).iter().filter(|due| **due == Due::Counts).count()
    }

    /// Pseudo-random numbers below `n`, skewed towards the low ones.
    fn skewed(n: u32) -> impl Iterator<Item = u32> {
        let mut state = 7_u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 40) as f64 / (1_u64 << 24) as f64;
            (unit.powi(3) * f64::from(n)) as u32
        })
    }

    #[test]
    fn a_fixed_period_and_the_sketchs_own() {
        let mut both = Ager::new(Some(Ageing::Every(3)), Some(2), 2);
        let due = dues(&mut both, 0..12);
        let at = |what| {
            due.iter().enumerate().filter(|(_, due)| **due == what).map(|(n, _)| n + 1).collect::<Vec<_>>()
        };
        assert_eq!(at(Due::Counts), [6, 12]);
        // Due four accesses after the start, and four after each halving with the counts.
        assert_eq!(at(Due::Sketch), [4, 10]);
        let mut sketch_alone = Ager::new(None, Some(2), 2);
        assert_eq!(dues(&mut sketch_alone, 0..8).iter().filter(|due| **due == Due::Sketch).count(), 2);
        // Two periods that end together cause one halving.
        let mut alike = Ager::new(Some(Ageing::Every(2)), Some(2), 2);
        assert_eq!(dues(&mut alike, 0..8).iter().filter(|due| **due != Due::Nothing).count(), 2);
        assert_eq!(dues(&mut Ager::new(Some(Ageing::Every(1)), None, 0), 0..2), [Due::Counts; 2]);
    }

    #[test]
    fn what_stays_is_never_outdated_and_what_moves_is_again_and_again() {
        assert_eq!(outdated(skewed(300).take(50_000)), 0);
        // The hot set moves a little in every stretch; the first two stretches have nothing to compare.
        let moving = skewed(300).take(50_000).zip(0..).map(|(no, n)| (no + n / 1000 * 5) % 300);
        let halvings = outdated(moving);
        assert!(halvings >= 25, "{halvings}");
        // The hot set moves once: the counts are outdated until little of the earlier accesses is left.
        let moved = skewed(300).take(50_000).enumerate();
        let halvings = outdated(moved.map(|(n, no)| if n < 25_000 { no } else { 299 - no }));
        assert!((1..8).contains(&halvings), "{halvings}");
    }

    #[test]
    fn pages_that_come_and_go_make_nothing_outdated() {
        // One access in ten is to a new page.
        let new = |n: u32| n.is_multiple_of(10).then_some(n);
        let growing = skewed(300).take(50_000).zip(1000..).map(|(no, n)| new(n).unwrap_or(no));
        assert_eq!(outdated(growing), 0);
    }

    #[test]
    fn a_hot_set_that_moves_is_noticed_after_any_number_of_pages_that_came_and_went() {
        for gone in [0, 30_000, 300_000] {
            let mut ager = Ager::new(Some(Ageing::WhenOutdated(10)), None, 100);
            // A load phase, and then a hot set among pages that are accessed twice each and never again.
            assert!(!dues(&mut ager, 1000..1000 + gone).contains(&Due::Counts));
            let beside = |n: u32| n.is_multiple_of(10).then_some(1_000_000 + n / 20);
            let stays = skewed(300).take(50_000).zip(0..).map(|(no, n)| beside(n).unwrap_or(no));
            // The load phase was another workload: halvings in the first 20,000 accesses are allowed.
            let halvings = dues(&mut ager, stays);
            assert!(!halvings[20_000..].contains(&Due::Counts), "{gone}");
            let moved = skewed(300).take(10_000).map(|no| 299 - no);
            assert!(dues(&mut ager, moved).contains(&Due::Counts), "{gone}");
        }
    }

    #[test]
    fn a_few_accesses_of_many_pages_are_no_evidence() {
        let steady = skewed(20_000).take(60_000);
        assert_eq!(outdated(steady), 0);
    }

    #[test]
    fn no_more_pages_are_watched_than_the_sample_has_room_for() {
        let mut forecasts = Forecasts::default();
        for stretch in 0..4 {
            for no in 0..200_000 {
                forecasts.saw(p(no));
                assert!(forecasts.seen.len() <= SAMPLE_MAX);
            }
            // It stays a sample: neither a few pages, nor only the first ones.
            assert!(forecasts.seen.len() > SAMPLE_MAX / 4, "{}", forecasts.seen.len());
            assert!(forecasts.seen.keys().any(|page| page.no > 190_000));
            assert!(!forecasts.end_stretch(), "{stretch}");
        }
        assert!(forecasts.memory_bytes() < 64 << 10);
    }

    #[test]
    fn a_page_that_is_accessed_no_more_is_forgotten() {
        let mut forecasts = Forecasts::default();
        forecasts.saw(p(1));
        for stretch in 0..=QUIET_MAX {
            assert!(forecasts.seen.contains_key(&p(1)), "{stretch}");
            forecasts.saw(p(2));
            assert!(!forecasts.end_stretch());
        }
        assert!(!forecasts.seen.contains_key(&p(1)));
    }

    /// Computes the bits saved on `stretch` by the stretch before it, from the weighted accesses themselves.
    fn bits_by_hand(past: &[(u32, f64)], last: &[u32], stretch: &[u32]) -> f64 {
        let mut known: Vec<u32> = past.iter().map(|one| one.0).collect();
        known.sort_unstable();
        known.dedup();
        let half = known.len() as f64 / 2.0;
        let weight: f64 = past.iter().map(|one| one.1).sum();
        let saved = |page: &u32| {
            let all: f64 = past.iter().filter(|one| one.0 == *page).map(|one| one.1).sum();
            let recent = last.iter().filter(|one| *one == page).count() as f64;
            ((recent + 0.5) / (last.len() as f64 + half)).log2() - ((all + 0.5) / (weight + half)).log2()
        };
        stretch.iter().filter(|page| known.contains(page)).map(saved).sum()
    }

    proptest! {
        #[test]
        fn forecasts_are_those_of_the_accesses_themselves(
            stretches in prop::collection::vec(prop::collection::vec((0..6u32, 1..30usize), 1..6), 1..8),
        ) {
            let mut forecasts = Forecasts::default();
            let (mut past, mut last): (Vec<(u32, f64)>, Vec<u32>) = (vec![], vec![]);
            for runs in stretches {
                let stretch: Vec<u32> = runs.into_iter().flat_map(|(no, n)| std::iter::repeat_n(no, n)).collect();
                stretch.iter().for_each(|&no| forecasts.saw(p(no)));
                let bits = bits_by_hand(&past, &last, &stretch);
                prop_assert!((forecasts.bits_saved() - bits).abs() < 1e-6, "{} and {bits}", forecasts.bits_saved());
                // At the threshold, rounding decides: either answer is right.
                if (bits - EVIDENCE_BITS).abs() < 1e-6 {
                    return Ok(());
                }
                let outdated = bits > EVIDENCE_BITS;
                prop_assert_eq!(forecasts.end_stretch(), outdated);
                past.extend(stretch.iter().map(|&page| (page, 1.0)));
                if outdated {
                    past.iter_mut().for_each(|one| one.1 /= 2.0);
                }
                last = stretch;
            }
        }
    }
}
