//! A budget of bytes written to the SSD, and the price of a write while it is overdrawn.
//!
//! A token bucket fills at the budget's rate and holds at most an hour's worth. Required writes draw from it
//! even when it is empty: the *overdraft* is at most a day's worth. While there is one, a write to the SSD is
//! priced at a multiple of its cost. The *factor* is the fourth power of 1 + the overdraft in units of a
//! quarter of an hour's worth. The further writes exceed the budget, the higher their price, until optional
//! writes are not worth it.

use crate::Millis;

/// Milliseconds of a day.
const DAY_MS: f64 = 86_400_000.0;
/// The most budget that can accumulate, in days.
const SAVED_MAX: f64 = 1.0 / 24.0;
/// The unit in which the overdraft raises the factor, in days.
const STEP: f64 = SAVED_MAX / 4.0;
/// The span of the mean rate, in milliseconds.
const RATE_MS: f64 = DAY_MS / 24.0;

/// A write budget. See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WriteBudget {
    bytes_per_day: u64,
    /// The budget left, in bytes; negative: the overdraft.
    saved: f64,
    /// The mean rate of writes, in bytes per day.
    rate: f64,
    at: Millis,
}

impl WriteBudget {
    /// A budget with an hour's worth in reserve.
    #[must_use]
    pub fn new(bytes_per_day: u64, now: Millis) -> Self {
        Self { bytes_per_day, saved: bytes_per_day as f64 * SAVED_MAX, rate: 0.0, at: now }
    }

    /// Charges `bytes`, written since the last call.
    pub fn spend(&mut self, bytes: u64, now: Millis) {
        let ms = now.0.saturating_sub(self.at.0) as f64;
        let (day, bytes) = (self.bytes_per_day as f64, bytes as f64);
        // The bucket fills first, then pays; capped, or a quiet week would allow a day without a budget.
        let saved = (self.saved + day * ms / DAY_MS).min(day * SAVED_MAX);
        // Bounded as well: after a restore of a terabyte the SSD would otherwise admit nothing for weeks.
        self.saved = (saved - bytes).max(-day);
        if ms > 0.0 {
            // An exponential mean over steps of unequal length.
            self.rate += (bytes * DAY_MS / ms - self.rate) * ms / (ms + RATE_MS);
        } else {
            // Two writes in one millisecond have no rate of their own: the bytes are spread over the mean's
            // span.
            self.rate += bytes * DAY_MS / RATE_MS;
        }
        self.at = now;
    }

    /// The factor on the cost of a write to the SSD; 1 within the budget.
    #[must_use]
    pub fn factor(&self) -> f64 {
        let steps = self.overdrawn_bytes() as f64 / (self.bytes_per_day as f64 * STEP).max(1.0);
        // The fourth power: a slight excess hardly counts, a large one stops optional writes.
        let squared = (1.0 + steps) * (1.0 + steps);
        squared * squared
    }

    /// The overdraft, in bytes.
    #[must_use]
    pub fn overdrawn_bytes(&self) -> u64 {
        (-self.saved).max(0.0) as u64
    }

    /// The budget, in bytes per day.
    #[must_use]
    pub const fn bytes_per_day(&self) -> u64 {
        self.bytes_per_day
    }

    /// The recent rate of writes, in bytes per day: a mean over about an hour.
    #[must_use]
    pub fn rate_per_day(&self) -> u64 {
        self.rate as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;
    const HOUR: u64 = DAY / 24;

    /// A budget of 24,000 bytes per day, 1,000 per hour, after `hours` of `bytes` each.
    fn after(hours: u64, bytes: u64) -> WriteBudget {
        let mut budget = WriteBudget::new(24_000, Millis(0));
        // Write at the start of each minute, so that the bucket is never full when it fills.
        for minute in 0..hours * 60 {
            budget.spend(bytes / 60, Millis(minute * HOUR / 60));
        }
        budget.spend(0, Millis(hours * HOUR));
        budget
    }

    fn is_about(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 0.005
    }

    #[test]
    fn writes_within_the_budget_cost_what_they_cost() {
        for bytes in [0, 300, 960] {
            let budget = after(50, bytes);
            assert_eq!((budget.factor(), budget.overdrawn_bytes()), (1.0, 0));
            let rate = budget.rate_per_day() as i64;
            assert!((rate - bytes as i64 * 24).abs() <= 24 + bytes as i64, "{bytes} an hour: {rate}");
        }
    }

    #[test]
    fn an_overdraft_makes_writes_dear_until_it_is_repaid() {
        // 1,200 bytes an hour are 200 too many; the reserve covers the first 1,000.
        assert_eq!(after(4, 1200).factor(), 1.0);
        let mut budget = after(10, 1200);
        assert!(is_about(budget.overdrawn_bytes() as f64, 1000.0), "{budget:?}");
        // Four quarters of an hour's worth, then two.
        assert!(is_about(budget.factor(), 625.0), "{budget:?}");
        budget.spend(0, Millis(10 * HOUR + HOUR / 2));
        assert!(is_about(budget.factor(), 81.0), "{budget:?}");
        budget.spend(0, Millis(11 * HOUR + 1));
        assert_eq!(budget.factor(), 1.0);
    }

    #[test]
    fn the_overdraft_is_at_most_a_day_and_the_savings_an_hour() {
        let mut budget = after(0, 0);
        budget.spend(1 << 40, Millis(1));
        assert_eq!(budget.overdrawn_bytes(), 24_000);
        budget.spend(0, Millis(100 * DAY));
        budget.spend(1000, Millis(100 * DAY));
        assert_eq!(budget.factor(), 1.0);
        budget.spend(1, Millis(100 * DAY));
        assert!(budget.factor() > 1.0);
    }
}
