//! The options of a store as plain data, each declared once: its field, its default, its setter.

use super::bytes;
use pagetier_devio::{Backend, DirectIo};
use pagetier_policy::{CLUSTER_PAGES, Costs, PoolPolicy, SsdPolicy};
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
            /// Whether the HDD has the manifest at its head, instead of the directory: a machine that has
            /// only the HDD of a store, and a blank SSD, can then open it. The doublewrite ring is on the
            /// HDD, too, and takes every page that goes home. The directory, which is created wherever the
            /// store is opened, has the lock, and by default the SSD's file; for another machine it is of no
            /// use. Set it at every opening; a store keeps its manifest where it was created, and
            /// [`force`](crate::Builder::force) does not start such a store anew: blank the HDD's first MiB
            /// for that. **Not promised:** that a read-only opening of a ready-made or block device keeps a
            /// writing one out. Default: no.
            manifest_on_hdd(bool): bool = false;
            /// The most that the manifest may take on the HDD, in bytes: a multiple of 64 KiB from 256 KiB to
            /// 1 GiB. A new store's extents begin behind twice as many. A run of neighbouring extents takes
            /// some 20 bytes; a manifest beyond the maximum is [`Error::Manifest`](crate::Error::Manifest) at
            /// the growth that would need it. An existing store keeps its own. Default: 16 MiB.
            manifest_bytes_max(u64) ["bytes::read"]: u64 = 16 << 20;
            /// The HDD: a file or block device. Default: `hdd.vol` in the directory.
            hdd: Option<PathBuf> = None;
            /// The SSD: a file or block device. Default: `ssd.cache` in the directory.
            ssd: Option<PathBuf> = None;
            /// The number of bytes of the SSD to use; 0: no SSD. An existing store keeps its size, and any
            /// other value is [`OpenError::BadOption`](crate::OpenError::BadOption). A store that has no SSD,
            /// because it was created without one or gave it up, opens without one and logs a warning;
            /// [`Ssd::readmit`](crate::Ssd::readmit) puts the SSD of these options into use. The smallest SSD
            /// has 32 slots ([`ssd_bytes_for`](crate::ssd_bytes_for));
            /// [`OpenError::SsdTooSmall`](crate::OpenError) says how many bytes those need. Default: 256 MiB
            /// for a new store.
            ssd_bytes(u64) ["bytes::read_some"]: Option<u64> = None;
            /// The number of pages in the doublewrite ring, at most 65,536. An existing store keeps its ring,
            /// and any other value is [`OpenError::BadOption`](crate::OpenError::BadOption). 0 turns the ring
            /// off: the embedder must then repair torn pages on the HDD, and `sync` flushes the HDD. **Not
            /// promised then:** anything about a home page that a crash tears, and the latest home writes if
            /// a flush of the HDD fails and the process is killed. Default: 256, fewer on a small SSD; 0 with
            /// [`manifest_on_hdd`](crate::Builder::manifest_on_hdd) if the HDD says that it
            /// [writes pages whole](crate::device::Device::writes_whole).
            ring_pages(u32): Option<u32> = None;
            /// The store's memory budget in bytes: pages, their metadata, staging copies, the SSD's tables
            /// and outqueue. The smallest pool has 16 frames ([`pool_bytes_for`](crate::pool_bytes_for));
            /// [`PoolSizeError`](crate::errors::PoolSizeError) says how many bytes those need. Default: 64
            /// MiB.
            pool_bytes(u64) ["bytes::read"]: u64 = 64 << 20;
            /// The page size of a new store in bytes; it must match an existing one.
            /// [`Builder::open`](crate::Builder::open) checks it. Default: 16 KiB, or the existing store's.
            page_bytes(u64) ["bytes::read_some"]: Option<u64> = None;
            /// The pool's replacement policy: see [`Builder::pool_policy`](crate::Builder::pool_policy).
            /// Default: [`PoolPolicy::Auto`].
            pool_policy: PoolPolicy = PoolPolicy::default();
            /// The SSD's policy: see [`Builder::ssd_policy`](crate::Builder::ssd_policy). Default:
            /// [`SsdPolicy::Auto`].
            ssd_policy: SsdPolicy = SsdPolicy::default();
            /// Pages per cluster of the pool policies that write in clusters (CFDC, SAWC), and per block of
            /// REF: neighbours in a space, from 1 to 65,536. Default: 64.
            cluster_pages(u32): u32 = CLUSTER_PAGES;
            /// The eviction zone (see the [glossary](crate#glossary)) in per cent of the SSD's slots, above 0
            /// and up to 100. A recovery reads the zone. Default: 10.
            zone_percent(f64): f64 = 10.0;
            /// Entries of the outqueue, the list of pages that left the SSD and whose counts are kept.
            /// Default: one per slot of the SSD (2013 paper, section 6.1).
            outqueue(usize): Option<usize> = None;
            /// The width of CAC's subranges, in logical reads per minute. Default: 1 (2013 paper, section
            /// 5.2).
            group_width_per_min(f64): f64 = 1.0;
            /// The devices' costs. Default: the 2013 paper's (7.2, 4.96, 0.11 and 0.27 ms);
            /// [`calibrate`](crate::calibrate) measures them.
            costs(Costs): Option<Costs> = None;
            /// How long to measure a new store's devices, in milliseconds: see
            /// [`Builder::calibrate`](crate::Builder::calibrate). Default: off.
            calibrate_ms: Option<u64> = None;
            /// Measures the devices while the store runs and passes the costs to the policies once a second.
            /// A cost is the moving average over this many of a device's last page reads or writes
            /// ([`COST_POINTS`](crate::device::COST_POINTS) in the paper: Ou et al., section 3.2.2). The
            /// pages of a merged write share its time; operations longer than 65 ms are ignored. Until there
            /// are enough samples of a kind, the cost from [`Builder::costs`](crate::Builder::costs) or the
            /// calibration applies. Each point takes 16 bytes of memory; the maximum is 2^24 points.
            /// Default: off, so that a policy which weighs reads against writes (CASA, CAC, GD2L) uses the
            /// costs that it was opened with.
            online_costs(usize): Option<usize> = None;
            /// The I/O backend for files. Default: io_uring where available. A ready-made
            /// [`Device`](crate::device::Device) is used as it is.
            io(Backend): Backend = Backend::Auto;
            /// Whether to bypass the system's page cache. Default: where the file system supports it. A
            /// ready-made [`Device`](crate::device::Device) is used as it is.
            direct_io(DirectIo): DirectIo = DirectIo::Preferred;
            /// Whether to create a store that does not exist. Default: yes.
            create(bool): bool = true;
            /// Whether a new store may overwrite data on a device, or another store's device. Without it, a
            /// device must be zero where file systems, arrays and partition tables keep their labels: its
            /// first and last MiB, and btrfs' inner copies. A block device that is mounted or otherwise in
            /// use is always refused. Default: no.
            force(bool): bool = false;
            /// The span of log that redo should have to process, in units of LSNs: bytes if your LSNs are
            /// byte positions, records if they are numbers. The store writes out pages with older changes in
            /// the background. It does not remove log: ask
            /// [`PageStore::redo_from`](crate::PageStore::redo_from) what may be removed. Default: unbounded.
            redo_span_max(u64): Option<u64> = None;
            /// The maximum number of bytes written to the SSD per day: see
            /// [`Ssd::set_write_budget`](crate::Ssd::set_write_budget). Less than 1 MiB counts as 1 MiB.
            /// Default: unlimited.
            ssd_write_budget(u64) ["bytes::read_some"]: Option<u64> = None;
            /// The threshold of the low-room alarm: room is low when a file system that holds one of the
            /// store's files has fewer bytes free than this. For new pages, the unallocated part of the HDD
            /// counts as free too. Openings and growths log a warning when room becomes low;
            /// [`Stats::room`](crate::stats::Stats::room) reports it at any time. 0 disables the alarm.
            /// Default: 256 MiB.
            low_room(u64) ["bytes::read"]: u64 = 256 << 20;
            /// The maximum number of pages that a new page's number may skip beyond the room that its space
            /// has: [`overwrite`](crate::PageStore::overwrite) and the like reserve room for the skipped
            /// pages too, so a wrong number could otherwise take the whole disk. A number further away is
            /// [`Error::PageGap`](crate::Error::PageGap). Room is durable before its pages exist, so redo
            /// after a crash may create the pages that existed in any order, whatever their numbers. Raise
            /// it for an engine that places pages far apart, or that redoes a long log onto a restored
            /// backup out of order. Default: 65,536 (1 GiB of pages of the default size).
            page_gap_max(u32): u32 = 65_536;
            /// How long a request waits for a frame when all are pinned or dirty before it fails, in
            /// milliseconds. Default: 10,000.
            exhausted_after_ms: u64 = 10_000;
            /// How long a store with [`manifest_on_hdd`](crate::Builder::manifest_on_hdd), which another
            /// machine can take over, serves pages after it last made sure that it still owns the HDD, in
            /// milliseconds; at least 100, or 0: for as long as no operation of the HDD is refused. See
            /// [`Builder::lease`](crate::Builder::lease). Default: 10,000 on a device that knows of other
            /// owners ([`Device::claim`](crate::device::Device::claim)), 0 on others.
            lease_ms: Option<u64> = None;
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
            /// [`Ssd::loss`](crate::Ssd::loss) then lists the pages, in later openings too. If the store's
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
