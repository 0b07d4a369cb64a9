//! Opening a store: the log, the pages, redo, and only then the tree.
//!
//! The crate of the log checks that log and pages belong together, redoes the log, and acknowledges the loss
//! of an SSD. What is left here: the first two pages of a new store.

use crate::durable;
use crate::error::KvError;
use crate::kv::Kv;
use crate::options::Options;
use pagetier::{
    Builder, OpenError, PageSize, PageStore, options::CostSource, options::Create, options::OnHdd,
};
use pagetier_btree::Tree;
use pagetier_wal::{Keep, LoggedStore, Wal, WalOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The reads and writes of each device that the costs of a remote home are the mean of.
const COST_POINTS: usize = 4096;

pub(crate) const SPACE: &str = "kv";
/// How often the store lists its hot set, if another machine could open it.
const HOT_SET_EVERY: Duration = Duration::from_secs(300);
/// The minimum size of the log, in pages: space for the records of a few of the longest values.
const LOG_PAGES_MIN: u64 = 256;

impl Kv {
    /// Opens the store that `options` describe, and recovers it if it was not closed.
    ///
    /// # Errors
    /// The pages or the log cannot be opened, do not belong together, or recovery fails. Opening again is
    /// always safe.
    pub async fn open(options: &Options) -> Result<Self, KvError> {
        let pages = options.pages_dir();
        if !options.create && options.hdd_device.is_none() && !pages.exists() {
            return Err(OpenError::NotFound { path: options.dir.clone() }.into());
        }
        let page_bytes = options.page_bytes.unwrap_or(PageSize::DEFAULT.bytes() as u64);
        let survives = options.survives_file();
        let (in_dir, on_device) = (options.log_device.is_none(), options.log_device.clone());
        // A log on a device is for a machine that has nothing else, the SSD included.
        let keep = options.survives_ssd_loss || !in_dir || survives.exists();
        let log = WalOptions::new()
            .capacity_bytes(options.log_bytes.max(LOG_PAGES_MIN * page_bytes))
            .keep(if keep { Keep::ForSsdLoss } else { Keep::ForCrash });
        let wal = match on_device {
            Some(device) => Wal::on_device(device, log).await?,
            None => Wal::open_when_free(&options.log_dir(), log).await?,
        };
        // A later open keeps the log for the loss of the SSD even without the option.
        if keep && in_dir && !survives.exists() {
            durable::create_file(&survives)?;
        }
        let create = if options.create { Create::OnBlank } else { Create::Never };
        let mut builder = PageStore::builder().directory(&pages).create(create);
        builder = builder.pool_bytes(options.pool_bytes);
        builder = builder.accept_ssd_loss(options.accept_ssd_loss).accept_log_loss(options.accept_log_loss);
        let ssd = options.ssd.clone().unwrap_or_else(|| pages.join("ssd.cache"));
        // The SSD's file is gone, and no size is given for another: the store goes on without one.
        let gone = options.accept_ssd_loss && !wal.is_new() && !ssd.exists();
        if let Some(bytes) = options.ssd_bytes.or(gone.then_some(0)) {
            builder = builder.ssd_bytes(bytes);
        }
        if let Some(bytes) = options.page_bytes {
            builder = builder.page_size(PageSize::new(bytes).map_err(OpenError::from)?);
        }
        if let Some(hdd) = &options.hdd {
            builder = builder.hdd(hdd);
        }
        if let Some(device) = &options.hdd_device {
            // What a page costs there is anyone's guess, and changes with the cluster's load.
            let manifest = OnHdd::default();
            let manifest = options.lease.map_or(manifest, |length| manifest.lease(length));
            builder = builder.hdd(Arc::clone(device)).manifest(manifest);
            builder = builder.costs(CostSource::online(COST_POINTS));
        }
        if let Some(ssd) = &options.ssd {
            builder = builder.ssd(ssd);
        }
        let mut kv = Self::open_on(builder, wal, options.stall_max).await?;
        if options.hdd_device.is_some() {
            // For the machine that opens the device next, whose SSD is blank. Without a list it begins cold:
            // no reason not to open, say on a full volume.
            let _ = kv.logged.hot_set().keep(HOT_SET_EVERY).await;
        }
        if options.control_socket {
            match pagetier_control::listen(&kv.logged, &pages).await {
                Ok(control) => kv.control = Mutex::new(Some(control)),
                Err(error) => {
                    // What it recovered stays so; the next open finds a store that was closed.
                    kv.shutdown().await?;
                    return Err(error.into());
                }
            }
        }
        Ok(kv)
    }

    /// Opens the store on the devices of `builder` and a log, for a store that is not in one directory. The
    /// log becomes the store's gate.
    ///
    /// # Errors
    /// As [`Kv::open`].
    pub async fn open_on(builder: Builder, wal: Wal, stall_max: Duration) -> Result<Self, KvError> {
        let logged = Arc::new(LoggedStore::on(builder, wal).await?);
        let space = match logged.spaces().find(SPACE) {
            Some(space) => space,
            None => logged.spaces().create(SPACE).await?,
        };
        let (store, wal) = (Arc::clone(logged.store()), Some(logged.wal().clone()));
        let tree = match Tree::meta(&store, space).await? {
            Some(_) => Tree::open(store, wal, space),
            None if logged.wal().is_new() => Tree::create(store, wal, space, logged.wal().id()).await?,
            // Redo would have made the page if this log had ever had its record.
            None => return Err(KvError::NoMeta),
        };
        Ok(Self { control: Mutex::default(), tree, logged, stall_max })
    }
}
