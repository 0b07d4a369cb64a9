//! The pool's synchronisation primitives: the standard library's, parking_lot's and crossbeam's, or under
//! `cfg(loom)` the model checker's equivalents with the same names and methods.
//!
//! Everything that governs access to a page or a frame uses these. Statistics and limits do not: a model need
//! not try every order of them.

#[cfg(not(loom))]
mod real {
    pub(crate) use crossbeam_queue::ArrayQueue;
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
}

#[cfg(loom)]
mod modelled {
    use std::collections::VecDeque;

    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

    /// Locks like parking_lot's mutex: a panic ends the model, so poisoning does not arise.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        #[track_caller]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }

        #[track_caller]
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// Models crossbeam's bounded queue as a lock around a list: its contract, not its implementation.
    #[derive(Debug)]
    pub(crate) struct ArrayQueue<T> {
        items: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self { items: Mutex::new(VecDeque::new()), capacity }
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut items = self.items.lock();
            if items.len() == self.capacity {
                return Err(item);
            }
            items.push_back(item);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.items.lock().pop_front()
        }

        pub(crate) fn len(&self) -> usize {
            self.items.lock().len()
        }
    }
}

#[cfg(loom)]
pub(crate) use modelled::{ArrayQueue, AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use real::{ArrayQueue, AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard};
