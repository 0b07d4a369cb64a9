//! Replaces the manifest file atomically and durably, even on a file system without a free byte, and appends
//! records to its tail ([`tail`]).
//!
//! The directory holds two files of the same rounded size. The new contents overwrite the spare, which is
//! flushed and then exchanged with the manifest by `RENAME_EXCHANGE`: this adds neither a block nor a
//! directory entry. `manifest.json` is whole at every moment, and no other file is ever read: a spare never
//! replaces a corrupt manifest.
//!
//! The spare may be overwritten only while it certainly has that name on disk, too. After an exchange whose
//! directory fsync failed, this is uncertain: a crash may leave the spare as the manifest. A new file is then
//! written instead. If there is no room for one, the two files are exchanged and exchanged back, which makes
//! the directory write their names again, and the directory is flushed.
//!
//! A new process does not know how its predecessor ended. It, too, prefers a new file. When there is no room
//! for one, it relies on a directory fsync; it must not exchange the files, because the spare may be older
//! than the predecessor's last save and would be the manifest for a moment.
//!
//! A save that names more than before succeeds only when both files have room for it and the slack: otherwise
//! the next save would need room that a full disk does not have.
//!
//! **Only ours.** The files are reached through the store's directory as it was opened, and a save is refused
//! when `manifest.json` is not the file that this process read or wrote last: another store's, or a copy, was
//! put in its place, and would be overwritten (I40). A missing file is written again.
//!
//! A record is written to a part of the file that already has blocks and is padded with newlines. Records are
//! appended only to a file that this process wrote and whose name is durable. After a failure none is
//! appended before the next replacement, which goes to another file.

use super::slack::{SLACK_BYTES, Slack};
use super::tail::{self, End};
use crate::tenure::held_dir::HeldDir;
use pagetier_devio::files::{Access, DirFile, Identity};
use pagetier_devio::overwrite_in_place;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const FILE: &str = "manifest.json";
pub(crate) const SPARE: &str = "manifest.spare";
const FRESH: &str = "manifest.json.new";

/// The size of both files is a multiple of this, in bytes.
const ROUND_BYTES: usize = 64 << 10;
/// The state of the spare file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spare {
    /// Unknown: this process has not replaced the manifest yet.
    Unproved,
    /// It may be overwritten.
    Ready,
    /// The disk may have it as the manifest: an exchange was not made durable. It holds the last saved
    /// contents.
    Exchanged,
}

/// The file that records can be appended to.
#[derive(Clone, Copy, Debug)]
struct Appendable {
    end: End,
    /// The size of the file in bytes.
    has: usize,
    /// The maximum size of the contents, in bytes, when they are rewritten with all records applied.
    rewritten: usize,
}

/// What a save writes: the contents state the size of their file, so they are made once it is known.
#[derive(Clone, Copy)]
struct Contents<'a> {
    /// The most bytes that they take.
    len: usize,
    /// Makes them for a file of that many bytes.
    of_size: &'a dyn Fn(usize) -> Vec<u8>,
}

impl Contents<'_> {
    /// Writes the contents to a file of `least` bytes, or of the regular size if `least` is too small.
    /// Durable when it returns the size.
    fn write(self, file: &dyn DirFile, least: usize) -> Result<usize> {
        let size = if self.len <= least { least } else { padded(self.len) };
        write_padded(file, (self.of_size)(size), size)?;
        Ok(size)
    }
}

#[derive(Debug)]
struct State {
    spare: Spare,
    /// `None`: the next save must replace the manifest.
    tail: Option<Appendable>,
    /// The manifest's file as it was read or written last; `None`: there was none.
    ours: Option<Identity>,
}

/// The store's `manifest.json` is not the file that this store wrote.
#[derive(Debug, thiserror::Error)]
#[error("another manifest has taken the place of this store's")]
pub(crate) struct NotOurs {
    pub(crate) path: PathBuf,
}

/// The manifest file. See the module.
#[derive(Debug)]
pub(crate) struct ManifestFile {
    directory: Arc<HeldDir>,
    state: Mutex<State>,
}

impl ManifestFile {
    pub(crate) fn new(directory: Arc<HeldDir>) -> Self {
        let state = Mutex::new(State { spare: Spare::Unproved, tail: None, ours: None });
        Self { directory, state }
    }

    pub(crate) fn directory(&self) -> &Arc<HeldDir> {
        &self.directory
    }

    /// Reads the contents; `None` when the file does not exist.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.read_file()?.map(|(bytes, _)| bytes))
    }

    /// Reads the contents of the file that is the store's from here on: its lock is held.
    pub(crate) fn adopt(&self) -> Result<Option<Vec<u8>>> {
        let mut state = self.state.lock();
        let (bytes, file) = self.read_file()?.unzip();
        state.ours = file;
        Ok(bytes)
    }

    /// Reads the contents of the store's own file.
    pub(crate) fn read_ours(&self) -> Result<Option<Vec<u8>>> {
        let state = self.state.lock();
        match self.read_file()? {
            // Another store's record of failed flushes must not be taken for this one's (I40).
            Some((_, file)) if state.ours != Some(file) => Err(self.not_ours()),
            read => Ok(read.map(|(bytes, _)| bytes)),
        }
    }

    fn read_file(&self) -> Result<Option<(Vec<u8>, Identity)>> {
        match self.directory.open_file(FILE, Access::Read) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Ok(file) => Ok(Some((file.read_from(0)?, file.stat()?.id))),
            Err(e) => Err(e),
        }
    }

    fn not_ours(&self) -> Error {
        Error::other(NotOurs { path: self.directory.path().join(FILE) })
    }

    /// Refuses to write over a file that is not the store's.
    fn check_ours(&self, state: &State) -> Result<()> {
        match self.directory.identity_of(FILE)? {
            // The names decide, not an open descriptor: a copy may have been moved into place while we
            // held the old file.
            Some(found) if state.ours != Some(found) => Err(self.not_ours()),
            _ => Ok(()),
        }
    }

    /// Replaces the contents, which `of_size` makes for a file of that many bytes: the larger the number, the
    /// longer they may be. Durable when it returns `Ok`; after an error either version may be found later.
    pub(crate) fn replace(&self, of_size: &dyn Fn(usize) -> Vec<u8>, slack: Slack) -> Result<()> {
        let contents = Contents { len: of_size(usize::MAX).len(), of_size };
        let state = &mut *self.state.lock();
        // No record may follow before this save has succeeded: it could land in a file that is about to be
        // replaced, or in one that a crash takes back (I27).
        state.tail = None;
        self.check_ours(state)?;
        let known = state.spare;
        // The spare is the cheap way: no new blocks, no new name. But it may be overwritten only if a crash
        // cannot make it the manifest again; otherwise half-written contents could become the manifest.
        let replaced = match known {
            Spare::Ready => self.over_spare(contents, slack, state),
            Spare::Unproved | Spare::Exchanged => self.by_new_file(contents, slack, state),
        };
        let has = match (replaced, known) {
            // Full disk, and we do not know how the last process ended. Making the names durable as they are
            // settles which file is the manifest; the other may then be overwritten.
            (Err(e), Spare::Unproved) if e.kind() == ErrorKind::StorageFull => {
                self.directory.sync()?;
                match self.over_spare(contents, slack, state) {
                    // A new store has no spare yet: what it lacks is room.
                    Err(missing) if missing.kind() == ErrorKind::NotFound => Err(e),
                    replaced => replaced,
                }
            }
            // Full disk after an exchange whose fsync failed. A second fsync may succeed without writing
            // anything, since the kernel forgets what failed. So the names are changed again first.
            (Err(e), Spare::Exchanged) if e.kind() == ErrorKind::StorageFull => {
                self.restate_names(state).map_err(|_| e)?;
                state.spare = Spare::Ready;
                self.over_spare(contents, slack, state)
            }
            // An operator has removed the spare. It holds nothing of value: write a new file.
            (Err(e), Spare::Ready) if e.kind() == ErrorKind::NotFound => {
                self.by_new_file(contents, slack, state)
            }
            (other, _) => other,
        }?;
        // Contents that are not a manifest's have no tail.
        let end = End::after(&of_size(has)).ok();
        state.tail = end.map(|end| Appendable { end, has, rewritten: contents.len });
        Ok(())
    }

    /// Appends the record that `json` encodes, given its number. Returns true once it is durable; false,
    /// without effect, when the manifest must be replaced instead. After an error a reader may or may not
    /// find the record, and the next save must replace the manifest.
    pub(crate) fn append(
        &self,
        json: impl FnOnce(u64) -> serde_json::Result<Vec<u8>>,
        slack: Slack,
    ) -> Result<bool> {
        let mut state = self.state.lock();
        // The file is not one that this process wrote completely, or a save has failed since: what is at its
        // end is unknown (I27).
        let Some(Appendable { end, has, rewritten }) = state.tail else { return Ok(false) };
        let json = json(end.records)?;
        let Some(record) = end.place(&json) else { return Ok(false) };
        // An upper bound: applied to the contents, the record takes at most its own length more.
        let rewritten = rewritten + json.len();
        // The next replacement must not need room that a full disk does not have.
        if record.end.file_end().max(rewritten) + slack.left() > has
            || rewritten + slack.left() > self.spare_bytes()
        {
            return Ok(false);
        }
        // Nothing may follow the record until it is durable.
        state.tail = None;
        let file = self.directory.open_file(FILE, Access::Write)?;
        // Opened by name just now. If another file has the name, appending would damage that one (I40).
        if state.ours != Some(file.stat()?.id) {
            return Err(self.not_ours());
        }
        // Two copies in different blocks: one corrupt block loses no record.
        for offset in record.offsets {
            file.write_at(offset as u64, &record.bytes).map_err(full)?;
        }
        // The size does not change, so its metadata need not be flushed.
        file.sync_data().map_err(full)?;
        state.tail = Some(Appendable { end: record.end, has, rewritten });
        Ok(true)
    }

    /// The size of the spare file.
    fn spare_bytes(&self) -> usize {
        let bytes = self.directory.size_of(SPARE).unwrap_or(0);
        usize::try_from(bytes).unwrap_or(0)
    }

    /// Writes the contents over the spare and exchanges the files. Returns the file's size, as
    /// [`Self::by_new_file`] does.
    fn over_spare(&self, contents: Contents<'_>, slack: Slack, state: &mut State) -> Result<usize> {
        let len = contents.len;
        let has = usize::try_from(self.directory.size_of(SPARE)?).unwrap_or(0);
        // The contents alone are not enough: the next save on a full disk must find room in this same file
        // (I26).
        let fits = len + SLACK_BYTES <= has;
        if slack == Slack::Keep && has < padded(len) && state.spare == Spare::Ready {
            match self.by_new_file(contents, slack, state) {
                // There is no room for a longer tail: the present one is soon used up again.
                Err(error) if fits && error.kind() == ErrorKind::StorageFull => {}
                other => return other,
            }
        }
        // On a full disk a file cannot grow: a save that may use the slack keeps the current size.
        let stays = fits || (slack != Slack::Keep && len + slack.left() <= has);
        // Not truncated: its blocks are the room that a full disk cannot give us again.
        let file = self.directory.open_file(SPARE, Access::Write)?;
        let has = contents.write(&*file, if stays { has } else { 0 })?;
        // Before the attempt: if it fails half-way, nothing else may assume which name the disk has.
        state.spare = Spare::Exchanged;
        let exchanged = match self.directory.exchange(SPARE, FILE) {
            // The file system does not support the exchange.
            Err(error) if is_unsupported(&error) => self.directory.rename(SPARE, FILE),
            exchanged => exchanged,
        };
        // Also after a failure, which may have happened after the exchange.
        state.ours = self.directory.identity_of(FILE)?;
        exchanged?;
        self.settle(len, state)?;
        Ok(has)
    }

    /// Makes the names durable after a failed directory fsync, by writing again what that fsync may have
    /// lost.
    fn restate_names(&self, state: &mut State) -> Result<()> {
        // There and back: the names end as they were, but the directory has been written again, so the fsync
        // has something to write.
        let restated = (0..2).try_for_each(|_| self.directory.exchange(SPARE, FILE));
        state.ours = self.directory.identity_of(FILE)?;
        restated?;
        self.directory.sync()
    }

    fn by_new_file(&self, contents: Contents<'_>, slack: Slack, state: &mut State) -> Result<usize> {
        let len = contents.len;
        let written = self
            // Truncated: a killed process may have left a longer file of that name, which nothing reads.
            .create(FRESH, Access::Replace)
            .and_then(|file| Ok((file.stat()?.id, contents.write(&*file, 0)?)))
            .and_then(|written| match (state.spare, slack) {
                // A save that names more must leave room for the next one, in both files, before it takes
                // effect (I26).
                (Spare::Ready, Slack::Keep) => self.reserve(padded(len)).map(|()| written),
                _ => Ok(written),
            });
        let (file, has) = written.inspect_err(|_| {
            // Free the room that the file took.
            let _ = self.directory.remove(FRESH);
        })?;
        // The spare is unaffected, whether or not the rename becomes durable.
        self.directory.rename(FRESH, FILE)?;
        state.ours = Some(file);
        self.settle(len, state)?;
        Ok(has)
    }

    /// Makes the names durable, and prepares the spare for contents of `len` bytes.
    fn settle(&self, len: usize, state: &mut State) -> Result<()> {
        self.directory.sync()?;
        // The names are durable: the spare cannot become the manifest any more.
        state.spare = Spare::Ready;
        if let Err(error) = self.reserve(padded(len)) {
            tracing::warn!(%error, "no room to keep a reserve for the manifest: a full disk would prevent \
                its replacement");
        }
        Ok(())
    }

    /// Grows the spare to at least `bytes`.
    fn reserve(&self, bytes: usize) -> Result<()> {
        let has = self.directory.size_of(SPARE).unwrap_or(0);
        // Never shrunk: room that the spare has is room that a full disk cannot take from us.
        if has >= bytes as u64 {
            return Ok(());
        }
        write_padded(&*self.create(SPARE, Access::Create)?, Vec::new(), bytes)?;
        self.directory.sync()
    }

    /// Opens the file `name` for writing, and creates it if it does not exist.
    fn create(&self, name: &str, access: Access) -> Result<Box<dyn DirFile>> {
        let file = self.directory.open_file(name, access)?;
        // Only a new file can be switched to overwriting in place (btrfs); one that has data keeps how it was
        // made.
        if let Some(new) = file.as_file().filter(|_| file.stat().is_ok_and(|stat| stat.len == 0)) {
            overwrite_in_place(new);
        }
        Ok(file)
    }
}

fn is_unsupported(error: &Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}

/// The size of a file with `len` bytes of contents.
fn padded(len: usize) -> usize {
    (len + SLACK_BYTES + tail::room(len)).next_multiple_of(ROUND_BYTES)
}

/// Writes `bytes` and pads with newlines to `size` bytes. Durable when it returns.
fn write_padded(file: &dyn DirFile, mut bytes: Vec<u8>, size: usize) -> Result<()> {
    bytes.resize(size, b'\n');
    file.write_at(0, &bytes).map_err(full)?;
    file.sync().map_err(full)
}

/// Treats an exhausted quota as a full disk.
fn full(error: Error) -> Error {
    match error.kind() {
        ErrorKind::QuotaExceeded => Error::new(ErrorKind::StorageFull, error),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(file: &ManifestFile, bytes: &[u8], slack: Slack) -> Result<()> {
        file.replace(&|_| bytes.to_vec(), slack)
    }

    fn file() -> (tempfile::TempDir, ManifestFile) {
        let directory = tempfile::tempdir().unwrap();
        let held = HeldDir::open(directory.path()).unwrap();
        (directory, ManifestFile::new(held))
    }

    fn inode(directory: &tempfile::TempDir, name: &str) -> u64 {
        use std::os::unix::fs::MetadataExt;
        directory.path().join(name).metadata().unwrap().ino()
    }

    /// Makes the next new file fail for lack of room.
    fn disk_full(directory: &tempfile::TempDir) {
        let _ = std::fs::remove_file(directory.path().join(FRESH));
        std::os::unix::fs::symlink("/dev/full", directory.path().join(FRESH)).unwrap();
    }

    fn record(n: u64) -> serde_json::Result<Vec<u8>> {
        Ok(format!("{{\"n\":{n}}}").into_bytes())
    }

    fn records(file: &ManifestFile) -> usize {
        tail::parse(&file.read().unwrap().unwrap()).unwrap().records.len()
    }

    #[test]
    fn records_are_appended_until_the_room_is_used_up() {
        let (directory, file) = file();
        let contents = tail::sealed(b"{}", 0);
        assert!(!file.append(record, Slack::Keep).unwrap(), "there is no file");
        replace(&file, &contents, Slack::Keep).unwrap();
        for turn in 0..3 {
            let before = inode(&directory, FILE);
            let mut appended = 0;
            while file.append(record, Slack::Keep).unwrap() {
                appended += 1;
                assert_eq!(records(&file), appended);
            }
            assert!(appended >= 32, "{appended}");
            let more = (0..).take_while(|_| file.append(record, Slack::Use).unwrap()).count();
            assert_eq!((records(&file), more), (appended + more, 16), "the slack holds two pairs of blocks");
            assert_eq!(inode(&directory, FILE), before, "turn {turn}");
            replace(&file, &contents, Slack::Use).unwrap();
            assert_eq!(records(&file), 0);
        }
    }

    /// Nothing is appended to a file whose name may not be durable, or that may have lost a record.
    #[test]
    fn after_a_failure_nothing_is_appended_before_the_next_replacement() {
        let (directory, file) = file();
        let contents = tail::sealed(b"{}", 0);
        replace(&file, &contents, Slack::Keep).unwrap();
        assert!(file.append(record, Slack::Keep).unwrap());
        let json = |_| Err(serde::ser::Error::custom("no record"));
        assert!(file.append(json, Slack::Keep).is_err());
        assert!(file.append(record, Slack::Keep).unwrap(), "nothing was written");
        // The append itself fails.
        let aside = directory.path().join("aside");
        std::fs::rename(directory.path().join(FILE), &aside).unwrap();
        assert!(file.append(record, Slack::Keep).is_err());
        std::fs::rename(&aside, directory.path().join(FILE)).unwrap();
        assert!(!file.append(record, Slack::Keep).unwrap());
        replace(&file, &contents, Slack::Use).unwrap();
        assert!(file.append(record, Slack::Keep).unwrap());
        disk_full(&directory);
        file.state.lock().spare = Spare::Exchanged;
        std::fs::remove_file(directory.path().join(SPARE)).unwrap();
        assert!(replace(&file, &contents, Slack::Use).is_err());
        assert!(!file.append(record, Slack::Keep).unwrap(), "the replacement may have taken effect");
    }

    /// Whatever it has done: here nothing, since another store's manifest was in the way for a while.
    #[test]
    fn after_a_replacement_that_failed_nothing_is_appended() {
        let (directory, file) = file();
        let contents = tail::sealed(b"{}", 0);
        replace(&file, &contents, Slack::Keep).unwrap();
        assert!(file.append(record, Slack::Keep).unwrap());
        let [at, aside] = [FILE, "aside"].map(|name| directory.path().join(name));
        std::fs::rename(&at, &aside).unwrap();
        std::fs::write(&at, &contents).unwrap();
        assert!(replace(&file, &contents, Slack::Keep).is_err());
        std::fs::rename(&aside, &at).unwrap();
        assert!(!file.append(record, Slack::Keep).unwrap());
        replace(&file, &contents, Slack::Keep).unwrap();
        assert!(file.append(record, Slack::Keep).unwrap());
    }

    #[test]
    fn records_keep_room_for_their_contents_in_both_files() {
        let (directory, file) = file();
        let long = |n: u64| Ok(format!("{{\"n\":{n},\"x\":\"{}\"}}", "x".repeat(3000)).into_bytes());
        let contents = tail::sealed(format!("\"{}\"", "x".repeat(10_000)).as_bytes(), 0);
        replace(&file, &contents, Slack::Keep).unwrap();
        while file.append(long, Slack::Keep).unwrap() {}
        let bytes = tail::parse(&file.read().unwrap().unwrap()).unwrap().records.concat().len();
        let has = directory.path().join(SPARE).metadata().unwrap().len() as usize;
        assert!(contents.len() + bytes + SLACK_BYTES <= has);
        std::fs::remove_file(directory.path().join(SPARE)).unwrap();
        replace(&file, &contents, Slack::Use).unwrap();
        std::fs::remove_file(directory.path().join(SPARE)).unwrap();
        assert!(!file.append(long, Slack::Use).unwrap(), "without a spare");
    }

    fn contents(file: &ManifestFile) -> String {
        String::from_utf8(file.read().unwrap().unwrap()).unwrap().trim_end().to_owned()
    }

    #[test]
    fn two_files_of_the_same_size_take_turns() {
        let (directory, file) = file();
        assert!(file.read().unwrap().is_none());
        for text in ["one", "two", "three", "four"] {
            replace(&file, text.as_bytes(), Slack::Keep).unwrap();
            assert_eq!(contents(&file), text);
            let sizes = [FILE, SPARE].map(|name| directory.path().join(name).metadata().unwrap().len());
            assert_eq!(sizes, [ROUND_BYTES as u64; 2]);
        }
        assert!(!directory.path().join(FRESH).exists());
        let long = "x".repeat(100_000);
        replace(&file, long.as_bytes(), Slack::Keep).unwrap();
        assert_eq!(contents(&file), long);
        assert_eq!(directory.path().join(SPARE).metadata().unwrap().len(), padded(100_000) as u64);
    }

    #[test]
    fn a_spare_that_may_be_the_manifest_on_disk_is_not_written_over() {
        let (directory, file) = file();
        replace(&file, b"one", Slack::Keep).unwrap();
        replace(&file, b"two", Slack::Keep).unwrap();
        // The state after an exchange that was not made durable.
        file.state.lock().spare = Spare::Exchanged;
        let before = [inode(&directory, FILE), inode(&directory, SPARE)];
        replace(&file, b"three", Slack::Keep).unwrap();
        assert_eq!(contents(&file), "three");
        assert!(!before.contains(&inode(&directory, FILE)), "a new file");
        assert_eq!(inode(&directory, SPARE), before[1], "left alone");
    }

    #[test]
    fn a_doubtful_spare_serves_a_full_disk_once_its_name_is_durable() {
        let (directory, file) = file();
        replace(&file, b"one", Slack::Keep).unwrap();
        replace(&file, b"two", Slack::Keep).unwrap();
        for (turn, text) in ["three", "four", "five"].into_iter().enumerate() {
            if turn < 2 {
                file.state.lock().spare = Spare::Exchanged;
            }
            disk_full(&directory);
            let before = [inode(&directory, FILE), inode(&directory, SPARE)];
            replace(&file, text.as_bytes(), Slack::Use).unwrap();
            assert_eq!(contents(&file), text);
            assert_eq!([inode(&directory, SPARE), inode(&directory, FILE)], before, "the same two files");
            assert_eq!(file.state.lock().spare, Spare::Ready);
        }
    }

    /// The schedule: the names of a doubtful spare are made durable, and the write over it fails half-way. To
    /// exchange the files again would make the half-written spare the manifest for a moment.
    #[test]
    fn a_spare_that_was_written_in_part_never_gets_the_manifests_name() {
        use std::os::unix::fs::MetadataExt;
        let (directory, file) = file();
        replace(&file, b"one", Slack::Keep).unwrap();
        file.state.lock().spare = Spare::Exchanged;
        disk_full(&directory);
        let spare = directory.path().join(SPARE);
        std::fs::remove_file(&spare).unwrap();
        std::os::unix::fs::symlink("/dev/full", &spare).unwrap();
        let refused = || {
            let error = replace(&file, b"two", Slack::Use).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            assert_eq!(contents(&file), "one");
            // A file that gets another name, if only for a moment, is marked with the time.
            let manifest = directory.path().join(FILE).metadata().unwrap();
            (manifest.ctime(), manifest.ctime_nsec())
        };
        let before = refused();
        std::thread::park_timeout(std::time::Duration::from_millis(30));
        disk_full(&directory);
        assert_eq!(refused(), before, "the files were exchanged");
    }

    #[test]
    fn a_doubtful_spare_that_is_gone_leaves_a_full_disk_full() {
        let (directory, file) = file();
        replace(&file, b"one", Slack::Keep).unwrap();
        file.state.lock().spare = Spare::Exchanged;
        std::fs::remove_file(directory.path().join(SPARE)).unwrap();
        disk_full(&directory);
        assert_eq!(replace(&file, b"two", Slack::Use).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(contents(&file), "one");
        replace(&file, b"two", Slack::Use).unwrap();
        assert_eq!(contents(&file), "two");
    }

    #[test]
    fn contents_that_name_more_are_saved_only_with_room_for_the_next_save() {
        let (directory, file) = file();
        replace(&file, b"one", Slack::Keep).unwrap();
        let long = vec![b'x'; ROUND_BYTES];
        disk_full(&directory);
        assert_eq!(replace(&file, &long, Slack::Keep).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(contents(&file), "one");
        replace(&file, &long, Slack::Keep).unwrap();
        let sizes = [FILE, SPARE].map(|name| directory.path().join(name).metadata().unwrap().len());
        assert_eq!(sizes, [padded(long.len()) as u64; 2]);
        disk_full(&directory);
        replace(&file, &long[1..], Slack::Use).unwrap();
        replace(&file, &long[2..], Slack::Use).unwrap();
        assert_eq!(contents(&file).len(), long.len() - 2);
    }

    #[test]
    fn the_slack_is_kept_for_saves_that_name_nothing_new() {
        let (directory, file) = file();
        let size = || directory.path().join(FILE).metadata().unwrap().len();
        let almost = vec![b'x'; ROUND_BYTES - 10];
        replace(&file, b"one", Slack::Keep).unwrap();
        replace(&file, &almost, Slack::Use).unwrap();
        assert_eq!(size(), ROUND_BYTES as u64);
        replace(&file, &almost, Slack::Keep).unwrap();
        assert_eq!(size(), padded(almost.len()) as u64);
    }

    /// Another store's manifest is moved into the directory, or the directory is exchanged for another.
    #[test]
    fn a_manifest_that_is_not_ours_is_not_written_over() {
        let (directory, file) = file();
        let sealed = tail::sealed(b"{}", 0);
        for _ in 0..2 {
            replace(&file, &sealed, Slack::Keep).unwrap();
        }
        std::fs::write(directory.path().join("theirs"), b"theirs").unwrap();
        std::fs::rename(directory.path().join("theirs"), directory.path().join(FILE)).unwrap();
        let is_refused = |error: Error| error.get_ref().is_some_and(|inner| inner.is::<NotOurs>());
        assert!(is_refused(file.append(record, Slack::Keep).unwrap_err()));
        for spare in [Spare::Unproved, Spare::Ready, Spare::Exchanged] {
            file.state.lock().spare = spare;
            assert!(is_refused(replace(&file, &sealed, Slack::Use).unwrap_err()), "{spare:?}");
            assert!(is_refused(file.read_ours().unwrap_err()));
        }
        assert_eq!(contents(&file), "theirs");
        // A missing one is written again.
        std::fs::remove_file(directory.path().join(FILE)).unwrap();
        replace(&file, &sealed, Slack::Use).unwrap();
        assert_eq!(file.read_ours().unwrap(), file.read().unwrap());
    }

    #[test]
    fn the_directory_stays_the_same_one_when_it_is_renamed_and_replaced() {
        let outer = tempfile::tempdir().unwrap();
        let [here, moved] = ["here", "moved"].map(|name| outer.path().join(name));
        std::fs::create_dir(&here).unwrap();
        let file = ManifestFile::new(HeldDir::open(&here).unwrap());
        replace(&file, b"one", Slack::Keep).unwrap();
        std::fs::rename(&here, &moved).unwrap();
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join(FILE), b"theirs").unwrap();
        for text in ["two", "three"] {
            replace(&file, text.as_bytes(), Slack::Keep).unwrap();
            assert_eq!(std::fs::read_to_string(moved.join(FILE)).unwrap().trim_end(), text);
        }
        assert_eq!(std::fs::read(here.join(FILE)).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_spare_is_recreated() {
        let (directory, file) = file();
        replace(&file, b"one", Slack::Keep).unwrap();
        std::fs::remove_file(directory.path().join(SPARE)).unwrap();
        replace(&file, b"two", Slack::Keep).unwrap();
        assert_eq!(contents(&file), "two");
        assert!(directory.path().join(SPARE).exists());
    }
}
