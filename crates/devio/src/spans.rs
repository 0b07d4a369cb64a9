//! Spans of [`tracing`] around slow work, with the feature `spans`; without it, nothing.

use crate::{Device, DeviceError, IoClass, IoOp};
use std::future::Future;
use std::pin::Pin;
use tracing::{Span, field};

/// Work that a span describes. Without the feature `spans` it is empty, its methods do nothing, and the
/// closure that would make the span is never called.
///
/// Only work that uses a device, or may wait for one, has a span: finding a page in memory has none.
#[derive(Clone, Debug)]
pub struct Work(#[cfg(feature = "spans")] Span);

#[cfg(feature = "spans")]
impl Work {
    /// The work that `span` describes.
    pub fn of(span: impl FnOnce() -> Span) -> Self {
        Self(span())
    }

    /// Runs `future` within the span, which is entered for each poll.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        tracing::Instrument::instrument(future, self.0.clone())
    }

    /// Records a field that the span declared as empty.
    pub fn note(&self, field: &'static str, value: impl tracing::Value) {
        self.0.record(field, value);
    }
}

#[cfg(not(feature = "spans"))]
impl Work {
    /// No work: `span` is not called.
    #[inline]
    pub fn of(_span: impl FnOnce() -> Span) -> Self {
        Self()
    }

    /// Returns `future`.
    #[inline]
    pub fn run<F: Future>(&self, future: F) -> F {
        future
    }

    /// Does nothing.
    #[inline]
    pub fn note(&self, _field: &'static str, _value: impl tracing::Value) {}
}

impl Work {
    /// Records the error of a result, if it is one, with its causes in the field `error`.
    pub fn note_error<T, E: std::error::Error + 'static>(&self, result: &Result<T, E>) {
        if let Err(error) = result {
            self.note("error", field::display(crate::Causes(error)));
        }
    }

    /// Whether a subscriber wants the span.
    fn is_wanted(&self) -> bool {
        #[cfg(feature = "spans")]
        return !self.0.is_disabled();
        #[cfg(not(feature = "spans"))]
        false
    }
}

/// A boxed future that any thread may drive.
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An operation on a device, as its span describes it.
pub(crate) struct Operation<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) op: IoOp,
    pub(crate) class: IoClass,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Operation<'_> {
    /// Starts the operation with `start`, and describes it until it has ended or its future is dropped.
    /// `result` finds its result.
    pub(crate) fn run<T: Send + 'static>(
        self,
        start: impl FnOnce() -> Boxed<T>,
        result: fn(&T) -> &Result<(), DeviceError>,
    ) -> Boxed<T> {
        let work = Work::of(|| {
            let Self { device, op, class, offset, bytes } = self;
            let device = device.name();
            tracing::debug_span!(
                target: "pagetier::io", "io", device, ?op, ?class, offset, bytes, error = field::Empty
            )
        });
        let started = start();
        // Without a subscriber the operation is not wrapped: the wrapper is an allocation per operation.
        if !work.is_wanted() {
            return started;
        }
        let noted = work.clone();
        Box::pin(work.run(async move {
            let done = started.await;
            noted.note_error(result(&done));
            done
        }))
    }
}
