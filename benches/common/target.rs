//! The devices that a run uses: those that the user names, or plain files under `target/`.

use super::claim::{self, Refused};
use super::describe::Description;
use pagetier::Builder;
use pagetier_devio::{Backend, DirectIo, OpenOptions, Reap, SharedDevice, open_file};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;

/// The tier that a device is given for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Hdd,
    Ssd,
}

impl Role {
    fn variable(self) -> &'static str {
        match self {
            Self::Hdd => "PAGETIER_HDD",
            Self::Ssd => "PAGETIER_SSD",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Hdd => "hdd.vol",
            Self::Ssd => "ssd.cache",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Block,
    /// The user's file.
    Given {
        is_new: bool,
    },
    /// A file in `folder`, which goes with it.
    InFolder,
}

/// A place for one tier. On drop a device looks blank again, so that the next bench may use it, and files are
/// gone or empty.
pub(crate) struct Target {
    /// Short, for the names of reports.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) about: Description,
    kind: Kind,
    is_emulated: bool,
    folder: tempfile::TempDir,
}

impl Target {
    /// The place that the user names for `role`. Exits if it is refused.
    pub(crate) fn named(role: Role) -> Option<Self> {
        let given = PathBuf::from(std::env::var_os(role.variable()).filter(|value| !value.is_empty())?);
        let other = if role == Role::Hdd { Role::Ssd } else { Role::Hdd };
        let other = std::env::var_os(other.variable()).map(PathBuf::from);
        if other.is_some_and(|other| claim::are_same(&given, &other)) {
            eprintln!("PAGETIER_HDD and PAGETIER_SSD name the same place");
            exit(2);
        }
        let may_overwrite = std::env::var_os("PAGETIER_OVERWRITE").is_some_and(|value| value == "1");
        match Self::claim(role, &given, may_overwrite) {
            Ok(target) => Some(target),
            Err(refused) => {
                eprintln!("{}: {refused}", role.variable());
                exit(2);
            }
        }
    }

    /// A plain file under `target/`.
    pub(crate) fn plain(role: Role) -> Self {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Self::in_folder(role, parent, "plain").expect("a directory for the data")
    }

    /// A plain file with the timing of a disk.
    pub(crate) fn emulated_disk() -> Self {
        let mut own = Self::plain(Role::Hdd);
        (own.name, own.is_emulated) = ("emulated".to_owned(), true);
        own.about = own.about.clone().emulated();
        own
    }

    fn claim(role: Role, path: &Path, may_overwrite: bool) -> Result<Self, Refused> {
        let name =
            path.file_name().map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned());
        let metadata = std::fs::metadata(path);
        if metadata.as_ref().is_ok_and(std::fs::Metadata::is_dir) {
            return Self::in_folder(role, path, &name);
        }
        let kind = if metadata.is_ok_and(|m| m.file_type().is_block_device()) {
            claim::block_device(path, may_overwrite)?;
            Kind::Block
        } else {
            Kind::Given { is_new: claim::file(path, may_overwrite)? }
        };
        let folder = folder_in(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let (about, path) = (Description::of(path), path.to_owned());
        Ok(Self { name, path, about, kind, is_emulated: false, folder })
    }

    fn in_folder(role: Role, parent: &Path, name: &str) -> Result<Self, Refused> {
        let folder = folder_in(parent)?;
        let (path, about) = (folder.path().join(role.file()), Description::of(folder.path()));
        Ok(Self { name: name.to_owned(), path, about, kind: Kind::InFolder, is_emulated: false, folder })
    }

    /// A folder for a store's manifest: in the user's folder, otherwise under `target/`.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A folder for a store's manifest and ring, which goes with its store.
    pub(crate) fn store_folder(&self) -> tempfile::TempDir {
        tempfile::tempdir_in(self.folder.path()).expect("a folder for the store")
    }

    /// Whether the timing is a disk's, and so the figures of programs that use the file are another's.
    pub(crate) fn is_emulated(&self) -> bool {
        self.is_emulated
    }

    /// How many units of `unit` bytes, at most `wanted`, fit behind the first 2 MiB if they take nine tenths
    /// of the space. A file has room for all.
    pub(crate) fn fit(&self, wanted: u32, unit: usize) -> u32 {
        if self.kind != Kind::Block {
            return wanted;
        }
        let bytes = File::open(&self.path).and_then(|mut device| device.seek(SeekFrom::End(0)));
        let room = bytes.expect("a device's size").saturating_sub(2 << 20) / 10 * 9 / unit as u64;
        let fits = u32::try_from(room).unwrap_or(u32::MAX).min(wanted);
        if fits < wanted {
            println!("{} has room for {fits} of {wanted} pages", self.name);
        }
        fits
    }

    /// The file or device, with the emulated timing if there is one.
    pub(crate) fn device(&self) -> SharedDevice {
        let device = self.untimed_device();
        if !self.is_emulated {
            return device;
        }
        Arc::new(EmulatedDevice::new(device, DeviceModel::disk_7200rpm(EMULATED_BYTES), EmulatedClock::Wall))
    }

    /// The file or device itself: io_uring, O_DIRECT, on the current runtime.
    pub(crate) fn untimed_device(&self) -> SharedDevice {
        let options = OpenOptions {
            direct: DirectIo::Required,
            backend: Backend::Uring,
            create: self.kind != Kind::Block,
            reap: Reap::Reactor,
            ..OpenOptions::default()
        };
        let opened = open_file(&self.path, &options);
        opened.expect("a file system with O_DIRECT, a kernel with io_uring").device
    }

    /// Makes this place the builder's HDD.
    pub(crate) fn as_hdd(&self, builder: Builder) -> Builder {
        if self.is_emulated { builder.hdd(self.device()) } else { builder.hdd(&self.path) }
    }

    /// Makes the place blank again, for another store.
    pub(crate) fn erase(&self) {
        let file = File::options().write(true).open(&self.path);
        let erased = match self.kind {
            Kind::Block => file.and_then(|device| claim::blank(&device)),
            _ => file.and_then(|file| file.set_len(0)),
        };
        if let Err(error) = erased
            && self.path.exists()
        {
            eprintln!("{}: it cannot be made blank again: {error}", self.path.display());
        }
    }
}

/// The capacity of the emulated disk. The data lie within a fraction of it, as on a real one.
const EMULATED_BYTES: u64 = 64 << 30;

impl Drop for Target {
    fn drop(&mut self) {
        match self.kind {
            Kind::Block | Kind::Given { is_new: false } => self.erase(),
            Kind::Given { is_new: true } => drop(std::fs::remove_file(&self.path)),
            Kind::InFolder => {}
        }
    }
}

fn folder_in(parent: &Path) -> Result<tempfile::TempDir, Refused> {
    let made = std::fs::create_dir_all(parent).and_then(|()| tempfile::tempdir_in(parent));
    made.map_err(Refused::io(parent, "no folder can be made in it"))
}

/// For a question about one device: each that the user names, or a plain file.
pub(crate) fn each() -> Vec<Target> {
    let named: Vec<Target> = [Role::Hdd, Role::Ssd].into_iter().filter_map(Target::named).collect();
    if named.is_empty() { vec![Target::plain(Role::Hdd)] } else { named }
}

/// For a question about one device whose answer depends on seeks: an emulated disk beside the plain file.
pub(crate) fn each_or_emulated() -> Vec<Target> {
    let mut all = each();
    if all.iter().all(|target| target.kind == Kind::InFolder && target.name == "plain") {
        all.push(Target::emulated_disk());
    }
    all
}

/// For a question about both tiers: what the user names, and plain files for the rest.
pub(crate) struct Pair {
    pub(crate) hdd: Target,
    pub(crate) ssd: Target,
}

impl Pair {
    pub(crate) fn selected() -> Self {
        let of = |role| Target::named(role).unwrap_or_else(|| Target::plain(role));
        Self { hdd: of(Role::Hdd), ssd: of(Role::Ssd) }
    }

    /// The name of the pair's report.
    pub(crate) fn name(&self) -> String {
        if self.hdd.name == self.ssd.name {
            return self.hdd.name.clone();
        }
        format!("{}+{}", self.hdd.name, self.ssd.name)
    }
}
