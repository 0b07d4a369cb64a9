//! Two users of one device: whose flushes fail.

use pagetier_devio::{Fence, IoBufs, IoClass, IoOp, Joint, SharedDevice};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn a_failed_flush_ends_the_first_user_and_what_the_second_wrote_before_it() {
    let sim = Arc::new(SimDevice::new("d", 1 << 20, 1, &SimPower::new()));
    let second = Joint::of(Arc::clone(&sim) as SharedDevice);
    let first = Fence::default().guard_joint(&second);
    let seen = second.failures();
    first.flush(IoClass::Meta).await.unwrap();
    second.flush(seen, IoClass::Meta).await.unwrap();
    sim.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    assert!(first.flush(IoClass::Meta).await.is_err());
    assert!(second.flush(seen, IoClass::Meta).await.is_err(), "written before the failure");
    second.flush(second.failures(), IoClass::Meta).await.unwrap();
    assert!(first.flush(IoClass::Meta).await.is_err(), "for good");
    assert!(first.read(0, IoBufs::new(), IoClass::Meta).await.result.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_was_given_up_counts_as_failed() {
    let latency = std::time::Duration::from_millis(1);
    let sim = SimDevice::new("d", 1 << 20, 1, &SimPower::new()).with_latency(latency);
    let second = Joint::of(Arc::new(sim) as SharedDevice);
    let first = Fence::default().guard_joint(&second);
    let seen = second.failures();
    let mut flush = first.flush(IoClass::Meta);
    let pending = std::future::poll_fn(|cx| std::task::Poll::Ready(flush.as_mut().poll(cx).is_pending()));
    assert!(pending.await);
    drop(flush);
    assert_ne!(second.failures(), seen);
    assert!(second.flush(seen, IoClass::Meta).await.is_err());
    second.flush(second.failures(), IoClass::Meta).await.unwrap();
}
