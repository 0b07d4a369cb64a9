//! A simulated file system that loses what was not synced.
//!
//! Reads see every change at once. After a power cut ([`SimFiles::after_power_cut`]):
//!
//! - of the changes of a file since its last sync, each write and each new length is there or not; a write
//!   may be torn at 512-byte sectors, and the file as long as with all of it;
//! - of the changes of names since the last sync of their directory, each creation, rename and removal is
//!   there or not, as a whole, in any order but that of changes of one name. A directory whose own name is
//!   lost is gone with everything in it. A sync of a file does not make its name durable;
//! - of what a failed sync covered, no later sync makes anything durable that was not by then, though it is
//!   read: contents must be written again, and of a directory any name must change, because its blocks have
//!   more names than one.
//!
//! Deterministic: the same seed and the same calls give the same outcome.

use super::SimPower;
use super::cache::SECTOR;
use pagetier_devio::files::{Access, DirFile, Directory, Identity, Stat};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The unit in which files take space, in bytes.
const BLOCK: u64 = 4096;

const ROOT: u64 = 1;

/// How a call fails; see [`SimFiles::fail`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileFault {
    /// Before it does anything.
    Refused,
    /// The same, for lack of space.
    NoRoom,
    /// After a part of what it does: of a write some bytes are there; of what a sync covers any part is
    /// durable, and the rest never will be.
    Torn,
}

/// A simulated file system; clones are the same one. See the module.
#[derive(Clone, Debug)]
pub struct SimFiles(Arc<Mutex<Disk>>);

/// Told of each call before it changes or syncs anything; it may take the file system as it is.
type Look = Arc<dyn Fn(&dyn Fn() -> SimFiles) + Send + Sync>;

#[derive(Clone)]
struct Looks(Look);

impl std::fmt::Debug for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Looks").finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct Disk {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// The changes of names that are not durable, the oldest first.
    changes: Vec<Change>,
    /// Those that a failed sync of their directory has lost, until that changes again.
    lapsed: Vec<Change>,
    rng: SmallRng,
    calls: u64,
    fault: Option<(Range<u64>, FileFault)>,
    /// The bytes that are free; `None`: any number.
    free: Option<u64>,
    power: SimPower,
    looks: Option<Looks>,
}

#[derive(Clone, Debug)]
enum Node {
    Directory { seen: Names, durable: Names },
    File(Contents),
}

type Names = BTreeMap<OsString, u64>;

/// What happens to names at once; `None`: the name is free from then on.
type Change = Vec<(u64, OsString, Option<u64>)>;

#[derive(Clone, Debug, Default)]
struct Contents {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// What is not durable, the oldest first.
    edits: Vec<Edit>,
    /// The space set aside, in bytes from the start.
    reserved: u64,
    locked: bool,
}

#[derive(Clone, Debug)]
enum Edit {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, written) => {
                let (at, end) = (*at as usize, *at as usize + written.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[at..end].copy_from_slice(written);
            }
            Self::SetLen(len) => bytes.resize(*len as usize, 0),
        }
    }

    /// Applies some sectors of a write, perhaps without those that it would append.
    fn apply_torn(&self, bytes: &mut Vec<u8>, rng: &mut SmallRng) {
        let Self::Write(at, written) = self else { return self.apply(bytes) };
        if rng.random() {
            bytes.resize(bytes.len().max(*at as usize + written.len()), 0);
        }
        let mut from = 0;
        while from < written.len() {
            let to = written.len().min(from + SECTOR - (*at as usize + from) % SECTOR);
            if rng.random() {
                Self::Write(*at + from as u64, written[from..to].to_vec()).apply(bytes);
            }
            from = to;
        }
    }
}

/// What of a sequence of changes a power cut, or a failed sync, leaves.
#[derive(Clone, Copy)]
enum Left {
    None,
    All,
    /// The first ones.
    First(usize),
    /// Any.
    Any,
}

impl Left {
    fn of(count: usize, rng: &mut SmallRng) -> Self {
        match rng.random_range(0..4) {
            0 => Self::None,
            1 => Self::All,
            2 => Self::First(rng.random_range(0..=count)),
            _ => Self::Any,
        }
    }

    fn has(self, nth: usize, rng: &mut SmallRng) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::First(count) => nth < count,
            Self::Any => rng.random(),
        }
    }
}

impl Contents {
    /// The bytes that it takes on the disk.
    fn allocated(&self) -> u64 {
        (self.seen.len() as u64).max(self.reserved).next_multiple_of(BLOCK)
    }

    /// Makes any part of the edits durable, and forgets the rest.
    fn land_some(&mut self, rng: &mut SmallRng) {
        let left = Left::of(self.edits.len(), rng);
        for (nth, edit) in std::mem::take(&mut self.edits).into_iter().enumerate() {
            if !left.has(nth, rng) {
                continue;
            }
            if matches!(left, Left::Any) && rng.random() {
                edit.apply_torn(&mut self.durable, rng);
            } else {
                edit.apply(&mut self.durable);
            }
        }
    }
}

impl SimFiles {
    /// An empty file system.
    #[must_use]
    pub fn new(seed: u64, power: &SimPower) -> Self {
        let root = Node::Directory { seen: Names::new(), durable: Names::new() };
        let disk = Disk {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            changes: Vec::new(),
            lapsed: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            calls: 0,
            fault: None,
            free: None,
            power: power.clone(),
            looks: None,
        };
        Self(Arc::new(Mutex::new(disk)))
    }

    /// The directory of all others.
    pub fn root(&self) -> Arc<dyn Directory> {
        Arc::new(SimDir { disk: Arc::clone(&self.0), node: ROOT, path: "/".into() })
    }

    /// The calls so far that change or sync anything.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Lets the `n`-th call from now on fail, from 0, of those that change or sync anything.
    pub fn fail(&self, n: u64, fault: FileFault) {
        self.fail_each(n..n + 1, fault);
    }

    /// As [`SimFiles::fail`], for several calls in a row.
    pub fn fail_each(&self, calls: Range<u64>, fault: FileFault) {
        let mut disk = self.0.lock();
        disk.fault = Some((disk.calls + calls.start..disk.calls + calls.end, fault));
    }

    /// Lets nothing fail from now on.
    pub fn clear_faults(&self) {
        self.0.lock().fault = None;
    }

    /// Tells `look` of each call before it changes or syncs anything. What that passes on takes a copy of the
    /// file system at this moment; `look` may use no other way to it.
    pub fn before_each(&self, look: impl Fn(&dyn Fn() -> Self) + Send + Sync + 'static) {
        self.0.lock().looks = Some(Looks(Arc::new(look)));
    }

    /// Leaves `bytes` free; `None`: any number. Files take whole blocks of 4 KiB, names take none.
    pub fn set_free(&self, bytes: Option<u64>) {
        self.0.lock().free = bytes;
    }

    /// The file system as it comes back after a power cut at this moment.
    #[must_use]
    pub fn after_power_cut(&self, seed: u64, power: &SimPower) -> Self {
        let after = self.after_kill(seed, power);
        after.0.lock().lose_power();
        after
    }

    /// The file system after the death of the process that used it: nothing more is durable, and nothing is
    /// locked.
    #[must_use]
    pub fn after_kill(&self, seed: u64, power: &SimPower) -> Self {
        let mut disk = self.0.lock().clone();
        (disk.rng, disk.power) = (SmallRng::seed_from_u64(seed), power.clone());
        (disk.calls, disk.fault, disk.looks) = (0, None, None);
        for node in disk.nodes.values_mut() {
            if let Node::File(file) = node {
                file.locked = false;
            }
        }
        Self(Arc::new(Mutex::new(disk)))
    }
}

impl Disk {
    /// Begins a call that changes or syncs something. Returns how it fails after its beginning.
    fn begin(&mut self) -> Result<Option<FileFault>> {
        if let Some(Looks(look)) = &self.looks {
            look(&|| SimFiles(Arc::new(Mutex::new(Self { looks: None, ..self.clone() }))));
        }
        self.power.begin().ok_or_else(off)?;
        let call = self.calls;
        self.calls += 1;
        match self.fault.as_ref().filter(|(calls, _)| calls.contains(&call)).map(|(_, fault)| *fault) {
            Some(FileFault::Refused) => Err(failure()),
            Some(FileFault::NoRoom) => Err(ErrorKind::StorageFull.into()),
            fault => Ok(fault),
        }
    }

    /// As [`Disk::begin`], for a call that cannot fail half-way.
    fn begin_whole(&mut self) -> Result<()> {
        if self.begin()?.is_some() { Err(failure()) } else { Ok(()) }
    }

    fn look(&self) -> Result<()> {
        if self.power.is_cut() { Err(off()) } else { Ok(()) }
    }

    fn names(&mut self, node: u64) -> Result<&mut Names> {
        match self.nodes.get_mut(&node) {
            Some(Node::Directory { seen, .. }) => Ok(seen),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&mut self, node: u64) -> Result<&mut Contents> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    /// The directory that `path` leads to from `node`, and the last name.
    fn resolve<'a>(&mut self, node: u64, path: &'a Path) -> Result<(u64, Option<&'a OsStr>)> {
        let (mut at, mut last) = (node, None);
        for component in path.components() {
            let next = match component {
                Component::RootDir => {
                    at = ROOT;
                    continue;
                }
                Component::CurDir => continue,
                Component::Normal(name) => name,
                Component::ParentDir | Component::Prefix(_) => return Err(ErrorKind::Unsupported.into()),
            };
            if let Some(name) = last.replace(next) {
                at = *self.names(at)?.get(name).ok_or(ErrorKind::NotFound)?;
            }
        }
        Ok((at, last))
    }

    /// As [`Disk::resolve`], and what has the name.
    fn find<'a>(&mut self, node: u64, path: &'a Path) -> Result<(u64, &'a OsStr, Option<u64>)> {
        let (at, name) = self.resolve(node, path)?;
        let name = name.ok_or(ErrorKind::InvalidInput)?;
        Ok((at, name, self.names(at)?.get(name).copied()))
    }

    fn existing(&mut self, node: u64, path: &Path) -> Result<u64> {
        match self.resolve(node, path)? {
            (at, None) => Ok(at),
            (at, Some(name)) => self.names(at)?.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into()),
        }
    }

    fn add(&mut self, node: Node) -> u64 {
        self.nodes.insert(self.next, node);
        self.next += 1;
        self.next - 1
    }

    fn change(&mut self, change: Change) -> Result<()> {
        for (at, name, node) in &change {
            let names = self.names(*at)?;
            match node {
                Some(node) => names.insert(name.clone(), *node),
                None => names.remove(name),
            };
        }
        // The directory is written again, with all that it has.
        let again = |lapsed: &Change| lapsed.iter().any(|(at, ..)| change.iter().any(|(of, ..)| at == of));
        let (again, lapsed) = std::mem::take(&mut self.lapsed).into_iter().partition(again);
        (self.lapsed, self.changes) = (lapsed, [again, std::mem::take(&mut self.changes)].concat());
        self.changes.push(change);
        Ok(())
    }

    /// Gives back the space of a file that has no name any more.
    fn release(&mut self, node: Option<u64>) {
        if let Some(Node::File(file)) = node.and_then(|node| self.nodes.get(&node)) {
            self.free = self.free.map(|free| free + file.allocated());
        }
    }

    /// Edits a file, as far as there is room: a write may end early.
    fn edit(&mut self, node: u64, edit: Edit) -> Result<()> {
        let file = self.file(node)?;
        let before = file.allocated();
        let (edit, result) = match edit {
            Edit::SetLen(len) => {
                file.reserved = 0;
                (Edit::SetLen(len), Ok(()))
            }
            Edit::Write(at, mut bytes) => {
                let available = self.free.map_or(u64::MAX, |free| free + before);
                let fits = available.saturating_sub(at).min(bytes.len() as u64) as usize;
                let result = if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) };
                bytes.truncate(fits);
                (Edit::Write(at, bytes), result)
            }
        };
        let file = self.file(node)?;
        edit.apply(&mut file.seen);
        file.edits.push(edit);
        let after = file.allocated();
        self.free = self.free.map(|free| (free + before).saturating_sub(after));
        result
    }

    /// The changes on which the durability of the names in `node` depends: those in it, and earlier ones of
    /// the same names.
    fn covered(&self, node: u64) -> BTreeSet<usize> {
        let (mut covered, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (nth, change) in self.changes.iter().enumerate().rev() {
            if change.iter().any(|(at, name, _)| *at == node || names.contains(&(*at, name))) {
                covered.insert(nth);
                names.extend(change.iter().map(|(at, name, _)| (*at, name)));
            }
        }
        covered
    }

    /// Makes those of the `covered` changes durable that `has` names. The others of them lapse.
    fn land(&mut self, covered: &BTreeSet<usize>, mut has: impl FnMut(usize) -> bool) {
        let mut lost = BTreeSet::new();
        let changes = std::mem::take(&mut self.changes);
        for (nth, change) in changes.into_iter().enumerate() {
            if !covered.contains(&nth) {
                self.changes.push(change);
                continue;
            }
            // A name's changes have an order: one that follows a lost one is lost as well.
            let follows = change.iter().any(|(at, name, _)| lost.contains(&(*at, name.clone())));
            if follows || !has(nth) {
                lost.extend(change.iter().map(|(at, name, _)| (*at, name.clone())));
                self.lapsed.push(change);
                continue;
            }
            for (at, name, node) in change {
                self.name_durably(at, name, node);
            }
        }
    }

    fn name_durably(&mut self, at: u64, name: OsString, node: Option<u64>) {
        if let Some(node) = node {
            // After a failed sync it may still have the name that it had before.
            for other in self.nodes.values_mut() {
                if let Node::Directory { durable, .. } = other {
                    durable.retain(|_, named| *named != node);
                }
            }
        }
        if let Some(Node::Directory { durable, .. }) = self.nodes.get_mut(&at) {
            match node {
                Some(node) => durable.insert(name, node),
                None => durable.remove(&name),
            };
        }
    }

    fn sync_names(&mut self, node: u64) -> Result<()> {
        let fault = self.begin()?;
        let covered = self.covered(node);
        if fault.is_none() {
            self.land(&covered, |_| true);
            return Ok(());
        }
        self.land_some(&covered);
        Err(failure())
    }

    fn land_some(&mut self, covered: &BTreeSet<usize>) {
        let mut rng = self.rng.clone();
        let left = Left::of(self.changes.len(), &mut rng);
        self.land(covered, |nth| left.has(nth, &mut rng));
        self.rng = rng;
    }

    fn sync_file(&mut self, node: u64) -> Result<()> {
        let fault = self.begin()?;
        let mut rng = self.rng.clone();
        let file = self.file(node)?;
        if fault.is_some() {
            file.land_some(&mut rng);
            self.rng = rng;
            return Err(failure());
        }
        for edit in std::mem::take(&mut file.edits) {
            edit.apply(&mut file.durable);
        }
        Ok(())
    }

    /// What a power cut leaves.
    fn lose_power(&mut self) {
        let all = (0..self.changes.len()).collect();
        self.land_some(&all);
        self.lapsed.clear();
        let mut rng = self.rng.clone();
        for node in self.nodes.values_mut() {
            match node {
                Node::Directory { seen, durable } => seen.clone_from(durable),
                Node::File(file) => {
                    file.land_some(&mut rng);
                    file.seen.clone_from(&file.durable);
                }
            }
        }
        self.rng = rng;
    }

    fn stat(&self, node: u64) -> Stat {
        let (len, allocated) = match self.nodes.get(&node) {
            Some(Node::File(file)) => (file.seen.len() as u64, file.allocated()),
            _ => (0, 0),
        };
        Stat { id: Identity::File(0, node), len, allocated }
    }
}

fn off() -> Error {
    Error::other("the power is off")
}

fn failure() -> Error {
    Error::other("the simulated disk failed")
}

#[derive(Debug)]
struct SimDir {
    disk: Arc<Mutex<Disk>>,
    node: u64,
    path: PathBuf,
}

impl Directory for SimDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, file: &Path, access: Access) -> Result<Box<dyn DirFile>> {
        let mut disk = self.disk.lock();
        disk.look()?;
        let (at, name, found) = disk.find(self.node, file)?;
        let creates = matches!(access, Access::Create | Access::Replace);
        let node = match found {
            None if creates => {
                disk.begin_whole()?;
                let node = disk.add(Node::File(Contents::default()));
                disk.change(vec![(at, name.to_owned(), Some(node))])?;
                node
            }
            found => found.ok_or(ErrorKind::NotFound)?,
        };
        disk.file(node)?;
        if access == Access::Replace && found.is_some() {
            disk.begin_whole()?;
            disk.edit(node, Edit::SetLen(0))?;
        }
        let writes = access != Access::Read;
        Ok(Box::new(SimFile { disk: Arc::clone(&self.disk), node, writes, locked: false }))
    }

    fn directory(&self, path: &Path) -> Result<Arc<dyn Directory>> {
        let mut disk = self.disk.lock();
        disk.look()?;
        let node = disk.existing(self.node, path)?;
        disk.names(node)?;
        Ok(Arc::new(Self { disk: Arc::clone(&self.disk), node, path: self.path.join(path) }))
    }

    fn create_directory(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.begin_whole()?;
        let (at, name, found) = disk.find(self.node, path)?;
        if found.is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let node = disk.add(Node::Directory { seen: Names::new(), durable: Names::new() });
        disk.change(vec![(at, name.to_owned(), Some(node))])
    }

    fn stat(&self, path: &Path) -> Result<Option<Stat>> {
        let mut disk = self.disk.lock();
        disk.look()?;
        match disk.existing(self.node, path) {
            Ok(node) => Ok(Some(disk.stat(node))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn has_name(&self, path: &Path) -> Result<bool> {
        Ok(self.stat(path)?.is_some())
    }

    fn names(&self) -> Result<Vec<OsString>> {
        let mut disk = self.disk.lock();
        disk.look()?;
        Ok(disk.names(self.node)?.keys().cloned().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.begin_whole()?;
        let (from_at, from, moved) = disk.find(self.node, from)?;
        let moved = moved.ok_or(ErrorKind::NotFound)?;
        let (to_at, to, replaced) = disk.find(self.node, to)?;
        if let Some(replaced) = replaced.filter(|replaced| *replaced != moved) {
            match (disk.nodes.get(&moved), disk.nodes.get(&replaced)) {
                (Some(Node::File(_)), Some(Node::File(_))) => {}
                (Some(Node::Directory { .. }), Some(Node::Directory { seen, .. })) if seen.is_empty() => {}
                _ => return Err(ErrorKind::AlreadyExists.into()),
            }
            disk.release(Some(replaced));
        }
        disk.change(vec![(from_at, from.to_owned(), None), (to_at, to.to_owned(), Some(moved))])
    }

    fn remove(&self, file: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.begin_whole()?;
        let (at, name, found) = disk.find(self.node, file)?;
        disk.file(found.ok_or(ErrorKind::NotFound)?)?;
        disk.release(found);
        disk.change(vec![(at, name.to_owned(), None)])
    }

    fn remove_directory(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.begin_whole()?;
        let (at, name, found) = disk.find(self.node, path)?;
        if !disk.names(found.ok_or(ErrorKind::NotFound)?)?.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        disk.change(vec![(at, name.to_owned(), None)])
    }

    fn sync(&self) -> Result<()> {
        self.disk.lock().sync_names(self.node)
    }
}

#[derive(Debug)]
struct SimFile {
    disk: Arc<Mutex<Disk>>,
    node: u64,
    writes: bool,
    locked: bool,
}

impl SimFile {
    fn writable(&self) -> Result<()> {
        if self.writes { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }
}

impl DirFile for SimFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let mut disk = self.disk.lock();
        disk.look()?;
        let seen = &disk.file(self.node)?.seen;
        let from = seen.get(at as usize..).unwrap_or_default();
        let read = from.len().min(into.len());
        into[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.writable()?;
        let mut disk = self.disk.lock();
        let fault = disk.begin()?;
        if fault.is_none() {
            return disk.edit(self.node, Edit::Write(at, bytes.to_vec()));
        }
        let part = disk.rng.random_range(0..=bytes.len());
        disk.edit(self.node, Edit::Write(at, bytes[..part].to_vec()))?;
        Err(failure())
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.writable()?;
        let mut disk = self.disk.lock();
        disk.begin_whole()?;
        disk.edit(self.node, Edit::SetLen(bytes))
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.writable()?;
        let mut disk = self.disk.lock();
        disk.begin_whole()?;
        let free = disk.free;
        let file = disk.file(self.node)?;
        let (before, reserved) = (file.allocated(), file.reserved);
        file.reserved = reserved.max(bytes);
        let more = file.allocated() - before;
        if free.is_some_and(|free| free < more) {
            file.reserved = reserved;
            return Err(ErrorKind::StorageFull.into());
        }
        disk.free = free.map(|free| free - more);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.disk.lock().sync_file(self.node)
    }

    fn stat(&self) -> Result<Stat> {
        let disk = self.disk.lock();
        disk.look()?;
        Ok(disk.stat(self.node))
    }

    fn try_lock(&mut self) -> Result<bool> {
        let mut disk = self.disk.lock();
        disk.look()?;
        let file = disk.file(self.node)?;
        if !std::mem::replace(&mut file.locked, true) {
            self.locked = true;
        }
        Ok(self.locked)
    }

    fn as_file(&self) -> Option<&std::fs::File> {
        None
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.locked
            && let Ok(file) = self.disk.lock().file(self.node)
        {
            file.locked = false;
        }
    }
}

#[cfg(test)]
mod tests;
