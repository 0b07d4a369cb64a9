//! What the kernel says of a device: model, size, rotation, sectors.

use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A device as `/sys` describes it; of a file, the device under its file system.
#[derive(Clone, Default, Debug)]
pub(crate) struct Description {
    /// The path, and the kernel's name of the device.
    pub(crate) path: PathBuf,
    node: Option<String>,
    model: Option<String>,
    bytes: Option<u64>,
    rotational: Option<bool>,
    logical: Option<u64>,
    physical: Option<u64>,
    is_file: bool,
    is_emulated: bool,
}

impl Description {
    /// Describes a block device, or the device that holds a file. What `/sys` does not say stays unknown, as
    /// for a file on an overlay.
    pub(crate) fn of(path: &Path) -> Self {
        let mut own = Self { path: path.to_owned(), ..Self::default() };
        let Ok(metadata) = std::fs::metadata(path) else { return own };
        own.is_file = !metadata.file_type().is_block_device();
        let number = if own.is_file { metadata.dev() } else { metadata.rdev() };
        let Some(node) = node_of(number) else { return own };
        let of_node = |file: &str| read(&node.join(file));
        own.bytes = of_node("size").and_then(|sectors| Some(sectors.parse::<u64>().ok()? * 512));
        own.node = node.file_name().map(|name| name.to_string_lossy().into_owned());
        // A partition has no queue of its own.
        let disk = if node.join("partition").exists() { node.join("..") } else { node };
        let of_disk = |file: &str| read(&disk.join(file));
        own.model = of_disk("device/model")
            .or_else(|| of_disk("loop/backing_file").map(|f| format!("loop over {f}")));
        own.rotational = of_disk("queue/rotational").map(|flag| flag == "1");
        own.logical = of_disk("queue/logical_block_size").and_then(|bytes| bytes.parse().ok());
        own.physical = of_disk("queue/physical_block_size").and_then(|bytes| bytes.parse().ok());
        own
    }

    /// The same file, with an emulated disk's timing.
    pub(crate) fn emulated(mut self) -> Self {
        self.is_emulated = true;
        self
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_unknown(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
        }
        let size = self.bytes.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        let what = match (self.is_file, self.is_emulated) {
            (false, _) => self.path.display().to_string(),
            (true, false) => format!("a file on {}", or_unknown(self.node.as_ref())),
            (true, true) => {
                format!("an emulated 7200 rpm disk over a file on {}", or_unknown(self.node.as_ref()))
            }
        };
        write!(
            f,
            "{what}: model {}, size {}, rotational {}, sectors of {} (logical) and {} (physical) bytes",
            or_unknown(self.model.as_ref()),
            or_unknown(size),
            or_unknown(self.rotational.map(|yes| if yes { "yes" } else { "no" })),
            or_unknown(self.logical),
            or_unknown(self.physical),
        )
    }
}

/// The folder in `/sys` of a device number.
pub(crate) fn node_of(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
