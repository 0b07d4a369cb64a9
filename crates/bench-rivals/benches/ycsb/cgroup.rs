//! A cgroup that limits the memory of a process, including the page cache that it fills.

use crate::Failure;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A cgroup, which is removed when dropped.
pub(crate) struct Group(PathBuf);

impl Group {
    /// Creates a cgroup with `bytes` of memory.
    pub(crate) fn new(bytes: u64) -> Result<Self, Failure> {
        let (root, limit) = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            ("/sys/fs/cgroup", "memory.max")
        } else {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        };
        let why = |what: &Path, error: io::Error| {
            format!(
                "{}: {error}; limiting memory takes root and cgroups (or pass --unlimited)",
                what.display()
            )
        };
        let group = Path::new(root).join(format!("pagetier-ycsb-{}", std::process::id()));
        fs::create_dir_all(&group).map_err(|error| why(&group, error))?;
        let group = Self(group);
        let file = group.0.join(limit);
        fs::write(&file, bytes.to_string()).map_err(|error| why(&file, error))?;
        Ok(group)
    }

    /// Starts `command` in the group.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let procs = self.0.join("cgroup.procs");
        // The shell joins the group before it executes the program, so that all its memory counts.
        let mut shell = Command::new("sh");
        shell.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(procs);
        shell.arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell.stdout(std::process::Stdio::piped()).process_group(0);
        shell.spawn()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
