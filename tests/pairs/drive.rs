//! Runs two operations at once, and may drop one of them at one of its awaits.

use crate::judge::{check_backup, judge};
use crate::operations::{Ended, Operation, Running};
use crate::world::{Disks, Setup, Side, World};
use pagetier_devio::locks::{Violations, observed};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// In virtual time; far longer than any operation takes.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// A moment in the life of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It has been polled so often: each poll ends at another await.
    Polls(u32),
    /// So long after the case began, in virtual time: what an operation does in a task of its own takes no
    /// polls.
    Time(Duration),
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Polls(polls) => write!(f, "{polls} polls"),
            Self::Time(time) => write!(f, "{time:?}"),
        }
    }
}

/// Two operations, and how they meet.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) operations: [&'static Operation; 2],
    /// The second begins at this moment of the first, or when the first has ended.
    pub(crate) gap: Moment,
    /// Which one is dropped, and when.
    pub(crate) dropped: Option<(Side, Moment)>,
    pub(crate) seed: u64,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second] = self.operations.map(|operation| operation.name);
        write!(f, "`{first}`, then `{second}` after {}", self.gap)?;
        if let Some((side, moment)) = self.dropped {
            write!(f, "; the {} is dropped after {moment}", format!("{side:?}").to_lowercase())?;
        }
        write!(f, " (seed {})", self.seed)
    }
}

impl Case {
    /// `None` if the two need different states of the store.
    pub(crate) fn setup(&self) -> Option<Setup> {
        let [one, other] = self.operations.map(|operation| operation.setup);
        let differ = one != other && one.min(other) != Setup::InUse;
        (!differ).then_some(one.max(other))
    }
}

/// How a case ended.
pub(crate) struct Met {
    /// `None`: it was dropped.
    pub(crate) ends: [Option<Ended>; 2],
    pub(crate) polls: [u32; 2],
    /// When each was over, in virtual time from the beginning.
    pub(crate) took: [Duration; 2],
}

/// Whether a leg was woken.
struct Woken {
    itself: AtomicBool,
    task: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.itself.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

/// One of the two operations, with a waker of its own: it is polled only when it was woken, so that each poll
/// ends at another await.
struct Leg<'a> {
    running: Option<Running<'a>>,
    woken: Option<Arc<Woken>>,
    polls: u32,
    drop_after: Option<Moment>,
    ended: Option<Ended>,
    over: Option<Instant>,
}

impl<'a> Leg<'a> {
    fn new(
        world: &'a World,
        operation: &'static Operation,
        side: Side,
        drop_after: Option<Moment>,
        found: &Violations,
    ) -> Self {
        let running = (drop_after != Some(Moment::Polls(0)))
            .then(|| -> Running<'a> { Box::pin(observed(found, (operation.run)(world, side))) });
        Self { running, woken: None, polls: 0, drop_after, ended: None, over: None }
    }

    /// Whether it is over: ended, or dropped.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let woken = self.woken.get_or_insert_with(|| {
            Arc::new(Woken { itself: AtomicBool::new(true), task: context.waker().clone() })
        });
        let Some(running) = &mut self.running else { return true };
        if woken.itself.swap(false, Ordering::AcqRel) {
            self.polls += 1;
            let waker = Waker::from(Arc::clone(woken));
            if let Poll::Ready(ended) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.ended = Some(ended);
                self.running = None;
            } else if self.drop_after == Some(Moment::Polls(self.polls)) {
                self.running = None;
            }
        }
        if self.running.is_none() {
            self.over.get_or_insert_with(Instant::now);
        }
        self.running.is_none()
    }
}

/// Completes at `moment` if that is a time, otherwise never.
fn at(begun: Instant, moment: Option<Moment>) -> Pin<Box<Sleep>> {
    let after = if let Some(Moment::Time(after)) = moment { after } else { LONG * 2 };
    Box::pin(sleep_until(begun + after))
}

/// Runs both operations to their ends. `Err`: they hang.
pub(crate) async fn meet(world: &World, case: Case) -> Result<Met, String> {
    let drop_after = |side| case.dropped.filter(|(dropped, _)| *dropped == side).map(|(_, moment)| moment);
    let found = Violations::default();
    let mut legs = Side::BOTH
        .map(|side| Leg::new(world, case.operations[side as usize], side, drop_after(side), &found));
    let begun = Instant::now();
    let mut start = at(begun, Some(case.gap));
    let mut drops = at(begun, case.dropped.map(|(_, moment)| moment));
    let both = poll_fn(|context| {
        if !drops.is_elapsed() && drops.as_mut().poll(context).is_ready() {
            let dropped = case.dropped.map(|(side, _)| side as usize);
            dropped.into_iter().for_each(|side| legs[side].running = None);
        }
        let [first, second] = &mut legs;
        let one = first.poll(context);
        let polled = matches!(case.gap, Moment::Polls(polls) if first.polls >= polls);
        let begins = one || polled || start.is_elapsed() || start.as_mut().poll(context).is_ready();
        let other = begins && second.poll(context);
        if one && other { Poll::Ready(()) } else { Poll::Pending }
    });
    let hang = tokio::time::timeout(LONG, both).await.is_err();
    let polls = [legs[0].polls, legs[1].polls];
    if hang {
        let hanging: Vec<&str> =
            (0..2).filter(|nth| legs[*nth].running.is_some()).map(|nth| case.operations[nth].name).collect();
        return Err(format!("`{}` hangs after {polls:?} polls", hanging.join("` and `")));
    }
    if let Some(wrong) = found.all().first() {
        return Err(wrong.to_string());
    }
    let took = [legs[0].over, legs[1].over].map(|over| over.map_or(Duration::ZERO, |over| over - begun));
    Ok(Met { ends: legs.map(|leg| leg.ended), polls, took })
}

/// Runs a case on a copy of `base`, and checks it. `Err` says what is wrong.
pub(crate) fn run(base: &Disks, case: Case) -> Result<Met, String> {
    let Some(setup) = case.setup() else { return Err("the two need different states of the store".into()) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    let backed_up = case.operations.iter().any(|operation| operation.name == "backup");
    let disks = base.fork(case.seed);
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let (met, world, backup) = runtime.block_on(async {
            let world = World::open(disks, setup, backed_up).await;
            let met = meet(&world, case).await?;
            let backup = judge(&world, case, &met).await?;
            Ok::<_, String>((met, world, backup))
        })?;
        // A restoration writes files, for which a paused clock would not wait.
        if let Some(allowed) = backup.filter(|_| case.dropped.is_none()) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|error| error.to_string())?.block_on(check_backup(&world, &allowed))?;
        }
        Ok(met)
    }));
    // A task that is stuck in a blocking call would hang the test instead of failing it.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        Err(format!("a panic: {}", said.unwrap_or_default()))
    })
}
