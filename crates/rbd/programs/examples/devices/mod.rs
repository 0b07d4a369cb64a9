//! Images as devices of a command line.

use pagetier::device::SharedDevice;
use pagetier_rbd::{Cluster, ConnectOptions, ImageName, ImageOptions, RbdError};
use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long a program waits for the locks to be given back; then they lapse by themselves.
const CLOSE_MAX: Duration = Duration::from_secs(30);

/// The variable of the environment that names the cluster's user, without `client.`; `admin` by default.
const USER: &str = "PAGETIER_CEPH_USER";

/// The connection, and the runtime on which images are opened and closed.
static CONNECTED: OnceLock<(Runtime, Cluster)> = OnceLock::new();

fn connected() -> Result<&'static (Runtime, Cluster), Box<dyn Error + Send + Sync>> {
    if let Some(connected) = CONNECTED.get() {
        return Ok(connected);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    // Without a limit an operation waits until the cluster has carried it out.
    let options = match std::env::var(USER) {
        Ok(user) => ConnectOptions::default().user(user),
        Err(_) => ConnectOptions::default(),
    };
    let cluster = runtime.block_on(Cluster::connect(options))?;
    Ok(CONNECTED.get_or_init(|| (runtime, cluster)))
}

/// Opens the image `rbd:POOL/IMAGE`; creates it with `new_bytes`, if given, where it is missing.
pub(crate) fn open(
    name: &str,
    options: ImageOptions,
    new_bytes: Option<u64>,
) -> Result<SharedDevice, Box<dyn Error + Send + Sync>> {
    let (runtime, cluster) = connected()?;
    let image: ImageName = name.parse()?;
    let opened = runtime.block_on(async {
        match (cluster.open(image.clone(), options.clone()).await, new_bytes) {
            (Err(RbdError::NotFound(_)), Some(bytes)) => {
                cluster.create(image.clone(), bytes).await?;
                cluster.open(image.clone(), options).await
            }
            (opened, _) => opened,
        }
    });
    Ok(Arc::new(opened?))
}

/// Gives the locks of the images back: without that they lapse after 30 s.
pub(crate) fn close() {
    if let Some((runtime, cluster)) = CONNECTED.get() {
        // A cluster that does not answer keeps no program from ending.
        let _ = runtime.block_on(async { tokio::time::timeout(CLOSE_MAX, cluster.closed()).await });
    }
}
