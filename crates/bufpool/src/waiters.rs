//! Waiting for a latch: first come, first served, with direct hand-over.
//!
//! A waiter holds a pin. The task that releases a latch acquires it on behalf of the next waiters in line. A
//! waiter that is dropped returns a latch it was granted, and lets those behind it move up.

use crate::sync::{AtomicU64, Mutex};
use crate::word::{Mode, Word};
use pagetier_policy::FrameId;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::task::Waker;

const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

#[derive(Debug)]
struct Waiter {
    id: u64,
    frame: FrameId,
    mode: Mode,
    granted: bool,
    waker: Option<Waker>,
}

/// The queues, sharded by frame.
#[derive(Debug)]
pub(crate) struct Waiters {
    shards: Box<[Mutex<VecDeque<Waiter>>]>,
    ids: AtomicU64,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(VecDeque::new())).collect();
        Self { shards, ids: AtomicU64::new(0) }
    }

    fn shard(&self, frame: FrameId) -> &Mutex<VecDeque<Waiter>> {
        &self.shards[frame.at() % SHARDS]
    }

    /// Joins the queue for `frame`, which is pinned. `None` when the latch was available at once after all.
    pub(crate) fn enqueue(&self, frame: FrameId, mode: Mode, word: &Word) -> Option<u64> {
        let mut queue = self.shard(frame).lock();
        word.set_waiters(true);
        let first = !queue.iter().any(|w| w.frame == frame);
        if first && word.grant(mode) {
            word.set_waiters(false);
            return None;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        queue.push_back(Waiter { id, frame, mode, granted: false, waker: None });
        Some(id)
    }

    /// Grants the latch of `frame` to the next waiters in line.
    #[cold]
    pub(crate) fn grant(&self, frame: FrameId, word: &Word) {
        let mut queue = self.shard(frame).lock();
        let mut wakers = Vec::new();
        let mut left = false;
        for waiter in queue.iter_mut().filter(|w| w.frame == frame && !w.granted) {
            if left || !word.grant(waiter.mode) {
                left = true;
                continue;
            }
            waiter.granted = true;
            wakers.extend(waiter.waker.take());
        }
        word.set_waiters(left);
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether waiter `id` has been granted the latch (it has then left the queue).
    pub(crate) fn poll(&self, frame: FrameId, id: u64, waker: &Waker) -> bool {
        let mut queue = self.shard(frame).lock();
        let Some(at) = queue.iter().position(|w| w.id == id) else { return false };
        if queue[at].granted {
            queue.remove(at);
            return true;
        }
        queue[at].waker = Some(waker.clone());
        false
    }

    /// Removes waiter `id`; returns whether it had been granted the latch.
    pub(crate) fn cancel(&self, frame: FrameId, id: u64) -> bool {
        let mut queue = self.shard(frame).lock();
        let at = queue.iter().position(|w| w.id == id);
        at.and_then(|at| queue.remove(at)).is_some_and(|w| w.granted)
    }
}
