//! An owner's claim to a volume that another machine may take over.
//!
//! A device that learns that the volume has another owner ends the claim. What the former owner has in
//! memory, or on its own SSD, grows old from then on: it must not serve it. A claim that has ended never
//! holds again, even if nothing keeps this owner out any more: the other one may have written meanwhile.
//!
//! An owner that has nothing to ask of the volume would not learn of another one. So a claim can be limited
//! in time: it then *lapses* unless it is renewed, and holds again once it is. Time in which the process or
//! the machine was stopped counts, so one that resumes has lapsed before it does anything else.

use parking_lot::Mutex;
use rustix::time::ClockId;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Is told of changes of a claim, on any thread; it must not block.
pub trait OnChange: Send + Sync {
    /// The claim has ended. Called at most once.
    fn ended(&self);

    /// The claim has lapsed, or holds again. Default: nothing.
    fn lapsed(&self, _lapsed: bool) {}
}

/// Nanoseconds since some moment, those of a suspended machine included.
type Clock = fn() -> u64;

/// See the module. Clones share it.
#[derive(Clone, Default)]
pub struct Claim(Arc<State>);

/// Until when a claim holds, by its clock.
const ENDED: u64 = 0;
const UNLIMITED: u64 = u64::MAX;

struct State {
    until: AtomicU64,
    is_last: AtomicBool,
    clock: Clock,
    changed: Notify,
    listeners: Mutex<Vec<Weak<dyn OnChange>>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(UNLIMITED),
            is_last: AtomicBool::new(false),
            clock: boot_time,
            changed: Notify::new(),
            listeners: Mutex::default(),
        }
    }
}

fn boot_time() -> u64 {
    now(ClockId::Boottime)
}

/// Nanoseconds, without the arithmetic of `Instant`: a device asks twice per operation.
pub(crate) fn now(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// When a claim lapses that was confirmed by what was asked at the moment `asked`.
fn until(asked: u64, length: Duration) -> u64 {
    asked.saturating_add(length.as_nanos() as u64).clamp(1, UNLIMITED - 1)
}

impl Claim {
    /// A claim whose time is tokio's, which tests can pause: for simulated devices.
    #[doc(hidden)]
    #[must_use]
    pub fn in_tokio_time() -> Self {
        use std::sync::LazyLock;
        use std::time::Instant;
        // In the past: a runtime whose time is paused may have begun before this is first asked.
        static BASE: LazyLock<Instant> = LazyLock::new(|| {
            let now = Instant::now();
            now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
        });
        LazyLock::force(&BASE);
        let clock = || {
            let now = tokio::time::Instant::now().into_std();
            1 + now.saturating_duration_since(*BASE).as_nanos() as u64
        };
        Self(Arc::new(State { clock, ..State::default() }))
    }

    /// A claim of one of the volume's users: it ends with `self`, and is limited by itself.
    #[must_use]
    pub fn of_user(&self) -> Self {
        let user = Arc::new(State { clock: self.0.clock, ..State::default() });
        let listener: Weak<dyn OnChange> = Arc::downgrade(&(Arc::clone(&user) as Arc<dyn OnChange>));
        self.on_change(listener);
        Self(user)
    }

    /// Whether it holds: it has neither ended nor lapsed.
    #[inline]
    #[must_use]
    pub fn holds(&self) -> bool {
        let until = self.0.until.load(Ordering::Acquire);
        until == UNLIMITED || (until != ENDED && (self.0.clock)() < until)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let until = self.0.until.load(Ordering::Acquire);
        until == ENDED || (self.0.is_last.load(Ordering::Acquire) && !self.holds())
    }

    /// Whether it has lapsed, and not ended.
    #[must_use]
    pub fn has_lapsed(&self) -> bool {
        !self.has_ended() && !self.holds()
    }

    /// The present moment, for [`Claim::renew`].
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.0.clock)()
    }

    /// The owner was confirmed by what was asked at the moment `asked` or later: the claim holds for `length`
    /// from then on, and lapses then.
    pub fn limit(&self, asked: u64, length: Duration) {
        self.update(|before| (before != ENDED).then_some(until(asked, length)));
    }

    /// The same for a claim that is limited.
    pub fn renew(&self, asked: u64, length: Duration) {
        let later = |before: u64| before.max(until(asked, length));
        self.update(|before| (![ENDED, UNLIMITED].contains(&before)).then(|| later(before)));
    }

    fn update(&self, change: impl Fn(u64) -> Option<u64>) {
        let _ = self.0.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        self.0.changed.notify_waiters();
    }

    /// How long it holds if it is not renewed.
    #[must_use]
    pub fn left(&self) -> Duration {
        match self.0.until.load(Ordering::Acquire) {
            UNLIMITED => Duration::MAX,
            until => Duration::from_nanos(until.saturating_sub(self.now())),
        }
    }

    /// Waits until it holds, or has ended. Cancel-safe.
    pub async fn confirmed(&self) {
        while self.has_lapsed() {
            crate::listen!(changed = self.0.changed);
            if !self.has_lapsed() {
                return;
            }
            changed.await;
        }
    }

    /// Ends it: the volume has another owner.
    pub fn end(&self) {
        self.0.end();
    }

    /// It holds until it ends: its user does nothing any more.
    pub fn unlimit(&self) {
        self.update(|before| (before != ENDED).then_some(UNLIMITED));
    }

    /// It is not renewed any more: once its time is over, it has ended.
    pub fn renew_no_more(&self) {
        self.0.is_last.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Tells those that listen whether it has lapsed.
    pub fn tell_lapsed(&self, lapsed: bool) {
        let listeners = self.0.listeners.lock().clone();
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.lapsed(lapsed));
    }

    /// Tells `listener` of changes, and at once if it has ended.
    pub fn on_change(&self, listener: Weak<dyn OnChange>) {
        let mut listeners = self.0.listeners.lock();
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(listener);
        drop(listeners);
        // It may have ended before the entry.
        if self.has_ended() {
            self.0.tell_ended();
        }
    }
}

impl State {
    fn end(&self) {
        if self.until.swap(ENDED, Ordering::AcqRel) != ENDED {
            self.changed.notify_waiters();
            self.tell_ended();
        }
    }

    fn tell_ended(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        // Outside the lock: they may look at the claim.
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.ended());
    }
}

/// The claim of a user, which listens to the volume's.
impl OnChange for State {
    fn ended(&self) {
        self.end();
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ended, lapsed) = (self.has_ended(), self.has_lapsed());
        f.debug_struct("Claim").field("ended", &ended).field("lapsed", &lapsed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Ends(AtomicUsize);

    impl OnChange for Ends {
        fn ended(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_listener_that_lives_is_told_once_that_the_claim_has_ended() {
        let (one, other, late) = <(Arc<Ends>, Arc<Ends>, Arc<Ends>)>::default();
        let weak = |ends: &Arc<Ends>| -> Weak<dyn OnChange> {
            let ends: Arc<dyn OnChange> = Arc::clone(ends) as _;
            Arc::downgrade(&ends)
        };
        let claim = Claim::default();
        claim.on_change(weak(&one));
        claim.on_change(weak(&other));
        drop(other);
        assert!(claim.holds());
        claim.end();
        claim.clone().end();
        assert!(!claim.holds());
        claim.on_change(weak(&late));
        assert_eq!((one.0.load(Ordering::Relaxed), late.0.load(Ordering::Relaxed)), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_claim_lapses_unless_it_is_renewed_and_one_that_ended_stays_so() {
        let volume = Claim::in_tokio_time();
        let claim = volume.of_user();
        let length = Duration::from_secs(3);
        claim.renew(claim.now(), length);
        assert_eq!(claim.left(), Duration::MAX, "it is not limited");
        claim.limit(claim.now(), length);
        let asked = claim.now();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(claim.holds());
        claim.renew(asked, length);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!claim.holds() && claim.has_lapsed(), "three seconds after it was asked, not answered");
        let waiting = tokio::spawn({
            let claim = claim.clone();
            async move { claim.confirmed().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        claim.renew(claim.now(), length);
        waiting.await.unwrap();
        assert!(claim.holds() && volume.holds());
        volume.end();
        claim.renew(claim.now(), length);
        assert!(claim.has_ended() && !claim.holds() && !claim.has_lapsed());
        claim.confirmed().await;
    }
}
