//! `load`: inserts many entries and makes them durable together.

use super::args::LoadArgs;
use super::{Failure, STOPPED, Stop, show};
use crate::Kv;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::process::ExitCode;

/// Entries between two syncs.
const SYNC_EVERY: u64 = 10_000;

/// The key of entry `number`, as `bench` uses it.
pub(crate) fn numbered_key(number: u64) -> Vec<u8> {
    format!("user{number:010}").into_bytes()
}

pub(crate) async fn load(kv: &Kv, args: &LoadArgs, stop: &Stop) -> Result<ExitCode, Failure> {
    let loaded = match (args.count, &args.file) {
        (Some(count), _) => numbered(kv, count, args.value_bytes, stop).await,
        (None, Some(path)) => {
            let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            lines(kv, BufReader::new(file), stop).await
        }
        (None, None) => lines(kv, BufReader::new(io::stdin()), stop).await,
    };
    // Keep what was inserted, even if the rest failed.
    kv.sync().await?;
    println!("{} entries", loaded?);
    Ok(if stop.is_asked() { STOPPED.into() } else { ExitCode::SUCCESS })
}

async fn numbered(kv: &Kv, count: u64, value_bytes: usize, stop: &Stop) -> Result<u64, Failure> {
    let bar = show::bar("loading", Some(count));
    let mut value = vec![0; value_bytes];
    for number in 0..count {
        if stop.is_asked() {
            return Ok(number);
        }
        for (i, byte) in value.iter_mut().enumerate() {
            *byte = b'a' + ((number + i as u64) % 26) as u8;
        }
        kv.put_unsynced(&numbered_key(number), &value).await?;
        after(kv, number + 1).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(count)
}

async fn lines(kv: &Kv, mut input: impl BufRead, stop: &Stop) -> Result<u64, Failure> {
    let bar = show::bar("loading", None);
    let (mut line, mut number) = (Vec::new(), 0);
    while !stop.is_asked() {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let entry = line.strip_suffix(b"\n").unwrap_or(&line);
        // Only the first tab counts: a value may contain others.
        let tab = entry.iter().position(|byte| *byte == b'\t');
        let Some(tab) = tab else {
            return Err(format!("line {}: no tab between key and value", number + 1).into());
        };
        let put = kv.put_unsynced(&entry[..tab], &entry[tab + 1..]).await;
        put.map_err(|error| format!("line {}: {error}", number + 1))?;
        number += 1;
        after(kv, number).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(number)
}

async fn after(kv: &Kv, number: u64) -> Result<(), Failure> {
    if number.is_multiple_of(SYNC_EVERY) {
        kv.sync().await?;
    }
    Ok(())
}
