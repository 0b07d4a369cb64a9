//! An ordered key-value store on Pagetier, meant to be copied: it has what an engine needs around the page
//! store, and nothing else.
//!
//! A [`Kv`] is a directory with a page store (`pages`) and a log (`log`). Keys and values are bytes; keys
//! are in byte order. [`Kv::put`] and [`Kv::delete`] are atomic, and durable when they return.
//!
//! | question | file |
//! | --- | --- |
//! | How is a page laid out, and how is it changed? | `tree/node.rs`, `tree/edit.rs` |
//! | How are pages allocated and freed? | `tree/pages.rs` |
//! | What do readers and writers lock? | `tree/mod.rs` |
//! | How does the tree grow and shrink? | `tree/grow.rs`, `tree/shrink.rs` |
//! | In which order does an opening recover? | `open.rs` |
//! | How is a running store copied? | `backup.rs` |
//! | When is a store sound? | `check.rs` |
//! | Where is the log? | the crate `pagetier-wal`, which `tpcc_lite` shares |
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let temporary = tempfile::tempdir().unwrap();
//! # let dir = temporary.path().join("fruit");
//! use pagetier_kv::{Kv, Options};
//!
//! let kv = Kv::open(&Options::new(&dir).pool_bytes(8 << 20).ssd_bytes(16 << 20)).await.unwrap();
//! kv.put(b"apple", b"red").await.unwrap();
//! kv.put(b"plum", b"blue").await.unwrap();
//! assert_eq!(kv.get(b"plum").await.unwrap().as_deref(), Some(&b"blue"[..]));
//! let mut scan = kv.scan(..);
//! while let Some((key, value)) = scan.next().await.unwrap() {
//!     println!("{} is {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
//! }
//! kv.close().await.unwrap();
//! # });
//! ```

#![forbid(unsafe_code)]

mod backup;
mod check;
mod durable;
mod error;
mod kv;
mod open;
mod options;
mod tree;

pub use backup::{BackupProgress, BackupReport};
pub use check::CheckReport;
pub use error::KvError;
pub use kv::{Kv, Recovered};
pub use options::Options;
pub use tree::{Entry, Scan};
