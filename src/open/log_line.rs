//! The log line of an open: the back ends, the sizes, and what recovery found.

use super::file_system;
use crate::config::store_config::Config;
use crate::store::devices::Devices;
use crate::store::shared::Shared;
use pagetier_devio::{Backend, DirectIo, Opened};
use pagetier_ssdcache::RecoveryReport;
use rustix::fs::StatFs;
use std::io;
use std::path::Path;

impl Devices {
    /// Records how the device of `option` was opened.
    pub(super) fn note_opened(&self, option: &'static str, opened: &Opened) {
        let backend = if opened.backend == Backend::Uring { "io_uring" } else { "threads" };
        let cache = match (opened.direct, self.config.options.direct_io) {
            (true, _) => "direct I/O",
            (false, DirectIo::Disabled) => "page cache (direct I/O is disabled)",
            (false, _) => "page cache (the file system has no direct I/O)",
        };
        let why = opened.fallback.as_ref().map_or_else(String::new, |cause| format!("; {cause}"));
        self.in_use.lock().served.insert(option, format!("{backend}, {cache}{why}"));
    }

    fn served_by(&self, option: &'static str, backend: &'static str) -> String {
        self.in_use.lock().served.get(option).cloned().unwrap_or_else(|| format!("{backend}, ready-made"))
    }
}

impl Config {
    /// Warns of a file system on which the store is not tested: for the directory, and for a device if its
    /// file system is of another type.
    pub(super) fn check_file_system(&self, option: &str, path: &Path, found: io::Result<StatFs>) {
        let Ok(found) = found else { return };
        let of_directory = self.held.as_ref().and_then(|held| held.file_system().ok());
        // One warning per type of file system: a directory and two files on NFS are one cause.
        let warned = option != "directory" && of_directory.is_some_and(|of| of.f_type == found.f_type);
        if let Some(name) = file_system::unsupported(found.f_type as u64).filter(|_| !warned) {
            tracing::warn!(
                file_system = %name, path = %path.display(),
                "the file system of the {option} is not supported: what a crash or a full disk leaves there is \
                 not promised; use ext4, xfs or btrfs"
            );
        }
    }
}

impl Shared {
    /// Logs the open in one line.
    pub(crate) fn log_opening(&self) {
        let devices = &self.devices;
        let recovery = self.tier.recovery();
        let spaces = self.volume.list();
        let (ssd, slots) = (self.tier.ssd_device(), self.tier.slots());
        let option = match (slots, devices.hdd_ring.get()) {
            (0, Some(_)) => "hdd",
            (0, None) => "ring_device",
            _ => "ssd",
        };
        let directory = self.config.options.directory.as_deref().map(|path| path.to_string_lossy());
        tracing::info!(
            directory = %directory.unwrap_or("(in memory)".into()),
            page_bytes = self.page_size().bytes(),
            frames = self.pool.params().frames,
            hdd = %devices.served_by("hdd", self.hdd.backend()),
            hdd_bytes = self.hdd.size(),
            ssd = %devices.served_by(option, ssd.backend()),
            ssd_slots = slots,
            ssd_pages = self.tier.stats().pages,
            spaces = spaces.len(),
            pages = spaces.iter().map(|s| u64::from(s.pages)).sum::<u64>(),
            recovery = %recovery_text(&recovery),
            home_writes = %self.tier.stats().home_writes,
            not_promised = %self.not_promised(),
            "opened"
        );
    }
}

/// What recovery found, for the log: what is 0, as most of it is, goes unsaid.
fn recovery_text(r: &RecoveryReport) -> String {
    let (kept, end) = (r.trusted + r.found, if r.clean { "after a close" } else { "after a crash" });
    let more = [
        (r.superseded, "superseded"),
        (r.repaired, "repaired"),
        (r.rewritten, "rewritten"),
        (r.damaged, "DAMAGED"),
    ];
    let more = more.into_iter().filter(|(count, _)| *count > 0);
    let more: String = more.map(|(count, what)| format!(", {count} {what}")).collect();
    format!("{end}: {kept} pages on the SSD, {} slots and {} bytes read{more}", r.zone_slots, r.bytes_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_is_described_in_words_and_damage_stands_out() {
        let mut clean = RecoveryReport::default();
        (clean.clean, clean.trusted) = (true, 7);
        assert_eq!(recovery_text(&clean), "after a close: 7 pages on the SSD, 0 slots and 0 bytes read");
        let mut crash = RecoveryReport::default();
        (crash.found, crash.damaged, crash.repaired) = (2, 1, 3);
        assert_eq!(
            recovery_text(&crash),
            "after a crash: 2 pages on the SSD, 0 slots and 0 bytes read, 3 repaired, 1 DAMAGED"
        );
    }
}
