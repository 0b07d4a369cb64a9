//! Where a restoration builds its store, and how it ends.
//!
//! The directory `<directory>.partial` has the store and the file `restoration`, which is locked while a
//! restoration runs. The file is empty until the store is complete, closed and durable; then it says so, and
//! for which backup. After that the directory gets its final name, and the file is removed. So whenever a
//! restoration is interrupted, the next one knows that the directory is a restoration's and which of three
//! things is left to do: all (it starts over), the rename, or the removal.
//!
//! Starting over keeps the store's id, under which devices elsewhere may be formatted, and its epoch, so that
//! whatever they hold is older than what is written to them now.

use super::locked::{LOOK_EVERY, locked};
use super::report::{RestoreReport, blocking};
use crate::error::{BackupError, OpenError};
use crate::manifest::areas::Areas;
use crate::manifest::contents::decode;
use crate::ownership::held_dir::HeldDir;
use futures_util::FutureExt;
use pagetier_devio::files::{Access, DirFile, Directory, beside, create_durably};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The file that tells a restoration's directory from a store that is in use.
const FILE: &str = "restoration";

/// How long a restoration waits for another one into the same directory: a killed process, or one that was
/// dropped, holds the file until its last operation has ended.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What [`FILE`] says once the store is complete.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Done {
    /// The id of the last backup restored, and of the log for which it was.
    pub(super) backup: String,
    /// The store's only open so far: a later one may have changed the store.
    pub(super) epoch: u32,
    pub(super) report: RestoreReport,
}

/// The directory that a restoration makes. Nothing has its name.
pub(super) struct Target {
    files: Arc<dyn Directory>,
    to: PathBuf,
    partial: PathBuf,
}

/// How a restoration begins.
pub(super) enum Begun {
    /// An earlier one had done everything but the last steps, which are done now.
    Restored(RestoreReport),
    Site(Site),
}

/// The directory in which the store is built; no other restoration has it.
pub(super) struct Site {
    target: Target,
    /// Locked, which keeps other restorations out.
    file: Box<dyn DirFile>,
}

impl Target {
    /// The target for the directory `path`, however it is written.
    pub(super) fn of(files: Arc<dyn Directory>, path: &Path) -> Result<Self, BackupError> {
        let beside = beside(path, ".partial").map_err(BackupError::io(path))?;
        let Some((partial, to)) = beside else { return Err(BackupError::Exists { path: path.to_owned() }) };
        let target = Self { files, to, partial };
        target.check()?;
        Ok(target)
    }

    /// Refuses a name that is taken, and a directory in the way that is not a restoration's.
    fn check(&self) -> Result<(), BackupError> {
        let is_there = |path: &Path| self.files.has_name(path).unwrap_or(false);
        if is_there(&self.to) && !is_there(&self.to.join(FILE)) {
            return Err(BackupError::Exists { path: self.to.clone() });
        }
        let ours = is_there(&self.partial.join(FILE));
        // A killed restoration may have left an empty directory.
        let names = || self.files.directory(&self.partial)?.names();
        let unused = || names().is_ok_and(|names| names.is_empty());
        if is_there(&self.partial) && !ours && !unused() {
            return Err(BackupError::InTheWay { path: self.partial.clone() });
        }
        Ok(())
    }

    /// Begins the restoration of the chain that ends with `backup`, once no other one runs. Cancel-safe.
    pub(super) async fn begin(self, backup: &str) -> Result<Begun, BackupError> {
        let until = Instant::now() + WAIT_MAX;
        let (mut target, backup) = (self, backup.to_owned());
        loop {
            let owned = backup.clone();
            target = match blocking(move || target.try_begin(&owned)).await? {
                Ok(begun) => return Ok(begun),
                Err(busy) => busy,
            };
            if Instant::now() >= until {
                let path = target.partial;
                return Err(BackupError::Open(OpenError::AlreadyOpen { path, owner: None }));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns itself if another restoration holds the directory, or has just renamed it.
    fn try_begin(self, backup: &str) -> Result<Result<Begun, Self>, BackupError> {
        self.check()?;
        if self.files.has_name(&self.to).unwrap_or(false) {
            // Only the rename's last step was missing. If the user asks for another backup, the name is
            // taken.
            let done = done_in(&*self.files, &self.to).filter(|done| done.backup == backup);
            let Some(done) = done else { return Err(BackupError::Exists { path: self.to }) };
            // The one before may have been killed between the rename and the sync.
            self.sync_name()?;
            self.remove_file();
            return Ok(Ok(Begun::Restored(done.report)));
        }
        create_durably(&*self.files, &self.partial).map_err(BackupError::io(&self.partial))?;
        let path = self.partial.join(FILE);
        let Some(file) = locked(&*self.files, &path).map_err(BackupError::io(&path))? else {
            return Ok(Err(self));
        };
        match done_in(&*self.files, &self.partial) {
            Some(done) if done.backup == backup => {
                self.rename()?;
                return Ok(Ok(Begun::Restored(done.report)));
            }
            // It says that the store is complete, but the store has been opened since, or replaced.
            None if said_done(&*self.files, &self.partial).is_some() => {
                return Err(BackupError::InTheWay { path: self.partial });
            }
            _ => {}
        }
        // What an earlier restoration recorded is void before the store is touched: a crash must not leave
        // its record beside a half-built store.
        let fresh = file.set_len(0).and_then(|()| file.sync());
        let durable = fresh.and_then(|()| self.files.directory(&self.partial)?.sync());
        durable.map_err(BackupError::io(&path))?;
        Ok(Ok(Begun::Site(Site { target: self, file })))
    }

    /// Gives the directory its final name, durably.
    fn rename(&self) -> Result<(), BackupError> {
        // The name appears at once, with everything in it. Until the directory above is synced, a crash may
        // undo that, and the next attempt finds the record and renames again.
        self.files.rename(&self.partial, &self.to).map_err(BackupError::io(&self.to))?;
        self.sync_name().inspect_err(|_| {
            // The next attempt must change the name, or its sync of the directory has nothing to write.
            let _ = self.files.rename(&self.to, &self.partial);
        })?;
        self.remove_file();
        Ok(())
    }

    /// Makes the directory's name durable.
    fn sync_name(&self) -> Result<(), BackupError> {
        let parent = self.to.parent().unwrap_or(Path::new("/"));
        self.files.directory(parent).and_then(|dir| dir.sync()).map_err(BackupError::io(parent))
    }

    /// The file has done its duty. It does no harm if it stays.
    fn remove_file(&self) {
        let path = self.to.join(FILE);
        match self.files.remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "a file of the finished restoration stays behind; it does no harm");
            }
            _ => {}
        }
    }
}

impl Site {
    pub(super) fn directory(&self) -> &Path {
        &self.target.partial
    }

    /// Ends the restoration: the store is closed.
    pub(super) async fn finish(self, done: Done) -> Result<RestoreReport, BackupError> {
        let Self { target, file } = self;
        blocking(move || {
            let path = target.partial.join(FILE);
            let json = serde_json::to_vec(&done).map_err(std::io::Error::from);
            // Durable before the rename, so that whatever has the final name is known to be complete.
            let written = json.and_then(|json| {
                file.write_at(0, &json)?;
                file.sync()
            });
            written.map_err(BackupError::io(&path))?;
            target.rename()?;
            // Held to the end.
            drop(file);
            Ok(done.report)
        })
        .await
    }
}

/// What the file in `dir` says.
fn said_done(files: &dyn Directory, dir: &Path) -> Option<Done> {
    let file = files.open(&dir.join(FILE), Access::Read).ok()?;
    serde_json::from_slice(&file.read_from(0).ok()?).ok()
}

/// What the file in `dir` says, if that is still so: the store was not opened since.
fn done_in(files: &dyn Directory, dir: &Path) -> Option<Done> {
    let done = said_done(files, dir)?;
    let held = HeldDir::on(files.directory(dir).ok()?);
    let read = Areas::in_directory(held).load().now_or_never()?;
    let manifest = decode(&read.ok()??).ok()?;
    // An open since may have changed the store: it is not what was restored any more.
    (manifest.is_clean() && manifest.epoch == done.epoch).then_some(done)
}
