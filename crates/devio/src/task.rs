//! Tasks whose futures are boxed: tokio's part of a task is over a hundred functions for each type of future,
//! and boxed futures are of one type. They are compiled once, not for each task of the store.

use crate::locks::{apart, flow};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A boxed future. A function that returns one is compiled once, together with its future; an `async fn` is
/// compiled in each crate that awaits it.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Registers the task with a `Notify`, under a name to await: `listen!(changed = self.changed)`. Listen
/// before you look: a change between the look and the wait would otherwise go unnoticed.
#[macro_export]
macro_rules! listen {
    ($($name:ident = $notify:expr),+) => {
        $(
            let mut $name = std::pin::pin!($notify.notified());
            // Without this, it would register only when it is first awaited.
            $name.as_mut().enable();
        )+
    };
}

/// Runs `future` in a task of its own.
pub fn spawn(runtime: &Handle, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    spawn_boxed(runtime, Box::pin(future))
}

fn spawn_boxed(runtime: &Handle, future: Boxed<'static, ()>) -> JoinHandle<()> {
    runtime.spawn(apart(future))
}

/// Runs `future` in a task of its own, which continues when the caller is dropped, and waits for its outcome:
/// `None` if it panicked, or if the runtime ended before it.
pub async fn outcome<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let kept = Arc::new(Mutex::new(None));
    let outcome = Arc::clone(&kept);
    // The caller waits for it, so it holds what the caller holds.
    let future = flow(future);
    let task = spawn(runtime, async move {
        let done = future.await;
        *kept.lock() = Some(done);
    });
    // An error is a panic or the runtime's end: either way there is no outcome.
    task.await.ok()?;
    outcome.lock().take()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

    #[tokio::test]
    async fn an_outcome_arrives_and_a_panic_is_none() {
        let runtime = Handle::current();
        assert_eq!(outcome(&runtime, async { 7 }).await, Some(7));
        assert_eq!(outcome(&runtime, panics()).await, None);
    }

    #[tokio::test]
    async fn the_task_continues_when_its_caller_is_dropped() {
        let (runtime, ended) = (Handle::current(), Arc::new(AtomicBool::new(false)));
        let at_end = Arc::clone(&ended);
        let mut waiting = Box::pin(outcome(&runtime, async move {
            tokio::task::yield_now().await;
            at_end.store(true, Ordering::Relaxed);
        }));
        assert!(poll_once(waiting.as_mut()).await.is_pending());
        drop(waiting);
        while !ended.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    async fn panics() {
        std::panic::resume_unwind(Box::new(()));
    }

    async fn poll_once<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
    }
}
