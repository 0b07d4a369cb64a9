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

macro_rules! run {
    (|$world:ident, $side:ident| $body:expr) => {{
        fn run(world: &World, side: Side) -> Running<'_> {
            Box::pin(async move {
                let ($world, $side) = (world, side);
                let _ = ($world, $side);
                let body: Result<Done, Refused> = async { $body }.await;
                body
            })
        }
        run
    }};
}

const PLAIN: Operation = Operation {
    name: "",
    methods: &[],
    setup: Setup::InUse,
    effects: nothing,
    syncs: false,
    run: run!(|w, s| done()),
};

#[expect(clippy::unnecessary_wraps, reason = "the end of an operation")]
fn done() -> Ended {
    Ok(Done::default())
}

/// Operations on pages.
pub(crate) const PAGE_OPERATIONS: &[Operation] = &[
    Operation {
        name: "get",
        methods: &["PageStore::get", "PageStore::get_many", "PageStore::try_get", "PageStore::exists"],
        run: run!(|w, s| {
            for no in (0..PAGES).step_by(5) {
                let _ = w.store.exists(w.page(no));
                drop(w.store.try_get(w.page(no)));
                drop(w.store.try_get(w.page(no)).map(|page| page.into_owned(&w.store)));
                exists(w.store.get(w.page(no)).await)?;
            }
            exists(w.store.get(PageId::new(w.doomed, 1)).await.map(|page| page.into_owned(&w.store)))?;
            exists(w.store.get_many(&[w.page(1), w.page(2), w.page(1)]).await)?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "get_mut",
        methods: &["PageStore::get_mut", "PageStore::try_get_mut"],
        effects: |w| [of(w, 0..6, Effect::Write), of(w, 60..66, Effect::Write)].concat(),
        run: run!(|w, s| {
            let mut partly = false;
            for no in (0..6).chain(60..66) {
                partly |= !exists(put(&w.store, w.page(no), s.version()).await)?;
            }
            Ok(Done { partly, ..Done::default() })
        }),
        ..PLAIN
    },
    Operation {
        name: "allocate, with a guard",
        methods: &["PageStore::allocate"],
        effects: |w| doomed(w, 0..1, Effect::Write),
        run: run!(|w, s| {
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
        }),
        ..PLAIN
    },
    Operation {
        name: "create, beyond the end",
        methods: &["PageStore::overwrite", "Spaces::reserve"],
        run: run!(|w, s| {
            w.store.spaces().reserve(w.main, PAGES + 300).await?;
            for no in [PAGES + 1, PAGES + 200] {
                fill(&mut w.store.overwrite(w.page(no)).await?, no, s.version());
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "overwrite",
        methods: &["PageStore::overwrite"],
        effects: |w| of(w, 2..5, Effect::Write),
        run: run!(|w, s| {
            fill(&mut w.store.overwrite(w.page(2)).await?.into_owned(&w.store), 2, s.version());
            for no in 3..5 {
                fill(&mut w.store.overwrite(w.page(no)).await?, no, s.version());
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "recreate",
        methods: &["PageStore::get_or_create"],
        effects: |w| of(w, 4..7, Effect::Write),
        run: run!(|w, s| {
            fill(&mut w.store.get_or_create(w.page(4)).await?.into_owned(&w.store), 4, s.version());
            for no in 5..7 {
                fill(&mut w.store.get_or_create(w.page(no)).await?, no, s.version());
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "discard",
        methods: &["PageStore::discard"],
        effects: |w| of(w, 5..9, Effect::Discard),
        run: run!(|w, s| {
            for no in 5..9 {
                exists(w.store.discard(w.page(no)).await)?;
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "free",
        methods: &["PageStore::free", "PageStore::free_on_sync"],
        effects: |w| [of(w, 3..8, Effect::Free), of(w, 70..72, Effect::Free)].concat(),
        run: run!(|w, s| {
            w.store.free(w.page(3)).await?;
            let pages = [4, 5, 6, 7].map(|no| w.page(no));
            w.store.free(&pages).await?;
            w.store.free_on_sync(&[70, 71].map(|no| w.page(no)))?;
            // After a failure the next one frees them, at the latest a close.
            let partly = w.store.sync().await.is_err();
            Ok(Done { partly, ..Done::default() })
        }),
        ..PLAIN
    },
    Operation {
        name: "free, then create again",
        methods: &["PageStore::free", "PageStore::overwrite"],
        effects: |w| [of(w, 3..8, Effect::Again), of(w, 60..62, Effect::Again)].concat(),
        run: run!(|w, s| {
            for no in [60, 61, 3, 4, 5, 6, 7] {
                w.store.free(w.page(no)).await?;
                fill(&mut w.store.overwrite(w.page(no)).await?, no, s.version());
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "free a range",
        methods: &["PageStore::free"],
        effects: |w| of(w, 64..PAGES, Effect::Free),
        run: run!(|w, s| {
            w.store.free((w.main, 64..PAGES)).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "scan",
        methods: &["PageStore::scan", "PageStore::prefetch"],
        run: run!(|w, s| {
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
        ..PLAIN
    },
    Operation {
        name: "sync",
        methods: &["PageStore::sync", "Spaces::sync"],
        syncs: true,
        run: run!(|w, s| {
            w.store.spaces().sync(w.main).await?;
            w.store.sync().await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "flush_to",
        methods: &["PageStore::flush_to"],
        syncs: true,
        run: run!(|w, s| {
            w.store.flush_to(Lsn(1 << 40)).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "redo_from",
        methods: &[
            "PageStore::redo_from",
            "PageStore::flush",
            "PageStore::min_recovery_lsn",
            "PageStore::record_log",
        ],
        run: run!(|w, s| {
            let from = w.store.redo_from(Lsn(1 << 40), Loss::Ssd).await?;
            let mark = LogMark { id: 1, generation: 1, end: Lsn(1 << 40), from, restored: false };
            w.store.record_log(mark).await?;
            done()
        }),
        ..PLAIN
    },
];

/// Operations on spaces.
pub(crate) const SPACE_OPERATIONS: &[Operation] = &[
    Operation {
        name: "create a space",
        methods: &["Spaces::create", "Spaces::create_as"],
        run: run!(|w, s| {
            w.store.spaces().create(["new-0", "new-1"][s as usize]).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "create a space of one name",
        methods: &["Spaces::create"],
        run: run!(|w, s| {
            w.store.spaces().create("new").await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "remove a space",
        methods: &["Spaces::drop"],
        effects: |w| doomed(w, 0..DOOMED, Effect::Free),
        run: run!(|w, s| {
            w.store.spaces().drop(w.doomed).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "shrink a space",
        methods: &["Spaces::shrink"],
        effects: |w| of(w, 64..PAGES, Effect::Free),
        run: run!(|w, s| {
            w.store.free((w.main, 64..PAGES)).await?;
            w.store.spaces().shrink(w.main).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "set hints",
        methods: &["Spaces::set_hints"],
        run: run!(|w, s| {
            let hints = SpaceHints::new().never_to_ssd(s == Side::First);
            w.store.spaces().set_hints(w.main, hints)?;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            w.store.spaces().set_hints(w.main, SpaceHints::new())?;
            done()
        }),
        ..PLAIN
    },
];

/// Operations on the SSD.
pub(crate) const SSD_OPERATIONS: &[Operation] = &[
    Operation {
        name: "set the SSD's mode",
        methods: &["Ssd::set_mode"],
        run: run!(|w, s| {
            let ssd = w.store.ssd();
            for mode in [SsdMode::WriteThrough, SsdMode::ReadOnly, SsdMode::WriteBack] {
                ssd.set_mode(mode).await?;
                tokio::task::yield_now().await;
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "set the SSD read-only",
        methods: &["Ssd::set_mode"],
        run: run!(|w, s| {
            w.store.ssd().set_mode(SsdMode::ReadOnly).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "switch the SSD off",
        methods: &["Ssd::set_mode"],
        run: run!(|w, s| {
            w.store.ssd().set_mode(SsdMode::Off).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "drain",
        methods: &["Ssd::drain"],
        run: run!(|w, s| {
            let report = w.store.ssd().drain(DrainOptions::new()).await;
            Ok(Done { partly: report.left > 0, ..Done::default() })
        }),
        ..PLAIN
    },
    Operation {
        name: "readmit, after a failure",
        methods: &["Ssd::readmit"],
        setup: Setup::Failed,
        run: run!(|w, s| {
            w.store.ssd().readmit().await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "readmit, from off",
        methods: &["Ssd::readmit"],
        setup: Setup::Off,
        run: run!(|w, s| {
            w.store.ssd().readmit().await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "abandon the SSD",
        methods: &["Ssd::abandon"],
        run: run!(|w, s| {
            let lost = w.store.ssd().abandon().await?;
            Ok(Done { lost: Some(lost), ..Done::default() })
        }),
        ..PLAIN
    },
    Operation {
        name: "replace the SSD",
        methods: &["Ssd::replace"],
        run: run!(|w, s| {
            let (next, bytes) = w.disks.next_ssd(s);
            w.store.ssd().replace(next, bytes).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "acknowledge a loss",
        methods: &["Ssd::acknowledge_loss", "Ssd::loss"],
        run: run!(|w, s| {
            w.store.ssd().acknowledge_loss().await?;
            done()
        }),
        ..PLAIN
    },
];

/// Everything else.
pub(crate) const OTHER_OPERATIONS: &[Operation] = &[
    Operation {
        name: "resize the pool",
        methods: &["PageStore::resize_pool"],
        run: run!(|w, s| {
            w.store.resize_pool(w.disks.pool_bytes() * 3 / 4).await?;
            w.store.resize_pool(w.disks.pool_bytes()).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "set the pool's policy",
        methods: &["Policies::set_pool", "Policies::pool", "Policies::set_costs"],
        run: run!(|w, s| {
            for policy in [PoolPolicy::Lru, PoolPolicy::default()] {
                w.store.policies().set_pool(policy)?;
                w.store.policies().set_costs(Costs { hdd_read_ms: 3.0, ..w.store.policies().costs() })?;
                tokio::task::yield_now().await;
            }
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "set the SSD's policy",
        methods: &["Policies::set_ssd", "Policies::ssd"],
        run: run!(|w, s| {
            w.store.policies().set_ssd("lru2").await?;
            w.store.policies().set_ssd(SsdPolicy::default()).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "scrub",
        methods: &["PageStore::scrub"],
        run: run!(|w, s| {
            let report = w.store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
            let found = report.findings.first().map(|found| format!("{found:?}"));
            found.map_or_else(
                || Ok(Done { partly: !report.complete, ..Done::default() }),
                |error| Err(Refused { kind: "a damaged page".into(), error }),
            )
        }),
        ..PLAIN
    },
    Operation {
        name: "backup",
        methods: &["PageStore::backup"],
        syncs: true,
        run: run!(|w, s| {
            w.store.backup(w.backup_folder(), BackupOptions::new()).await?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "what-if",
        methods: &["PageStore::what_if", "Estimates::start", "Estimates::report", "Estimates::stop"],
        run: run!(|w, s| {
            busy(w.store.what_if().start(&WhatIfOptions::new().share(1.0)))?;
            tokio::task::yield_now().await;
            drop(w.store.what_if().report());
            w.store.what_if().stop().await;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "export, import and keep the hot set",
        methods: &["PageStore::hot_set", "HotSet::pages", "HotSet::export", "HotSet::import", "HotSet::keep"],
        run: run!(|w, s| {
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
        }),
        ..PLAIN
    },
    Operation {
        name: "record a trace",
        methods: &["PageStore::trace", "Trace::start", "Trace::progress", "Trace::stop"],
        run: run!(|w, s| {
            busy(w.store.trace().start(w.folder.path().join("trace")))?;
            tokio::task::yield_now().await;
            let _ = w.store.trace().progress();
            busy(w.store.trace().stop().await.map(drop))?;
            done()
        }),
        ..PLAIN
    },
    Operation {
        name: "views",
        methods: &[
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
            "Policies::counts",
        ],
        run: run!(|w, s| {
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
        }),
        ..PLAIN
    },
    Operation {
        name: "shutdown",
        methods: &["PageStore::shutdown"],
        syncs: true,
        run: run!(|w, s| {
            w.store.shutdown().await?;
            done()
        }),
        ..PLAIN
    },
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
