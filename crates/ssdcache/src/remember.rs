//! Failed flushes, remembered beyond the end of the process.
//!
//! After a failed flush, data written since the last good one may never become durable, although it can be
//! read and the next flush may succeed. So the failure is noted durably before any caller learns of it, and
//! the next open rewrites what the note covers before it trusts or reuses any of it.

use pagetier_devio::task::Boxed;
use pagetier_page::PageId;
use parking_lot::Mutex;
use std::any::Any;
use std::future::ready;
use std::io;

/// A device whose flush can fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flushed {
    /// The HDD: home writes may be lost.
    Hdd,
    /// The SSD, or the ring's file in a store without one.
    Ssd,
}

/// What failed flushes left unverified.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unverified {
    /// A flush of the HDD failed.
    pub hdd: bool,
    /// A flush of the SSD, or of the ring's file, failed.
    pub ssd: bool,
    /// The pages whose homes were written since the last good flush of the HDD, or were being written when it
    /// failed. Sorted.
    pub homes: Vec<PageId>,
}

impl Unverified {
    /// Whether nothing is unverified.
    pub fn is_empty(&self) -> bool {
        !self.hdd && !self.ssd && self.homes.is_empty()
    }

    /// Adds what `other` names.
    pub fn add(&mut self, other: &Self) {
        self.hdd |= other.hdd;
        self.ssd |= other.ssd;
        self.homes.extend_from_slice(&other.homes);
        self.homes.sort_unstable();
        self.homes.dedup();
    }

    /// Removes what concerns `device`: everything on it is durable.
    pub fn clear(&mut self, device: Flushed) {
        match device {
            Flushed::Hdd => (self.hdd, self.homes) = (false, Vec::new()),
            Flushed::Ssd => self.ssd = false,
        }
    }
}

/// Keeps the note of failed flushes: the store's manifest. The calls may come from any thread; what they
/// begin continues if their results are dropped.
pub trait Remember: Send + Sync + 'static {
    /// The noted failures that have not been cleared.
    fn recall(&self) -> Unverified;

    /// Adds `unverified` to the note. Durable once the result arrives, which is an error if the note could
    /// not be written.
    fn note(&self, unverified: &Unverified) -> Boxed<'static, io::Result<()>>;

    /// Clears the note for `devices`: everything that it covers has been rewritten and is durable. After an
    /// error the note remains.
    fn made_durable(&self, devices: &[Flushed]) -> Boxed<'static, io::Result<()>>;

    /// Returns what [`Remember::note`] needs to work after the store is dropped. Held while a flush is under
    /// way.
    fn hold(&self) -> Option<Box<dyn Any + Send>> {
        None
    }
}

/// A note in memory, for stores in memory.
#[derive(Debug, Default)]
pub struct RememberInMemory(Mutex<Unverified>);

impl Remember for RememberInMemory {
    fn recall(&self) -> Unverified {
        self.0.lock().clone()
    }

    fn note(&self, unverified: &Unverified) -> Boxed<'static, io::Result<()>> {
        self.0.lock().add(unverified);
        Box::pin(ready(Ok(())))
    }

    fn made_durable(&self, devices: &[Flushed]) -> Boxed<'static, io::Result<()>> {
        let mut noted = self.0.lock();
        devices.iter().for_each(|device| noted.clear(*device));
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;

    #[test]
    fn a_note_is_empty_when_both_devices_are_proved() {
        let homes = vec![PageId::new(SpaceId(1), 7)];
        let hdd = Unverified { hdd: true, ssd: false, homes: Vec::new() };
        let ssd = Unverified { hdd: false, ssd: true, homes: Vec::new() };
        let listed = Unverified { homes, ..Unverified::default() };
        assert!(Unverified::default().is_empty());
        for part in [&hdd, &ssd, &listed] {
            assert!(!part.is_empty(), "{part:?}");
        }
        let mut all = hdd;
        all.add(&ssd);
        all.add(&listed);
        all.clear(Flushed::Hdd);
        assert_eq!(all, ssd);
        all.clear(Flushed::Ssd);
        assert!(all.is_empty());
    }
}
