//! Detects the end of the warm-up: the SSD has stopped filling, and the I/O of successive windows agrees.

use serde::{Deserialize, Serialize};

/// A part of a run; all have the same number of New-Orders.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Virtual seconds.
    pub(crate) seconds: f64,
    pub(crate) new_orders: u64,
    pub(crate) ms_per_new_order: f64,
    /// The filled share of the SSD's slots at the window's end.
    pub(crate) ssd_filled: f64,
}

/// Windows per group; the last two groups are compared.
const LOOK: usize = 12;

/// The maximum deviation of a window of the later group from the group's mean.
const WINDOW_OFF_MAX: f64 = 0.06;

/// The maximum difference between the means of the two groups.
const LOOKS_APART_MAX: f64 = 0.015;

/// The maximum share of the SSD that fills from the start of the earlier group to the end of the later one.
const FILLED_MAX: f64 = 0.01;

/// The definition of steady, for the report.
pub(crate) const MEANING: &str = "twenty-four windows in which the SSD fills by no more than 1% of its \
    slots (it is full, or everything in use is \
    on it), the mean milliseconds per New-Order of the last twelve within 1.5% of the twelve before, and \
    each of the last twelve within 6% of their \
    mean";

/// Whether the windows so far end in a steady state.
pub(crate) fn is_steady(windows: &[Window]) -> bool {
    let Some(last) = windows.len().checked_sub(2 * LOOK).map(|from| &windows[from..]) else { return false };
    let (earlier, later) = last.split_at(LOOK);
    let filled = last[last.len() - 1].ssd_filled - last[0].ssd_filled;
    // Two groups, since a slow fall stays within the spread of one group: neighbouring windows agree, and
    // yet the cost is not final.
    let (was, is) = (mean(earlier), mean(later));
    filled <= FILLED_MAX && (is - was).abs() <= LOOKS_APART_MAX * is && spread(later) <= WINDOW_OFF_MAX
}

/// The largest deviation of a window from the mean, as a share of the mean.
pub(crate) fn spread(windows: &[Window]) -> f64 {
    let mean = mean(windows);
    let off = windows.iter().map(|window| (window.ms_per_new_order - mean).abs());
    off.fold(0.0, f64::max) / mean.max(f64::MIN_POSITIVE)
}

fn mean(windows: &[Window]) -> f64 {
    windows.iter().map(|window| window.ms_per_new_order).sum::<f64>() / windows.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(costs: &[f64], filled: impl Fn(usize) -> f64) -> Vec<Window> {
        let window = |(at, &ms)| Window {
            seconds: 1.0,
            new_orders: 100,
            ms_per_new_order: ms,
            ssd_filled: filled(at),
        };
        costs.iter().enumerate().map(window).collect()
    }

    #[test]
    fn equal_windows_of_a_full_ssd_are_steady() {
        let mut warm = vec![90.0, 70.0];
        warm.extend([40.0, 41.0, 39.0, 40.0, 40.5, 39.5].repeat(4));
        assert!(is_steady(&windows(&warm, |_| 0.98)));
        assert!(!is_steady(&windows(&[40.0; 23], |_| 0.98)), "too few");
    }

    #[test]
    fn unstable_runs_are_not_steady() {
        let falling: Vec<f64> = (0..28).map(|at| 60.0 - 0.1 * f64::from(at)).collect();
        assert!(!is_steady(&windows(&falling, |_| 0.98)), "every window is near the next, but they fall");
        assert!(!is_steady(&windows(&[40.0; 24], |at| 0.5 + 0.01 * at as f64)), "the SSD is filling");
        let mut uneven = [40.0; 24];
        (uneven[15], uneven[20]) = (37.0, 43.0);
        assert!(!is_steady(&windows(&uneven, |_| 1.0)), "they do not agree");
    }

    #[test]
    fn the_spread_is_of_the_mean() {
        assert!((spread(&windows(&[9.0, 10.0, 11.0], |_| 1.0)) - 0.1).abs() < 1e-12);
        assert_eq!(spread(&[]), 0.0);
    }
}
