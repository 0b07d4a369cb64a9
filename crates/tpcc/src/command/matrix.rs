//! The runs behind each figure of the 2013 paper (section 6).

use crate::command::policies::Policies;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A figure or table of the paper, as `--compare` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Figure {
    /// Miss and write rates of pages on the SSD and off it
    Fig4,
    /// The miss rate expansion factor by table and logical read rate
    Fig6,
    /// Throughput of LRU+CC, GD2L+CC and GD2L+CAC
    Fig7,
    /// Their I/O at 30:10
    Fig8,
    /// Their I/O at 15:10
    Fig9,
    /// Throughput of LRU+MV-FIFO, LRU+LRU2, GD2L+LRU2 and GD2L+CAC
    Fig10,
    /// Their I/O at 30:10
    Fig11,
    /// The size of the eviction zone (section 6.5)
    Zone,
    /// Everything
    All,
}

/// The pairs of Figures 7 to 9.
pub(crate) const ANALYSIS: [(&str, &str); 3] = [("lru", "cc"), ("gd2l", "cc"), ("gd2l", "cac")];

/// The pairs of Figures 10 and 11.
pub(crate) const RIVALS: [(&str, &str); 4] =
    [("lru", "mv-fifo"), ("lru", "lru2"), ("gd2l", "lru2"), ("gd2l", "cac")];

/// Sizes in GB of the paper's databases, with an SSD of 10 GB.
pub(crate) const DATABASES: [u32; 3] = [30, 15, 8];

/// Sizes in GB of the paper's pools, with the same SSD.
pub(crate) const POOLS: [u32; 3] = [1, 2, 4];

/// The zones of section 6.5, in per cent of the SSD.
pub(crate) const ZONES: [f64; 4] = [1.0, 2.0, 5.0, 10.0];

/// The zone of all other experiments.
const ZONE: f64 = 10.0;

/// Database, SSD and pool, as a ratio.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) db: u32,
    pub(crate) ssd: u32,
    pub(crate) pool: u32,
}

impl Shape {
    /// Sections 4 and 6.5: a database of 1 GB, an SSD of 400 MB, a pool of 200 MB.
    pub(crate) const SMALL: Self = Self { db: 10, ssd: 4, pool: 2 };

    /// A shape of section 6.1.
    pub(crate) const fn of(db: u32, pool: u32) -> Self {
        Self { db, ssd: 10, pool }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.db, self.ssd, self.pool)
    }
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) pool_policy: String,
    pub(crate) ssd_policy: String,
    pub(crate) zone_percent: f64,
}

impl Case {
    fn new(shape: Shape, (pool, ssd): (&str, &str), zone_percent: f64) -> Self {
        Self { shape, pool_policy: pool.into(), ssd_policy: ssd.into(), zone_percent }
    }

    /// A run of section 6.3 or 6.4.
    pub(crate) fn of(shape: Shape, pair: (&str, &str)) -> Self {
        Self::new(shape, pair, ZONE)
    }

    /// A run of section 6.5.
    pub(crate) fn zone(percent: f64) -> Self {
        Self::new(Shape::SMALL, ("gd2l", "cac"), percent)
    }

    /// The policies in command-line form.
    pub(crate) fn policies(&self) -> Policies {
        Policies { pool: self.pool_policy.clone(), ssd: self.ssd_policy.clone() }
    }

    /// Whether the run observes each page for Figure 4.
    pub(crate) fn is_observed(&self) -> bool {
        // One run only, because each look visits every page of the database.
        *self == Self::zone(ZONE)
    }
}

/// The `cases` whose database is in `databases`, or is not one of the paper's three. An empty list selects
/// all.
pub(crate) fn of_databases(mut cases: Vec<Case>, databases: &[u32]) -> Vec<Case> {
    let wanted = |db: u32| databases.is_empty() || databases.contains(&db) || !DATABASES.contains(&db);
    cases.retain(|case| wanted(case.shape.db));
    cases
}

/// The runs for these figures, each once, grouped by database. The pairs `more` run in addition to those of
/// every figure that compares policies.
pub(crate) fn cases(figures: &[Figure], more: &[Policies]) -> Vec<Case> {
    let more: Vec<(&str, &str)> = more.iter().map(|p| (p.pool.as_str(), p.ssd.as_str())).collect();
    let mut all: Vec<Case> = Vec::new();
    for case in figures.iter().flat_map(|&figure| of_figure(figure, &more)) {
        if !all.contains(&case) {
            all.push(case);
        }
    }
    // Runs on one database follow each other, so that its memory is soon free for the next.
    all.sort_by_key(|case| (case.shape.db, case.shape.ssd));
    all
}

fn of_figure(figure: Figure, more: &[(&str, &str)]) -> Vec<Case> {
    let grid = |databases: &[u32], pairs: &[(&str, &str)]| -> Vec<Case> {
        let shapes = databases.iter().flat_map(|&db| POOLS.map(|pool| Shape::of(db, pool)));
        let pairs: Vec<(&str, &str)> = pairs.iter().chain(more).copied().collect();
        shapes
            .flat_map(|shape| pairs.iter().map(move |&pair| Case::of(shape, pair)).collect::<Vec<_>>())
            .collect()
    };
    match figure {
        Figure::Fig4 | Figure::Fig6 => vec![Case::zone(ZONE)],
        Figure::Fig7 => grid(&DATABASES, &ANALYSIS),
        Figure::Fig8 => grid(&[30], &ANALYSIS),
        Figure::Fig9 => grid(&[15], &ANALYSIS),
        Figure::Fig10 => grid(&DATABASES, &RIVALS),
        Figure::Fig11 => grid(&[30], &RIVALS),
        Figure::Zone => ZONES.map(Case::zone).to_vec(),
        // The runs of Figures 8, 9 and 11 are among those of 7 and 10, those of 4 and 6 among the zones'.
        Figure::All => [Figure::Fig7, Figure::Fig10, Figure::Zone]
            .into_iter()
            .flat_map(|figure| of_figure(figure, more))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_two_figures_share_is_run_once() {
        let count = |figures: &[Figure]| cases(figures, &[]).len();
        assert_eq!(count(&[Figure::Fig7]), 27);
        assert_eq!(count(&[Figure::Fig7, Figure::Fig8, Figure::Fig9]), 27);
        assert_eq!(count(&[Figure::Fig10]), 36);
        assert_eq!(count(&[Figure::Zone, Figure::Fig4, Figure::Fig6]), 4);
        assert_eq!(count(&[Figure::All]), 27 + 36 - 9 + 4);
        assert_eq!(cases(&[Figure::Fig4], &[]), [Case::zone(10.0)]);
    }

    #[test]
    fn more_pairs_join_every_figure_of_policies() {
        let more = [Policies { pool: "lru".into(), ssd: "tac".into() }];
        assert_eq!(cases(&[Figure::Fig8], &more).len(), 12);
        assert_eq!(cases(&[Figure::Zone], &more).len(), 4);
    }

    #[test]
    fn databases_can_be_excluded() {
        let count = |databases: &[u32]| of_databases(cases(&[Figure::All], &[]), databases).len();
        assert_eq!(
            (count(&[]), count(&[30, 15, 8]), count(&[8, 15]), count(&[30])),
            (58, 58, 36 + 4, 18 + 4)
        );
    }
}
