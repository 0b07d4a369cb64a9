//! Waiting for a latch: first come, first served, with direct hand-over.
//!
//! A waiter holds a pin. The task that releases a latch acquires it on behalf of the next waiters in line. A
//! waiter that is dropped returns a latch it was granted, and lets those behind it move up.
//!
//! Under contention every request queues here, so that a wait costs little: two short locks of its shard, no
//! allocation, no clock. The task that checks the waits reads the queues instead (`stalls`).

use crate::sync::Mutex;
use crate::waits::holders::TaskId;
use crate::waits::place;
use crate::waits::watch::Watch;
use crate::word::{Mode, Word};
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// A wait in the queue for a frame's latch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LatchTicket {
    frame: FrameId,
    /// Unique in the frame's shard.
    id: u64,
    /// The task that waits.
    pub(crate) task: TaskId,
}

/// The wait cannot end: its task holds the latch itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused;

#[derive(Debug)]
enum State {
    Waiting(Waker),
    Granted,
    Refused,
}

#[derive(Debug)]
struct Waiter {
    ticket: LatchTicket,
    page: PageId,
    mode: Mode,
    state: State,
    /// Whether the wait is to say where it waits, when it is polled next.
    explain: bool,
}

impl Waiter {
    fn granted(&self) -> bool {
        matches!(self.state, State::Granted)
    }

    /// Changes the state; returns the waker of a task that waits.
    fn end_wait(&mut self, state: State) -> Option<Waker> {
        match std::mem::replace(&mut self.state, state) {
            State::Waiting(waker) => Some(waker),
            State::Granted | State::Refused => None,
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_id: u64,
}

impl Queue {
    fn position(&self, ticket: LatchTicket) -> Option<usize> {
        self.waiters.iter().position(|w| w.ticket == ticket)
    }
}

/// The queues, sharded by frame.
#[derive(Debug)]
pub(crate) struct LatchQueues {
    shards: Box<[Mutex<Queue>]>,
    pub(crate) watch: Arc<Watch>,
}

impl LatchQueues {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Queue::default())).collect();
        Self { shards, watch: Arc::new(Watch::new()) }
    }

    fn shard(&self, frame: FrameId) -> &Mutex<Queue> {
        &self.shards[frame.at() % SHARDS]
    }

    /// Joins the queue for `frame`, which is pinned, on behalf of `page`. `None` when the latch was available
    /// at once after all.
    pub(crate) fn enqueue(
        &self,
        (frame, page, mode): (FrameId, PageId, Mode),
        word: &Word,
        waker: &Waker,
    ) -> Option<LatchTicket> {
        let mut queue = self.shard(frame).lock();
        // Flag first, then a last attempt. A holder that releases before the flag is set wakes none, but
        // then the attempt succeeds; one that releases after it sees the flag and grants.
        word.set_waiters(true);
        let first = !queue.waiters.iter().any(|w| w.ticket.frame == frame);
        if first && word.grant(mode) {
            word.set_waiters(false);
            return None;
        }
        let ticket = LatchTicket { frame, id: queue.next_id, task: TaskId::current() };
        queue.next_id += 1;
        let state = State::Waiting(waker.clone());
        queue.waiters.push_back(Waiter { ticket, page, mode, state, explain: false });
        drop(queue);
        self.watch.wake();
        Some(ticket)
    }

    /// Grants the latch of `frame` to the next waiters in line.
    #[cold]
    pub(crate) fn grant(&self, frame: FrameId, word: &Word) {
        let mut queue = self.shard(frame).lock();
        let mut wakers = SmallVec::<[Waker; 2]>::new();
        let mut left = false;
        for waiter in queue.waiters.iter_mut().filter(|w| w.ticket.frame == frame && !w.granted()) {
            // Strictly in line: if readers behind a waiting writer went first, it might wait forever.
            if !word.grant(waiter.mode) {
                left = true;
                break;
            }
            wakers.extend(waiter.end_wait(State::Granted));
        }
        word.set_waiters(left);
        drop(queue);
        // Outside the lock: a waker may run code that takes it again.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether the waiter has been granted the latch or refused. After a grant it has left the queue.
    pub(crate) fn poll(&self, ticket: LatchTicket, waker: &Waker) -> Poll<Result<(), Refused>> {
        let mut queue = self.shard(ticket.frame).lock();
        // Polled again after its end: it left the queue when the latch was granted.
        let Some(at) = queue.position(ticket) else { return Poll::Pending };
        if std::mem::take(&mut queue.waiters[at].explain) {
            let page = queue.waiters[at].page;
            // It takes milliseconds: not under the lock.
            drop(queue);
            place::warn(page);
            return self.poll(ticket, waker);
        }
        let known = match &mut queue.waiters[at].state {
            State::Waiting(known) if known.will_wake(waker) => return Poll::Pending,
            State::Waiting(known) => std::mem::replace(known, waker.clone()),
            State::Refused => return Poll::Ready(Err(Refused)),
            State::Granted => {
                queue.waiters.remove(at);
                return Poll::Ready(Ok(()));
            }
        };
        // Dropping a waker may drop its task, with guards and waits: not under the lock.
        drop(queue);
        drop(known);
        Poll::Pending
    }

    /// Removes the waiter; returns whether it had been granted the latch.
    pub(crate) fn cancel(&self, ticket: LatchTicket) -> bool {
        let mut queue = self.shard(ticket.frame).lock();
        let at = queue.position(ticket);
        let waiter = at.and_then(|at| queue.waiters.remove(at));
        drop(queue);
        waiter.is_some_and(|w| w.granted())
    }

    /// Makes a wait say where it waits, unless it has ended.
    pub(crate) fn explain(&self, ticket: LatchTicket) {
        let mut queue = self.shard(ticket.frame).lock();
        let Some(at) = queue.position(ticket) else { return };
        let waiter = &mut queue.waiters[at];
        let State::Waiting(waker) = &waiter.state else { return };
        let waker = waker.clone();
        waiter.explain = true;
        drop(queue);
        waker.wake();
    }

    /// Ends a wait with an error, unless it has ended or was granted the latch.
    pub(crate) fn refuse(&self, ticket: LatchTicket) {
        let mut queue = self.shard(ticket.frame).lock();
        let Some(at) = queue.position(ticket) else { return };
        let waiter = &mut queue.waiters[at];
        let waker = if waiter.granted() { None } else { waiter.end_wait(State::Refused) };
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The waits at this moment, with the pages on whose behalf. Locks one shard at a time.
    pub(crate) fn waits(&self) -> Vec<(LatchTicket, PageId)> {
        let mut waits = Vec::new();
        for shard in &self.shards {
            waits.extend(shard.lock().waiters.iter().map(|w| (w.ticket, w.page)));
        }
        waits
    }

    /// Whether no task waits. Locks one shard at a time.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().waiters.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;
    use std::sync::atomic::{AtomicU32, Ordering};

    const FRAME: FrameId = FrameId(3);
    const PAGE: PageId = PageId::new(SpaceId(1), 7);
    const GRANTED: Poll<Result<(), Refused>> = Poll::Ready(Ok(()));
    const REFUSED: Poll<Result<(), Refused>> = Poll::Ready(Err(Refused));

    /// Counts how often its waker wakes it.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waker() -> (Arc<Woken>, Waker) {
        let woken = Arc::<Woken>::default();
        (Arc::clone(&woken), Waker::from(woken))
    }

    /// Queues and the word of a frame whose exclusive latch is held.
    fn held() -> (LatchQueues, Word) {
        let word = Word::new();
        word.begin_fill();
        (LatchQueues::new(), word)
    }

    fn enqueue(waiters: &LatchQueues, word: &Word, waker: &Waker) -> LatchTicket {
        assert!(word.pin());
        waiters.enqueue((FRAME, PAGE, Mode::Exclusive), word, waker).expect("the latch is held")
    }

    #[test]
    fn a_grant_wakes_the_task_that_polled_last() {
        let (waiters, word) = held();
        let ((first, first_waker), (last, last_waker)) = (waker(), waker());
        let ticket = enqueue(&waiters, &word, &first_waker);
        assert_eq!(waiters.waits(), [(ticket, PAGE)]);
        assert_eq!(waiters.poll(ticket, &first_waker), Poll::Pending);
        assert_eq!(waiters.poll(ticket, &last_waker), Poll::Pending);
        assert!(word.release(Mode::Exclusive).wake);
        waiters.grant(FRAME, &word);
        let woken = [&first, &last].map(|woken| woken.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
        assert_eq!(waiters.poll(ticket, &last_waker), GRANTED);
        assert!(waiters.is_empty());
        assert!(!word.release(Mode::Exclusive).wake);
    }

    #[test]
    fn a_refused_wait_ends_with_an_error_unless_the_latch_is_granted_first() {
        let (waiters, word) = held();
        let (woken, waker) = waker();
        let tickets = [(); 2].map(|()| enqueue(&waiters, &word, &waker));
        waiters.refuse(tickets[0]);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(waiters.poll(tickets[0], &waker), REFUSED);
        assert!(!waiters.cancel(tickets[0]));
        word.release(Mode::Exclusive);
        waiters.grant(FRAME, &word);
        waiters.refuse(tickets[1]);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!(waiters.poll(tickets[1], &waker), GRANTED);
        // It has left the queue.
        waiters.refuse(tickets[1]);
        assert!(waiters.is_empty());
    }
}
