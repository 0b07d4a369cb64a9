//! The numbers in the paper's text: those of Figures 8, 9 and 11. The bars of Figures 7 and 10 and the points
//! of Figures 4 and 6 exist only as drawings.

use crate::command::matrix::Case;
use serde::Serialize;

/// A row of a table: utilisations and the miss rate in per cent, I/O in milliseconds per New-Order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Printed {
    pub(crate) hdd_util: f64,
    pub(crate) hdd_ms: f64,
    pub(crate) ssd_util: f64,
    pub(crate) ssd_ms: f64,
    pub(crate) total_ms: f64,
    pub(crate) miss: f64,
}

/// Pool policy, SSD policy, pool in GB, then the table's columns.
type Line = (&'static str, &'static str, u32, [f64; 6]);

/// Figures 8 and 11: the database of 30 GB.
const DB_30: [Line; 18] = [
    ("lru", "cc", 1, [93.0, 88.6, 12.0, 11.1, 99.7, 6.6]),
    ("lru", "cc", 2, [93.0, 72.8, 8.0, 6.0, 78.8, 4.4]),
    ("lru", "cc", 4, [94.0, 55.1, 6.0, 3.3, 58.4, 2.4]),
    ("gd2l", "cc", 1, [92.0, 53.1, 21.0, 12.1, 65.2, 8.8]),
    ("gd2l", "cc", 2, [90.0, 44.3, 20.0, 9.7, 54.0, 7.4]),
    ("gd2l", "cc", 4, [90.0, 36.3, 14.0, 5.8, 42.1, 4.7]),
    ("gd2l", "cac", 1, [85.0, 39.6, 19.0, 8.8, 48.4, 7.4]),
    ("gd2l", "cac", 2, [83.0, 31.8, 20.0, 7.8, 39.6, 6.3]),
    ("gd2l", "cac", 4, [82.0, 23.5, 20.0, 5.8, 29.3, 4.8]),
    ("lru", "lru2", 1, [85.0, 49.4, 15.0, 8.6, 58.0, 6.7]),
    ("lru", "lru2", 2, [87.0, 50.3, 12.0, 6.7, 57.0, 4.4]),
    ("lru", "lru2", 4, [90.0, 48.5, 9.0, 4.7, 53.2, 2.4]),
    ("gd2l", "lru2", 1, [73.0, 41.1, 43.0, 24.6, 65.8, 10.7]),
    ("gd2l", "lru2", 2, [79.0, 46.5, 32.0, 18.9, 65.3, 8.8]),
    ("gd2l", "lru2", 4, [79.0, 34.4, 32.0, 13.8, 48.2, 7.6]),
    ("lru", "mv-fifo", 1, [91.0, 101.3, 8.0, 9.2, 110.5, 6.6]),
    ("lru", "mv-fifo", 2, [92.0, 92.3, 6.0, 5.8, 98.1, 4.4]),
    ("lru", "mv-fifo", 4, [92.0, 62.9, 5.0, 3.7, 66.6, 2.5]),
];

/// Figure 9: the database of 15 GB.
const DB_15: [Line; 9] = [
    ("lru", "cc", 1, [79.0, 11.1, 38.0, 5.4, 16.5, 4.2]),
    ("lru", "cc", 2, [68.0, 5.7, 47.0, 4.0, 9.7, 2.7]),
    ("lru", "cc", 4, [73.0, 4.4, 43.0, 2.6, 7.0, 1.3]),
    ("gd2l", "cc", 1, [21.0, 2.5, 68.0, 8.0, 10.4, 6.1]),
    ("gd2l", "cc", 2, [18.0, 1.5, 62.0, 5.3, 6.8, 3.7]),
    ("gd2l", "cc", 4, [14.0, 0.9, 61.0, 3.8, 4.7, 2.3]),
    ("gd2l", "cac", 1, [30.0, 3.2, 73.0, 7.8, 11.0, 5.7]),
    ("gd2l", "cac", 2, [21.0, 1.6, 78.0, 6.2, 7.8, 4.0]),
    ("gd2l", "cac", 4, [48.0, 2.3, 60.0, 2.9, 5.3, 2.0]),
];

/// The paper's numbers for this run, if it printed them.
pub(crate) fn printed(case: &Case) -> Option<Printed> {
    // A shape has the paper's gigabytes as its numbers, so it selects the row at any real size.
    let lines: &[Line] = match (case.shape.db, case.shape.ssd) {
        (30, 10) => &DB_30,
        (15, 10) => &DB_15,
        _ => return None,
    };
    let of_case = |&&(pool, ssd, size, _): &&Line| {
        pool == case.pool_policy && ssd == case.ssd_policy && size == case.shape.pool
    };
    let [hdd_util, hdd_ms, ssd_util, ssd_ms, total_ms, miss] = lines.iter().find(of_case)?.3;
    Some(Printed { hdd_util, hdd_ms, ssd_util, ssd_ms, total_ms, miss })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::matrix::Shape;

    #[test]
    fn the_totals_are_the_sums_as_printed() {
        for (pool, ssd, size, [_, hdd, _, flash, total, _]) in DB_30.iter().chain(&DB_15) {
            assert!((hdd + flash - total).abs() < 0.151, "{pool}+{ssd} {size}: {hdd} + {flash}, not {total}");
        }
    }

    #[test]
    fn a_row_is_found_by_its_case() {
        let case = |db, pool| Case::of(Shape::of(db, pool), ("gd2l", "cac"));
        assert_eq!(printed(&case(30, 2)).map(|row| row.total_ms), Some(39.6));
        assert_eq!(printed(&case(15, 4)).map(|row| row.miss), Some(2.0));
        assert_eq!(printed(&case(8, 1)), None);
        assert_eq!(printed(&Case::zone(10.0)), None);
    }
}
