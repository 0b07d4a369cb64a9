//! One run of a judge.

use crate::judges::Judge;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The interval at which the end of a process is checked.
const POLL: Duration = Duration::from_millis(5);

/// A run of a judge on some of its tests, with or without a mutant.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) judge: &'a Judge,
    /// The tests to run, if the judge selects tests by name.
    pub(crate) tests: &'a [&'a str],
    /// The mutant to enable; 0 for none.
    pub(crate) mutant: u32,
    /// The file to which the process appends the mutants that it reaches.
    pub(crate) reached: Option<&'a Path>,
    pub(crate) threads: usize,
    pub(crate) limit: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Passed,
    /// With the first test that failed, if the process named it.
    Failed(Option<String>),
    Hung,
}

impl Job<'_> {
    pub(crate) fn run(&self) -> Result<Ended> {
        let judge = self.judge;
        let mut command = Command::new(&judge.program);
        command.args(&judge.args);
        if judge.by_name {
            command.arg("--exact").args(self.tests).arg(format!("--test-threads={}", self.threads));
        }
        if let Some(path) = self.reached {
            command.env("PAGETIER_REACHED", path);
        }
        let mut child = command
            .env("PAGETIER_MUTANT", self.mutant.to_string())
            .env("PROPTEST_CASES", "64")
            .env("RUST_BACKTRACE", "0")
            .current_dir(&judge.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} cannot be started", judge.program.display()))?;
        let failures = failures(&mut child);
        let ended = self.await_end(&mut child, &failures)?;
        if child.try_wait()?.is_none() {
            // Kill the whole group, since tests start processes of their own.
            let _ = Command::new("kill").args(["-9", "--", &format!("-{}", child.id())]).status();
            let _ = child.wait();
        }
        Ok(ended)
    }

    /// Waits until the process ends, a test fails, or the time is up.
    fn await_end(&self, child: &mut Child, failures: &Receiver<String>) -> Result<Ended> {
        let begun = Instant::now();
        loop {
            match failures.recv_timeout(POLL) {
                Ok(test) => return Ok(Ended::Failed(Some(test))),
                Err(RecvTimeoutError::Timeout) => {}
                // The process has closed its output.
                Err(RecvTimeoutError::Disconnected) => std::thread::park_timeout(POLL),
            }
            if let Some(status) = child.try_wait()? {
                return Ok(if status.success() {
                    Ended::Passed
                } else {
                    Ended::Failed(failures.try_recv().ok())
                });
            }
            if begun.elapsed() > self.limit {
                return Ok(Ended::Hung);
            }
        }
    }
}

/// Receives the names of the tests that fail, as the process prints them.
fn failures(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"))
                    && sender.send(name.to_owned()).is_err()
                {
                    return;
                }
            }
        });
    }
    receiver
}
