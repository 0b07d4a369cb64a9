//! The fuzzer's targets: hostile bytes in every structure on disk. Tests run them over the corpus as well.
//!
//! | target | input |
//! | --- | --- |
//! | `page_header` | a page image |
//! | `ssd_superblock`, `hdd_superblock` | the first blocks of a device |
//! | `map`, `journal` | a checkpoint's header and body; journal blocks |
//! | `ring` | a sequence of events in a ring, and changes to the ring's area |
//! | `manifest` | the manifest's line of JSON |
//! | `store` | changes anywhere to a closed or crashed store |
//!
//! A target decodes a structure's bytes as they are, and again with a matching checksum, which the fuzzer
//! would hardly find. Then it opens a small store with these bytes in place. No input may cause a panic or
//! more memory use than the devices justify, and every page must read as a typed error or as one of its
//! written versions.

mod codecs;
mod damage;
mod specimen;

pub use codecs::{hdd_superblock, journal, manifest, map, page_header, ring, ssd_superblock, store};

/// A target: processes an input, and panics on a defect.
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
