//! A board of timings: a bench records its measurements here and prints each with its ratio to a peer's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Times per operation by name, sorted by name.
#[derive(Default)]
pub(crate) struct Board(RefCell<BTreeMap<String, Vec<Sample>>>);

#[derive(Clone, Copy)]
struct Sample {
    operations: u64,
    ns: f64,
}

impl Board {
    /// Measures `work`, which performs `operations` operations, for the table and for criterion.
    pub(crate) fn time(&self, name: &str, operations: u64, work: impl FnOnce()) -> Duration {
        let began = Instant::now();
        work();
        let elapsed = began.elapsed();
        let ns = elapsed.as_nanos() as f64 / operations as f64;
        self.0.borrow_mut().entry(name.to_owned()).or_default().push(Sample { operations, ns });
        elapsed
    }

    /// Prints every figure with its ratio to the figure of its peer, which `peer_of` names.
    pub(crate) fn print(&self, what: &str, peer_of: impl Fn(&str) -> String) {
        println!("\n| {what} | median ns | best ns | peer | ratio of medians | of bests |");
        println!("| --- | --- | --- | --- | --- | --- |");
        let board = self.0.borrow();
        for (name, samples) in board.iter() {
            let (median, best) = summary(samples);
            let peer = peer_of(name);
            let (peer_median, peer_best) =
                board.get(&peer).map_or((f64::NAN, f64::NAN), |samples| summary(samples));
            let ratios = format!("{:.2} | {:.2}", median / peer_median, best / peer_best);
            println!("| {name} | {median:.1} | {best:.1} | {peer} | {ratios} |");
        }
    }
}

/// The median over all operations, and the best of the longer samples, in nanoseconds. Short samples, such as
/// the warm-up's, have little or no weight: they measure the harness.
fn summary(samples: &[Sample]) -> (f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    let all: u64 = sorted.iter().map(|s| s.operations).sum();
    let longest = sorted.iter().map(|s| s.operations).max().unwrap_or(0);
    let mut below = 0;
    let mut at_median = sorted.iter().skip_while(|s| {
        below += s.operations;
        2 * below < all
    });
    let mut long = sorted.iter().filter(|s| s.operations >= longest / 20);
    (at_median.next().map_or(f64::NAN, |s| s.ns), long.next().map_or(f64::NAN, |s| s.ns))
}
