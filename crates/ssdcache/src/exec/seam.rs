//! The part of the seam ([`Seam`]) that acts on the executor's own values.

use super::Core;
use super::open::{OpenParams, Unread};
use super::remember::{Flushed, Remember, Unproved};
use crate::mutation::Mutation;
use crate::seam::Seam;
use pagetier_bufpool::TierError;
use pagetier_devio::task::Boxed;
use std::any::Any;
use std::future::ready;
use std::io;
use std::sync::Arc;

impl Seam {
    /// Handles a failed repair of homes whose ring places were needed.
    pub(crate) fn mend_failed(self, core: &Core, error: &TierError) {
        if self.lack(Mutation::FailedMendFinal) {
            core.refuse(&pagetier_devio::Causes(error).to_string(), false);
        }
    }

    /// The parameters of an opening.
    pub(crate) fn opening(self, params: &mut OpenParams) {
        if self.lack(Mutation::StampsRepeat) {
            params.epoch = 1;
        }
        if self.lack(Mutation::FailureNotRemembered) {
            params.remember = Arc::new(Forgetful(Arc::clone(&params.remember)));
        }
    }

    /// The blocks of the SSD that could not be read.
    pub(crate) fn unread(self, unread: Unread, closed: bool) -> Unread {
        if self.lack(Mutation::UnreadableIsEmpty) && !closed { Unread::default() } else { unread }
    }
}

/// Forgets failed flushes.
struct Forgetful(Arc<dyn Remember>);

impl Remember for Forgetful {
    fn recall(&self) -> Unproved {
        self.0.recall()
    }

    fn note(&self, _: &Unproved) -> Boxed<'static, io::Result<()>> {
        Box::pin(ready(Ok(())))
    }

    fn proved(&self, devices: &[Flushed]) -> Boxed<'static, io::Result<()>> {
        self.0.proved(devices)
    }

    fn hold(&self) -> Option<Box<dyn Any + Send>> {
        self.0.hold()
    }
}
