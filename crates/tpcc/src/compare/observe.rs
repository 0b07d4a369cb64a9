//! Observes pages on and off the SSD, for Figures 4 and 6 of the paper.

use pagetier::{Location, PageId, PageStore, SpaceInfo, policy::PageCounts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The minimum share of the time that a page must have spent on the SSD, and also off it: 20 minutes of 60 in
/// section 4.
const SHARE_MIN: f64 = 1.0 / 3.0;

/// The interval between observations, in virtual time.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A point of Figure 4.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct PagePoint {
    /// Physical reads per logical read.
    pub(crate) miss_hdd: f64,
    pub(crate) miss_ssd: f64,
    pub(crate) writes_hdd_per_min: f64,
    pub(crate) writes_ssd_per_min: f64,
}

/// A point of Figure 6.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct GroupPoint {
    pub(crate) table: String,
    /// The lower end of the subrange.
    pub(crate) logical_reads_per_min: u32,
    pub(crate) alpha: f64,
    pub(crate) miss_hdd: Option<f64>,
    pub(crate) miss_ssd: Option<f64>,
    pub(crate) pages: u64,
}

/// The results of the observation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Observed {
    pub(crate) seconds: f64,
    pub(crate) pages: Vec<PagePoint>,
    pub(crate) groups: Vec<GroupPoint>,
}

#[derive(Clone, Copy, Default)]
struct Watch {
    /// The fields of [`PageCounts`]: at the last observation, and in sum.
    last: [u64; 6],
    sum: [u64; 6],
    ssd_seconds: f64,
    hdd_seconds: f64,
}

/// Observes every page periodically.
#[derive(Default)]
pub(crate) struct Observer {
    /// Indexed by space and page number.
    watches: Vec<Vec<Watch>>,
    spaces: Vec<SpaceInfo>,
    seconds: f64,
}

impl Observer {
    /// Observes once, `seconds` after the previous observation.
    pub(crate) fn look(&mut self, store: &PageStore, seconds: f64) {
        self.seconds += seconds;
        self.spaces = store.spaces().list();
        self.watches.resize(self.spaces.len(), Vec::new());
        for (space, watches) in self.spaces.iter().zip(&mut self.watches) {
            watches.resize(space.pages as usize, Watch::default());
            for (no, watch) in (0..).zip(watches) {
                let page = PageId::new(space.id, no);
                watch.see(store.policies().counts(page), store.location(page), seconds);
            }
        }
    }

    /// Ends the observation and returns its results.
    pub(crate) fn finish(self, store: &PageStore) -> Observed {
        let pages = self.watches.iter().flatten().filter_map(|watch| watch.point(self.seconds)).collect();
        let name = |id| self.spaces.iter().find(|space| space.id == id).map_or("?", |space| &space.name);
        let group = |group: pagetier::policy::GroupStats| GroupPoint {
            table: name(group.space).to_owned(),
            logical_reads_per_min: group.subrange,
            alpha: group.alpha,
            miss_hdd: group.miss_rate_hdd,
            miss_ssd: group.miss_rate_ssd,
            pages: group.pages,
        };
        Observed {
            seconds: self.seconds,
            pages,
            groups: store.policies().groups().into_iter().map(group).collect(),
        }
    }
}

impl Watch {
    fn see(&mut self, counts: Option<PageCounts>, home: Location, seconds: f64) {
        // The page counts as having been there since the last look: moves within five seconds are missed,
        // which is little beside the third of a run that a point needs.
        match home {
            Location::Ssd => self.ssd_seconds += seconds,
            Location::Hdd => self.hdd_seconds += seconds,
        }
        let now = fields(counts.unwrap_or_default());
        // Counts that decreased belong to a page that the policy forgot and tracks again from zero.
        let forgotten = now.iter().zip(self.last).any(|(now, was)| *now < was);
        let was = if forgotten { [0; 6] } else { self.last };
        for (at, sum) in self.sum.iter_mut().enumerate() {
            *sum += now[at] - was[at];
        }
        self.last = now;
    }

    fn point(&self, seconds: f64) -> Option<PagePoint> {
        let Self { sum, ssd_seconds, hdd_seconds, .. } = *self;
        let [reads_hdd, reads_ssd, logical_hdd, logical_ssd, writes_hdd, writes_ssd] = sum;
        // The rates of a page that spent only a moment on a tier are chance.
        let long = ssd_seconds.min(hdd_seconds) >= SHARE_MIN * seconds && seconds > 0.0;
        let rate = |part: u64, whole: u64| (part as f64 / whole.max(1) as f64).min(1.0);
        (long && logical_hdd > 0 && logical_ssd > 0).then(|| PagePoint {
            miss_hdd: rate(reads_hdd, logical_hdd),
            miss_ssd: rate(reads_ssd, logical_ssd),
            writes_hdd_per_min: writes_hdd as f64 * 60.0 / hdd_seconds,
            writes_ssd_per_min: writes_ssd as f64 * 60.0 / ssd_seconds,
        })
    }
}

fn fields(counts: PageCounts) -> [u64; 6] {
    let PageCounts { reads_hdd, reads_ssd, logical_hdd, logical_ssd, writes_hdd, writes_ssd, .. } = counts;
    [reads_hdd, reads_ssd, logical_hdd, logical_ssd, writes_hdd, writes_ssd]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_continues_for_a_forgotten_page() {
        let mut watch = Watch::default();
        let counts = |reads_hdd, logical_hdd| {
            let mut counts = PageCounts::default();
            (counts.reads_hdd, counts.logical_hdd) = (reads_hdd, logical_hdd);
            counts
        };
        watch.see(Some(counts(1, 4)), Location::Hdd, 5.0);
        watch.see(Some(counts(2, 8)), Location::Hdd, 5.0);
        watch.see(Some(counts(1, 2)), Location::Hdd, 5.0);
        watch.see(None, Location::Ssd, 5.0);
        let mut on_ssd = PageCounts::default();
        (on_ssd.reads_ssd, on_ssd.logical_ssd, on_ssd.writes_ssd) = (3, 4, 2);
        watch.see(Some(on_ssd), Location::Ssd, 10.0);
        assert_eq!((watch.sum[0], watch.sum[2]), (3, 10));
        let point = watch.point(30.0).unwrap();
        assert_eq!((point.miss_hdd, point.miss_ssd), (0.3, 0.75));
        assert_eq!((point.writes_hdd_per_min, point.writes_ssd_per_min), (0.0, 8.0));
        assert_eq!(watch.point(60.0), None, "it must spend a third of the time on each");
    }
}
