//! How a task chooses its operations from the table and performs them.

use super::operations::{Mix, TABLE};
use super::worker::{AccessPattern, LONG, Outcome, Worker};
use crate::campaign::contract::model::Model;
use parking_lot::Mutex;
use rand::Rng;
use std::sync::Arc;

/// An operation in progress, for the report.
struct Begun<'a> {
    model: &'a Mutex<Model>,
    at: usize,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.model.lock().doing.running.end(self.at);
    }
}

impl Worker {
    /// Does `ops` operations.
    pub(crate) async fn run(mut self, ops: u32) -> Outcome {
        let mix = Mix::of(&self.plan, self.frees, self.troubled, &mut self.rng);
        if self.plan.hazard.has_work() {
            return self.directed(ops).await;
        }
        self.pattern = self.any_pattern();
        for _ in 0..ops {
            // A pattern lasts until the policies have adapted to it, and ends within the life, so that
            // hot pages become cold.
            if self.rng.random_ratio(1, 120) {
                self.pattern = self.any_pattern();
            }
            if let AccessPattern::Wandering { at, .. } = &mut self.pattern
                && self.rng.random_ratio(1, 25)
            {
                *at = self.rng.random_range(0..=self.plan.pages);
            }
            let drawn = mix.draw(&mut self.rng);
            self.perform(drawn).await?;
        }
        Ok(())
    }

    fn any_pattern(&mut self) -> AccessPattern {
        match self.rng.random_range(0..4) {
            0 => AccessPattern::Uniform,
            1 => AccessPattern::Skewed,
            _ => AccessPattern::Wandering {
                at: self.rng.random_range(0..=self.plan.pages),
                width: self.rng.random_range(3..=40),
            },
        }
    }

    /// Performs the operation of this number. It must end within bounded virtual time.
    async fn perform(&mut self, at: usize) -> Outcome {
        let (operation, model) = (&TABLE[at], Arc::clone(&self.model));
        self.probe.drawn(at, &model.lock().doing.running);
        model.lock().doing.running.begin(at);
        // A guard ends it, since a life may drop its tasks in the middle of an operation.
        let begun = Begun { model: &model, at };
        let done = tokio::time::timeout(LONG, (operation.run)(self)).await;
        drop(begun);
        done.unwrap_or_else(|_| Err("hangs".to_owned()))
            .map_err(|wrong| format!("{}: {wrong}", operation.name))
    }
}
