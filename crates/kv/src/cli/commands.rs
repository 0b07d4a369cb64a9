//! The commands of one or a few lines.

use super::args::ScanArgs;
use super::{Failure, STOPPED, Stop, show};
use crate::{BackupProgress, Kv};
use pagetier::Loss;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::ops::Bound;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

/// The exit code when there is no such key.
const ABSENT: u8 = 3;

pub(crate) async fn put(kv: &Kv, key: &OsStr, value: Option<&OsStr>) -> Result<ExitCode, Failure> {
    let value = match value {
        Some(value) => value.as_bytes().to_vec(),
        None => {
            let mut read = Vec::new();
            io::stdin().lock().read_to_end(&mut read)?;
            read
        }
    };
    kv.put(key.as_bytes(), &value).await?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn get(kv: &Kv, key: &OsStr) -> Result<ExitCode, Failure> {
    let Some(value) = kv.get(key.as_bytes()).await? else {
        eprintln!("kv: no such key");
        return Ok(ABSENT.into());
    };
    let mut out = io::stdout().lock();
    out.write_all(&value)?;
    // Output to a file or a pipe is exactly the value.
    if out.is_terminal() {
        out.write_all(b"\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn delete(kv: &Kv, key: &OsStr) -> Result<ExitCode, Failure> {
    if kv.delete(key.as_bytes()).await? {
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!("kv: no such key");
        Ok(ABSENT.into())
    }
}

/// The first key behind all keys that begin with `prefix`, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    // The last byte below 255 is incremented. If there is none, no key follows the prefix, and the scan has
    // no end.
    let keep = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut after = prefix[..=keep].to_vec();
    after[keep] += 1;
    Some(after)
}

pub(crate) async fn scan(kv: &Kv, args: &ScanArgs, stop: &Stop) -> Result<ExitCode, Failure> {
    let (from, to) = match &args.prefix {
        Some(prefix) => (Some(prefix.as_bytes().to_vec()), after_prefix(prefix.as_bytes())),
        None => (args.from.clone().map(OsString::into_vec), args.to.clone().map(OsString::into_vec)),
    };
    let from = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let to = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut scan = kv.scan((from, to));
    if args.backward {
        scan = scan.backward();
    }
    let mut out = BufWriter::new(io::stdout());
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 && !stop.is_asked() {
        let Some((key, value)) = scan.next().await? else { break };
        let written = out.write_all(&[&key[..], b"\t", &value, b"\n"].concat());
        // The reader has seen enough, as `head` does.
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return Ok(ExitCode::SUCCESS);
        }
        written?;
        left -= 1;
    }
    out.flush()?;
    Ok(if stop.is_asked() { STOPPED.into() } else { ExitCode::SUCCESS })
}

pub(crate) async fn check(kv: &Kv) -> Result<ExitCode, Failure> {
    let bar = show::bar("checking", Some(0));
    let report = kv
        .check(|seen, of| {
            bar.set_length(of);
            bar.set_position(seen);
        })
        .await?;
    bar.finish_and_clear();
    println!(
        "{} entries, {} bytes; height {}, {} leaves, {} inner nodes, {} pages of long values, {} free pages",
        report.entries,
        report.bytes,
        report.height,
        report.leaves,
        report.inner,
        report.overflow,
        report.free
    );
    if let Some(span) = kv.wal().to_redo(Loss::Crash) {
        println!("a recovery would read {} bytes of log, from position {} on", span.bytes, span.from);
    }
    for problem in &report.listed {
        eprintln!("{problem}");
    }
    if report.is_sound() {
        println!("sound");
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!("kv: {} problems", report.problems);
        Ok(ExitCode::FAILURE)
    }
}

pub(crate) async fn backup(kv: &Kv, to: &Path) -> Result<ExitCode, Failure> {
    let bar = show::bar("copying", Some(0));
    let report = kv
        .backup(to, |at| match at {
            BackupProgress::Pages(done, of) => {
                bar.set_length(of);
                bar.set_position(done);
            }
            BackupProgress::Recovering => bar.set_message("recovering the copy"),
            BackupProgress::Checking(done, of) => {
                bar.set_message("checking the copy");
                bar.set_length(of);
                bar.set_position(done);
            }
        })
        .await?;
    bar.finish_and_clear();
    println!("{} entries in {} pages, up to log position {}", report.entries, report.pages, report.lsn);
    Ok(ExitCode::SUCCESS)
}
