//! For tests of engines in a store: a process that commits, and is killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The rounds of such tests: what `PAGETIER_KILL_ROUNDS` says, or 6.
#[must_use]
pub fn rounds() -> u64 {
    std::env::var("PAGETIER_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6)
}

/// Runs `command` in each round. It prints "found N" once it has checked the N rows that are there, then
/// "committed N" for each row; after as many as `after` says, it is killed.
///
/// # Panics
/// A commit that was acknowledged is missing, or the command failed.
pub fn killed(command: &mut Command, mut after: impl FnMut() -> u64) {
    let mut acknowledged = 0;
    for round in 0..rounds() {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (after, mut found) = (after(), None);
        for line in lines.map_while(Result::ok) {
            match line.split_once(' ').map(|(what, no)| (what, no.parse::<u64>().expect("a number"))) {
                Some(("found", rows)) => {
                    assert!(
                        rows >= acknowledged,
                        "{command:?}, round {round}: {rows} rows of {acknowledged}"
                    );
                    (found, acknowledged) = (Some(rows), rows);
                }
                Some(("committed", no)) => acknowledged = no + 1,
                _ => {}
            }
            // What it still prints before it dies was acknowledged, too.
            if found.is_some_and(|found| acknowledged >= found + after) {
                child.kill().expect("killed");
            }
        }
        child.wait().expect("it ends");
        assert!(found.is_some(), "{command:?}, round {round}: it failed");
    }
}
