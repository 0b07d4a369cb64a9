//! The SSD's life among other work: it is given up, readmitted, switched off and on, drained; its loss is
//! acknowledged; devices fail for a while. A readmission may lose what no `sync` covered, but nothing else
//! unless the medium is damaged; an abandonment may lose whatever the report lists.

use super::worker::{Outcome, Reads, Worker};
use crate::campaign::contract::model::Model;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::State;
use crate::campaign::world::examine::look;
use crate::campaign::world::planned::Planned;
use crate::campaign::world::saves::Saves;
use pagetier::{DrainOptions, Error, Location, Lsn, PageId, PageStore, SpaceHints, SsdLoss, SsdMode};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;

/// A call of the SSD's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Abandon,
    Readmit,
    Off,
    On(SsdMode),
    Drain,
    /// Of the pages that redo needs the log up to there for.
    DrainUpTo(Lsn),
}

/// What a call reports.
#[derive(Default)]
pub(crate) struct Outcomes {
    pub(crate) loss: Option<SsdLoss>,
    /// Pages that read as they did at the last good flush again.
    reverted: Vec<PageId>,
}

impl Act {
    /// Performs the call.
    pub(crate) async fn carry_out(self, store: &PageStore) -> Result<Outcomes, Error> {
        let nothing = Outcomes::default();
        match self {
            Self::Abandon => {
                let loss = store.ssd().abandon().await?;
                Ok(Outcomes { loss: Some(loss), ..nothing })
            }
            Self::Readmit => {
                let report = store.ssd().readmit().await?;
                Ok(Outcomes { reverted: report.reverted, ..nothing })
            }
            Self::Off => store.ssd().set_mode(SsdMode::Off).await.map(|()| nothing),
            Self::On(mode) => store.ssd().set_mode(mode).await.map(|()| nothing),
            Self::Drain => {
                let _ = store.ssd().drain(DrainOptions::new()).await;
                Ok(nothing)
            }
            Self::DrainUpTo(lsn) => {
                let _ = store.ssd().drain(DrainOptions::new().up_to(lsn)).await;
                Ok(nothing)
            }
        }
    }

    /// Whether the call leaves the SSD in use, and what is on it.
    pub(super) const fn drains(self) -> bool {
        matches!(self, Self::Drain | Self::DrainUpTo(_))
    }

    /// Whether calls of this kind run one at a time: once one has ended, so have all that began before it.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Abandon | Self::Readmit)
    }
}

impl Model {
    /// Records what a call reports.
    pub(crate) fn ssd_call_reports(&mut self, outcomes: &Outcomes) {
        outcomes.reverted.iter().for_each(|page| self.reverted(*page));
    }

    /// Records that a call begins that may change whether the SSD is in use, and lose pages.
    fn ssd_call_begins(&mut self, act: Act) -> u32 {
        self.ssd_calls.running += 1;
        self.ssd_calls.last += 1;
        self.ssd_touched |= !act.drains();
        // Until it ends, the loss may grow by pages that other tasks are writing.
        self.lost_to = u32::MAX;
        self.loss_spares_synced &= act != Act::Abandon;
        self.ssd_calls.last
    }

    /// Records that call number `call` has ended, or was dropped; `lost`: a loss is reported.
    fn ssd_call_ends(&mut self, call: u32, act: Act, dropped: bool, lost: bool) {
        let calls = &mut self.ssd_calls;
        calls.running -= 1;
        if dropped {
            // It may run on until a later call of a kind that takes turns has ended.
            calls.background = Some(calls.last);
        } else if act.waits() && calls.background.is_some_and(|last| last < call) {
            calls.background = None;
        }
        if !calls.are_running() {
            self.settle_loss(lost);
        }
    }

    /// Records that no call adds to the loss any more; `lost`: one is reported.
    pub(crate) fn settle_loss(&mut self, lost: bool) {
        let lost = lost || self.ssd_calls.unverified;
        // Versions from here on are later than the loss, whose list excuses none of them.
        self.lost_to = if lost { self.lost_to.min(self.last_version) } else { 0 };
        self.loss_spares_synced |= !lost;
    }
}

impl Worker {
    pub(super) fn any_mode(&mut self) -> SsdMode {
        [SsdMode::WriteBack, SsdMode::WriteThrough, SsdMode::ReadOnly][self.rng.random_range(0..3)]
    }

    /// Drains the SSD, of all pages or of those changed up to some version.
    pub(crate) async fn drain(&mut self) -> Outcome {
        let last = self.model.lock().last_version;
        let up_to = Lsn(u64::from(self.rng.random_range(0..=last)));
        let act = if self.rng.random_bool(0.5) { Act::Drain } else { Act::DrainUpTo(up_to) };
        self.ssd_call(act).await
    }

    /// Performs a call, which may be dropped. It may be refused, but must not hang.
    pub(super) async fn ssd_call(&mut self, act: Act) -> Outcome {
        if self.plan.slots == 0 || self.model.lock().ssd_calls.acknowledging {
            return Ok(());
        }
        self.model.lock().strict = self.plan.has("readmit-spares");
        if !self.plan.has("abandon-in-backup") && !act.drains() && self.model.lock().doing.backup > 0 {
            return Ok(());
        }
        // The report of a readmission names the pages that are older again: only its caller learns that.
        let reverts = act == Act::Readmit && self.reads == Reads::NothingOlderThanSynced;
        let polls = if reverts { u32::MAX } else { self.polls(0.2, 8) };
        self.probe.mark(match act {
            Act::Abandon => State::SsdGivenUp,
            Act::Readmit => State::SsdReadmitted,
            Act::Off | Act::On(_) | Act::Drain | Act::DrainUpTo(_) => State::SsdOff,
        });
        let call = self.model.lock().ssd_call_begins(act);
        let store = Arc::clone(&self.store);
        let done = up_to(polls, act.carry_out(&store)).await;
        if done.is_none() {
            self.probe.mark(State::SsdCallDropped);
        }
        match &done {
            Some(Ok(outcomes)) => self.model.lock().ssd_call_reports(outcomes),
            // The save that lists the loss may be in force although it failed.
            Some(Err(_)) => self.model.lock().ssd_calls.unverified = true,
            None => {}
        }
        let lost = store.ssd().loss().is_some();
        self.model.lock().ssd_call_ends(call, act, done.is_none(), lost);
        Ok(())
    }

    /// Deals with a reported loss as an embedder does: reads the pages listed, then acknowledges it.
    pub(crate) async fn acknowledge(&mut self) -> Outcome {
        let Some(loss) = self.store.ssd().loss() else { return Ok(()) };
        {
            let mut model = self.model.lock();
            let calls = &mut model.ssd_calls;
            // The list may still grow, and an acknowledgement would cover pages that no check has read.
            if calls.are_running() || calls.acknowledging || calls.unverified {
                return Ok(());
            }
            calls.acknowledging = true;
        }
        let done = self.deal_with(&loss).await;
        self.model.lock().ssd_calls.acknowledging = false;
        done
    }

    async fn deal_with(&mut self, loss: &SsdLoss) -> Outcome {
        let listed: Vec<_> = {
            let model = self.model.lock();
            if model.any_space_leaves() {
                // Its pages could come back.
                return Ok(());
            }
            model.live_pages().into_iter().filter(|page| loss.contains(*page)).collect()
        };
        for page in listed {
            let Some(_held) = self.have(page, false) else { return Ok(()) };
            // The page may have been freed meanwhile; an error means that it is gone.
            let found = look(&self.store, page).await?.ok().map(|found| found.unwrap_or(0));
            self.model.lock().dealt_with(page, found);
        }
        match self.store.ssd().acknowledge_loss().await {
            Ok(()) if self.store.ssd().loss().is_some() => {
                Err("the loss was acknowledged, but is still reported".to_owned())
            }
            Ok(()) => {
                self.probe.mark(State::LossAcknowledged);
                let mut model = self.model.lock();
                model.settle_loss(false);
                model.acknowledged = true;
                Ok(())
            }
            Err(error) => {
                self.probe.mark(State::AckFailed);
                self.judge("acknowledge_loss", None, &error)
            }
        }
    }

    /// Some reads of slots are wrong, though the medium is right; sometimes while a page whose copy is on the
    /// SSD goes home.
    pub(super) async fn wrong_reads(&mut self) -> Outcome {
        let layout = self.plan.layout();
        if layout.slots == 0 {
            return Ok(());
        }
        let flips = Fault::new(FaultEffect::BitFlip).on(IoOp::Read);
        // A wrong read proves nothing about the medium (I32): the store has to read again before it gives
        // a copy up.
        let times = self.rng.random_range(1..=4);
        if self.rng.random_bool(0.3) {
            let slot = layout.slot_at(self.rng.random_range(0..layout.slots));
            self.probe.ssd.inject(flips.within(slot..slot + 1).times(times));
            return Ok(());
        }
        let some: Vec<_> = (0..8).filter_map(|_| self.pick()).collect();
        let Some(page) = some.into_iter().find(|page| self.store.location(*page) == Location::Ssd) else {
            return Ok(());
        };
        match self.rng.random_range(0..3) {
            0 => self.mode(SsdMode::WriteThrough).await?,
            1 => {
                let never = SpaceHints::new().never_to_ssd(true);
                let set = self.store.spaces().set_hints(page.space, never);
                set.or_else(|error| self.judge("set_hints", None, &error))?;
            }
            _ => {}
        }
        self.write_page(page, false).await?;
        self.probe.ssd.inject(flips.within(layout.slot_at(0)..layout.end()).times(times));
        self.sync().await
    }

    /// A flush of the SSD fails, now or soon; later the SSD is readmitted.
    pub(super) async fn ssd_flush_fails(&mut self) -> Outcome {
        if self.plan.slots == 0 {
            return Ok(());
        }
        self.probe.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        self.sync().await?;
        self.readmit_later().await
    }

    /// The SSD vanishes for a while.
    pub(super) async fn ssd_gone(&mut self) -> Outcome {
        if self.plan.slots == 0 {
            return Ok(());
        }
        self.probe.ssd.set_present(false);
        let away = Duration::from_micros(self.rng.random_range(1..=20 * self.plan.hdd_us));
        tokio::time::sleep(away).await;
        self.probe.ssd.set_present(true);
        self.readmit_later().await
    }

    async fn readmit_later(&mut self) -> Outcome {
        for _ in 0..self.rng.random_range(0..6) {
            match self.rng.random_range(0..3) {
                0 => self.write(false).await?,
                _ => self.read().await?,
            }
        }
        // Otherwise the life goes on without the SSD until another task or the next open brings it back.
        if self.rng.random_bool(0.8) { self.ssd_call(Act::Readmit).await } else { Ok(()) }
    }

    /// A few operations of a device fail or are slow.
    pub(super) async fn device_fails(&mut self) -> Outcome {
        let slow = FaultEffect::Slow(Duration::from_millis(self.rng.random_range(1..500)));
        let (effect, ssd, times) = match self.rng.random_range(0..6) {
            0 => (FaultEffect::Eio, true, 1),
            1 => (FaultEffect::NoSpace, true, 1),
            2 => (FaultEffect::Short, self.rng.random_bool(0.5), 5),
            _ => (slow, self.rng.random_bool(0.5), self.rng.random_range(1..=6)),
        };
        let op = [None, Some(IoOp::Write), Some(IoOp::Read), Some(IoOp::Flush)][self.rng.random_range(0..4)];
        let mut fault = Fault::new(effect).times(times);
        // A failed flush is another operation.
        fault.op = op.filter(|op| *op != IoOp::Flush || matches!(effect, FaultEffect::Slow(_)));
        if self.rng.random_ratio(1, 6) {
            // A hole is not punched, or only seems to be.
            let effect = [FaultEffect::Eio, FaultEffect::Lost, slow][self.rng.random_range(0..3)];
            let fault = Fault::new(effect).on(IoOp::Discard).times(1);
            Planned::device(false, "hole not punched", fault).inject_now(&self.probe);
        }
        Planned::device(ssd, "at work", fault).inject_now(&self.probe);
        Ok(())
    }

    /// Saves of the manifest fail.
    pub(super) async fn saves_fail(&mut self) -> Outcome {
        Planned::saves(Saves::some(2, &mut self.rng)).inject_now(&self.probe);
        Ok(())
    }
}
