//! Opening a store: the log, the pages, redo, and only then the tree.
//!
//! 1. Open the log. It rewrites its own tail before it calls that durable.
//! 2. Open the page store with the log as its gate.
//! 3. Compare the identities of log and pages, before redo changes a page.
//! 4. If an SSD was given up, check that the log reaches back far enough.
//! 5. Redo.
//! 6. Write the first two pages of a new store, by a log record like any other.
//! 7. Acknowledge the loss of the SSD once the repaired pages are durable.

use crate::durable;
use crate::error::KvError;
use crate::kv::{Kv, Recovered};
use crate::options::Options;
use pagetier::{Builder, OpenError, PageSize, PageStore};
use pagetier_btree::Tree;
use pagetier_wal::{Keep, Redone, Wal, WalError, WalLimits, redo};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub(crate) const SPACE: &str = "kv";
/// The minimum size of the log, in pages: room for the records of a few of the longest values.
const LOG_PAGES_MIN: u64 = 256;
/// How long an opening waits for the log: a flush whose caller was dropped may outlast the previous store.
const LOG_WAIT_MAX: Duration = Duration::from_millis(500);
/// The polling interval of this wait.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Kv {
    /// Opens the store that `options` describe, and recovers it if it was not closed.
    ///
    /// # Errors
    /// The pages or the log cannot be opened, do not belong together, or recovery fails. Opening again is
    /// always safe.
    pub async fn open(options: &Options) -> Result<Self, KvError> {
        let pages = options.pages_dir();
        if !options.create && !pages.exists() {
            return Err(OpenError::NotFound { path: options.dir.clone() }.into());
        }
        durable::create_dir(&options.dir)?;
        let page_bytes = options.page_bytes.unwrap_or(PageSize::DEFAULT.bytes() as u64);
        let limits = WalLimits { capacity_bytes: options.log_bytes.max(LOG_PAGES_MIN * page_bytes) };
        let wal = open_log(&options.log_dir(), limits).await?;
        let survives = options.survives_file();
        if wal.is_new() && options.survives_ssd_loss {
            durable::create_file(&survives)?;
        }
        if options.survives_ssd_loss && !survives.exists() {
            let why = "the store was created without it, and a new store is needed to change that";
            return Err(OpenError::BadOption { option: "survives_ssd_loss", why: why.into() }.into());
        }
        let keep = if survives.exists() { Keep::ForSsdLoss } else { Keep::ForCrash };
        let mut builder = PageStore::builder().directory(&pages).create(options.create);
        builder = builder.pool_bytes(options.pool_bytes);
        builder = builder.accept_ssd_loss(options.accept_ssd_loss);
        let ssd = options.ssd.clone().unwrap_or_else(|| pages.join("ssd.cache"));
        let gone = options.accept_ssd_loss && !wal.is_new() && !ssd.exists();
        if let Some(bytes) = options.ssd_bytes.or(gone.then_some(0)) {
            builder = builder.ssd_bytes(bytes);
        }
        if let Some(bytes) = options.page_bytes {
            builder = builder.page_bytes(bytes);
        }
        if let Some(hdd) = &options.hdd {
            builder = builder.hdd(hdd);
        }
        if let Some(ssd) = &options.ssd {
            builder = builder.ssd(ssd);
        }
        Self::open_on(builder, wal, keep, options.stall_max).await
    }

    /// Opens the store on the devices of `builder` and a log, for a store that is not in one directory. The
    /// log becomes the store's gate.
    ///
    /// # Errors
    /// As [`Kv::open`].
    pub async fn open_on(
        builder: Builder,
        wal: Wal,
        keep: Keep,
        stall_max: Duration,
    ) -> Result<Self, KvError> {
        let store = Arc::new(builder.log_gate(wal.gate()).open().await?);
        let space = match store.spaces().find(SPACE) {
            Some(space) => space,
            None => store.spaces().create(SPACE).await?,
        };
        if let Some(meta) = Tree::meta(&store, space).await?
            && meta.tag != wal.id()
        {
            return Err(KvError::OtherLog { log: wal.id(), pages: meta.tag });
        }
        let lost_pages = check_loss(&store, &wal, keep)?;
        let Redone { records, applied, .. } = redo(&store, &wal).await?;
        let (opened, logged) = (Arc::clone(&store), Some(wal.clone()));
        let tree = match Tree::meta(&store, space).await? {
            Some(_) => Tree::open(opened, logged, space),
            None if wal.is_new() => {
                let tree = Tree::create(opened, logged, space, wal.id()).await?;
                // The log's identity is on disk from here on, even if the first opening does not complete.
                store.sync().await?;
                tree
            }
            None => return Err(KvError::NoMeta),
        };
        if store.ssd().loss().is_some() {
            store.sync().await?;
            store.ssd().acknowledge_loss().await?;
        }
        Ok(Self::new(tree, wal, keep, stall_max, Recovered { records, applied, lost_pages }))
    }
}

async fn open_log(dir: &Path, limits: WalLimits) -> Result<Wal, WalError> {
    let until = Instant::now() + LOG_WAIT_MAX;
    loop {
        match Wal::open(dir, limits) {
            Err(WalError::InUse { .. }) if Instant::now() < until => sleep(LOOK_EVERY).await,
            opened => return opened,
        }
    }
}

/// Returns the number of pages listed as lost with an SSD; fails if redo cannot restore them.
fn check_loss(store: &PageStore, wal: &Wal, keep: Keep) -> Result<u64, KvError> {
    let Some(loss) = store.ssd().loss() else { return Ok(0) };
    let pages = loss.pages();
    let reaches = loss.redo_from.is_some_and(|from| wal.oldest() < from);
    if pages == 0 || reaches || keep == Keep::ForSsdLoss {
        Ok(pages)
    } else {
        Err(KvError::SsdLost { pages })
    }
}
