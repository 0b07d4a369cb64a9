//! The targets of the fuzzer, which tests also run over its corpus: hostile bytes in every structure on disk.
//!
//! | target | input |
//! | --- | --- |
//! | `page_header` | a page image |
//! | `ssd_superblock`, `hdd_superblock` | the first blocks of a device |
//! | `map`, `journal` | a checkpoint's header and body; journal blocks |
//! | `ring` | what happens to a ring, and changes to the ring's area |
//! | `manifest` | the line of JSON |
//! | `store` | changes anywhere to a closed or crashed store |
//!
//! A target decodes a structure's bytes as they are, and again with a matching checksum, because the fuzzer
//! would hardly find one. Then it opens a small store with these bytes in place. For any input there must be
//! no panic and no memory use beyond what the devices justify, and every page must read as a typed error or
//! as one of its written versions.

mod codecs;
mod damage;
mod specimen;

pub use codecs::{hdd_superblock, journal, manifest, map, page_header, ring, ssd_superblock, store};

/// A target: processes an input, and panics when something is wrong.
pub type Target = fn(&[u8]);

/// Every target by name, which is also the name of its corpus and of its file in `fuzz/fuzz_targets`.
pub const TARGETS: [(&str, Target); 8] = [
    ("page_header", page_header),
    ("ssd_superblock", ssd_superblock),
    ("hdd_superblock", hdd_superblock),
    ("map", map),
    ("journal", journal),
    ("ring", ring),
    ("manifest", manifest),
    ("store", store),
];
