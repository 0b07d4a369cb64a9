//! Opens a log: in memory, in a directory, on a device, or on another medium.

use super::{Ended, Output, Shared, State, Wal};
use crate::device_media::DeviceMedia;
use crate::error::WalError;
use crate::log::segments::{FIRST_LSN, Segments};
use crate::media::{FileMedia, Media, MemoryMedia};
use crate::options::WalOptions;
use pagetier::device::SharedDevice;
use pagetier_devio::Owner;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, watch};

impl Wal {
    /// Creates a log in memory: it has no delay, and is lost with the process.
    ///
    /// # Panics
    /// Never: memory does not fail.
    #[must_use]
    pub fn in_memory(options: WalOptions) -> Self {
        Self::on(Box::<MemoryMedia>::default(), options).expect("memory does not fail")
    }

    /// Opens the log in `dir`, or an empty one if there is none. Only reads: the store must accept the log
    /// first, or the first flush. Then a torn tail is cut off, which was never reported durable, and what
    /// precedes it in the last segment is written again, in place: on most file systems this needs no free
    /// space. Blocks. Then pass [`Wal::gate`] to the store's builder and call
    /// [`recover`](crate::recover), or let [`LoggedStore::on`](crate::LoggedStore::on) do so.
    ///
    /// # Errors
    /// The directory cannot be used or is in use, its files have another format, or the log is damaged:
    /// before its last segment, or before a later write to that. Nothing was changed.
    pub fn open(dir: &Path, options: WalOptions) -> Result<Self, WalError> {
        let media = FileMedia::open(dir).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => WalError::InUse { path: dir.into() },
            _ => WalError::Io { path: dir.into(), source: Arc::new(error) },
        })?;
        Self::on(Box::new(media), options)
    }

    /// Opens the log on a device, or creates an empty one if the device is blank, as [`Wal::open`] does in a
    /// directory. The device must complete its operations by itself: see [`DeviceMedia`]. It must also keep
    /// a second process out: an image of `pagetier-rbd` does, a file does not. The first open fixes the
    /// size of the segments, by its capacity; a record longer than a quarter of the capacity (and than 248
    /// KiB) is refused. The device needs four times the capacity, and four times what the engine is
    /// to keep for a loss of the SSD: when it is three quarters full, pages go home from the SSD, those with
    /// the oldest changes first. Of pages that were on the SSD at the open none is known to have older
    /// changes than another, so all of them go home.
    ///
    /// # Errors
    /// The device has other data, is too small or in use, has another format, or the log is damaged before
    /// its last segment. Nothing was changed.
    ///
    /// # Cancel safety
    /// A dropped call opens the log in the background, and drops it.
    pub async fn on_device(device: SharedDevice, options: WalOptions) -> Result<Self, WalError> {
        let path: PathBuf = device.name().into();
        let opened = tokio::task::spawn_blocking(move || {
            let media = DeviceMedia::open(device, options.segment_bytes())?;
            Ok(Self::on(Box::new(media), options))
        });
        let opened = opened.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        opened.unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => Err(WalError::InUse { path }),
            _ => Err(WalError::Io { path, source: Arc::new(error) }),
        })
    }

    /// Opens the log on `media`, as [`Wal::open`] does, for a log that is not in a directory.
    ///
    /// # Errors
    /// As [`Wal::open`].
    pub fn on(media: Box<dyn Media>, options: WalOptions) -> Result<Self, WalError> {
        let (mut segments, oldest, end) = Segments::open(media, FIRST_LSN)?;
        // What a recovery reads at most after a crash. What precedes it is checked if it is needed.
        segments.check(end.saturating_sub(options.capacity_bytes))?;
        let next_signal = end + options.capacity_bytes / 32;
        let (id, blocks) = (segments.id(), segments.blocks());
        // A record has four bytes for its length.
        let record_bytes_max = segments.segment_bytes_max().min(options.capacity_bytes).min(u32::MAX.into());
        let state = State {
            buf: Vec::new(),
            end,
            unapplied: BTreeSet::new(),
            applied: VecDeque::new(),
            frees: BTreeSet::new(),
            next_signal,
            holds: BTreeMap::new(),
            next_hold: 0,
        };
        let shared = Shared {
            options,
            state: Mutex::new(state),
            output: Mutex::new(Output { segments, writing: Vec::new(), reached: end }),
            // What precedes the oldest segment. What was found need not be, before the log is in use.
            durable: AtomicU64::new(oldest),
            needed: AtomicU64::new(oldest),
            redo: AtomicU64::new(oldest),
            crowded: AtomicU64::new(0),
            oldest: AtomicU64::new(oldest),
            end: AtomicU64::new(end),
            id,
            owner: Owner::here(),
            blocks,
            generation: AtomicU64::new(0),
            owned: AtomicBool::new(false),
            needs: Mutex::default(),
            from: AtomicU64::new(0),
            recorded: Mutex::default(),
            store: Mutex::default(),
            claim: Mutex::default(),
            unmarked: AtomicBool::new(false),
            reads_only: AtomicBool::new(false),
            awaits_recovery: AtomicBool::new(false),
            behind: OnceLock::new(),
            failing: AtomicBool::new(false),
            tight: AtomicBool::new(false),
            to_go: AtomicU64::new(0),
            next_to_go: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            found: AtomicU64::new(end),
            shared: AtomicU64::new(0),
            second: AtomicU64::new(u64::MAX),
            scarce: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            record_bytes_max,
            turn: Arc::default(),
            writes: AtomicU64::new(0),
            ended: watch::Sender::new(Ended { number: 0, or_reserve: false, result: Ok(()) }),
            freeing: tokio::sync::Mutex::new(()),
            checkpoints: tokio::sync::Mutex::new(()),
            grown: Arc::default(),
            truncated: Notify::new(),
            archive: OnceLock::new(),
        };
        shared.note_space(&shared.output.lock().segments);
        Ok(Self(Arc::new(shared)))
    }
}
