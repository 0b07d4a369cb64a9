//! Many futures at once. They are boxed and keep their outcomes themselves, so that the library's part is
//! compiled once, not for each caller.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use pagetier_devio::locks::flow;
use parking_lot::Mutex;
use std::future::Future;

/// Runs `futures` concurrently and returns their outcomes in order. Dropping it drops them.
pub(crate) async fn join_all<T: Send>(
    futures: impl IntoIterator<Item = impl Future<Output = T> + Send>,
) -> Vec<T> {
    let futures: Vec<_> = futures.into_iter().collect();
    let outcomes: Vec<Mutex<Option<T>>> = futures.iter().map(|_| Mutex::new(None)).collect();
    let running = futures.into_iter().zip(&outcomes).map(|(future, outcome)| -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let done = flow(future).await;
            *outcome.lock() = Some(done);
        })
    });
    run(running.collect()).await;
    outcomes.into_iter().filter_map(Mutex::into_inner).collect()
}

async fn run(mut running: FuturesUnordered<BoxFuture<'_, ()>>) {
    while let Some(()) = running.next().await {}
}

#[cfg(test)]
mod tests {
    use super::join_all;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn outcomes_are_in_order_of_the_futures() {
        let begun = AtomicUsize::new(0);
        let begun = &begun;
        let outcomes = join_all((0..100).map(|n| async move {
            begun.fetch_add(1, Ordering::Relaxed);
            // The first future ends last: each waits until those behind it have begun.
            while begun.load(Ordering::Relaxed) < 100 {
                tokio::task::yield_now().await;
            }
            for _ in n..100 {
                tokio::task::yield_now().await;
            }
            n
        }));
        assert_eq!(outcomes.await, (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn nothing_to_run_ends_at_once() {
        let none: [std::future::Ready<u8>; 0] = [];
        assert_eq!(join_all(none).await, []);
    }
}
