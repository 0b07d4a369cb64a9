//! A control socket: a running store takes requests of its operators, from the same machine.
//!
//! An engine calls [`listen`] once its store is open, and keeps the result. From then on `pagetier drain DIR`
//! and the other verbs work while the engine runs. The socket is the file [`SOCKET`] in the store's
//! directory, with mode 0600: only the owner of the store's process, and root, can use it. Without the call
//! there is no socket.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let dir = temporary.path();
//! use pagetier::PageStore;
//! use pagetier_control::{Client, Request, listen};
//! use std::sync::Arc;
//!
//! let store = Arc::new(PageStore::builder().directory(dir).ssd_bytes(4 << 20).open().await?);
//! let control = listen(&store, dir).await?;
//!
//! // In another process, by its operator:
//! let mut client = Client::connect(dir).await?.ok_or("no process listens")?;
//! let answer = client.ask(&Request::Drain { off: false }, |_| ()).await?;
//! assert!(answer.complete);
//!
//! control.end().await; // before the store is closed
//! store.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Protocol
//!
//! Lines of JSON over a Unix stream socket. The server greets with `{"hello":{"protocol":1,"pid":4711}}`. A
//! request is a line such as `{"do":"drain","off":true}` ([`Request`]). While it runs, the server sends a
//! line such as `{"progress":{"what":"draining","done":32,"total":900}}` several times a second; then
//! `{"answer":{"complete":true,"text":"...","value":{}}}` ([`Answer`]), or `{"refused":{"error":"..."}}`
//! ([`Refused`]). Requests of one connection run one after the other, those of several beside each other.
//!
//! A client that closes its connection stops what it asked for, which loses nothing: every call is one of
//! the store's own that are safe to cancel. A backup is in its chain as a whole, or not at all. What cannot
//! be read is refused and changes nothing.
//!
//! # Why it is not part of the store
//!
//! A socket can do nothing that an engine cannot: it calls the public interface alone. So the store's crate
//! has no server in it, and an engine that wants no socket builds none.

#![forbid(unsafe_code)]

mod client;
mod perform;
mod request;
mod serve;
mod socket;

pub use client::{AskError, Client};
pub use perform::{AtRest, Report, Served, findings, perform, ssd_bytes_at};
pub use request::{Answer, Progress, Refused, Request};
pub use serve::{Control, listen};
pub use socket::{ListenError, SOCKET};
