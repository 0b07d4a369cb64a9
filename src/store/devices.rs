//! What changes of a store's equipment while it runs: the devices that it uses, and the policies in force.

use crate::config::choices::Place;
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::ownership::held_dir::At;
use crate::ownership::lock::Ownership;
use crate::volume::hdd_ring::HddRing;
use pagetier_devio::{files::Identity, locks};
use pagetier_policy::{PoolPolicy, SsdPolicy};
use pagetier_ssdcache::Layout;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The file or block device of each option that the store uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used(Vec<(&'static str, Identity)>);

impl Used {
    /// Refuses what another option names already.
    pub(crate) fn refuse_twice(&self, at: &At, option: &'static str) -> Result<(), OpenError> {
        let Some(found) = at.identity() else { return Ok(()) };
        // Compare identities: two paths may lead to one file, by a link or a bind mount.
        match self.0.iter().find(|(other, used)| *other != option && *used == found) {
            Some((other, _)) => Err(OpenError::SameDevice { device: at.shown.clone(), option, other }),
            None => Ok(()),
        }
    }

    /// Notes what `option` uses from here on.
    pub(crate) fn note(&mut self, at: &At, option: &'static str) {
        self.0.retain(|(other, _)| *other != option);
        self.0.extend(at.identity().map(|found| (option, found)));
    }
}

/// What an open store uses, and may exchange.
#[derive(Debug)]
pub(crate) struct InUse {
    pub(crate) used: Used,
    /// The I/O backend chosen for each device path, keyed by option name.
    pub(crate) served: BTreeMap<&'static str, String>,
    pub(crate) pool_policy: PoolPolicy,
    pub(crate) ssd_policy: SsdPolicy,
    /// Where the SSD is, or would be, and its layout; `None`: as the options say.
    pub(crate) ssd: (Place, Option<Layout>),
}

/// The memory budget, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    /// The part that the tables of an SSD, or of its policy, need that is about to be put into use.
    pub(crate) tables_to_come: u64,
}

/// The devices of a store, from the moment it is opened: opens them, and knows which are in use.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) config: Arc<Config>,
    pub(crate) ownership: Arc<Ownership>,
    pub(crate) in_use: Mutex<InUse>,
    /// Held while the pool is fitted to it, so that such changes run one after the other.
    pub(crate) budget: locks::Mutex<Budget>,
    /// The ring, if it is on the HDD. Set once the manifest is known.
    pub(crate) hdd_ring: OnceLock<HddRing>,
}

impl Devices {
    pub(crate) fn new(config: Arc<Config>, ownership: Arc<Ownership>) -> Self {
        let in_use = InUse {
            used: Used::default(),
            served: BTreeMap::new(),
            pool_policy: config.options.pool_policy,
            ssd_policy: config.options.ssd_policy,
            ssd: (config.ssd_place(), None),
        };
        let budget = Budget { bytes: config.options.pool_bytes, tables_to_come: 0 };
        let (in_use, budget) = (Mutex::new(in_use), locks::Mutex::new(locks::Rank::Budget, budget));
        Self { config, ownership, in_use, budget, hdd_ring: OnceLock::new() }
    }

    /// Performs an exchange of the cache device, whose options then use what it has opened. If it fails, they
    /// use what they did.
    pub(crate) async fn exchanging<T, E>(
        &self,
        exchange: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        // A failed exchange has opened the new device and noted it. The old one stays in use, so its note
        // comes back.
        let before = self.in_use.lock().used.clone();
        exchange.await.inspect_err(|_| self.in_use.lock().used = before)
    }

    /// Whether the device that `option` uses is `at`.
    pub(crate) fn is_used(&self, at: &At, option: &str) -> bool {
        let found = at.identity();
        self.in_use.lock().used.0.iter().any(|(other, used)| *other == option && Some(*used) == found)
    }
}
