//! An ordered key-value store on Pagetier, meant to be copied: it has what an engine needs around the page
//! store, and nothing else.
//!
//! A [`Kv`] is a directory with a page store (`pages`) and a log (`log`). Keys and values are bytes; keys
//! are in byte order. [`Kv::put`] and [`Kv::delete`] are atomic, and durable when they return.
//!
//! | question | file |
//! | --- | --- |
//! | Where is the tree, and when is it sound? | the crate `pagetier-btree`, shared with `tpcc_lite` |
//! | What does an open do besides recovery? | `open.rs` |
//! | How is a running store copied? | `backup.rs` |
//! | Where are log, recovery and checkpoints? | the crate `pagetier-wal`, shared with `tpcc_lite` |
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
//! kv.shutdown().await.unwrap();
//! # });
//! ```

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published: a doc is written where a name does not say enough")]

mod backup;
pub mod cli;
mod durable;
mod error;
mod kv;
mod open;
mod options;

pub use backup::{BackupProgress, BackupReport};
pub use error::KvError;
pub use kv::Kv;
pub use options::Options;
pub use pagetier_btree::{CheckReport, Entry, Scan, TreeError};
pub use pagetier_wal::Recovered;
