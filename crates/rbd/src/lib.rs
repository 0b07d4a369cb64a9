//! Homes on Ceph: an RBD image as a device of a Pagetier store.
//!
//! ```no_run
//! use pagetier_rbd::{Cluster, ConnectOptions, ImageOptions};
//! use std::sync::Arc;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::connect(ConnectOptions::default()).await?;
//! let homes = cluster.open("rbd/homes".parse()?, ImageOptions::default()).await?;
//! let store = pagetier::PageStore::builder()
//!     .directory("store")
//!     .hdd(Arc::new(homes))
//!     .manifest(pagetier::options::OnHdd::default())
//!     .open()
//!     .await?;
//! store.close().await?;
//! // The image's lock is given back in the background.
//! cluster.closed().await;
//! # Ok(())
//! # }
//! ```
//!
//! **One owner.** An open image holds Ceph's exclusive lock. A second opener gets [`RbdError::AlreadyOpen`].
//! [`ImageOptions::take_over`] first bans the owner's connection from the cluster, then breaks the lock: each
//! later operation of the old owner fails with [`DeviceErrorKind::Fenced`], and none of its writes lands.
//!
//! **Durability.** librbd's own cache is off. A completed write is on every replica of its placement group,
//! so a flush has little to wait for. The store's tiers are the cache: a second one in the client would
//! double the memory, and would report a failed write only at a later flush.
//!
//! **A cluster that does not answer.** An operation waits until the cluster carries it out, and blocks no
//! thread meanwhile. A warning names the cluster's own diagnosis. With [`ConnectOptions::io_timeout`] the
//! operation fails instead.
//!
//! **Another machine.** With its manifest on the HDD (`OnHdd`) the image has all that another machine needs
//! to open the store, apart from the engine's log: `pagetier_wal::Wal::on_device` keeps that on an image of
//! its own.
//!
//! [`DeviceErrorKind::Fenced`]: pagetier_devio::DeviceErrorKind::Fenced

mod cluster;
mod connection;
mod device;
mod error;
mod flight;
mod image;
mod name;
mod op;

pub use cluster::Cluster;
pub use connection::ConnectOptions;
pub use device::RbdDevice;
pub use error::RbdError;
pub use image::ImageOptions;
pub use name::ImageName;
