//! The parts of a blocking store: each has the waiting calls of its counterpart, under the same names.
//! [`PageStore::store`] has those that do not wait.

use super::PageStore;
use crate::policy::UnknownPolicy;
use crate::scrub::{ScrubOptions, ScrubProgress, ScrubReport};
use crate::what_if::{TraceSummary, WhatIf};
use crate::{
    DrainOptions, DrainReport, Error, ReadmitReport, SpaceHints, SpaceId, SpaceInfo, SsdEvent, SsdLoss,
    SsdMode, SsdPolicy,
};
use std::io;
use std::ops::Range;

/// Defines a part and blocking forms of its counterpart's methods, under their names.
macro_rules! part {
    (
        $(#[$doc:meta])*
        $part:ident by $method:ident:
        $($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*
        $(; $($quick:ident($($given:ident: $of:ty),*) -> $at_once:ty;)*)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $part<'a>(&'a PageStore);

        impl PageStore {
            #[doc = concat!("See [`crate::PageStore::", stringify!($method), "`].")]
            #[must_use]
            #[inline]
            pub fn $method(&self) -> $part<'_> {
                $part(self)
            }
        }

        #[allow(clippy::missing_errors_doc, reason = "each method refers to its counterpart")]
        impl $part<'_> {
            $(
                #[doc = concat!("See `", stringify!($part), "::", stringify!($name), "` of [`crate::PageStore::", stringify!($method), "`], which has the errors, too.")]
                #[inline]
                pub fn $name(self, $($arg: $type),*) -> $result {
                    self.0.block_on(self.0.store().$method().$name($($arg),*))
                }
            )*
            $($(
                #[doc = concat!("See `", stringify!($part), "::", stringify!($quick), "` of [`crate::PageStore::", stringify!($method), "`], which has the errors, too.")]
                #[inline]
                pub fn $quick(self, $($given: $of),*) -> $at_once {
                    self.0.store().$method().$quick($($given),*)
                }
            )*)?
        }
    };
}

part! {
    /// The spaces of a store. See [`PageStore::spaces`].
    Spaces by spaces:
    free(space: SpaceId, range: Range<u32>) -> Result<u32, Error>;
    reserve(space: SpaceId, pages: u32) -> Result<(), Error>;
    shrink(space: SpaceId) -> Result<u64, Error>;
    sync(space: SpaceId) -> Result<(), Error>;
    create(name: &str) -> Result<SpaceId, Error>;
    create_as(id: SpaceId, name: &str) -> Result<(), Error>;
    drop(space: SpaceId) -> Result<(), Error>;
    ;
    find(name: &str) -> Option<SpaceId>;
    list() -> Vec<SpaceInfo>;
    pages(space: SpaceId) -> Result<u32, Error>;
    set_hints(space: SpaceId, hints: SpaceHints) -> Result<(), Error>;
    hints(space: SpaceId) -> Result<SpaceHints, Error>;
}

part! {
    /// The SSD of a store. See [`PageStore::ssd`].
    Ssd by ssd:
    set_mode(mode: SsdMode) -> Result<(), Error>;
    readmit() -> Result<ReadmitReport, Error>;
    abandon() -> Result<SsdLoss, Error>;
    acknowledge_loss() -> Result<(), Error>;
    drain(drain: DrainOptions) -> DrainReport;
}

impl<'a> Ssd<'a> {
    /// The SSD's events from this moment on; the iterator waits for the next one. See
    /// [`pagetier::Ssd::events`](crate::Ssd::events).
    #[must_use]
    #[inline]
    pub fn events(self) -> SsdEvents<'a> {
        SsdEvents { store: self.0, events: self.0.store().ssd().events() }
    }
}

/// Events of the SSD, which ends with its store. See [`Ssd::events`].
#[derive(Debug)]
pub struct SsdEvents<'a> {
    store: &'a PageStore,
    events: crate::SsdEvents,
}

impl Iterator for SsdEvents<'_> {
    type Item = SsdEvent;

    #[inline]
    fn next(&mut self) -> Option<SsdEvent> {
        self.store.block_on(self.events.next())
    }
}

part! {
    /// The policies of a store. See [`PageStore::policies`].
    Policies by policies:
}

impl Policies<'_> {
    /// See [`pagetier::Policies::set_ssd`](crate::Policies::set_ssd), which has the errors, too.
    #[allow(clippy::missing_errors_doc, reason = "it refers to its counterpart")]
    #[inline]
    pub fn set_ssd(self, policy: impl TryInto<SsdPolicy, Error: Into<UnknownPolicy>>) -> Result<(), Error> {
        let policy: SsdPolicy = policy.try_into().map_err(Into::into)?;
        self.0.block_on(self.0.store().policies().set_ssd(policy))
    }
}

part! {
    /// The recording of page traces. See [`PageStore::trace`].
    Trace by trace:
    stop() -> Result<TraceSummary, io::Error>;
}

part! {
    /// Simulated pools and SSDs of other sizes. See [`PageStore::what_if`].
    Estimates by what_if:
    stop() -> Option<WhatIf>;
}

/// A scrub in progress in the background. Dropping this stops the scrub after the current page.
#[derive(Debug)]
pub struct Scrub<'a> {
    store: &'a PageStore,
    scrub: crate::scrub::Scrub,
}

impl PageStore {
    /// See [`pagetier::PageStore::scrub`](crate::PageStore::scrub).
    #[must_use]
    #[inline]
    pub fn scrub(&self, options: ScrubOptions) -> Scrub<'_> {
        let _runtime = self.driver.enter();
        Scrub { store: self, scrub: self.store.scrub(options) }
    }
}

impl Scrub<'_> {
    /// See [`pagetier::scrub::Scrub::progress`](crate::scrub::Scrub::progress).
    #[must_use]
    #[inline]
    pub fn progress(&self) -> ScrubProgress {
        self.scrub.progress()
    }

    /// See [`pagetier::scrub::Scrub::is_finished`](crate::scrub::Scrub::is_finished).
    #[must_use]
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.scrub.is_finished()
    }

    /// See [`pagetier::scrub::Scrub::abort`](crate::scrub::Scrub::abort).
    #[inline]
    pub fn abort(&self) {
        self.scrub.abort();
    }

    /// See [`pagetier::scrub::Scrub::finished`](crate::scrub::Scrub::finished).
    #[must_use]
    #[inline]
    pub fn finished(self) -> ScrubReport {
        self.store.block_on(self.scrub.finished())
    }
}
