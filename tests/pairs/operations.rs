//! The table of operations. Each runs with every other one, and with itself.

use crate::fixture::fill;
use crate::world::{DIRTY, DOOMED, PAGES, Setup, Side, World, put};
use pagetier::log::LogMark;
use pagetier::{
    Costs, DrainOptions, Error, Loss, Lsn, OpenError, PageId, PoolPolicy, SpaceHints, SsdLoss, SsdMode,
    SsdPolicy,
    backup::{BackupError, BackupOptions},
    errors::{PoolError, TierError},
    scrub::ScrubOptions,
    what_if::WhatIfOptions,
};
use std::future::Future;
use std::pin::Pin;

/// What an operation may do to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Writes this side's version.
    Write,
    /// Makes the page cease to exist.
    Free,
    /// Makes it cease to exist, then writes this side's version to a page of its number.
    Again,
    /// Drops the newest version.
    Discard,
}

/// How an operation that was not dropped ended.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// What it lost, as it said.
    pub(crate) lost: Option<SsdLoss>,
    /// It completed, but only in part.
    pub(crate) partly: bool,
}

/// A refusal: the error's kind, and the error.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) kind: String,
    pub(crate) error: String,
}

pub(crate) type Ended = Result<Done, Refused>;
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Ended> + 'a>>;

pub(crate) struct Operation {
    /// As the table in `docs/RELIABILITY.md` names it.
    pub(crate) name: &'static str,
    /// The public methods that it stands for.
    pub(crate) methods: &'static [&'static str],
    pub(crate) setup: Setup,
    pub(crate) effects: fn(&World) -> Vec<(PageId, Effect)>,
    /// When it has succeeded, what was written before it is durable.
    pub(crate) syncs: bool,
    pub(crate) run: for<'a> fn(&'a World, Side) -> Running<'a>,
}

fn nothing(_: &World) -> Vec<(PageId, Effect)> {
    Vec::new()
}

fn of(world: &World, pages: std::ops::Range<u32>, effect: Effect) -> Vec<(PageId, Effect)> {
    pages.map(|no| (world.page(no), effect)).collect()
}

fn doomed(world: &World, pages: std::ops::Range<u32>, effect: Effect) -> Vec<(PageId, Effect)> {
    pages.map(|no| (PageId::new(world.doomed, no), effect)).collect()
}

/// An operation: its name, the public methods that it stands for, and what it does to a store in use.
macro_rules! op {
    ($name:expr, $methods:expr, |$world:ident, $side:ident| $body:expr) => {{
        fn run(world: &World, side: Side) -> Running<'_> {
            Box::pin(async move {
                let ($world, $side) = (world, side);
                let _ = ($world, $side);
                let body: Result<Done, Refused> = async { $body }.await;
                body
            })
        }
        let (effects, syncs) = (nothing as fn(&World) -> Vec<(PageId, Effect)>, false);
        Operation { name: $name, methods: $methods, setup: Setup::InUse, effects, syncs, run }
    }};
}

impl Operation {
    /// It meets this store instead.
    const fn after(mut self, setup: Setup) -> Self {
        self.setup = setup;
        self
    }

    const fn changing(mut self, effects: fn(&World) -> Vec<(PageId, Effect)>) -> Self {
        self.effects = effects;
        self
    }

    /// Its success makes durable what was written before it.
    const fn syncing(mut self) -> Self {
        self.syncs = true;
        self
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the end of an operation")]
fn done() -> Ended {
    Ok(Done::default())
}

/// Operations on pages.
pub(crate) const PAGE_OPERATIONS: &[Operation] = &[
    op!(
        "get",
        &["PageStore::get", "PageStore::get_many", "PageStore::try_get", "PageStore::exists"],
        |w, s| {
            for no in (0..PAGES).step_by(5) {
                let _ = w.store.exists(w.page(no));
                drop(w.store.try_get(w.page(no)));
                drop(w.store.try_get(w.page(no)).map(|page| page.into_owned(&w.store)));
                exists(w.store.get(w.page(no)).await)?;
            }
            exists(w.store.get(PageId::new(w.doomed, 1)).await.map(|page| page.into_owned(&w.store)))?;
            exists(w.store.get_many(&[w.page(1), w.page(2), w.page(1)]).await)?;
            done()
        }
    ),
    op!("get_mut", &["PageStore::get_mut", "PageStore::try_get_mut"], |w, s| {
        let mut partly = false;
        for no in (0..6).chain(60..66) {
            partly |= !exists(put(&w.store, w.page(no), s.version()).await)?;
        }
        Ok(Done { partly, ..Done::default() })
    })
    .changing(|w| [of(w, 0..6, Effect::Write), of(w, 60..66, Effect::Write)].concat()),
    op!("allocate, with a guard", &["PageStore::allocate"], |w, s| {
        let mut guard = w.store.get_mut(PageId::new(w.doomed, 0)).await?;
        fill(&mut guard, 0, s.version());
        let mut new = w.store.allocate(w.full).await?;
        let no = new.id().no;
        fill(&mut new, no, s.version());
        let mut new = w.store.allocate(w.full).await?.into_owned(&w.store);
        let no = new.id().no;
        fill(&mut new, no, s.version());
        drop(new);
        drop(guard);
        done()
    })
    .changing(|w| doomed(w, 0..1, Effect::Write)),
    op!("create, beyond the end", &["PageStore::overwrite", "Spaces::reserve"], |w, s| {
        w.store.spaces().reserve(w.main, PAGES + 300).await?;
        for no in [PAGES + 1, PAGES + 200] {
            fill(&mut w.store.overwrite(w.page(no)).await?, no, s.version());
        }
        done()
    }),
    op!("overwrite", &["PageStore::overwrite"], |w, s| {
        fill(&mut w.store.overwrite(w.page(2)).await?.into_owned(&w.store), 2, s.version());
        for no in 3..5 {
            fill(&mut w.store.overwrite(w.page(no)).await?, no, s.version());
        }
        done()
    })
    .changing(|w| of(w, 2..5, Effect::Write)),
    op!("recreate", &["PageStore::get_or_create"], |w, s| {
        fill(&mut w.store.get_or_create(w.page(4)).await?.into_owned(&w.store), 4, s.version());
        for no in 5..7 {
            fill(&mut w.store.get_or_create(w.page(no)).await?, no, s.version());
        }
        done()
    })
    .changing(|w| of(w, 4..7, Effect::Write)),
    op!("discard", &["PageStore::discard"], |w, s| {
        for no in 5..9 {
            exists(w.store.discard(w.page(no)).await)?;
        }
        done()
    })
    .changing(|w| of(w, 5..9, Effect::Discard)),
    op!("free", &["PageStore::free", "PageStore::free_on_sync"], |w, s| {
        w.store.free(w.page(3)).await?;
        let pages = [4, 5, 6, 7].map(|no| w.page(no));
        w.store.free(&pages).await?;
        w.store.free_on_sync(&[70, 71].map(|no| w.page(no)))?;
        // After a failure the next one frees them, at the latest a close.
        let partly = w.store.sync().await.is_err();
        Ok(Done { partly, ..Done::default() })
    })
    .changing(|w| [of(w, 3..8, Effect::Free), of(w, 70..72, Effect::Free)].concat()),
    op!("free, then create again", &["PageStore::free", "PageStore::overwrite"], |w, s| {
        for no in [60, 61, 3, 4, 5, 6, 7] {
            w.store.free(w.page(no)).await?;
            fill(&mut w.store.overwrite(w.page(no)).await?, no, s.version());
        }
        done()
    })
    .changing(|w| [of(w, 3..8, Effect::Again), of(w, 60..62, Effect::Again)].concat()),
    op!("free a range", &["PageStore::free"], |w, s| {
        w.store.free((w.main, 64..PAGES)).await?;
        done()
    })
    .changing(|w| of(w, 64..PAGES, Effect::Free)),
    op!("scan", &["PageStore::scan", "PageStore::prefetch"], |w, s| {
        w.store.prefetch(&[w.page(100), w.page(101), w.page(20)]);
        let mut scan = w.store.scan(w.main, 0..u32::MAX);
        while let Some(page) = scan.next().await {
            page?;
        }
        let mut scan = w.store.scan(w.main, 0..8).into_owned(&w.store);
        while let Some(page) = scan.next().await {
            page?;
        }
        done()
    }),
    op!("sync", &["PageStore::sync", "Spaces::sync"], |w, s| {
        w.store.spaces().sync(w.main).await?;
        w.store.sync().await?;
        done()
    })
    .syncing(),
    op!("flush_to", &["PageStore::flush_to"], |w, s| {
        w.store.flush_to(Lsn(1 << 40)).await?;
        done()
    })
    .syncing(),
    op!(
        "redo_from",
        &["PageStore::redo_from", "PageStore::flush", "PageStore::min_recovery_lsn", "PageStore::record_log"],
        |w, s| {
            let from = w.store.redo_from(Lsn(1 << 40), Loss::Ssd).await?;
            let mark = LogMark { id: 1, generation: 1, end: Lsn(1 << 40), from, restored: false };
            w.store.record_log(mark).await?;
            done()
        }
    ),
];

/// Operations on spaces.
pub(crate) const SPACE_OPERATIONS: &[Operation] = &[
    op!("create a space", &["Spaces::create", "Spaces::create_as"], |w, s| {
        w.store.spaces().create(["new-0", "new-1"][s as usize]).await?;
        done()
    }),
    op!("create a space of one name", &["Spaces::create"], |w, s| {
        w.store.spaces().create("new").await?;
        done()
    }),
    op!("remove a space", &["Spaces::drop"], |w, s| {
        w.store.spaces().drop(w.doomed).await?;
        done()
    })
    .changing(|w| doomed(w, 0..DOOMED, Effect::Free)),
    op!("shrink a space", &["Spaces::shrink"], |w, s| {
        w.store.free((w.main, 64..PAGES)).await?;
        w.store.spaces().shrink(w.main).await?;
        done()
    })
    .changing(|w| of(w, 64..PAGES, Effect::Free)),
    op!("set hints", &["Spaces::set_hints"], |w, s| {
        let hints = SpaceHints::new().never_to_ssd(s == Side::First);
        w.store.spaces().set_hints(w.main, hints)?;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        w.store.spaces().set_hints(w.main, SpaceHints::new())?;
        done()
    }),
];

/// Operations on the SSD.
pub(crate) const SSD_OPERATIONS: &[Operation] = &[
    op!("set the SSD's mode", &["Ssd::set_mode"], |w, s| {
        let ssd = w.store.ssd();
        for mode in [SsdMode::WriteThrough, SsdMode::ReadOnly, SsdMode::WriteBack] {
            ssd.set_mode(mode).await?;
            tokio::task::yield_now().await;
        }
        done()
    }),
    op!("set the SSD read-only", &["Ssd::set_mode"], |w, s| {
        w.store.ssd().set_mode(SsdMode::ReadOnly).await?;
        done()
    }),
    op!("switch the SSD off", &["Ssd::set_mode"], |w, s| {
        w.store.ssd().set_mode(SsdMode::Off).await?;
        done()
    }),
    op!("drain", &["Ssd::drain"], |w, s| {
        let report = w.store.ssd().drain(DrainOptions::new()).await;
        Ok(Done { partly: report.left > 0, ..Done::default() })
    }),
    op!("readmit, after a failure", &["Ssd::readmit"], |w, s| {
        w.store.ssd().readmit().await?;
        done()
    })
    .after(Setup::Failed),
    op!("readmit, from off", &["Ssd::readmit"], |w, s| {
        w.store.ssd().readmit().await?;
        done()
    })
    .after(Setup::Off),
    op!("abandon the SSD", &["Ssd::abandon"], |w, s| {
        let lost = w.store.ssd().abandon().await?;
        Ok(Done { lost: Some(lost), ..Done::default() })
    }),
    op!("replace the SSD", &["Ssd::replace"], |w, s| {
        let (next, bytes) = w.disks.next_ssd(s);
        w.store.ssd().replace(next, bytes).await?;
        done()
    }),
    op!("acknowledge a loss", &["Ssd::acknowledge_loss", "Ssd::loss"], |w, s| {
        w.store.ssd().acknowledge_loss().await?;
        done()
    }),
];

/// Everything else.
pub(crate) const OTHER_OPERATIONS: &[Operation] = &[
    op!("resize the pool", &["PageStore::resize_pool"], |w, s| {
        w.store.resize_pool(w.disks.pool_bytes() * 3 / 4).await?;
        w.store.resize_pool(w.disks.pool_bytes()).await?;
        done()
    }),
    op!("set the pool's policy", &["Policies::set_pool", "Policies::pool", "Policies::set_costs"], |w, s| {
        for policy in [PoolPolicy::Lru, PoolPolicy::default()] {
            w.store.policies().set_pool(policy)?;
            w.store.policies().set_costs(Costs { hdd_read_ms: 3.0, ..w.store.policies().costs() })?;
            tokio::task::yield_now().await;
        }
        done()
    }),
    op!("set the SSD's policy", &["Policies::set_ssd", "Policies::ssd"], |w, s| {
        w.store.policies().set_ssd("lru2").await?;
        w.store.policies().set_ssd(SsdPolicy::default()).await?;
        done()
    }),
    op!("scrub", &["PageStore::scrub"], |w, s| {
        let report = w.store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
        let found = report.findings.first().map(|found| format!("{found:?}"));
        found.map_or_else(
            || Ok(Done { partly: !report.complete, ..Done::default() }),
            |error| Err(Refused { kind: "a damaged page".into(), error }),
        )
    }),
    op!("backup", &["PageStore::backup"], |w, s| {
        w.store.backup(w.backup_folder(), BackupOptions::new()).await?;
        done()
    })
    .syncing(),
    op!(
        "what-if",
        &["PageStore::what_if", "Estimates::start", "Estimates::report", "Estimates::stop"],
        |w, s| {
            busy(w.store.what_if().start(&WhatIfOptions::new().share(1.0)))?;
            tokio::task::yield_now().await;
            drop(w.store.what_if().report());
            w.store.what_if().stop().await;
            done()
        }
    ),
    op!(
        "export, import and keep the hot set",
        &["PageStore::hot_set", "HotSet::pages", "HotSet::export", "HotSet::import", "HotSet::keep"],
        |w, s| {
            let path = w.folder.path().join("hot");
            let said = |error: pagetier::errors::HotSetError| Refused {
                kind: "HotSetError".into(),
                error: format!("{error:?}"),
            };
            w.store.hot_set().export(&path).await.map_err(said)?;
            w.store.hot_set().import(&path).await.map_err(said)?;
            let often = std::time::Duration::from_millis(10);
            w.store.hot_set().keep(often).await?;
            tokio::time::sleep(3 * often).await;
            done()
        }
    ),
    op!("record a trace", &["PageStore::trace", "Trace::start", "Trace::progress", "Trace::stop"], |w, s| {
        busy(w.store.trace().start(w.folder.path().join("trace")))?;
        tokio::task::yield_now().await;
        let _ = w.store.trace().progress();
        busy(w.store.trace().stop().await.map(drop))?;
        done()
    }),
    op!(
        "views",
        &[
            "PageStore::stats",
            "PageStore::why",
            "PageStore::location",
            "PageStore::recovery",
            "PageStore::frames",
            "PageStore::page_size",
            "PageStore::is_owner",
            "PageStore::ssd",
            "PageStore::spaces",
            "PageStore::policies",
            "PageStore::export_stats",
            "Spaces::list",
            "Spaces::find",
            "Spaces::pages",
            "Ssd::events",
            "Ssd::set_write_budget",
            "Policies::costs",
            "Policies::groups",
            "Policies::counts"
        ],
        |w, s| {
            let (store, page) = (&w.store, w.page(DIRTY));
            let every = std::time::Duration::from_secs(1);
            let export = store.export_stats(w.folder.path().join("stats"), every).await;
            let _export = export
                .map_err(|error| Refused { kind: "StatsExportError".into(), error: error.to_string() })?;
            let mut events = store.ssd().events();
            store.ssd().set_write_budget(Some(64 << 20));
            for _ in 0..3 {
                drop((store.stats(), store.why(page), store.location(page), store.recovery()));
                drop((store.spaces().list(), store.spaces().find("main"), store.spaces().pages(w.main)));
                drop((
                    store.stats().ssd.oldest_lsn,
                    store.policies().groups(),
                    store.policies().counts(page),
                ));
                drop((
                    store.stats().ssd.mode,
                    store.stats().ssd.state(),
                    store.is_owner(),
                    events.try_next(),
                ));
                tokio::task::yield_now().await;
            }
            store.ssd().set_write_budget(None);
            done()
        }
    ),
    op!("shutdown", &["PageStore::shutdown"], |w, s| {
        w.store.shutdown().await?;
        done()
    })
    .syncing(),
];

/// The table.
pub(crate) fn all() -> impl Iterator<Item = &'static Operation> + Clone {
    [PAGE_OPERATIONS, SPACE_OPERATIONS, SSD_OPERATIONS, OTHER_OPERATIONS].into_iter().flatten()
}

/// Whether the page existed.
fn exists<T>(result: Result<T, Error>) -> Result<bool, Refused> {
    match result {
        Ok(_) => Ok(true),
        Err(Error::NoSuchPage { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn busy(result: std::io::Result<()>) -> Result<(), Refused> {
    result.map_err(|error| Refused { kind: format!("{:?}", error.kind()), error: error.to_string() })
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Attach(why) => match &**why {
                OpenError::DeviceInUse { .. } => "DeviceInUse",
                _ => "another OpenError",
            },
            Error::Pool(PoolError::Tier(TierError::Refusing { .. })) => "Refusing",
            Error::Pool(PoolError::Shrink { .. }) => "Shrink",
            Error::Pool(PoolError::Exhausted { .. }) => "Exhausted",
            Error::Pool(_) => "another PoolError",
            Error::Refusing { cause } if cause.contains("runtime") => "a panic",
            Error::Refusing { .. } => "Refusing",
            Error::Readmit(_) => "Readmit",
            Error::Device(_) => "Device",
            Error::Manifest { .. } => "Manifest",
            Error::Closed => "Closed",
            Error::NoSuchPage { .. } => "NoSuchPage",
            Error::NoSuchSpace { .. } => "NoSuchSpace",
            Error::SpaceExists { .. } => "SpaceExists",
            Error::SsdOnlyCopies { .. } => "SsdOnlyCopies",
            _ => "another Error",
        };
        Self { kind: kind.into(), error: format!("{error:?}") }
    }
}

impl From<BackupError> for Refused {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Store(error) | BackupError::Page { source: error, .. } => error.into(),
            error => Self { kind: "another BackupError".into(), error: format!("{error:?}") },
        }
    }
}
