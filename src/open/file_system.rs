//! Which file systems are supported: the store keeps its promises on them, also on a full disk.

/// The file systems by their type in `statfs`: the name, and whether the store is tested on it.
/// `docs/operating.md` has the same table.
const KNOWN: [(u64, &str, bool); 17] = [
    (0xef53, "ext4", true),
    (0x5846_5342, "xfs", true),
    (0x9123_683e, "btrfs", true),
    (0x0102_1994, "tmpfs", false),
    (0x8584_58f6, "ramfs", false),
    (0x794c_7630, "overlayfs", false),
    (0x6969, "nfs", false),
    (0xff53_4d42, "cifs", false),
    (0xfe53_4d42, "smb", false),
    (0x6573_5546, "fuse", false),
    (0x0102_1997, "9p", false),
    (0xf2f5_2010, "f2fs", false),
    (0x2fc1_2fc1, "zfs", false),
    (0xca45_1a4e, "bcachefs", false),
    (0x00c3_6400, "ceph", false),
    (0x4d44, "vfat", false),
    (0x2011_bab0, "exfat", false),
];

/// The name of a file system that is not supported.
pub(crate) fn unsupported(magic: u64) -> Option<String> {
    match KNOWN.iter().find(|(known, ..)| *known == magic) {
        Some((.., true)) => None,
        Some((_, name, false)) => Some((*name).to_owned()),
        None => Some(format!("of type {magic:#x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_than_the_supported_ones_are_named() {
        assert_eq!([0xef53, 0x5846_5342, 0x9123_683e].map(unsupported), [None, None, None]);
        assert_eq!(unsupported(0x0102_1994).as_deref(), Some("tmpfs"));
        assert_eq!(unsupported(7).as_deref(), Some("of type 0x7"));
    }

    #[test]
    fn the_document_has_the_same_table() {
        let document = include_str!("../../docs/operating.md");
        for (_, name, supported) in KNOWN {
            let row = document.lines().find(|line| line.starts_with(&format!("| {name} |")));
            assert_eq!(row.is_some_and(|row| row.contains("| yes |")), supported, "{name}: {row:?}");
        }
    }
}
