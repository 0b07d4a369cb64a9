//! Futures dropped at an await: polled a given number of times, then dropped.

use std::pin::pin;
use std::task::Poll;

/// Polls `future` up to `polls` times. `None`: it was still pending, and is dropped.
pub(super) async fn up_to<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut left = polls;
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            // Drop it now instead of at the next wake-up.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_is_dropped_at_the_await_that_it_was_given() {
        let mut passed = 0;
        let mut steps = async |polls| {
            let work = async {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                    passed += 1;
                }
            };
            up_to(polls, work).await.is_some()
        };
        assert_eq!(
            [steps(0).await, steps(1).await, steps(3).await, steps(4).await],
            [false, false, false, true]
        );
        assert_eq!(passed, 2 + 3);
    }
}
