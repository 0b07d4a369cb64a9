//! Helpers that tests share.

use pagetier_devio::{IoBuf, IoBufs};

/// A runtime with a paused or a running clock.
pub(crate) fn runtime(paused: bool) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(paused)
        .build()
        .expect("a runtime")
}

/// Zeroed buffers of these lengths.
pub(crate) fn bufs_of(lens: &[usize]) -> IoBufs {
    lens.iter().map(|len| IoBuf::zeroed(*len)).collect()
}
