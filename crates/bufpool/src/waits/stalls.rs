//! Logs waits that take long, so that a hang explains itself.
//!
//! A wait for a frame, the log or the storage below registers here; a wait for a latch is found in its queue
//! (`queues`); a hit never waits. While there are waits, a task checks them once a second and warns of each
//! one that is old, again whenever its age has doubled. A wait for a latch also says once which calls led to
//! it (`place`). In debug builds the task refuses a wait for a latch that the waiting task itself holds.

use crate::waits::holders::Holders;
use crate::waits::queues::{LatchQueues, LatchTicket};
use crate::waits::watch::Watch;
use pagetier_page::PageId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// The age of a wait at the first warning.
const LONG: Duration = Duration::from_secs(5);
/// The interval between two checks of the waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The number of waits that one check makes say where they wait, which takes milliseconds each.
const EXPLAINED_MAX: usize = 4;

/// What a request or a write waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Latch,
    Frame,
    Log,
    Read,
    Write,
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latch => "its latch: a task holds a guard of it",
            Self::Frame => "a free frame: every frame is pinned or dirty",
            Self::Log => "the log to be durable, before the page may be written",
            Self::Read => "a device to read it",
            Self::Write => "a device to write it",
        })
    }
}

/// Identifies a wait among all of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum WaitId {
    Registered(u64),
    Latch(LatchTicket),
}

/// A wait, as a check finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    id: WaitId,
    on: On,
    page: PageId,
}

/// The registered waits. Each has a place of its own while it lasts, which costs less than a key.
#[derive(Debug, Default)]
struct Places {
    waits: Vec<Option<(u64, On, PageId)>>,
    free: Vec<usize>,
    /// The number of waits so far, which identifies the last one.
    count: u64,
}

/// The waits at this moment.
#[derive(Debug)]
pub(crate) struct Stalls {
    registered: Mutex<Places>,
    waiters: Arc<LatchQueues>,
    pub(crate) holders: Holders,
}

/// A registered wait; ends when dropped.
pub(crate) struct Registered<'a> {
    stalls: &'a Stalls,
    at: usize,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut places = self.stalls.registered.lock();
        places.waits[self.at] = None;
        places.free.push(self.at);
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        // Wake the task: it finds the pool gone and ends.
        self.watch().end();
    }
}

impl Stalls {
    /// `queues` has the waits for latches.
    pub(crate) fn new(waiters: Arc<LatchQueues>) -> Self {
        Self { registered: Mutex::default(), waiters, holders: Holders::default() }
    }

    /// Registers a wait on behalf of `page`, for anything but a latch.
    pub(crate) fn wait(&self, on: On, page: PageId) -> Registered<'_> {
        let mut places = self.registered.lock();
        places.count += 1;
        let wait = Some((places.count, on, page));
        let at = places.free.pop().unwrap_or(places.waits.len());
        match places.waits.get_mut(at) {
            Some(place) => *place = wait,
            None => places.waits.push(wait),
        }
        drop(places);
        self.watch().wake();
        Registered { stalls: self, at }
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.waiters.watch
    }

    fn waits(&self) -> Vec<Waiting> {
        let places = self.registered.lock();
        let other = places.waits.iter().flatten();
        let mut waits: Vec<_> =
            other.map(|&(id, on, page)| Waiting { id: WaitId::Registered(id), on, page }).collect();
        drop(places);
        let latches = self.waiters.waits().into_iter();
        waits.extend(latches.map(|(ticket, page)| Waiting {
            id: WaitId::Latch(ticket),
            on: On::Latch,
            page,
        }));
        waits
    }

    fn any(&self) -> bool {
        let is_registered = |places: &Places| places.free.len() < places.waits.len();
        is_registered(&self.registered.lock()) || !self.waiters.is_empty()
    }

    /// Warns of old waits, and refuses those that cannot end. Returns whether there is any wait.
    fn look(&self, ages: &mut Ages) -> bool {
        let waits = self.waits();
        let mut explained = 0;
        for (Waiting { id, on, page }, age) in ages.due(&waits, Instant::now()) {
            tracing::warn!(page = %page, waited = ?age, "page {page} has waited {age:.0?} for {on}");
            let WaitId::Latch(ticket) = id else { continue };
            // Once per wait. A thousand requests that wait for one page would say the same.
            if age < LONG * 2 && explained < EXPLAINED_MAX {
                explained += 1;
                self.waiters.explain(ticket);
            }
            // Only after it is old: a guard that its task is about to drop, in another branch of a `join`,
            // looks the same for a moment.
            if self.holders.holds(page, ticket.task) {
                self.waiters.refuse(ticket);
            }
        }
        !waits.is_empty()
    }
}

/// When a check first found a wait, and the age at which to warn of it next.
#[derive(Debug)]
struct Age {
    since: Instant,
    warn_at: Duration,
}

/// The ages of the waits. Only the task keeps them, so that no wait reads a clock: an age lacks the time
/// before the first check that found the wait, at most [`LOOK_EVERY`].
#[derive(Debug, Default)]
struct Ages(FxHashMap<WaitId, Age>);

impl Ages {
    /// Notes `waits`, which are all that there are, and forgets those that have ended. Returns the ones to
    /// warn of, with their ages.
    fn due(&mut self, waits: &[Waiting], now: Instant) -> Vec<(Waiting, Duration)> {
        let mut before = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for waiting in waits {
            let mut age = before.remove(&waiting.id).unwrap_or(Age { since: now, warn_at: LONG });
            let waited = now - age.since;
            if waited >= age.warn_at {
                age.warn_at = waited * 2;
                due.push((*waiting, waited));
            }
            self.0.insert(waiting.id, age);
        }
        due
    }
}

/// The task that checks the waits. Ends with the pool.
pub(crate) async fn run(stalls: Weak<Stalls>, watch: Arc<Watch>) {
    loop {
        watch.woken().await;
        let mut ages = Ages::default();
        loop {
            // First the pause: most waits end within microseconds, and a look locks every queue.
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(stalls) = stalls.upgrade() else { return };
            if !stalls.look(&mut ages) && watch.rest(|| stalls.any()) {
                break;
            }
        }
        if stalls.strong_count() == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;

    const PAGE: PageId = PageId::new(SpaceId(1), 0);

    fn wait(id: u64) -> Waiting {
        Waiting { id: WaitId::Registered(id), on: On::Log, page: PAGE }
    }

    /// The ages of the waits due after these numbers of seconds; `waits` are there at each check.
    fn due(ages: &mut Ages, start: Instant, seconds: &[u64], waits: &[Waiting]) -> Vec<(Waiting, u64)> {
        let at = |s: &u64| start + Duration::from_secs(*s);
        let due = seconds.iter().flat_map(|s| ages.due(waits, at(s)));
        due.map(|(waiting, age)| (waiting, age.as_secs())).collect()
    }

    #[test]
    fn a_wait_is_due_when_it_is_old_and_whenever_its_age_has_doubled() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        let seconds: Vec<u64> = (0..50).collect();
        let found = due(&mut ages, start, &seconds, &[wait(1)]);
        assert_eq!(found, [5, 10, 20, 40].map(|age| (wait(1), age)));
    }

    #[test]
    fn a_wait_that_ended_is_forgotten_and_another_one_starts_at_zero() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        assert_eq!(due(&mut ages, start, &[0, 4], &[wait(1)]), []);
        assert_eq!(due(&mut ages, start, &[5, 9], &[wait(2)]), []);
        assert_eq!(ages.0.len(), 1);
        assert_eq!(due(&mut ages, start, &[10], &[wait(2), wait(3)]), [(wait(2), 5)]);
        assert_eq!(due(&mut ages, start, &[11], &[]), []);
        assert!(ages.0.is_empty());
    }
}
