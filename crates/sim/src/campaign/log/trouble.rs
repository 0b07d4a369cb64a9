//! The operations beside an engine's work: its log and its SSD fail for a while, another opens the store, an
//! operator backs it up and archives its log.

use super::backup::Taken;
use super::open::{Parts, open};
use super::work::{Outcome, Worker};
use crate::campaign::polls::up_to;
use pagetier::backup::{BackupError, BackupOptions};
use pagetier::errors::Advice;
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use pagetier_wal::LoggedBackupError;
use rand::Rng;
use std::sync::Arc;

impl Worker {
    /// Lets calls of the log's device, or file system, fail for a while. Then everything works again.
    pub(super) async fn log_fails(&mut self) -> Outcome {
        if self.watch.is_troubled() {
            return Ok(());
        }
        self.watch.trouble();
        self.watch.log.fail(&mut self.rng);
        for _ in 0..self.rng.random_range(1..8) {
            self.change().await?;
        }
        self.watch.clear_faults();
        Ok(())
    }

    /// A flush of the SSD fails; the SSD is readmitted.
    pub(super) async fn readmit(&mut self) -> Outcome {
        if self.plan.slots == 0 {
            return Ok(());
        }
        self.watch.trouble();
        self.watch.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        let db = Arc::clone(&self.db);
        for _ in 0..self.rng.random_range(1..4) {
            self.change().await?;
        }
        let _ = db.sync().await;
        self.watch.clear_faults();
        let _ = db.ssd().readmit().await;
        // What no record covers may be lost now, and the engine is told.
        self.read().await
    }

    /// Another opener, with all of the store's own parts: it is refused, and changes nothing.
    pub(super) async fn second_opener(&mut self) -> Outcome {
        match open(&self.watch, &self.plan, &Parts::default()).await {
            Ok(_) => Err("a second opener gets the store, which is open, and its log".to_owned()),
            // The second is what files say: `Wal::open` has words for it.
            Err(error) if ["in use", "resource busy"].iter().any(|words| error.contains(words)) => Ok(()),
            Err(_) if self.watch.is_troubled() => Ok(()),
            Err(error) => Err(format!("a second opener gets an error other than \"in use\": {error}")),
        }
    }

    pub(super) async fn back_up(&mut self) -> Outcome {
        let Some(shelf) = self.shelf.clone().filter(|_| !self.watch.is_troubled()) else { return Ok(()) };
        // The copy shows one moment of the call, so any state from this one to the one after is right.
        let before = self.model().clone();
        let db = Arc::clone(&self.db);
        let full = self.rng.random_bool(0.3);
        let polls = self.polls(0.1);
        let done = up_to(polls, db.backup(&shelf.chain(), BackupOptions::new().full(full))).await;
        match done {
            Some(Ok(made)) => {
                let mut model = self.model();
                model.resolve(db.wal().end().0);
                shelf.taken.lock().push(Taken { number: made.number, before, after: model.clone() });
                Ok(())
            }
            // Another one is under way, or devices fail.
            Some(Err(LoggedBackupError::Pages(BackupError::Busy { .. }))) => Ok(()),
            Some(Err(error)) => self.judge("backup", &error),
            None => Ok(()),
        }
    }

    pub(super) async fn archive(&mut self) -> Outcome {
        if self.shelf.as_ref().is_none_or(|shelf| shelf.archive.is_none()) {
            return Ok(());
        }
        let (db, end) = (Arc::clone(&self.db), self.db.wal().end());
        match up_to(self.polls(0.1), db.wal().archive_now()).await {
            Some(Ok(up_to)) => {
                let known = db.wal().archived().map(|archived| archived.up_to);
                // A log without a record has nothing to archive.
                let is_known = end <= up_to && (known >= Some(up_to) || db.wal().is_new());
                if is_known { Ok(()) } else { Err(format!("archived to {up_to} of {end}, known: {known:?}")) }
            }
            // Few of the device's segments are left, which changes need.
            Some(Err(error)) if error.advice() == Advice::FreeSpace => Ok(()),
            Some(Err(error)) => self.judge("archive", &error),
            None => Ok(()),
        }
    }
}
