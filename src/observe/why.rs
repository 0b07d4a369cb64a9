//! Why a page is where it is: what the pool and the SSD's policy know about it.

use crate::error::Error;
use crate::store::shared::Shared;
use crate::volume::space_hints::SpaceHints;
use pagetier_bufpool::PoolResidency;
use pagetier_page::PageId;
use pagetier_policy::pool::Retention;
use pagetier_policy::{GroupStats, Location, PageCounts};
use pagetier_ssdcache::{Homes, SsdMode};
use serde::Serialize;
use std::fmt::{Display, Formatter, Result as Shown};

/// What the store knows about a page, and the figures by which its policies judge it. See
/// [`PageStore::why`](crate::PageStore::why).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PageWhy {
    /// The space's id.
    pub space: u32,
    /// The page's number in it.
    pub no: u32,
    /// The page's offset on the HDD, in bytes.
    pub hdd_offset: u64,
    /// Its state in memory; `None`: it is not in memory.
    pub memory: Option<PoolResidency>,
    /// Whether it has a copy on the SSD.
    pub on_ssd: bool,
    /// Whether its newest version below memory is on the SSD alone, as far as is known.
    pub ssd_alone: bool,
    /// The anticipated benefit of an SSD copy, in milliseconds (2013 paper, equation 2); `None` if the policy
    /// does not estimate it, or does not track the page.
    pub benefit_ms: Option<f64>,
    /// What the SSD's policy has counted for it.
    pub counts: Option<PageCounts>,
    /// Its group under CAC.
    pub group: Option<GroupFactor>,
    /// The SSD's mode.
    pub ssd_mode: SsdMode,
    /// The hints of its space.
    pub hints: SpaceHints,
}

/// The group of a page under CAC: pages of its space with a similar rate of logical reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupFactor {
    /// The subrange of logical read rates, from 0.
    pub subrange: u32,
    /// The miss rate expansion factor (equation 8).
    pub alpha: f64,
    /// Miss rate while on the SSD.
    pub miss_rate_ssd: Option<f64>,
    /// Miss rate while not on the SSD.
    pub miss_rate_hdd: Option<f64>,
    /// Pages that counted towards it.
    pub pages: u64,
}

pub(super) fn why(shared: &Shared, page: PageId) -> Result<PageWhy, Error> {
    let hdd_offset = shared.volume.offset(page).ok_or(Error::NoSuchPage { page })?;
    // One question, so that the answers are of one moment.
    let (location, ssd_alone, benefit_ms, counts, group) = shared.tier.ask(|slots| {
        let policy = slots.policy();
        let (benefit, counts) = (policy.benefit(page), policy.counts(page));
        (slots.location(page), slots.is_only_copy(page), benefit, counts, policy.group_of(page))
    });
    Ok(PageWhy {
        space: page.space.0,
        no: page.no,
        hdd_offset,
        memory: shared.pool.residence(page),
        on_ssd: location == Location::Ssd,
        ssd_alone,
        benefit_ms,
        counts,
        group: group.map(group_of),
        ssd_mode: shared.tier.mode(),
        hints: shared.hints_of(page.space),
    })
}

fn group_of(group: GroupStats) -> GroupFactor {
    let GroupStats { subrange, miss_rate_ssd, miss_rate_hdd, alpha, pages, .. } = group;
    GroupFactor { subrange, alpha, miss_rate_ssd, miss_rate_hdd, pages }
}

impl Display for PageWhy {
    fn fmt(&self, f: &mut Formatter<'_>) -> Shown {
        writeln!(f, "page {} of space {}, at byte {} of the HDD", self.no, self.space, self.hdd_offset)?;
        match &self.memory {
            None => writeln!(f, "memory  no")?,
            Some(m) => {
                // A page that is being written may be dirty again already. That a write is under way explains
                // more.
                let state = match (m.dirty, m.being_written) {
                    (_, true) => "being written",
                    (true, false) => "dirty",
                    (false, false) => "clean",
                };
                let h = m.h_ms.map_or_else(String::new, |h| format!(", H - L = {h:.3} ms"));
                let lsn = m.recovery_lsn.map_or_else(String::new, |lsn| format!(", recovery LSN {lsn}"));
                writeln!(f, "memory  yes, {state}, {} pins{h}{lsn}", m.pins)?;
            }
        }
        // In words: `on_ssd` alone does not say whether losing the SSD would lose the page.
        let copy = match (self.on_ssd, self.ssd_alone) {
            (false, _) => "no copy",
            (true, true) => "the only copy of the newest version",
            (true, false) => "a copy; the HDD has the same version",
        };
        let benefit = self.benefit_ms.map_or_else(String::new, |ms| format!(", benefit {ms:.3} ms"));
        writeln!(f, "ssd     {copy}{benefit} (mode {})", self.ssd_mode)?;
        if let Some(c) = &self.counts {
            writeln!(
                f,
                "counts  off the SSD: {} reads, {} writes, {} logical reads; on it: {}, {}, {}",
                c.reads_hdd, c.writes_hdd, c.logical_hdd, c.reads_ssd, c.writes_ssd, c.logical_ssd
            )?;
        }
        if let Some(g) = &self.group {
            let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.3}"));
            let (on, off) = (rate(g.miss_rate_ssd), rate(g.miss_rate_hdd));
            writeln!(
                f,
                "group   subrange {} of {} pages, alpha {:.3} (miss rate {on} on the SSD, {off} off it)",
                g.subrange, g.pages, g.alpha
            )?;
        }
        if self.hints != SpaceHints::default() {
            let retention = match self.hints.retention {
                Retention::KeepInMemory => Some("kept in memory".to_owned()),
                Retention::ScanOnly => Some("scan-only".to_owned()),
                _ => None,
            };
            let ssd = self.hints.never_to_ssd.then(|| "never to the SSD".to_owned());
            let all: Vec<String> = retention.into_iter().chain(ssd).collect();
            writeln!(f, "hints   {}", all.join(", "))?;
        }
        Ok(())
    }
}
