//! One flush for many waiters.
//!
//! Flushes of a device are numbered. A write that completed is durable once a flush that *started* afterwards is over:
//! [`GroupFlush::next`] tells that flush's number, [`GroupFlush::cover`] waits for it, running it if nobody does. A failed
//! flush is remembered: what it should have made durable may be lost, so nothing that relies on it may go on.

use pagetier_devio::{DeviceError, IoClass, SharedDevice};
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Numbers {
    started: u64,
    completed: u64,
    running: bool,
    failed: Option<DeviceError>,
}

/// The flushes of one device.
#[derive(Debug)]
pub(crate) struct GroupFlush {
    device: SharedDevice,
    numbers: Mutex<Numbers>,
    over: Notify,
}

enum Turn {
    Run(u64),
    Wait,
    Done(Result<u64, DeviceError>),
}

impl GroupFlush {
    pub(crate) fn new(device: SharedDevice) -> Self {
        Self { device, numbers: Mutex::new(Numbers::default()), over: Notify::new() }
    }

    /// The number of the first flush that will cover every write completed by now.
    pub(crate) fn next(&self) -> u64 {
        self.numbers.lock().started + 1
    }

    /// The number of the newest flush that is over.
    pub(crate) fn completed(&self) -> u64 {
        self.numbers.lock().completed
    }

    /// Waits until flush `number` (or a later one) is over and returns the newest number that is.
    /// Cancel-safe: a flush whose runner is dropped counts as not having happened, and another waiter runs the next.
    pub(crate) async fn cover(&self, number: u64) -> Result<u64, DeviceError> {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            match self.turn(number) {
                Turn::Done(result) => return result,
                Turn::Wait => over.await,
                Turn::Run(mine) => {
                    let running = Running { flush: self, outcome: None };
                    // One flush serves all who wait, and starts only when the one before is over: it must not queue behind reads.
                    let result = self.device.flush(IoClass::Meta).await;
                    running.end(mine, result);
                }
            }
        }
    }

    fn turn(&self, number: u64) -> Turn {
        let mut n = self.numbers.lock();
        if n.completed >= number {
            return Turn::Done(Ok(n.completed));
        }
        if let Some(error) = &n.failed {
            return Turn::Done(Err(error.clone()));
        }
        if n.running {
            return Turn::Wait;
        }
        n.running = true;
        n.started += 1;
        Turn::Run(n.started)
    }
}

struct Running<'a> {
    flush: &'a GroupFlush,
    outcome: Option<(u64, Result<(), DeviceError>)>,
}

impl Running<'_> {
    fn end(mut self, number: u64, result: Result<(), DeviceError>) {
        self.outcome = Some((number, result));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut n = self.flush.numbers.lock();
        n.running = false;
        match self.outcome.take() {
            Some((number, Ok(()))) => n.completed = number,
            Some((_, Err(error))) => n.failed = Some(error),
            None => {}
        }
        drop(n);
        self.flush.over.notify_waiters();
    }
}
