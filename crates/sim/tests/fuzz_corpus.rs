//! Runs the fuzzer's targets over its corpus (`fuzz/corpus`) and over inputs generated from a seed, on stable
//! and without the fuzzer.
//!
//! `PAGETIER_FUZZ_INPUTS=N` generates more inputs per target.

use pagetier_sim::fuzz::{TARGETS, Target};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

/// The maximum additional memory that one input may allocate at a time: a store of at most 16 MiB, twice, and
/// its tables.
const BYTES_MAX: usize = 96 << 20;

/// The system's allocator, with this thread's live bytes and their peak.
struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    // Fails only in a thread that is ending, which has nothing to count.
    let _ = LIVE.try_with(|live| {
        live.set((live.get() + more).saturating_sub(less));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call passes its arguments unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn run(name: &str, what: &str, target: Target, input: &[u8]) {
    let before = LIVE.get();
    PEAK.set(before);
    let ran = std::panic::catch_unwind(|| target(input));
    assert!(ran.is_ok(), "{name} fails on {what}: {input:02x?}");
    let peak = PEAK.get() - before;
    assert!(peak <= BYTES_MAX, "{name} takes {peak} bytes on {what}: {input:02x?}");
}

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()))
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn every_input_of_the_corpus_is_taken() {
    for (name, target) in TARGETS {
        // Exclude allocations that are made only once.
        target(&[]);
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for (path, input) in inputs {
            run(name, &path, target, &input);
        }
    }
}

#[test]
fn inputs_made_from_seeds_are_taken() {
    let inputs = std::env::var("PAGETIER_FUZZ_INPUTS").map_or(20, |n| n.parse::<u64>().unwrap());
    for (name, target) in TARGETS {
        target(&[]);
        let seeds = corpus(name);
        for seed in 0..inputs {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut input = vec![0; rng.random_range(0..400)];
            rng.fill(&mut input[..]);
            if rng.random_bool(0.7) {
                input = seeds[rng.random_range(0..seeds.len())].1.clone();
                for _ in 0..rng.random_range(1..9) {
                    let at = rng.random_range(0..input.len().max(1));
                    if let Some(byte) = input.get_mut(at) {
                        *byte = rng.random();
                    }
                }
            }
            run(name, &format!("seed {seed}"), target, &input);
        }
    }
}
