//! Where and when a comparison ran.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine as the kernel describes it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) memory_bytes: Option<u64>,
}

impl Machine {
    /// The machine that this process runs on.
    pub(crate) fn here() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            // On Arm the kernel gives no model name.
            cpu: model.unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: cores(),
            kernel: format!("{} {}", std::env::consts::OS, kernel.trim()),
            memory_bytes: memory_bytes(),
        }
    }
}

fn memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The checksum of this program's file, which distinguishes rows of different builds.
pub(crate) fn build() -> Option<String> {
    let program = std::fs::read(std::env::current_exe().ok()?).ok()?;
    Some(format!("{:08x}", pagetier_page::crc32c(&program)))
}

/// The number of CPUs available to this process.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The current time as `2026-11-21 14:05 UTC`.
pub(crate) fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(since / 86_400);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", since / 3_600 % 24, since / 60 % 60)
}

/// The date `days` after 1970-01-01. Counts years from March, so that the leap day is their last.
fn civil(days: u64) -> (u64, u64, u64) {
    // Hinnant's `civil_from_days`: 719,468 days lie between 0000-03-01 and 1970-01-01, and 146,097 days are
    // 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, the lengths of months repeat every five, which have 153 days: 31, 30, 31, 30, 31.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The command line, quoted where a shell requires it.
pub(crate) fn command() -> String {
    let options = std::env::args().skip(1).map(|option| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+=%".contains(c);
        if !option.is_empty() && option.chars().all(plain) {
            option
        } else {
            format!("'{}'", option.replace('\'', r"'\''"))
        }
    });
    format!("cargo run --release --example tpcc_lite -- {}", options.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
    }
}
