//! Runs two operations at once, and may drop one of them at one of its awaits.

use crate::judge::{check_backup, judge};
use crate::operations::{Ended, Operation, Running};
use crate::world::{Disks, Setup, Side, World};
use pagetier_devio::locks::{Violations, observed};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// In virtual time; far longer than any operation takes.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Two operations, and how they meet.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) operations: [&'static Operation; 2],
    /// The second begins when the first has been polled so often, or has ended.
    pub(crate) gap: u32,
    /// Which one is dropped, after so many polls.
    pub(crate) dropped: Option<(Side, u32)>,
    pub(crate) seed: u64,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second] = self.operations.map(|operation| operation.name);
        write!(f, "`{first}`, then `{second}` after {} polls", self.gap)?;
        if let Some((side, polls)) = self.dropped {
            write!(f, "; the {} is dropped after {polls} polls", format!("{side:?}").to_lowercase())?;
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
    drop_after: Option<u32>,
    ended: Option<Ended>,
}

impl<'a> Leg<'a> {
    fn new(
        world: &'a World,
        operation: &'static Operation,
        side: Side,
        drop_after: Option<u32>,
        found: &Violations,
    ) -> Self {
        let running = (drop_after != Some(0))
            .then(|| -> Running<'a> { Box::pin(observed(found, (operation.run)(world, side))) });
        Self { running, woken: None, polls: 0, drop_after, ended: None }
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
            } else if self.drop_after == Some(self.polls) {
                self.running = None;
            }
        }
        self.running.is_none()
    }
}

/// Runs both operations to their ends. `Err`: they hang.
pub(crate) async fn meet(world: &World, case: Case) -> Result<Met, String> {
    let drop_after = |side| case.dropped.filter(|(dropped, _)| *dropped == side).map(|(_, polls)| polls);
    let found = Violations::default();
    let mut legs = Side::BOTH
        .map(|side| Leg::new(world, case.operations[side as usize], side, drop_after(side), &found));
    let both = poll_fn(|context| {
        let [first, second] = &mut legs;
        loop {
            let polled = first.polls;
            let one = first.poll(context);
            let other = if one || first.polls >= case.gap { second.poll(context) } else { false };
            if one && other {
                return Poll::Ready(());
            }
            // The first poll of one of them may have been due just now.
            if first.polls == polled {
                return Poll::Pending;
            }
        }
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
    Ok(Met { ends: legs.map(|leg| leg.ended), polls })
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
