//! The device that ring, journal, map and slots are on, as one thing: it is exchanged as a whole when the SSD
//! is taken out of use, put back, or replaced.

use crate::exec::flush::{Failures, GroupFlush};
use crate::exec::remember::Flushed;
use crate::format::layout::Layout;
use crate::protocol::flushes::SsdFlush;
use pagetier_devio::SharedDevice;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The SSD, or the file that holds the ring of a store without one.
#[derive(Debug)]
pub(crate) struct CacheDevice {
    pub(crate) device: SharedDevice,
    pub(crate) layout: Layout,
    /// Numbered anew with every device: a flush that failed is remembered by its own device only.
    pub(crate) flush: GroupFlush<SsdFlush>,
}

impl CacheDevice {
    pub(crate) fn new(
        device: SharedDevice,
        layout: Layout,
        failures: &Arc<Failures>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let flush = GroupFlush::new(Arc::clone(&device), Flushed::Ssd, failures, runtime);
        Arc::new(Self { device, layout, flush })
    }
}
