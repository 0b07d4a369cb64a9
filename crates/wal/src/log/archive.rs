//! The log's archive: a copy of every segment, made before the segment may go, for restorations to a moment.
//!
//! A segment is copied once it has a successor, since it does not change from then on. Until the copy is
//! durable the log keeps the segment, as for a [`Hold`](crate::Hold): a crash between copy and removal leaves
//! both, and the next open compares them. So the archive is one chain without a gap, which every open
//! continues or refuses.
//!
//! An archive is a directory like that of a log: of one identity, locked by the log that writes to it. A copy
//! has the segment's bytes and then a seal, which says where the segment ends: otherwise one that is cut
//! between two records would pass for a shorter one.
//!
//! Copies are written by a task of their own, without a lock that commits or checkpoints need, so an archive
//! that hangs delays neither. Nor does a copy that hangs keep the log from its next opener, nor a directory
//! that hangs while it is looked at an open from its end.
//!
//! **Locks.** An archive's medium before `Shared::output`.

use super::{Output, Shared, State, Wal};
use crate::archive::{Archive, Archived, ms_since_epoch, read, sealed};
use crate::error::{ArchiveError, WalError};
use crate::media::{FileMedia, LOG_FORMAT, Media};
use crate::record::{self, Kind};
use pagetier::Lsn;
use pagetier_devio::files::RealDir;
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::sleep;

/// The first and the longest pause after a copy that failed; each further failure doubles it.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// How long an open waits for the archive, which may be on a network that is down.
const LOOK_MAX: Duration = Duration::from_secs(10);

impl Wal {
    /// Keeps a copy of the log in the directory `dir`, from its oldest segment on: no segment is removed
    /// before its copy is durable there. [`restore_until`](crate::LoggedStore::restore_until) restores a
    /// backup and redoes the archive up to a moment; from now on each write of the log is timestamped, so
    /// that a restoration can name a time. Call it at every open, before the log is recovered: an open
    /// without it may remove what the archive lacks. The directory must exist, and may be on another file
    /// system; where it cannot be used at present, does not answer within 10 s, or the header of its newest
    /// segment cannot be read, the log grows until it can, and is compared with it then ([`Wal::archived`]
    /// says why it cannot be used). [`LoggedStore`](crate::LoggedStore) copies each segment once it is
    /// complete; an engine with a log of its own calls [`Wal::archive_now`], or the log grows. Blocks.
    ///
    /// # Errors
    /// [`WalError::Archive`]: the directory has the archive of another log, or of another continuation of
    /// this one, or its newest segment is damaged; there is a gap between archive and log; or the log is in
    /// memory, in use, or has an archive. Nothing was changed.
    pub fn archive_to(&self, dir: &Path) -> Result<(), WalError> {
        self.check_owner()?;
        let failed = |error| ArchiveError::Io { path: dir.into(), source: Arc::new(error) };
        // The program may change its directory.
        let (id, path) = (self.id(), std::path::absolute(dir).map_err(failed)?);
        let opens = {
            let path = path.clone();
            move || Ok(Box::new(FileMedia::archive(Arc::new(RealDir::open(&path)?), id)?) as Box<dyn Media>)
        };
        self.archive_on(path, opens, SystemTime::now, LOOK_MAX)
    }

    /// As [`Wal::archive_to`], on the medium that `opens` returns within `look_max`, with the times of
    /// `clock`: for tests.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn archive_on(
        &self,
        path: PathBuf,
        opens: impl Fn() -> io::Result<Box<dyn Media>> + Send + Sync + 'static,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
        look_max: Duration,
    ) -> Result<(), WalError> {
        // A log in use would have segments of the earlier format, and nothing that copies them. A log in
        // memory has the identity of every other one.
        let is_ready = self.0.output.lock().segments.is_ready();
        if self.0.id == 0 || is_ready || self.0.archive.get().is_some() {
            return Err(ArchiveError::CannotBegin.into());
        }
        // All of it, until it is known what the archive has.
        let hold = {
            let mut state = self.0.state.lock();
            state.next_hold += 1;
            let hold = state.next_hold - 1;
            state.holds.insert(hold, 0);
            hold
        };
        let archive = Arc::new(Archive {
            path,
            opens: Box::new(opens),
            clock: Box::new(clock),
            media: Arc::default(),
            up_to: AtomicU64::new(0),
            hold,
            last_mark_ms: AtomicU64::new(0),
            failure: Mutex::default(),
            closed: Notify::new(),
        });
        let looked = archive.look_within(look_max).and_then(|found| archive.accept(found, &self.0));
        let opened = match looked {
            Ok(media) => {
                if let Ok(mut slot) = archive.media.try_lock() {
                    *slot = Some(media);
                }
                Ok(())
            }
            Err(failed @ WalError::Archive(ArchiveError::Io { .. })) => {
                archive.note::<()>(&Err(failed));
                Ok(())
            }
            Err(refused) => Err(refused),
        };
        let set = opened.and_then(|()| {
            // Before the log is in use: its segments say so from its first write on.
            self.0.output.lock().segments.format(LOG_FORMAT);
            self.0.archive.set(archive).map_err(|_| ArchiveError::CannotBegin.into())
        });
        if set.is_err() {
            self.0.state.lock().holds.remove(&hold);
        }
        set
    }

    /// How far the archive reaches; `None` without one.
    #[must_use]
    pub fn archived(&self) -> Option<Archived> {
        let archive = self.0.archive.get()?;
        Some(Archived { up_to: Lsn(archive.up_to.load(Ordering::Acquire)), failure: archive.failure() })
    }

    /// Makes the log durable, ends its segment, and returns once the archive has all of it; to the position
    /// that is returned, the store can be restored whatever happens to it from now on. The segment counts as
    /// a whole one towards the log's limits until it goes, so checkpoints write pages earlier: call this once
    /// in minutes rather than at each commit. Cancel-safe.
    ///
    /// # Errors
    /// The log has no archive, the log failed, its device has few segments left, or the archive cannot be
    /// written.
    pub async fn archive_now(&self) -> Result<Lsn, WalError> {
        let archive = self.0.archive.get().ok_or(ArchiveError::NotSet)?;
        self.check_changes()?;
        let appended = self.end();
        self.flush(appended).await?;
        // First: while the archive fails, no call leaves another short segment.
        self.archive_up_to(archive, appended.0).await?;
        let end = self.0.run(Shared::end_segment).await?;
        self.archive_up_to(archive, end).await?;
        let up_to = archive.up_to.load(Ordering::Acquire);
        // A log without a record has no segment to copy.
        if up_to < end && self.oldest().0 < end {
            let path = archive.path.clone();
            return Err(ArchiveError::Gap { path, ends: Lsn(up_to), begins: Lsn(end) }.into());
        }
        Ok(Lsn(end))
    }

    /// Copies the segments that have a successor, up to `end` at least if there are as many.
    async fn archive_up_to(&self, archive: &Arc<Archive>, end: u64) -> Result<(), WalError> {
        let log = Arc::downgrade(&self.0);
        while archive.up_to.load(Ordering::Acquire) < end && copy_next(&log, archive).await? {}
        Ok(())
    }
}

impl Shared {
    /// Ends the open segment, so that it can be archived; returns where. Blocks.
    fn end_segment(&self) -> Result<u64, WalError> {
        let mut output = self.output.lock();
        if self.reads_only.load(Ordering::Acquire) {
            return Err(WalError::ReadOnly);
        }
        if self.awaits_recovery.load(Ordering::Acquire) {
            return Err(WalError::NotRecovered);
        }
        self.check_claim()?;
        self.ready(&mut output)?;
        let end = output.reached;
        let ended = output.segments.end_at(end);
        self.note_space(&output.segments);
        ended?;
        self.unmarked.store(true, Ordering::Release);
        // Even if the caller was dropped.
        self.note_closed();
        Ok(end)
    }

    /// Appends the time of a write, before which everything in it was appended, if the log is archived.
    pub(super) fn mark_time(&self, state: &mut State) {
        let Some(archive) = self.archive.get().filter(|_| !state.buf.is_empty()) else { return };
        // Never backwards: the first mark beyond a moment ends what is restored of it.
        let now = ms_since_epoch((archive.clock)());
        let ms = now.max(archive.last_mark_ms.fetch_max(now, Ordering::AcqRel));
        let at = state.end;
        state.end =
            record::put(&mut state.buf, at, Kind::Mark, |body| body.extend_from_slice(&ms.to_le_bytes()));
        self.end.store(state.end, Ordering::Release);
    }

    /// Tells the archive's task that there may be a segment to copy.
    pub(super) fn note_closed(&self) {
        if let Some(archive) = self.archive.get() {
            archive.closed.notify_one();
        }
    }

    /// Why the archive cannot be written, if that is so.
    pub(crate) fn archive_failure(&self) -> Option<WalError> {
        self.archive.get()?.failure()
    }
}

/// An archive in use, with its log.
type InUse<'a> = (&'a mut Box<dyn Media>, Arc<Shared>);
/// An archive with its segments, the oldest first, and what the newest one has and where it ends.
type Found = (Box<dyn Media>, Vec<u64>, (Vec<u8>, u64));

impl Archive {
    /// Opens the archive unless it is open, and compares it with the log, which it returns, unless that is
    /// closed.
    fn open<'a>(
        &self,
        slot: &'a mut Option<Box<dyn Media>>,
        log: &Weak<Shared>,
    ) -> Result<Option<InUse<'a>>, WalError> {
        // A former owner has nothing to look for there.
        log.upgrade().map_or(Ok(()), |shared| shared.check_claim())?;
        let opened = if slot.is_some() { None } else { Some(self.look()?) };
        // Only now: an archive that hangs must not keep the log from its next opener.
        let Some(shared) = log.upgrade() else { return Ok(None) };
        // Once more, before it keeps the lock: that may have taken its time.
        shared.check_claim()?;
        if let Some(found) = opened {
            *slot = Some(self.accept(found, &shared)?);
        }
        Ok(slot.as_mut().map(|media| (media, shared)))
    }

    /// As [`Archive::look`], on a thread of its own, which a directory that hangs may keep.
    fn look_within(self: &Arc<Self>, most: Duration) -> Result<Found, WalError> {
        let ((found, looked), archive) = (mpsc::channel(), Arc::clone(self));
        let look = move || drop(found.send(archive.look()));
        let thread = std::thread::Builder::new().name("archive".to_owned()).spawn(look);
        thread.map_err(|error| self.failed(error))?;
        looked.recv_timeout(most).unwrap_or_else(|_| Err(self.failed(io::ErrorKind::TimedOut.into())))
    }

    /// Compares what the archive has with the log, which goes on with it from there.
    fn accept(&self, (media, starts, newest): Found, log: &Shared) -> Result<Box<dyn Media>, WalError> {
        let up_to = self.compare(&*media, &starts, newest, log)?;
        self.advance(up_to, log);
        Ok(media)
    }

    /// Opens the archive, and reads what it has.
    fn look(&self) -> Result<Found, WalError> {
        let mut media = (self.opens)().map_err(|error| self.failed(error))?;
        let mut starts = media.list().map_err(|error| self.failed(error))?;
        starts.sort_unstable();
        let newest = starts.last().map_or(Ok((Vec::new(), 0)), |newest| read(&mut *media, *newest))?;
        media.format(LOG_FORMAT);
        Ok((media, starts, newest))
    }

    /// Checks that what the archive has is of this log, and that the log goes on where the archive ends;
    /// returns up to where it is durable. The newest segment identifies the timeline: it names the generation
    /// under which it was written.
    fn compare(
        &self,
        media: &dyn Media,
        theirs: &[u64],
        (newest, end): (Vec<u8>, u64),
        log: &Shared,
    ) -> Result<u64, WalError> {
        let path = || self.path.clone();
        if media.id() != log.id {
            return Err(ArchiveError::OtherLog { path: path(), archive: media.id(), log: log.id }.into());
        }
        let known = self.up_to.load(Ordering::Acquire);
        let last = theirs.last().copied().unwrap_or(0);
        let (starts, mine) = {
            let Output { segments, reached, .. } = &mut *log.output.lock();
            let starts = segments.starts();
            let mine = starts.contains(&last).then(|| segments.whole(last, *reached)).transpose()?;
            (starts, mine)
        };
        let first = starts.first().copied().unwrap_or(0);
        // One that has become shorter meanwhile, as a directory whose disk is not mounted any more.
        let needed = first.max(known);
        if end.max(known) > 0 && end < needed {
            return Err(ArchiveError::Gap { path: path(), ends: Lsn(end), begins: Lsn(needed) }.into());
        }
        // A log has what it has archived last, so one that ends before is an older copy.
        let both = starts.iter().filter(|start| **start < end);
        let of_log = theirs.iter().filter(|start| first <= **start);
        let is_one_line = both.eq(of_log) && mine.as_ref().is_none_or(|mine| *mine == newest);
        if !is_one_line {
            return Err(ArchiveError::OtherTimeline { path: media.path(last) }.into());
        }
        // What can be read may not be durable, if it was copied last: the log copies it again if it can.
        let up_to = if mine.is_some() { last } else { end };
        Ok(up_to.max(known))
    }

    fn advance(&self, up_to: u64, log: &Shared) {
        self.up_to.store(up_to, Ordering::Release);
        // The record that ends there is in the archive, and may go.
        log.state.lock().holds.insert(self.hold, up_to + 1);
    }

    /// Copies the oldest segment that the archive lacks, if that has a successor. Blocks.
    fn copy_next(&self, slot: &mut Option<Box<dyn Media>>, log: &Weak<Shared>) -> Result<bool, WalError> {
        let copied = self.copy(slot, log);
        if matches!(copied, Err(WalError::Fenced | WalError::Stopped)) {
            // A former owner, or a log that was closed, leaves the archive's lock to the next one.
            *slot = None;
        }
        copied
    }

    fn copy(&self, slot: &mut Option<Box<dyn Media>>, log: &Weak<Shared>) -> Result<bool, WalError> {
        let Some((media, shared)) = self.open(slot, log)? else { return Ok(false) };
        let up_to = self.up_to.load(Ordering::Acquire);
        let (start, end, bytes) = {
            let mut output = shared.output.lock();
            // A former owner has nothing to archive. What an owner has closed stays as it is under the
            // next one, so a copy that outlasts this ownership is the same as the next owner's.
            shared.check_claim()?;
            let starts = output.segments.starts();
            let next = starts.windows(2).find(|pair| up_to <= pair[0]).map(|pair| (pair[0], pair[1]));
            let Some((start, end)) = next.filter(|_| output.segments.is_ready()) else { return Ok(false) };
            (start, end, output.segments.whole(start, end)?)
        };
        // A write that hangs must not keep the log from its next opener.
        drop(shared);
        if up_to > 0 && start != up_to {
            return Err(ArchiveError::OtherTimeline { path: media.path(start) }.into());
        }
        // Replaced as a whole if a failed call left it.
        if let Err(error) = media.create(start, &sealed(bytes, end)) {
            *slot = None;
            return Err(self.failed(error));
        }
        if let Some(shared) = log.upgrade() {
            self.advance(end, &shared);
            // What the log kept for this may go.
            shared.grown.notify_one();
        }
        Ok(true)
    }
}

/// As [`Archive::copy_next`], where it blocks no task.
async fn copy_next(log: &Weak<Shared>, archive: &Arc<Archive>) -> Result<bool, WalError> {
    let (of, to) = (log.clone(), Arc::clone(archive));
    // Before a thread: while one hangs, each caller that gives up would leave another.
    let mut slot = Arc::clone(&archive.media).lock_owned().await;
    let done = if log.upgrade().is_some_and(|log| log.blocks) {
        let copy = tokio::task::spawn_blocking(move || to.copy_next(&mut slot, &of));
        copy.await.unwrap_or(Err(WalError::Stopped))
    } else {
        to.copy_next(&mut slot, &of)
    };
    archive.note(&done);
    done
}

/// Archives each segment once it has a successor. Keeps no log open.
pub(crate) async fn keep_archived(log: Weak<Shared>) {
    let Some(archive) = log.upgrade().and_then(|log| log.archive.get().cloned()) else { return };
    let mut pause = PAUSE.0;
    while log.strong_count() > 0 {
        match copy_next(&log, &archive).await {
            Ok(true) => pause = PAUSE.0,
            // Not for a segment alone: an owner that is confirmed again may complete none before this gives
            // space back. And one that has nothing to copy learns here that the next owner needs the lock.
            Ok(false) | Err(WalError::Fenced) => tokio::select! {
                () = archive.closed.notified() => {}
                () = sleep(PAUSE.1) => {}
            },
            Err(_) => {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}
