//! Calls dropped at one of their awaits: every public future of the store, polled a few times and dropped.

use super::worker::{Outcome, Worker};
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::State;
use pagetier::{DrainOptions, Lsn, PageId, PageStore, SpaceId, SsdMode, scrub::ScrubOptions};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use rand::Rng;
use std::sync::Arc;
use std::task::Poll;

impl Worker {
    /// Starts a random call, and drops it at one of its awaits unless it completes first.
    pub(crate) async fn dropped(&mut self) -> Outcome {
        let polls = [1, 1, 2, 3, 5, 10, 30][self.rng.random_range(0..7)];
        self.probe.mark(State::DroppedCall);
        let store = Arc::clone(&self.store);
        if self.plan.hazard == Hazard::DroppedFlush && self.errors_allowed && self.rng.random_bool(0.3) {
            return self.dropped_flush(&store).await;
        }
        match self.rng.random_range(0..16) {
            0..5 => {
                // A `sync` promises what was written before its call, not before its end.
                let promise = self.model.lock().promise(u32::MAX);
                let done = up_to(polls, store.sync()).await;
                done.map_or(Ok(()), |done| self.durable("sync", promise, done))
            }
            5 => self.dropped_discard(&store, polls).await,
            6 => self.dropped_drop_space().await,
            7 => {
                let name = self.model.lock().space_name();
                // A dropped call may have created the space. The model leaves it alone: no other space
                // gets that name.
                if let Some(Ok(id)) = up_to(polls, store.spaces().create(&name)).await {
                    self.model.lock().created(id, name);
                }
                Ok(())
            }
            8 => self.dropped_allocate(&store, polls).await,
            9 => {
                drop(up_to(polls, store.ssd().drain(DrainOptions::new())).await);
                Ok(())
            }
            10 if self.plan.slots > 0 => {
                let mode = [SsdMode::WriteThrough, SsdMode::ReadOnly, SsdMode::WriteBack]
                    [self.rng.random_range(0..3)];
                drop(up_to(polls, store.ssd().set_mode(mode)).await);
                // Whether the dropped change took effect is unknown, so a whole one follows.
                self.mode(SsdMode::WriteBack).await
            }
            11 => {
                let scrub = store.scrub(ScrubOptions::default().pages_per_second(None));
                drop(up_to(polls, scrub.finished()).await);
                Ok(())
            }
            _ => self.dropped_access(&store, polls).await,
        }
    }

    /// Drops a `sync` as soon as it has started a flush, which fails; then calls another one.
    async fn dropped_flush(&mut self, store: &PageStore) -> Outcome {
        // Everything is durable first, so that the failed flush is the one that the dropped call has
        // begun.
        self.sync().await?;
        for _ in 0..self.rng.random_range(1..6) {
            self.write(false).await?;
        }
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1);
        self.probe.ssd.inject(fault.clone());
        if self.rng.random_bool(0.2) {
            self.probe.hdd.inject(fault);
        }
        {
            let mut sync = Box::pin(store.sync());
            // No caller is left when the flush fails: the failure must be in the manifest all the same
            // (I14).
            let own_flush = std::future::poll_fn(|cx| {
                let before = self.probe.ssd_flushes();
                let over = sync.as_mut().poll(cx).is_ready();
                if over || self.probe.ssd_flushes() > before { Poll::Ready(()) } else { Poll::Pending }
            });
            own_flush.await;
        }
        self.sync().await
    }

    async fn dropped_access(&mut self, store: &PageStore, polls: u32) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(_held) = self.have(page, false) else { return Ok(()) };
        match self.rng.random_range(0..6) {
            0 => drop(up_to(polls, store.get(page)).await),
            5 => {
                drop(up_to(polls, store.get_many(&[page, PageId::new(page.space, page.no ^ 1), page])).await)
            }
            1 => drop(up_to(polls, store.get_mut(page)).await),
            2 => {
                if self.model.lock().doing.allocate > 0 && self.frees {
                    return Ok(());
                }
                {
                    let mut model = self.model.lock();
                    // The call may make a free page exist, and be dropped before it says so.
                    model.loosen(page.space.0, Some(page.no));
                    model.doing.by_number += 1;
                }
                drop(up_to(polls, store.get_or_create(page)).await);
                self.model.lock().doing.by_number -= 1;
            }
            3 => drop(up_to(polls, store.flush_to(Lsn(u64::MAX - 1))).await),
            _ => {
                let mut scan = store.scan(page.space, page.no..page.no + 20);
                let some = async { while scan.next().await.is_some() {} };
                let _ = up_to(polls, some).await;
            }
        }
        Ok(())
    }

    async fn dropped_allocate(&mut self, store: &PageStore, polls: u32) -> Outcome {
        let live = self.model.lock().live();
        let full = self.model.lock().pages() >= self.plan.pages as usize;
        let Some(space) = live.first().copied().filter(|_| !full) else { return Ok(()) };
        if self.frees && self.model.lock().doing.by_number > 0 {
            return Ok(());
        }
        {
            let mut model = self.model.lock();
            // Any free number of the space may be taken by the time that the call is dropped.
            model.loosen(space, None);
            model.doing.allocate += 1;
        }
        let allocated = up_to(polls, store.allocate(SpaceId(space))).await;
        self.model.lock().doing.allocate -= 1;
        match allocated {
            Some(Ok(guard)) => {
                self.is_new(&guard)?;
                self.publish(guard);
                Ok(())
            }
            Some(Err(error)) => self.judge("allocate", None, &error),
            None => Ok(()),
        }
    }

    async fn dropped_discard(&mut self, store: &PageStore, polls: u32) -> Outcome {
        let Some(page) = self.pick() else { return Ok(()) };
        let Some(held) = self.have(page, true) else { return Ok(()) };
        if held.was_free {
            return Ok(());
        }
        self.model.lock().discarded(page);
        let done = up_to(polls, store.discard(page)).await;
        self.model.lock().discarded(page);
        match done {
            Some(Err(error)) => self.judge("discard", Some(page), &error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn dropped_drop_space(&mut self) -> Outcome {
        let polls = [1, 1, 2, 3, 5, 10, 30][self.rng.random_range(0..7)];
        let store = Arc::clone(&self.store);
        let live = self.model.lock().live();
        if live.len() < 2 {
            return Ok(());
        }
        let space = live[self.rng.random_range(0..live.len())];
        self.model.lock().dropping(space);
        let done = up_to(polls, store.spaces().drop(SpaceId(space))).await;
        self.drop_ended(space, done).await
    }
}
