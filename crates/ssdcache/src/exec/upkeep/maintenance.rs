//! The background task: map checkpoints, write-backs of the next victims, second chances, and flushes that
//! free slots and ring.

use crate::exec::Core;
use crate::protocol::slots::{Leaving, MapWork, WriteBack};
use futures_util::future::join3;
use pagetier_devio::locks::flow;
use pagetier_devio::{DeviceError, IoClass};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs until the tier stops or aborts it, and waits without polling.
///
/// The duties run side by side: writers that ran out of slots wait for a map checkpoint, which must not wait
/// for writes to a slow disk.
pub(crate) async fn run(core: Arc<Core>) {
    // When the tier closes, write-backs end first: they may need map checkpoints.
    let victims_done = AtomicBool::new(false);
    let victims = async {
        keep_victims_clean(&core).await;
        victims_done.store(true, Ordering::Release);
        core.wake.slots.notify_one();
        core.wake.ring.notify_one();
    };
    let slots = keep_slots_writable(&core, &victims_done);
    join3(flow(slots), flow(victims), flow(keep_homes_backed(&core, &victims_done))).await;
}

/// Puts the ring into use once the HDD has refused to write a page whole.
async fn keep_homes_backed(core: &Core, victims_done: &AtomicBool) {
    loop {
        core.wake.ring.notified().await;
        if victims_done.load(Ordering::Acquire) {
            return;
        }
        core.use_ring().await;
        core.wake.notify_one();
    }
}

async fn keep_slots_writable(core: &Core, victims_done: &AtomicBool) {
    loop {
        core.wake.slots.notified().await;
        while core.refusing.cause().is_none()
            && !victims_done.load(Ordering::Acquire)
            && core.map_step().await
        {}
        if victims_done.load(Ordering::Acquire) {
            return;
        }
    }
}

async fn keep_victims_clean(core: &Core) {
    loop {
        core.wake.victims.notified().await;
        while core.may_continue() && core.home_step().await {}
        if core.stopping.load(Ordering::Acquire) {
            return;
        }
    }
}

impl Core {
    fn may_continue(&self) -> bool {
        self.refusing.cause().is_none() && !self.stopping.load(Ordering::Acquire)
    }

    /// Writes a map checkpoint or flushes the SSD, if either is due. Returns false if nothing was done.
    async fn map_step(&self) -> bool {
        let _duty = self.map_duty.lock().await;
        let work = {
            let now = self.now();
            let mut state = self.state.lock();
            let journal_high = state.home.journal_is_high();
            // An SSD that takes no new pages still needs journal space.
            let usable = state.ssd_error.is_none() || (journal_high && !state.map_failed);
            if usable { state.slots.map_work(journal_high, now) } else { None }
        };
        let result = match work {
            Some(MapWork::Checkpoint) => self.checkpoint().await,
            Some(MapWork::Flush) => self.flush_ssd().await,
            None => return false,
        };
        if let Err(error) = &result {
            self.ssd_failed(error);
        }
        result.is_ok()
    }

    /// Writes the next victims back, and copies that leave because their space is kept off the SSD, or
    /// flushes the HDD for the ring, if any of it is due. Returns false if nothing was done.
    async fn home_step(&self) -> bool {
        let _duty = self.home_duty.lock().await;
        self.log_choice();
        self.give_second_chances().await;
        let (batch, flush, dropped) = {
            let now = self.now();
            let mut state = self.state.lock();
            // A write-back that the HDD refuses to keep whole would take the places of the ring, perhaps the
            // only one, from the writers that must leave before the ring is put into use (I48).
            let usable = state.ssd_error.is_none() && !self.refused_whole.load(Ordering::Acquire);
            let in_flight = |page| self.unflushed.in_flight(page);
            let max = state.write_back_max();
            // Victims keep half of it, if there are two.
            let leaving_max = (max / 2).max(1);
            let leaving =
                if usable { state.begin_leaving(&in_flight, leaving_max, now) } else { Leaving::default() };
            let due = usable && state.wants_write_back(now);
            // Copies whose homes were already written need only the flush to be clean, not another home
            // write.
            let waits = due && state.slots.wants_home_flush(&in_flight);
            let due = due && !waits;
            let mut batch = leaving.held;
            if due {
                batch.extend(state.begin_write_back(max - batch.len(), now));
            }
            let flush = state.wants_hdd_flush() || waits || leaving.flush || self.unflushed.wants_flush();
            (batch, flush, leaving.dropped)
        };
        if !batch.is_empty() {
            // Failed pages are tried again after the next event.
            self.write_back(batch).await.is_ok_and(|pages| pages > 0)
        } else if flush {
            self.flush_hdd().await.is_ok()
        } else {
            dropped > 0
        }
    }

    /// Logs that an adaptive policy follows another setting, once. Not where it decides: a read should not
    /// pay for a line of the log.
    fn log_choice(&self) {
        let state = self.state.lock();
        let changes = state.slots.policy().choice_changes();
        if self.choice_changes.swap(changes, Ordering::Relaxed) == changes {
            return;
        }
        let Some(choice) = state.slots.policy().choice() else { return };
        drop(state);
        tracing::info!(
            before = choice.before,
            now = choice.setting,
            costs = ?choice.costs,
            "the adaptive SSD policy switched to another setting"
        );
    }

    /// Copies victims to the HDD, so that their slots can be given up at once. Returns how many are home.
    async fn write_back(&self, batch: Vec<WriteBack>) -> Result<usize, DeviceError> {
        let class = match self.state.lock().slots.take_urgency() {
            true => IoClass::UrgentWriteBack,
            false => IoClass::WriteBack,
        };
        let copied = self.copy_home(batch, class).await;
        copied.result.map(|()| copied.home.len())
    }
}
