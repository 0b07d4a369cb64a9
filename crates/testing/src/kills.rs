//! Kill loops: a test program starts itself again as a process that changes a store, and kills it. What the
//! process printed before it died says what must be there afterwards.
//!
//! The part that is killed is a test of the same program, which returns at once unless [`part`] says that the
//! process was started for it. It is named by its full path, as the test harness prints it: `kill9::writes`
//! for the function `writes` in the module `kill9` of `tests/all.rs`, and `writes` alone for one at the root.
//! A name that no test has starts a process that runs nothing and ends, which the callers report.
//!
//! That process speaks by [`say`]: a word, then decimal numbers below 2^32, with single spaces between.
//!
//! | line | says | by |
//! | --- | --- | --- |
//! | `open N M` | the store is open; numbers of its own, any count | `say(&format!("open {n} {m}"))` |
//! | `ready` | from here on it may be killed at the usual time | `say("ready")` |
//! | `begun NUMBER VERSION` | the write of a version begins | [`begun`] |
//! | `durable NUMBER VERSION` | a version is durable | [`durable`] |
//! | `opening`, `opened` | an open begins, and has ended | [`open_and_wait`] |
//!
//! Other lines are ignored. The moment of a kill is drawn from the seed, in real time: a round with the same
//! seed is killed after the same delay, but the process may have done less or more by then. A kill after
//! `ready` happens when a line arrives, so the process must go on saying lines until it is killed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PART: &str = "PAGETIER_KILL_PART";
const DIRECTORY: &str = "PAGETIER_KILL_DIRECTORY";
const SEED: &str = "PAGETIER_KILL_SEED";

/// A page or a key: its last version that was confirmed as durable, and the last one whose write began.
#[derive(Clone, Copy, Default, Debug)]
pub struct Known {
    /// A later version may be found, an earlier one may not.
    pub durable: u32,
    /// No later version can be found.
    pub begun: u32,
}

impl Known {
    /// Takes `found` as what is durable from here on.
    ///
    /// # Panics
    /// It is not among the versions that may be found; `what` names the page or key.
    pub fn found(&mut self, what: impl std::fmt::Display, found: u32) {
        let Self { durable, begun } = *self;
        assert!(
            (durable..=begun).contains(&found),
            "{what} has version {found}: {durable} was confirmed, {begun} the last begun"
        );
        *self = Self { durable: found, begun: found };
    }
}

/// The rounds of a kill loop: the environment's `PAGETIER_KILL_ROUNDS`, or else `usual`.
///
/// # Panics
/// The variable is not a number.
#[must_use]
pub fn rounds(usual: u64) -> u64 {
    std::env::var("PAGETIER_KILL_ROUNDS").map_or(usual, |rounds| rounds.parse().expect("a number of rounds"))
}

/// The directory and the seed if this process was started for `test`, a test that is to be killed.
#[must_use]
pub fn part(test: &str) -> Option<(PathBuf, u64)> {
    let directory =
        std::env::var_os(DIRECTORY).filter(|_| std::env::var(PART).is_ok_and(|part| part == test));
    Some((directory?.into(), std::env::var(SEED).ok()?.parse().ok()?))
}

/// Prints one line in one system call, so that it is complete before the kill.
///
/// # Panics
/// Standard output is gone.
pub fn say(line: &str) {
    std::io::stdout().write_all(format!("\n@{line}\n").as_bytes()).expect("standard output is read");
}

/// Says that the write of a version begins.
pub fn begun(number: u32, version: u32) {
    say(&format!("begun {number} {version}"));
}

/// Says that a version is durable.
pub fn durable(number: u32, version: u32) {
    say(&format!("durable {number} {version}"));
}

/// In the test that is killed while it opens a store: runs `open`, and waits for the kill.
pub async fn open_and_wait<T>(open: impl Future<Output = T>) {
    say("opening");
    let _open = open.await;
    say("opened");
    std::future::pending::<()>().await;
}

fn spawn(test: &str, directory: &Path, seed: u64) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(PART, test).env(DIRECTORY, directory).env(SEED, seed.to_string());
    command.stdout(Stdio::piped()).spawn().expect("it starts")
}

fn was_killed(mut child: Child) {
    let ended = child.wait().expect("it ends");
    assert!(!ended.success() && ended.code().is_none(), "the process ended by itself: {ended}");
}

/// Starts `test` as a process and kills it after it says `ready`: a number of milliseconds later that is
/// drawn from `after`; or, in about one round of seven, up to 60 ms after its start. The seed decides both,
/// and [`part`] hands it to the process. Updates `known`, by number, with the lines `begun` and `durable`,
/// and returns the numbers of the line `open`, or `None` if it was killed before it said that.
///
/// # Panics
/// The process ended by itself, or names a number that `known` does not have.
pub fn write_and_kill(
    test: &str,
    (directory, seed): (&Path, u64),
    after: Range<u64>,
    known: &mut [Known],
) -> Option<Vec<u32>> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut writer = spawn(test, directory, seed);
    let lines = BufReader::new(writer.stdout.take().expect("piped")).lines();
    let (mut opened_with, mut kill_at) = (None, None);
    // Occasionally it is killed while it opens the store, or in its first steps.
    if rng.random_bool(0.15) {
        std::thread::park_timeout(Duration::from_millis(rng.random_range(0..60)));
        writer.kill().expect("killed");
    }
    for line in lines.map_while(Result::ok) {
        let Some(line) = line.strip_prefix('@') else { continue };
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        match (what, &numbers[..]) {
            ("open", _) => opened_with = Some(numbers),
            ("begun", [number, version]) => known[*number as usize].begun = *version,
            ("durable", [number, version]) => known[*number as usize].durable = *version,
            ("ready", _) => {
                kill_at = Some(Instant::now() + Duration::from_millis(rng.random_range(after.clone())));
            }
            _ => {}
        }
        if kill_at.is_some_and(|at| Instant::now() >= at) {
            kill_at = None;
            writer.kill().expect("killed");
        }
    }
    was_killed(writer);
    opened_with
}

/// Starts `test` as a process, which calls [`open_and_wait`], and kills it within `opening`, the usual time
/// that it takes to open the store. Returns true if the store was not open yet.
///
/// # Panics
/// The process ended by itself.
#[must_use]
pub fn kill_while_opening(test: &str, (directory, seed): (&Path, u64), opening: Duration) -> bool {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut opener = spawn(test, directory, seed);
    let mut lines = BufReader::new(opener.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let began = lines.by_ref().any(|line| line.starts_with("@opening"));
    assert!(began, "the opener ended by itself");
    std::thread::park_timeout(opening.mul_f64(rng.random_range(0.0..1.0)));
    opener.kill().expect("killed");
    let opened = lines.any(|line| line.starts_with("@opened"));
    was_killed(opener);
    !opened
}

/// Kills the recovery, too, up to three times in a row, in the rounds with a remainder of 1 by three. Returns
/// the number of kills in this `round`, and how many of them came before the store was open.
#[must_use]
pub fn kill_recoveries(test: &str, (directory, round): (&Path, u64), opening: Duration) -> (u64, u64) {
    let times = if round % 3 == 1 { 1 + round % 2 + round % 5 % 2 } else { 0 };
    let cut = |nth| {
        u64::from(kill_while_opening(test, (directory, round.wrapping_mul(7).wrapping_add(nth)), opening))
    };
    (times, (0..times).map(cut).sum())
}
