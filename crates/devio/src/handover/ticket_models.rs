//! Loom models of the hand-over from a device to the waiting task, with the real ticket and the real buffers.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p pagetier-devio --lib models`. The ring and the threads
//! behind the ticket belong to the kernel. The function `device` does what they do to an operation: keep it,
//! check whether a task waits, finish it, deliver it.
//!
//! The models caught each of these deliberate faults: the ticket keeps a task's first waker; releases its
//! lock between checking and storing the waker; overwrites a result that arrives in between; treats an
//! operation as abandoned that only has no waker yet.

use crate::IoBuf;
use crate::handover::ticket::{Promise, ticket};
use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::thread;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(run);
}

fn poll_once<T>(ticket: Pin<&mut crate::handover::ticket::Ticket<T>>, waker: &Waker) -> Poll<T> {
    ticket.poll(&mut Context::from_waker(waker))
}

/// Memory watched by the model: an access that is not ordered after the previous one fails the model.
#[derive(Default)]
struct Memory {
    cell: UnsafeCell<u64>,
    given_back: AtomicU32,
}

// SAFETY: loom's cell checks every access; proving that no two overlap is the purpose of these models.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

fn lease(memory: &Arc<Memory>) -> IoBuf {
    let owner = Arc::clone(memory);
    let give_back = Arc::new(move |_| {
        // The owner accesses the memory next: the device must be done with it.
        owner.cell.with_mut(|_| ());
        owner.given_back.fetch_add(1, Ordering::Relaxed);
    });
    // SAFETY: the length is zero, so no byte is ever read or written.
    unsafe { IoBuf::lease(NonNull::dangling(), 0, give_back, 0) }
}

/// What a device does to an accepted operation: the kernel writes to the buffer's memory, then the task gets
/// the buffer.
fn device(promise: Promise<IoBuf>, buf: IoBuf, memory: &Memory) {
    memory.cell.with_mut(|_| ());
    assert_eq!(memory.given_back.load(Ordering::Relaxed), 0, "given back while the device has it");
    promise.complete(buf);
}

#[test]
fn a_completion_wakes_the_task_that_waits() {
    model(|| {
        let (promise, ticket) = ticket();
        let device = thread::spawn(move || promise.complete(7));
        assert_eq!(block_on(ticket), 7);
        assert!(device.join().is_ok());
    });
}

#[test]
fn a_task_that_moves_is_woken_where_it_waits_last() {
    model(|| {
        let (promise, ticket) = ticket();
        let mut ticket = Box::pin(ticket);
        let device = thread::spawn(move || promise.complete(7));
        if let Poll::Ready(value) = poll_once(ticket.as_mut(), Waker::noop()) {
            assert_eq!(value, 7);
        } else {
            assert_eq!(block_on(ticket), 7);
        }
        assert!(device.join().is_ok());
    });
}

#[test]
fn a_buffer_comes_back_after_the_device_is_done_with_it() {
    model(|| {
        let memory = Arc::new(Memory::default());
        let (promise, ticket) = ticket();
        let (buf, theirs) = (lease(&memory), Arc::clone(&memory));
        let device = thread::spawn(move || device(promise, buf, &theirs));
        let buf = block_on(ticket);
        memory.cell.with_mut(|_| ());
        drop(buf);
        assert!(device.join().is_ok());
        assert_eq!(memory.given_back.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_dropped_future_leaves_the_buffer_to_the_device_and_it_is_given_back_once() {
    model(|| {
        let memory = Arc::new(Memory::default());
        let (promise, ticket) = ticket();
        let (buf, theirs) = (lease(&memory), Arc::clone(&memory));
        let device = thread::spawn(move || device(promise, buf, &theirs));
        let mut ticket = Box::pin(ticket);
        let _ = poll_once(ticket.as_mut(), Waker::noop());
        drop(ticket);
        assert!(device.join().is_ok());
        assert_eq!(memory.given_back.load(Ordering::Relaxed), 1, "neither leaked nor given back twice");
        memory.cell.with_mut(|_| ());
    });
}

#[test]
fn an_operation_is_given_up_only_when_no_task_waits() {
    model(|| {
        let (promise, ticket) = ticket();
        let device = thread::spawn(move || {
            let abandoned = promise.is_abandoned();
            promise.complete(!abandoned);
        });
        let gives_up = thread::spawn(move || {
            let mut ticket = Box::pin(ticket);
            match poll_once(ticket.as_mut(), Waker::noop()) {
                Poll::Ready(served) => assert!(served, "given up although a task waits"),
                Poll::Pending => assert!(block_on(ticket), "given up although a task waits"),
            }
        });
        assert!(device.join().is_ok());
        assert!(gives_up.join().is_ok());
    });
}
