//! The options of a store as plain data, each declared once: its field, its default, its setter.

use super::bytes;
use super::choices::{CostSource, Create, ManifestPlace};
use pagetier_devio::{Backend, DirectIo};
use pagetier_policy::{PoolPolicy, SsdPolicy};
use pagetier_ssdcache::SsdMode;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Passes the table of all options to the macro `$then`: each option with its type in [`Options`] and its
/// default. `Builder` has a setter for each one with a type in parentheses. Brackets name the function that
/// reads a size.
macro_rules! option_table {
    ($then:ident) => {
        $then! {
            /// The store's directory: manifest, lock, and by default the files of both devices. Required
            /// unless the store is [in memory](crate::Builder::in_memory).
            directory: Option<PathBuf> = None;
            /// Where the store has its manifest: `OnHdd::default()` for an HDD that other machines may open.
            /// Set it at every open. Default: in the directory.
            manifest(impl Into<ManifestPlace>): ManifestPlace = ManifestPlace::Directory;
            /// The HDD: a file or block device. Default: `hdd.vol` in the directory.
            hdd: Option<PathBuf> = None;
            /// The SSD: a file or block device. Default: `ssd.cache` in the directory.
            ssd: Option<PathBuf> = None;
            /// The number of bytes of the SSD to use; 0: no SSD. An SSD keeps the size with which it was put
            /// into use: if this names another, the store logs a warning, and opens. A new SSD in its place
            /// gets the size named. A store that has no SSD, because it was created without one or gave it
            /// up, opens without one and logs a warning; [`Ssd::readmit`](crate::Ssd::readmit) puts the SSD
            /// of these options into use. [`Ssd::replace`](crate::Ssd::replace) changes the size. The
            /// smallest SSD has 32 slots ([`ssd_bytes_for`](crate::ssd_bytes_for));
            /// [`OpenError::SsdTooSmall`](crate::OpenError) says how many bytes those need. Default: 256 MiB
            /// for a new store.
            ssd_bytes(u64) ["bytes::read_some"]: Option<u64> = None;
            /// The number of pages in the doublewrite ring, at most 65,536. An existing store keeps its ring,
            /// and any other value is [`OpenError::BadOption`](crate::OpenError::BadOption). 0 turns the ring
            /// off: the embedder must then repair torn pages on the HDD, and `sync` flushes the HDD. **Not
            /// promised then:** anything about a home page that a crash tears, and the latest home writes if
            /// a flush of the HDD fails and the process is killed. An HDD that [writes pages
            /// whole](crate::device::Device::writes_whole) needs no images: the ring rests then, whatever its
            /// size, and pages do not tear without one either. Default: 256, fewer on a small SSD.
            ring_pages(u32): Option<u32> = None;
            /// The store's memory budget in bytes: pages, their metadata, staging copies, the SSD's tables
            /// and outqueue. The smallest pool has 16 frames ([`pool_bytes_for`](crate::pool_bytes_for));
            /// [`PoolSizeError`](crate::errors::PoolSizeError) says how many bytes those need. Default: 64
            /// MiB.
            pool_bytes(u64) ["bytes::read"]: u64 = 64 << 20;
            /// The page size of a new store in bytes; it must match an existing one.
            /// [`Builder::open`](crate::Builder::open) checks it. Default: 16 KiB, or the existing store's.
            page_bytes ["bytes::read_some"]: Option<u64> = None;
            /// The pool's replacement policy: see [`Builder::pool_policy`](crate::Builder::pool_policy).
            /// Default: [`PoolPolicy::Auto`].
            pool_policy: PoolPolicy = PoolPolicy::default();
            /// The SSD's policy: see [`Builder::ssd_policy`](crate::Builder::ssd_policy). Default:
            /// `auto`.
            ssd_policy: SsdPolicy = SsdPolicy::default();
            /// Where the device costs come from: [`Costs`](crate::Costs), or one of
            /// [`CostSource`](crate::options::CostSource). A policy that weighs reads against writes (CASA,
            /// CAC, GD2L) follows devices whose speed changes with
            /// [`CostSource::online`](crate::options::CostSource::online) alone. Default:
            /// [`CostSource::Known`](crate::options::CostSource::Known).
            costs(impl Into<CostSource>): CostSource = CostSource::Known;
            /// The I/O backend for files. Default: io_uring where available. A ready-made
            /// [`Device`](crate::device::Device) is used as it is.
            io(Backend): Backend = Backend::Auto;
            /// Whether to bypass the system's page cache. Default: where the file system supports it. A
            /// ready-made [`Device`](crate::device::Device) is used as it is.
            direct_io(DirectIo): DirectIo = DirectIo::Preferred;
            /// Whether to create a store that does not exist, and on what. Default:
            /// [`Create::OnBlank`](crate::options::Create::OnBlank).
            create(Create): Create = Create::OnBlank;
            /// The span of log that redo should have to process, in units of LSNs: bytes if your LSNs are
            /// byte positions, records if they are numbers. The store writes out pages with older changes in
            /// the background. It does not remove log: ask
            /// [`PageStore::redo_from`](crate::PageStore::redo_from) what may be removed. Default: unbounded.
            redo_span_max(u64): Option<u64> = None;
            /// The threshold of the low-room alarm, which is raised when a file system that holds one of the
            /// store's files has fewer bytes free than this. For new pages, the unallocated part of the HDD
            /// counts as free too. Opens and growths log a warning when free space becomes low;
            /// [`Stats::room`](crate::stats::Stats::room) reports it at any time. 0 disables the alarm.
            /// Default: 256 MiB.
            low_room(u64) ["bytes::read"]: u64 = 256 << 20;
            /// The maximum number of pages that a new page's number may skip beyond what its space
            /// has: [`overwrite`](crate::PageStore::overwrite) and the like reserve space for the skipped
            /// pages too, so a wrong number could otherwise take the whole disk. A number further away is
            /// [`Error::PageGap`](crate::Error::PageGap). Space is durable before its pages exist, so redo
            /// after a crash may create the pages that existed in any order, whatever their numbers. Raise
            /// it for an engine that places pages far apart, or that redoes a long log onto a restored
            /// backup out of order. Default: 65,536 (1 GiB of pages of the default size).
            page_gap_max(u32): u32 = 65_536;
            /// How long a request waits for a frame when all are pinned or dirty before it fails, in
            /// milliseconds. Default: 10,000.
            exhausted_after_ms: u64 = 10_000;
            /// Whether to detect sequential access and read ahead. Default: yes.
            read_ahead(bool): bool = true;
            /// The initial mode of the SSD; [`Ssd::set_mode`](crate::Ssd::set_mode) changes it later. In
            /// write-back the SSD alone holds the newest version of some pages. **Not promised then:** that
            /// they survive the loss of the SSD; a log does that whose engine keeps it as
            /// [`PageStore::redo_from`](crate::PageStore::redo_from) with [`Loss::Ssd`](crate::Loss::Ssd)
            /// says. [`SsdMode::Off`] is refused here: open the store without an SSD, or switch the SSD off
            /// once the store is open. Default: [`SsdMode::WriteBack`].
            ssd_mode(SsdMode): SsdMode = SsdMode::WriteBack;
            /// Whether the store may open without its SSD (`ssd_bytes(0)`), or with a blank one or an older
            /// copy in its place, although the lost SSD may have held newer pages than the HDD; an older copy
            /// is formatted. The same holds for the ring's file of a store without an SSD.
            /// [`Ssd::loss`](crate::Ssd::loss) then lists the pages, in later opens too. If the store's
            /// own SSD is present, nothing is lost. If that SSD has unreadable blocks and opening fails with
            /// [`SsdOpenError::Unreadable`](crate::errors::SsdOpenError::Unreadable), leave it out or put a
            /// blank one in its place to give it up. **Not promised:** which pages were newer on an SSD that
            /// was lost in a crash; all are then listed. Default: no.
            accept_ssd_loss(bool): bool = false;
            /// Whether the store may open with an empty log although its own is missing. **Given up:** every
            /// change that only the log has. The pages are as they were written last, each at a moment of its
            /// own, so an engine must check what it finds. For a log crate that records what the pages need
            /// ([`LogGate::check`](crate::LogGate::check)), as `pagetier-wal` does. Default: no.
            accept_log_loss(bool): bool = false;
        }
    };
}

pub(super) use option_table;

macro_rules! declare {
    ($($(#[$doc:meta])* $name:ident $(($set:ty))? $([$read:literal])?: $type:ty = $default:expr;)*) => {
        /// The options of a store as plain data, for configuration files and command lines.
        /// [`Builder`](crate::Builder) adds what is not data: devices, the log gate, callbacks.
        ///
        /// Options left out of a serialised form have their defaults; unknown ones are errors. A size is a
        /// number of bytes, or a text that [`parse_bytes`](crate::parse_bytes) reads.
        ///
        /// ```
        /// use pagetier::{Builder, Options};
        ///
        /// let json = r#"{ "directory": "/var/lib/db", "pool_bytes": "256MiB", "ssd_policy": "cac" }"#;
        /// let options: Options = serde_json::from_str(json)?;
        /// let builder = Builder::from_options(options).ssd("/dev/nvme1n1");
        /// assert_eq!(builder.options().pool_bytes, 256 << 20);
        /// # Ok::<(), serde_json::Error>(())
        /// ```
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[non_exhaustive]
        pub struct Options {
            $($(#[$doc])* $(#[serde(deserialize_with = $read)])? pub $name: $type,)*
        }

        impl Default for Options {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }
    };
}

option_table!(declare);
