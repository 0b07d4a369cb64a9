//! The device that ring, journal, map and slots are on, as one thing: it is exchanged as a whole when the SSD
//! is taken out of use, put back, or replaced.

use crate::flush::{Failures, GroupFlush};
use crate::layout::Layout;
use crate::remember::Flushed;
use pagetier_devio::SharedDevice;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The SSD, or the file that holds the ring of a store without one.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) device: SharedDevice,
    pub(crate) layout: Layout,
    /// Numbered anew with every side: a flush that failed is remembered by its own side only.
    pub(crate) flush: GroupFlush,
}

impl Side {
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
