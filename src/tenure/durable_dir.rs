//! Creates directories durably: the store's own, and that of a chain of backups.
//!
//! A synced file is lost with its directory if the directory's own name is not durable, and a directory that
//! can be seen after a kill or a failed sync is not necessarily durable. So (1) the parent of a new directory
//! is synced before anything is created in that directory: of the existing directories, only the innermost
//! may be volatile; (2) the next attempt syncs the parent of that one again.

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

/// What the creation needs of the system; a test counts what is made durable.
trait Directories {
    fn exists(&self, dir: &Path) -> bool;
    fn make(&self, dir: &Path) -> Result<()>;
    /// Makes the names in `dir` durable.
    fn sync(&self, dir: &Path) -> Result<()>;
}

struct System;

impl Directories for System {
    fn exists(&self, dir: &Path) -> bool {
        dir.exists()
    }

    fn make(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir(dir)
    }

    fn sync(&self, dir: &Path) -> Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// Creates `dir` and its missing parents durably. Returns those that did not exist, the innermost last.
pub(crate) fn create(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    create_in(&System, dir, &mut made)?;
    Ok(made)
}

fn create_in(system: &impl Directories, dir: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    let here = Path::new(".");
    let Some(parent) = dir.parent().map(|parent| if parent.as_os_str().is_empty() { here } else { parent })
    else {
        return Ok(());
    };
    if system.exists(dir) {
        // It exists, but perhaps only in the kernel's cache: a process that was killed made it and did not
        // sync.
        return match system.sync(parent) {
            // Another user's directory: this process could not have synced it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        };
    }
    create_in(system, parent, all)?;
    match system.make(dir) {
        // Another process was faster. It is not ours to remove.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => {
            made?;
            all.push(dir.to_owned());
        }
    }
    system.sync(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::io::Error;

    /// Directories in memory. The names in a directory are durable once it is synced, and only if its own is.
    struct Simulated {
        seen: RefCell<BTreeSet<PathBuf>>,
        durable: RefCell<BTreeSet<PathBuf>>,
        /// Operations until the process is killed, or a sync fails.
        left: Cell<usize>,
    }

    impl Simulated {
        fn new() -> Self {
            let roots = || RefCell::new(BTreeSet::from([PathBuf::from("/"), PathBuf::from("/mnt")]));
            Self { seen: roots(), durable: roots(), left: Cell::new(usize::MAX) }
        }

        fn step(&self) -> Result<()> {
            let left = self.left.get().checked_sub(1).ok_or_else(|| Error::other("killed"))?;
            self.left.set(left);
            Ok(())
        }
    }

    impl Directories for Simulated {
        fn exists(&self, dir: &Path) -> bool {
            self.seen.borrow().contains(dir)
        }

        fn make(&self, dir: &Path) -> Result<()> {
            self.step()?;
            assert!(self.seen.borrow().contains(dir.parent().unwrap()));
            let new = self.seen.borrow_mut().insert(dir.to_owned());
            if new { Ok(()) } else { Err(ErrorKind::AlreadyExists.into()) }
        }

        fn sync(&self, dir: &Path) -> Result<()> {
            self.step()?;
            if self.durable.borrow().contains(dir) {
                let seen = self.seen.borrow();
                self.durable.borrow_mut().extend(seen.iter().filter(|at| at.parent() == Some(dir)).cloned());
            }
            Ok(())
        }
    }

    /// The schedule: a process is killed, or a sync fails, after any step of creating the directory of a
    /// chain. The directories that it created are visible. The next attempt completes, and the power fails.
    #[test]
    fn a_directory_that_an_earlier_attempt_made_is_durable_too() {
        let dir = Path::new("/mnt/backup/db/chain");
        let mut killed = 0;
        for left in 0.. {
            let system = Simulated::new();
            system.left.set(left);
            let over = create_in(&system, dir, &mut Vec::new()).is_ok();
            killed += usize::from(!over);
            system.left.set(usize::MAX);
            create_in(&system, dir, &mut Vec::new()).unwrap();
            let durable = system.durable.borrow();
            assert!(durable.contains(dir), "killed after {left} steps: {durable:?}");
            if over {
                break;
            }
        }
        assert_eq!(killed, 7, "a sync and three times two steps");
    }

    #[test]
    fn it_makes_what_is_missing_and_accepts_what_is_there() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("a/b/c");
        let made = ["a", "a/b", "a/b/c"].map(|name| temporary.path().join(name));
        assert_eq!(create(&dir).unwrap(), made, "a refused opening removes these");
        assert!(dir.is_dir());
        assert!(create(&dir).unwrap().is_empty());
        create(Path::new("/")).unwrap();
        let file = temporary.path().join("file");
        File::create(&file).unwrap();
        assert!(create(&file.join("below")).is_err());
    }
}
