//! A cluster, from which images are opened.

use crate::connection::{ConnectOptions, Connection, Pool};
use crate::device::RbdImage;
use crate::flight::Flight;
use crate::image::{self, Image, ImageOptions};
use crate::{ImageName, RbdDevice, RbdError};
use pagetier_devio::Metered;
use std::sync::Arc;

/// A connection to a cluster. Clones share it, and the images opened through it are fenced together.
#[derive(Clone, Debug)]
pub struct Cluster(Arc<Connection>);

impl Cluster {
    /// Connects.
    ///
    /// # Errors
    /// The configuration is missing or invalid, or the monitors do not answer within Ceph's
    /// `client_mount_timeout` (five minutes by default), or refuse this client.
    ///
    /// # Cancel safety
    /// A dropped call connects in the background, and disconnects.
    pub async fn connect(options: ConnectOptions) -> Result<Self, RbdError> {
        blocking(move || Connection::new(&options)).await.map(|connection| Self(Arc::new(connection)))
    }

    /// Creates an image of `bytes` with the feature that guards it against two owners.
    ///
    /// # Errors
    /// The pool is missing, or the image exists.
    ///
    /// # Cancel safety
    /// A dropped call creates the image nevertheless.
    pub async fn create(&self, name: ImageName, bytes: u64) -> Result<(), RbdError> {
        let connection = Arc::clone(&self.0);
        blocking(move || image::create(&Pool::of(&connection, &name)?, &name, bytes)).await
    }

    /// Opens an image as a device, and acquires its lock, unless it is opened for reading alone.
    ///
    /// Waits if this process has the image open and is closing it.
    ///
    /// # Errors
    /// The image is missing, has no exclusive lock, or is another client's; a snapshot is not opened for
    /// reading.
    ///
    /// # Cancel safety
    /// A dropped call opens the image in the background, and closes it.
    pub async fn open(&self, name: ImageName, options: ImageOptions) -> Result<RbdDevice, RbdError> {
        let connection = Arc::clone(&self.0);
        let shown = name.to_string();
        let mut closing = connection.closing.subscribe();
        // The sender lives as long as the connection, so the wait cannot fail.
        let _ = closing.wait_for(|closing| !closing.contains(&shown)).await;
        // Until then [`Cluster::closed`] waits for an open that was dropped, too: it ends with its image.
        let opens = Opens::begin(&connection, &shown);
        let opened = blocking(move || {
            let watch = |flight: &Arc<Flight>| {
                connection.watched().push((name.to_string(), Arc::downgrade(flight)));
            };
            // The cluster may keep the open waiting, too. It ends before the image can be closed, so it is
            // no operation of the image.
            let opening = Arc::<Flight>::default();
            watch(&opening);
            opening.begin();
            let image = Image::open(&connection, &name, &options)?;
            watch(&image.flight);
            // The order in which they are dropped.
            Ok((image, opens))
        });
        let (image, _opens) = opened.await?;
        Ok(Metered::over(RbdImage(image)))
    }

    /// Waits until every image that was dropped is closed, and its lock given back, also that of an open
    /// that was dropped. A program that ends earlier leaves the lock to lapse, which takes 30 s.
    pub async fn closed(&self) {
        // As above.
        let _ = self.0.closing.subscribe().wait_for(Vec::is_empty).await;
    }
}

/// An open that has not ended, among the images that are being closed.
struct Opens {
    connection: Arc<Connection>,
    name: String,
}

impl Opens {
    fn begin(connection: &Arc<Connection>, image: &str) -> Self {
        // No image has such a name, so no open waits for it.
        let name = format!("opening {image}");
        connection.closing.send_modify(|names| names.push(name.clone()));
        Self { connection: Arc::clone(connection), name }
    }
}

impl Drop for Opens {
    fn drop(&mut self) {
        self.connection.closed(&self.name);
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RbdError> + Send + 'static,
) -> Result<T, RbdError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(RbdError::Connect(error.into())),
    }
}
