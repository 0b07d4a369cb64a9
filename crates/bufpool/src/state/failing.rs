//! Writes of pages that fail, as the log shows them: a line when a cause begins and one when it ends, not one
//! for each page and attempt. Hundreds of pages may be tried again several times a second, for days.

use crate::tier::TierError;
use pagetier_devio::{Causes, DeviceError};
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// The frames whose last write failed, by cause.
#[derive(Default)]
pub(crate) struct Failing {
    by_cause: Mutex<FxHashMap<String, FxHashSet<FrameId>>>,
    /// Whether there are any.
    any: AtomicBool,
}

impl Failing {
    /// Notes that the write of `page`, in `frame`, failed; logs it if no other page fails for that cause.
    pub(crate) fn failed(&self, frame: FrameId, page: PageId, error: &TierError) {
        let mut by_cause = self.by_cause.lock();
        let cause = cause_of(error);
        let is_new = !by_cause.contains_key(&cause);
        // It may have failed for another cause before.
        by_cause.retain(|other, frames| *other == cause || !frames.remove(&frame) || !frames.is_empty());
        by_cause.entry(cause).or_default().insert(frame);
        self.any.store(true, Ordering::Relaxed);
        drop(by_cause);
        if is_new {
            tracing::warn!(
                %page, error = %Causes(error),
                "a page could not be written; it stays in memory, and is written again later, as are others that \
                 fail for the same cause"
            );
        }
    }

    /// Notes that the page in `frame` was written; logs it if it was the last one of a cause.
    pub(crate) fn written(&self, frame: FrameId) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        for cause in self.without(frame) {
            tracing::info!(%cause, "pages whose writes had failed are now written");
        }
    }

    /// Removes `frame`; returns the causes of which it was the last one.
    fn without(&self, frame: FrameId) -> Vec<String> {
        let (mut by_cause, mut ended) = (self.by_cause.lock(), Vec::new());
        by_cause.retain(|cause, frames| {
            if frames.remove(&frame) && frames.is_empty() {
                ended.push(cause.clone());
            }
            !frames.is_empty()
        });
        self.any.store(!by_cause.is_empty(), Ordering::Relaxed);
        ended
    }
}

/// The cause of an error, whatever page and offset it met.
fn cause_of(error: &TierError) -> String {
    match error {
        TierError::Device { source, .. } | TierError::Flush { source } => {
            let DeviceError { device, op, kind, .. } = source;
            format!("{device}: {op:?}: {kind}")
        }
        TierError::Refusing { cause } => cause.to_string(),
        other => other.to_string(),
    }
}
