//! The cost of other sizes, as a value, a table, and sentences.

use serde::Serialize;
use std::fmt;

/// The basis of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SampleSummary {
    /// References of the whole stream in the counted interval.
    pub requests: u64,
    /// References to sampled pages.
    pub references: u64,
    /// References of the sample that were lost because the ghosts fell behind.
    pub lost: u64,
}

impl SampleSummary {
    /// The difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            references: self.references - before.references,
            lost: self.lost - before.lost,
        }
    }
}

/// The cost of one pair of sizes. Everything but the sizes is per 1,000 requests of the whole stream.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct WhatIfCost {
    /// Frames of the pool.
    pub pool_pages: u32,
    /// Slots of the SSD.
    pub ssd_pages: u32,
    /// HDD time in milliseconds.
    pub hdd_ms: f64,
    /// SSD time in milliseconds.
    pub ssd_ms: f64,
    /// Requests that required a read.
    pub misses: f64,
    /// Misses read from the SSD.
    pub ssd_hits: f64,
}

impl WhatIfCost {
    /// The time of both devices in milliseconds.
    #[must_use]
    pub fn total_ms(&self) -> f64 {
        self.hdd_ms + self.ssd_ms
    }
}

/// Cost by size.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct WhatIf {
    /// The pool's policy.
    pub pool_policy: String,
    /// The SSD's policy.
    pub ssd_policy: String,
    /// The pool's present size in frames.
    pub pool_pages: u32,
    /// The SSD's present size in slots.
    pub ssd_pages: u32,
    /// The size of a page, in bytes.
    pub page_bytes: u64,
    /// The share of pages in the sample.
    pub rate: f64,
    /// The extent of the sample.
    pub sampled: SampleSummary,
    /// The cost of every pair of sizes, sorted by pool, then SSD.
    pub costs: Vec<WhatIfCost>,
}

impl WhatIf {
    /// The cost of these sizes, if the grid has them.
    #[must_use]
    pub fn at(&self, pool_pages: u32, ssd_pages: u32) -> Option<&WhatIfCost> {
        self.costs.iter().find(|cost| cost.pool_pages == pool_pages && cost.ssd_pages == ssd_pages)
    }

    /// The cost of the present sizes.
    #[must_use]
    pub fn present(&self) -> Option<&WhatIfCost> {
        self.at(self.pool_pages, self.ssd_pages)
    }

    /// Sizes of the pool, ascending.
    #[must_use]
    pub fn pools(&self) -> Vec<u32> {
        distinct(self.costs.iter().map(|cost| cost.pool_pages))
    }

    /// Sizes of the SSD, ascending.
    #[must_use]
    pub fn ssds(&self) -> Vec<u32> {
        distinct(self.costs.iter().map(|cost| cost.ssd_pages))
    }

    /// One sentence each on what the next larger, the largest and the next smaller SSD and pool would save or
    /// cost.
    #[must_use]
    pub fn advice(&self) -> Vec<String> {
        let Some(now) = self.present().filter(|now| now.total_ms() > 0.0) else {
            return vec!["at the present sizes nothing was read or written".into()];
        };
        let others = |tier, size: fn(&WhatIfCost) -> u32, same: fn(&WhatIfCost) -> u32| {
            let line = move |cost: &&WhatIfCost| same(cost) == same(now) && size(cost) != size(now);
            let mut larger = self.costs.iter().filter(line).filter(|cost| size(cost) > size(now));
            // The costs are sorted by size, so the last smaller one is the next smaller.
            let smaller = self.costs.iter().filter(line).rfind(|cost| size(cost) < size(now));
            // If only one size is larger, it is `next`, and `most` is `None`: the advice names no size
            // twice.
            let (next, most) = (larger.next(), larger.next_back());
            let costs = next.into_iter().chain(most).chain(smaller);
            costs.map(|cost| self.sentence(tier, now, cost, size(cost), size(now))).collect::<Vec<_>>()
        };
        let mut all = others("SSD", |cost| cost.ssd_pages, |cost| cost.pool_pages);
        all.extend(others("memory", |cost| cost.pool_pages, |cost| cost.ssd_pages));
        all
    }

    fn sentence(&self, tier: &str, now: &WhatIfCost, then: &WhatIfCost, size: u32, present: u32) -> String {
        let bytes = bytes(u64::from(size.abs_diff(present)) * self.page_bytes);
        let change = 100.0 * (then.total_ms() - now.total_ms()) / now.total_ms();
        let what = if size > present {
            format!("another {bytes} of {tier}")
        } else {
            format!("{bytes} less {tier}")
        };
        let effect = match change {
            // It would be printed as 0%.
            change if change.abs() < 0.5 => "would change nothing".to_owned(),
            change if change < 0.0 => format!("would save {:.0}% of the I/O time", -change),
            change => format!("would cost {change:.0}% more I/O time"),
        };
        format!(
            "{what} {effect} ({:.0} instead of {:.0} ms per 1,000 requests)",
            then.total_ms(),
            now.total_ms()
        )
    }
}

impl fmt::Display for WhatIf {
    /// A table: pools downwards, SSDs across, milliseconds of I/O per 1,000 requests; the present sizes in
    /// brackets. Then the advice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |pages: u32| bytes(u64::from(pages) * self.page_bytes);
        writeln!(
            f,
            "{}+{}: ms of I/O per 1,000 requests, by size of pool (down) and SSD (across); {:.2}% of the \
             pages sampled, {} of {} requests",
            self.pool_policy,
            self.ssd_policy,
            100.0 * self.rate,
            self.sampled.references,
            self.sampled.requests
        )?;
        // The figures are divided by the number of references that a complete sample has
        // (`Ghosts::report`).
        if self.sampled.lost > 0 {
            writeln!(f, "{} requests of the sample were lost: the figures are too low", self.sampled.lost)?;
        }
        write!(f, "{:>12}", "")?;
        self.ssds().into_iter().try_for_each(|ssd| write!(f, "{:>13}", size(ssd)))?;
        writeln!(f)?;
        for pool in self.pools() {
            write!(f, "{:>12}", size(pool))?;
            for cost in self.costs.iter().filter(|cost| cost.pool_pages == pool) {
                let here = (cost.pool_pages, cost.ssd_pages) == (self.pool_pages, self.ssd_pages);
                let ms = format!("{:.1}", cost.total_ms());
                write!(f, "{:>13}", if here { format!("[{ms}]") } else { ms })?;
            }
            writeln!(f)?;
        }
        self.advice().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

fn distinct(sizes: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut sizes: Vec<u32> = sizes.collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A number of bytes in human-readable form.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0 => "0".into(),
        1..1_048_576 => format!("{:.0} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}
