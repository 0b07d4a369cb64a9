//! What the fuzzer runs, and the tests run over its corpus: hostile bytes in every structure on disk.
//!
//! | target | its input is |
//! | --- | --- |
//! | `page_header` | a page image |
//! | `ssd_superblock`, `hdd_superblock` | the first blocks of a device |
//! | `map`, `journal` | a checkpoint's header and body; journal blocks |
//! | `ring` | what happens to a ring, and changes to the ring's area |
//! | `manifest` | the line of JSON |
//! | `store` | changes anywhere to a closed or crashed store |
//!
//! A structure's bytes are decoded as they come, and again with a fitting checksum, or the fuzzer would
//! hardly get past it. Then a small store is opened with them in their place. Whatever they are: no panic, no
//! memory beyond what the devices justify, and every page read is a typed error or one of the versions that
//! were written of it.

mod codecs;
mod damage;
mod specimen;

pub use codecs::{hdd_superblock, journal, manifest, map, page_header, ring, ssd_superblock, store};

/// A target: what it does with an input. It panics when something is wrong.
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
