//! What does a commit to the write-ahead log cost, on files? `cargo bench --bench log [-- --quick]`.
//!
//! Records of 256 bytes are appended and flushed, by one task and by 16, each of which waits for its own
//! record. The floors are a plain file: one that each write extends, flushed with `fdatasync`; one that has
//! its bytes already, overwritten and flushed the same way. The log has had a few segments before, and each
//! new one lets another go, as checkpoints do.
//!
//! The log is below the folder `PAGETIER_HDD`, or below `target/`. `docs/BENCHMARKS.md` has machine, date and
//! results.

mod common;

use common::{Length, Workers, median, runtime};
use pagetier::Lsn;
use pagetier_wal::{Wal, WalOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RECORD: [u8; 256] = [7; 256];
/// A segment has a sixteenth.
const CAPACITY: u64 = 16 << 20;

fn main() {
    let (commits, rounds) = Length::selected().pick((200, 1), (8_000, 3), (20_000, 5));
    let below =
        std::env::var_os("PAGETIER_HDD").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let dir = tempfile::tempdir_in(below).expect("a folder for the log");
    println!("Times of a commit in us; medians of {rounds} rounds of {commits} commits.\n");
    println!("| what | median | 90th percentile | commits/s |\n| --- | --- | --- | --- |");
    let file = dir.path().join("file");
    let row = |name: &str, run: &dyn Fn() -> Vec<f64>| {
        let times: Vec<Vec<f64>> = (0..rounds).map(|_| run()).collect();
        let of = |nth: usize| median(times.iter().map(|round| round[nth]));
        println!("| {name} | {:.0} | {:.0} | {:.0} |", of(0), of(1), of(2));
    };
    row("plain file, extended", &|| plain(&file, commits, false));
    row("plain file, overwritten", &|| plain(&file, commits, true));
    row("log, one task", &|| runtime(Workers::Two).block_on(logged(dir.path(), commits, 1)));
    row("log, 16 tasks", &|| runtime(Workers::Two).block_on(logged(dir.path(), commits, 16)));
}

/// Median, 90th percentile, and commits a second.
fn figures(mut times: Vec<f64>, all: Duration) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[(times.len() as f64 * part) as usize];
    vec![at(0.5), at(0.9), times.len() as f64 / all.as_secs_f64()]
}

fn plain(path: &Path, commits: usize, is_written: bool) -> Vec<f64> {
    let file = File::create(path).expect("a file");
    if is_written {
        file.write_all_at(&vec![0; commits * RECORD.len()], 0).expect("zeroes");
    }
    file.sync_all().expect("a flush");
    let begun = Instant::now();
    let commit = |nth: usize| {
        let at = Instant::now();
        file.write_all_at(&RECORD, (nth * RECORD.len()) as u64).expect("a write");
        file.sync_data().expect("a flush");
        at.elapsed().as_secs_f64() * 1e6
    };
    let times = (0..commits).map(commit).collect();
    figures(times, begun.elapsed())
}

async fn logged(dir: &Path, commits: usize, tasks: usize) -> Vec<f64> {
    let dir = tempfile::tempdir_in(dir).expect("a folder for the log");
    let wal = Wal::open(dir.path(), WalOptions::new().capacity_bytes(CAPACITY)).expect("a log");
    for _ in 0..4 {
        let lsn = wal.append_commit(&vec![7; CAPACITY as usize / 16]).expect("a record");
        wal.flush(lsn).await.expect("a commit");
    }
    let (begun, each) = (Instant::now(), commits / tasks);
    let task = |wal: Wal| async move {
        let mut times = Vec::new();
        for _ in 0..each {
            let at = Instant::now();
            let lsn = wal.append_commit(&RECORD).expect("a record");
            wal.flush(lsn).await.expect("a commit");
            times.push(at.elapsed().as_secs_f64() * 1e6);
            let starts = wal.segment_starts();
            if let [.., second, _, _] = starts[..] {
                wal.truncate(Lsn(second + 1), Lsn(second + 1)).await.expect("a shorter log");
            }
        }
        times
    };
    let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(task(wal.clone()))).collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("a task"));
    }
    figures(times, begun.elapsed())
}
