//! An owner's claim to a volume that another machine may take over.
//!
//! A device that learns that the volume has another owner ends the claim. What the former owner has in
//! memory, or on its own SSD, grows old from then on: it must not serve it. A claim that has ended never
//! holds again, even if nothing keeps this owner out any more: the other one may have written meanwhile.

use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Is told when a claim ends.
pub trait OnEnd: Send + Sync {
    /// The claim has ended. Called at most once, on any thread; it must not block.
    fn ended(&self);
}

/// See the module. Clones share it.
#[derive(Clone, Default)]
pub struct Claim(Arc<State>);

#[derive(Default)]
struct State {
    has_ended: AtomicBool,
    listeners: Mutex<Vec<Weak<dyn OnEnd>>>,
}

impl Claim {
    /// Whether it still holds.
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.0.has_ended.load(Ordering::Acquire)
    }

    /// Ends it: the volume has another owner.
    pub fn end(&self) {
        if !self.0.has_ended.swap(true, Ordering::AcqRel) {
            self.tell();
        }
    }

    fn tell(&self) {
        let listeners = std::mem::take(&mut *self.0.listeners.lock());
        // Outside the lock: they may look at the claim.
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.ended());
    }

    /// Tells `listener` when it ends, or at once if it has ended.
    pub fn on_end(&self, listener: Weak<dyn OnEnd>) {
        let mut listeners = self.0.listeners.lock();
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(listener);
        drop(listeners);
        // It may have ended before the entry.
        if !self.holds() {
            self.tell();
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("holds", &self.holds()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Ends(AtomicUsize);

    impl OnEnd for Ends {
        fn ended(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_listener_that_lives_is_told_once_that_the_claim_has_ended() {
        let (one, other, late) = <(Arc<Ends>, Arc<Ends>, Arc<Ends>)>::default();
        let weak = |ends: &Arc<Ends>| -> Weak<dyn OnEnd> {
            let ends: Arc<dyn OnEnd> = Arc::clone(ends) as _;
            Arc::downgrade(&ends)
        };
        let claim = Claim::default();
        claim.on_end(weak(&one));
        claim.on_end(weak(&other));
        drop(other);
        assert!(claim.holds());
        claim.end();
        claim.clone().end();
        assert!(!claim.holds());
        claim.on_end(weak(&late));
        assert_eq!((one.0.load(Ordering::Relaxed), late.0.load(Ordering::Relaxed)), (1, 1));
    }
}
