//! Makes sure, again and again, that the store still owns its volume, which another machine may take over.
//!
//! The HDD's superblock names the last open of the store: its epoch. An open records its own there
//! before it serves or writes a page ([`commit`](crate::open)). So an owner that reads a later one has
//! lost the volume, and one that reads its own had not when it asked: it serves pages for the length of the
//! lease from then on, and asks again after a third of it. Without an answer in time the claim lapses: the
//! store serves nothing, and the operations of its HDD wait, until there is one.
//!
//! The durations are those of the own machine, time in which it was suspended included. No clock is compared
//! with another machine's.

use crate::manifest::superblock::{HddSuperblock, SUPERBLOCK_BYTES};
use crate::ownership::lock::Present;
use pagetier_devio::{Claim, DeviceError, IoBuf, IoBufs, IoClass, SharedDevice, task};
use pagetier_ssdcache::{Found, Label};
use std::pin::pin;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The owner of a volume.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) device: SharedDevice,
    pub(crate) claim: Claim,
    pub(crate) store: String,
    pub(crate) epoch: u32,
}

/// Renews the claim until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    claim: Claim,
    task: AbortHandle,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
        // What is recorded once the store was dropped may still be; what waits for a confirmation gets none.
        self.claim.renew_no_more();
    }
}

impl Lease {
    /// Ends it with its store, which was shut down: nothing begins any more.
    pub(crate) fn end(self) {
        self.task.abort();
        self.claim.unlimit();
    }

    /// Limits the claim of `owner`, once it is confirmed.
    pub(crate) async fn begin(owner: Owner, length: Duration, present: Present) -> Result<Self, DeviceError> {
        let asked = owner.claim.now();
        match owner.look().await? {
            Some(false) => owner.claim.end(),
            // What cannot be told now is asked again.
            _ => owner.claim.limit(asked, length),
        }
        let claim = owner.claim.clone();
        let task = task::spawn(&Handle::current(), async move {
            owner.keep(length).await;
            drop(present);
        });
        Ok(Self { claim, task: task.abort_handle() })
    }
}

impl Owner {
    /// Whether the volume is still that of this session; `None`: that cannot be told.
    async fn look(&self) -> Result<Option<bool>, DeviceError> {
        let (mut is_ours, mut failed) = (None, None);
        for nth in 0..2 {
            let bufs = IoBufs::from_iter([IoBuf::zeroed(SUPERBLOCK_BYTES)]);
            let done = self.device.read(nth * SUPERBLOCK_BYTES as u64, bufs, IoClass::Meta).await;
            if let Err(error) = done.result {
                failed = Some(error);
                continue;
            }
            let copy: Vec<u8> = done.bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
            // One that is damaged, or being written, says nothing.
            let Found::Superblock(found) = HddSuperblock::decode(&copy) else { continue };
            if found.store != self.store || found.marks.opened > self.epoch {
                return Ok(Some(false));
            }
            if found.marks.opened == self.epoch {
                is_ours = Some(true);
            }
        }
        match failed {
            Some(error) if is_ours.is_none() => Err(error),
            _ => Ok(is_ours),
        }
    }

    async fn keep(self, length: Duration) {
        let mut lapsed = false;
        while !self.claim.has_ended() {
            self.unless_lapsed(&mut lapsed, sleep(length / 3)).await;
            let asked = self.claim.now();
            match self.unless_lapsed(&mut lapsed, self.look()).await {
                Ok(Some(true)) => self.claim.renew(asked, length),
                Ok(Some(false)) => self.claim.end(),
                Ok(None) => tracing::debug!("the HDD's superblock does not say who owns the volume"),
                Err(error) => tracing::debug!(%error, "the HDD does not say who owns the volume"),
            }
            if lapsed && self.claim.holds() {
                lapsed = false;
                self.claim.tell_lapsed(false);
            }
        }
    }

    /// Waits for `step`, and tells when the claim lapses meanwhile.
    async fn unless_lapsed<T>(&self, lapsed: &mut bool, step: impl Future<Output = T>) -> T {
        let mut step = pin!(step);
        loop {
            let left = self.claim.left();
            tokio::select! {
                biased;
                done = &mut step => return done,
                // One that has ended has no time left, either.
                () = sleep(left), if !*lapsed && !self.claim.has_ended() => {
                    if self.claim.has_lapsed() {
                        *lapsed = true;
                        self.claim.tell_lapsed(true);
                    }
                }
            }
        }
    }
}
