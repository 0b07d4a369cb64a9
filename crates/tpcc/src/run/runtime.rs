//! The runtime of a run.

use pagetier_testing::VirtualClock;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Waker};
use tokio::runtime::{Builder, Runtime};

/// A multi-threaded runtime, or for virtual time a single-threaded one whose clock advances only when nothing
/// else can run.
pub(crate) fn runtime(clock: Option<&VirtualClock>) -> io::Result<Runtime> {
    let Some(clock) = clock.cloned() else {
        return Builder::new_multi_thread().enable_all().build();
    };
    // One thread, so that the order of all events follows from the seed.
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .on_thread_park(move || {
            clock.idle(|by| {
                // The clock advances on the first poll.
                let _ = pin!(tokio::time::advance(by)).poll(&mut Context::from_waker(Waker::noop()));
            });
        })
        .build()
}
