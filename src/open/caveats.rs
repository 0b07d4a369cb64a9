//! Guarantees that a configuration or system does not provide. The log of an open and
//! [`Builder::inspect`](crate::Builder::inspect) name them; `docs/operating.md` has the systems in one table.

use super::file_system;
use crate::config::store_config::Config;
use crate::store::shared::Shared;
use pagetier_ssdcache::SsdMode;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fmt;

/// The first kernel whose io_uring the store uses; it is not tested on earlier ones.
const KERNEL_MIN: (u32, u32) = (5, 11);
/// The descriptors that a process needs for a store, a backup and its engine's own files.
const FILES_MIN: u64 = 256;

/// A guarantee that a store does not provide. `docs/RELIABILITY.md` has those that it does, and those that
/// no store provides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Caveat {
    /// There is no doublewrite ring ([`ring_pages(0)`](crate::Builder::ring_pages)).
    NoRing,
    /// The SSD may hold the only copy of a page's newest version ([`SsdMode::WriteBack`]).
    SsdAlone,
    /// A file system is not supported.
    FileSystem,
    /// The kernel is not supported.
    Kernel,
    /// The process may have few open files.
    FewFiles,
    /// The process may write files up to a size only.
    FileSize,
    /// The process may use a part of its address space only.
    AddressSpace,
}

impl Caveat {
    /// Its name in JSON and in the log.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::NoRing => "no-ring",
            Self::SsdAlone => "ssd-alone",
            Self::FileSystem => "file-system",
            Self::Kernel => "kernel",
            Self::FewFiles => "few-files",
            Self::FileSize => "file-size",
            Self::AddressSpace => "address-space",
        }
    }
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRing => {
                "no doublewrite ring: a crash may tear pages on the HDD, unless that writes them whole, and a \
                 failed flush followed by a kill and a power cut may take them back to their last sync; the \
                 engine's log must have whole images of both"
            }
            Self::SsdAlone => {
                "the loss of the SSD loses the versions that it alone holds, unless the engine's log reaches \
                 back to them; mode write-through and a drain make it expendable"
            }
            Self::FileSystem => {
                "a file system that is not supported: what a crash or a full disk leaves there is not promised; \
                 use ext4, xfs or btrfs"
            }
            Self::Kernel => "a kernel that is not supported: use Linux 5.11 or later",
            Self::FewFiles => "few open files (ulimit -n): a backup or another store may run out; allow 256",
            Self::FileSize => "files end at a limit (ulimit -f): growth beyond it fails",
            Self::AddressSpace => "the address space is limited (ulimit -v): the pool cannot grow",
        })
    }
}

/// The guarantees that the kernel and the limits of this process prevent.
pub(crate) fn of_system() -> Vec<Caveat> {
    let limit = |resource| getrlimit(resource).current;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    judged(&release, limit(Resource::Nofile), limit(Resource::Fsize), limit(Resource::As))
}

/// The same for these values; a limit of `None` is none.
fn judged(release: &str, files: Option<u64>, file_bytes: Option<u64>, address: Option<u64>) -> Vec<Caveat> {
    let found = [
        (is_old(release), Caveat::Kernel),
        (files.is_some_and(|files| files < FILES_MIN), Caveat::FewFiles),
        (file_bytes.is_some(), Caveat::FileSize),
        (address.is_some(), Caveat::AddressSpace),
    ];
    found.into_iter().filter_map(|(found, caveat)| found.then_some(caveat)).collect()
}

/// Whether a kernel, such as `6.8.0-31-generic`, is older than the first supported one. One whose version
/// cannot be read counts as new.
fn is_old(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < KERNEL_MIN,
        _ => false,
    }
}

impl Config {
    /// Warns of a kernel and of limits on which the store is not tested.
    pub(super) fn warn_of_system(&self) {
        for caveat in of_system() {
            tracing::warn!(caveat = caveat.code(), "{caveat}");
        }
    }

    /// Whether the store's directory is on a file system that is not supported.
    pub(crate) fn is_on_other_file_system(&self) -> bool {
        let found = self.held.as_ref().and_then(|held| held.file_system().ok());
        found.is_some_and(|found| file_system::unsupported(found.f_type as u64).is_some())
    }
}

/// The guarantees that the configuration of a store gives up.
pub(crate) fn of_store(has_ring: bool, ssd_alone: bool, other_file_system: bool) -> Vec<Caveat> {
    let found =
        [(!has_ring, Caveat::NoRing), (ssd_alone, Caveat::SsdAlone), (other_file_system, Caveat::FileSystem)];
    found.into_iter().filter_map(|(found, caveat)| found.then_some(caveat)).collect()
}

impl Shared {
    /// The guarantees that this open does not provide, for the log: names with blanks between them.
    pub(super) fn not_promised(&self) -> String {
        let ssd_alone = self.tier.slots() > 0 && self.tier.mode() == SsdMode::WriteBack;
        let mut all = of_store(self.tier.has_ring(), ssd_alone, self.config.is_on_other_file_system());
        all.extend(of_system());
        let names: Vec<&str> = all.into_iter().map(Caveat::code).collect();
        if names.is_empty() { "(nothing more than docs/RELIABILITY.md)".into() } else { names.join(" ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Caveat; 7] = [
        Caveat::NoRing,
        Caveat::SsdAlone,
        Caveat::FileSystem,
        Caveat::Kernel,
        Caveat::FewFiles,
        Caveat::FileSize,
        Caveat::AddressSpace,
    ];

    #[test]
    fn kernels_and_limits_outside_the_table_are_found() {
        assert_eq!(judged("6.8.0-31-generic", Some(1024), None, None), []);
        assert_eq!(judged("5.11", None, None, None), []);
        assert_eq!(judged("unknown", None, None, None), []);
        for old in ["5.10.0", "4.19.1-arch", "5.9-rc1", "3.10.0-1160.el7"] {
            assert_eq!(judged(old, None, None, None), [Caveat::Kernel], "{old}");
        }
        let limited = judged("6.1", Some(64), Some(1 << 30), Some(1 << 34));
        assert_eq!(limited, [Caveat::FewFiles, Caveat::FileSize, Caveat::AddressSpace]);
        assert_eq!(of_store(true, false, false), []);
        let all = of_store(false, true, true);
        assert_eq!(all, [Caveat::NoRing, Caveat::SsdAlone, Caveat::FileSystem]);
    }

    #[test]
    fn the_document_names_each_and_the_kernel() {
        let document = include_str!("../../docs/operating.md");
        for caveat in ALL {
            assert_eq!(serde_json::to_value(caveat).unwrap(), caveat.code());
            assert!(document.contains(&format!("`{}`", caveat.code())), "{caveat:?}");
            assert!(caveat.to_string().len() > 30);
        }
        let (major, minor) = KERNEL_MIN;
        assert!(document.contains(&format!("| Linux {major}.{minor} or later | yes |")));
        assert!(document.contains(&format!("| open files (`ulimit -n`): {FILES_MIN} or more | yes |")));
    }
}
