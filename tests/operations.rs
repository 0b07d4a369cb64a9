//! Every operation on a running store, under load, while one thing goes wrong: a device fails, is full, slow
//! or gone, the manifest cannot be saved, the call is dropped, or the store is shut down. Each call returns
//! in time, and nothing synced is lost: not in the store, not after a power cut in the middle. What two
//! operations do to each other is in `pairs/`.

use crate::changing::{Known, blank_ssd, check, known};
use crate::fixture::{Fixture, PAGE, PAGES, SSD_PAGES, grown, version_of, write};
use pagetier::{
    Costs, DrainOptions, Error, OpenError, PageId, PageStore, Retention, SpaceHints, SpaceId, SsdMode,
    backup::BackupOptions, scrub::ScrubOptions, stats::SsdState, what_if::WhatIfOptions,
};
use pagetier_devio::{IoOp, SharedDevice};
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// No call lasts longer, whatever goes wrong.
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    ResizePool,
    PoolPolicy,
    SsdPolicy,
    WriteBudget,
    ReplaceSsd,
    Modes,
    Drain,
    Scrub,
    Backup,
    HotSet,
    Shrink,
    Hints,
    /// Ghosts, a trace and an export of the statistics.
    Observe,
}

use Operation::{
    Backup, Drain as Draining, Hints, HotSet, Modes, Observe, PoolPolicy as SetPoolPolicy, ReplaceSsd,
    ResizePool, Scrub, Shrink, SsdPolicy as SetSsdPolicy, WriteBudget,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Every call has to succeed.
    Nothing,
    /// Some operations of this kind fail.
    Hdd(IoOp),
    Ssd(IoOp),
    HddFull,
    SsdFull,
    HddSlow,
    SsdGone,
    /// The manifest cannot be saved. Failed saves may take effect nevertheless.
    Saves {
        replaced: bool,
    },
    /// Each call is dropped at some moment.
    Dropped,
    Shutdown,
}

const TROUBLES: [Trouble; 13] = [
    Trouble::Nothing,
    Trouble::Hdd(IoOp::Read),
    Trouble::Hdd(IoOp::Write),
    Trouble::Ssd(IoOp::Read),
    Trouble::Ssd(IoOp::Write),
    Trouble::Ssd(IoOp::Flush),
    Trouble::HddFull,
    Trouble::SsdFull,
    Trouble::HddSlow,
    Trouble::SsdGone,
    Trouble::Saves { replaced: false },
    Trouble::Saves { replaced: true },
    Trouble::Dropped,
];

impl Trouble {
    fn begins(self, fixture: &Fixture) {
        let fault = |device: &SimDevice, effect, op, times| {
            device.inject(Fault::new(effect).on(op).times(times));
        };
        match self {
            Self::Hdd(op) => fault(&fixture.hdd, FaultEffect::Eio, op, 6),
            Self::Ssd(op) => fault(&fixture.ssd, FaultEffect::Eio, op, 1),
            Self::HddFull => fault(&fixture.hdd, FaultEffect::NoSpace, IoOp::Write, u64::MAX),
            Self::SsdFull => fault(&fixture.ssd, FaultEffect::NoSpace, IoOp::Write, u64::MAX),
            Self::HddSlow => {
                fault(&fixture.hdd, FaultEffect::Slow(Duration::from_millis(300)), IoOp::Write, 30);
            }
            Self::SsdGone => fixture.ssd.set_present(false),
            Self::Saves { replaced } => fixture.manifest.fail_saves(0, 2, replaced),
            Self::Nothing | Self::Dropped | Self::Shutdown => {}
        }
    }

    fn ends(fixture: &Fixture) {
        fixture.hdd.clear_faults();
        fixture.ssd.clear_faults();
        fixture.ssd.set_present(true);
        fixture.manifest.fail_saves(0, 0, false);
    }
}

/// A store in use.
struct Run {
    store: PageStore,
    space: SpaceId,
    /// A second space, whose pages are allocated and freed.
    other: SpaceId,
    known: Arc<Known>,
    /// By page: the newest version whose write succeeded.
    done: Vec<AtomicU32>,
    /// The SSDs that may be in use, with the bytes of each.
    ssds: Mutex<Vec<(Arc<SimDevice>, u64)>>,
    folder: PathBuf,
    stop: AtomicBool,
}

impl Run {
    async fn begin(fixture: &Fixture, folder: PathBuf) -> Arc<Self> {
        let store = fixture.open().await;
        let space = grown(&store).await;
        let other = store.spaces().create("other").await.unwrap();
        store.sync().await.unwrap();
        let done = (0..PAGES).map(|_| AtomicU32::new(1)).collect();
        let ssds = Mutex::new(vec![(Arc::clone(&fixture.ssd), SSD_PAGES * PAGE)]);
        let (known, stop) = (known(), AtomicBool::new(false));
        Arc::new(Self { store, space, other, known, done, ssds, folder, stop })
    }

    /// Writes, reads and syncs. An error ends nothing.
    async fn load(self: Arc<Self>) {
        let mut dice = 1_u32;
        while !self.stop.load(Ordering::Relaxed) {
            for _ in 0..20 {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let no = (dice >> 8) % PAGES;
                let version = self.known.written[no as usize].fetch_add(1, Ordering::Relaxed) + 1;
                match write(&self.store, self.space, no, version).await {
                    Ok(()) => self.done[no as usize].store(version, Ordering::Relaxed),
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
                if let Ok(page) = self.store.get(PageId::new(self.space, (dice >> 12) % PAGES)).await {
                    version_of(&page, page.id().no);
                }
            }
            let done: Vec<u32> = self.done.iter().map(|v| v.load(Ordering::Relaxed)).collect();
            if self.store.sync().await.is_ok() {
                for (synced, version) in self.known.synced.iter().zip(done) {
                    synced.store(version, Ordering::Relaxed);
                }
            }
        }
    }

    /// Repeats the operation; returns the number of calls that succeeded, and the errors of the others.
    async fn operate(self: Arc<Self>, operation: Operation, dropped: bool) -> (u32, Vec<String>) {
        let (mut succeeded, mut errors) = (0, Vec::new());
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let longest = Duration::from_micros(round * 7_919 % 30_000);
            let call = timeout(if dropped { longest } else { LONGEST }, self.call(operation, round));
            match call.await {
                Ok(Ok(())) => succeeded += 1,
                Ok(Err(error)) => errors.push(error),
                Err(_) => assert!(dropped, "{operation:?} hangs"),
            }
            sleep(Duration::from_millis(2)).await;
        }
        (succeeded, errors)
    }

    async fn call(&self, operation: Operation, round: u64) -> Result<(), String> {
        let (store, nth) = (&self.store, round as usize);
        let done = match operation {
            ResizePool => store.resize_pool([200, 40, 90][nth % 3] * PAGE).await.map(drop),
            SetPoolPolicy => {
                let policy = POOL_POLICIES[nth % POOL_POLICIES.len()];
                return store.policies().set_pool(policy).map_err(|error| error.to_string());
            }
            SetSsdPolicy => store.policies().set_ssd(SSD_POLICIES[nth % SSD_POLICIES.len()]).await,
            WriteBudget => {
                store.ssd().set_write_budget([Some(1 << 20), None, Some(1 << 40)][nth % 3]);
                store.policies().set_costs([Costs::PAPER, store.policies().costs()][nth % 2])
            }
            ReplaceSsd => {
                let (new, bytes) = (blank_ssd("new", 90 + round), [260, 100][nth % 2] * PAGE);
                self.ssds.lock().unwrap().push((Arc::clone(&new), bytes));
                store.ssd().replace(new as SharedDevice, bytes).await
            }
            Modes => {
                let modes = [SsdMode::WriteThrough, SsdMode::Off, SsdMode::ReadOnly, SsdMode::WriteBack];
                store.ssd().set_mode(modes[nth % 4]).await
            }
            Draining => {
                let report = store.ssd().drain(DrainOptions::new()).await;
                let ended = report.stopped_by.is_none() && report.failed.is_empty();
                return if ended { Ok(()) } else { Err(format!("{report:?}")) };
            }
            Scrub => {
                let report = store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
                let sound = report.complete && report.findings.is_empty();
                return if sound { Ok(()) } else { Err(format!("{report:?}")) };
            }
            Backup => {
                let options = BackupOptions::new().full(nth.is_multiple_of(4));
                let report = store.backup(self.folder.join("chain"), options).await;
                return report.map(drop).map_err(|error| error.to_string());
            }
            HotSet => {
                let file = self.folder.join("hot");
                store.hot_set().export(&file).await.map_err(|error| error.to_string())?;
                store.hot_set().import(&file).await.map_err(|error| error.to_string())?;
                store.hot_set().keep(Duration::from_millis(20)).await
            }
            Shrink => self.shrink().await,
            Hints => {
                let hints = SpaceHints::new().never_to_ssd(nth % 4 < 2);
                let kept = [Retention::Usual, Retention::KeepInMemory, Retention::ScanOnly];
                store.spaces().set_hints(self.space, hints.retention(kept[nth % 3]))
            }
            Observe => return self.observe(round).await.map_err(|error| error.to_string()),
        };
        done.map_err(|error| error.to_string())
    }

    /// Grows the second space, then gives all its disk space back.
    async fn shrink(&self) -> Result<(), Error> {
        for _ in 0..70 {
            drop(self.store.allocate(self.other).await?);
        }
        self.store.free((self.other, 0..u32::MAX)).await?;
        self.store.spaces().shrink(self.other).await.map(drop)
    }

    async fn observe(&self, round: u64) -> std::io::Result<()> {
        let (store, trace) = (&self.store, self.folder.join(format!("trace {round}")));
        let export = store.export_stats(self.folder.join("stats"), Duration::from_millis(100)).await;
        store.what_if().start(&WhatIfOptions::new().share(1.0))?;
        store.trace().start(&trace)?;
        sleep(Duration::from_millis(5)).await;
        let recorded = store.trace().stop().await?;
        assert!(store.what_if().stop().await.is_some() && recorded.lost == 0);
        export.map(drop).map_err(std::io::Error::other)
    }

    /// What a power cut at this moment leaves.
    fn image(&self, fixture: &Fixture, seed: u64) -> Image {
        let ssds = self.ssds.lock().unwrap();
        let cut = |(ssd, bytes): &(Arc<SimDevice>, u64)| {
            (Arc::new(ssd.after_power_cut(seed + 7, &SimPower::new())), *bytes)
        };
        Image {
            ssds: ssds.iter().rev().map(cut).collect(),
            fixture: fixture.after_power_cut(seed),
            known: self.known.copy(),
        }
    }
}

struct Image {
    fixture: Fixture,
    /// The last one first.
    ssds: Vec<(Arc<SimDevice>, u64)>,
    known: Known,
}

impl Image {
    /// Opens the store with the SSD that it was using.
    async fn open(&self, what: &str) -> PageStore {
        for (ssd, bytes) in &self.ssds {
            let builder = self.fixture.builder().ssd(Arc::clone(ssd) as SharedDevice);
            match builder.ssd_bytes(*bytes).open().await {
                Ok(store) => return store,
                Err(OpenError::SsdMissing { .. }) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
        panic!("{what}: none of the SSDs is the store's")
    }

    async fn check(&self, space: SpaceId, what: &str) {
        let store = self.open(what).await;
        check(&store, space, &self.known, what).await;
        store.validate().unwrap();
        // A power cut may tear a home that a newer SSD copy stands above: such a home is never read.
        let pages = (0..PAGES).map(|no| PageId::new(space, no));
        let covered: Vec<PageId> =
            pages.filter(|page| store.why(*page).is_ok_and(|why| why.ssd_alone)).collect();
        let mut report = store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
        report.findings.retain(|finding| !finding.healed || !covered.contains(&finding.page));
        assert!(report.findings.is_empty(), "{what}: {report:?}");
    }
}

/// Waits until the store works again once its devices do, and readmits the SSD if it failed. False: the
/// manifest may name another SSD than the one in use, so the store refuses writes until it is opened again.
async fn settles(store: &PageStore, what: &str) -> bool {
    let mut failed = None;
    for _ in 0..20 {
        if store.stats().ssd.state() == SsdState::Degraded || store.stats().ssd.refusing.is_some() {
            failed = store.ssd().readmit().await.err();
        }
        match store.sync().await {
            Ok(()) if store.stats().ssd.state() != SsdState::Degraded => return true,
            Ok(()) => {}
            Err(error) => failed = Some(error),
        }
        sleep(Duration::from_secs(1)).await;
    }
    if store.stats().ssd.refusing.is_some() {
        return false;
    }
    panic!("{what}: the store does not work again: {failed:?}, {:?}", store.stats().ssd);
}

async fn try_with(operation: Operation, trouble: Trouble, seed: u64) {
    let what = format!("{operation:?}, {trouble:?}");
    let (fixture, folder) = (Fixture::new(), pagetier_testing::scratch());
    let run = Run::begin(&fixture, folder.path().to_owned()).await;
    let loading = tokio::spawn(Arc::clone(&run).load());
    let operating = tokio::spawn(Arc::clone(&run).operate(operation, trouble == Trouble::Dropped));
    sleep(Duration::from_micros(20_000 + seed * 1_117 % 10_000)).await;
    trouble.begins(&fixture);
    sleep(Duration::from_micros(seed * 7_919 % 60_000)).await;
    let cut = run.image(&fixture, seed);
    if trouble == Trouble::Shutdown {
        run.store.shutdown().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    sleep(Duration::from_millis(30)).await;
    Trouble::ends(&fixture);
    sleep(Duration::from_millis(30)).await;
    run.stop.store(true, Ordering::Relaxed);
    loading.await.unwrap();
    let (succeeded, errors) = operating.await.unwrap_or_else(|error| panic!("{what}: {error}"));
    match trouble {
        Trouble::Nothing => assert!(succeeded > 0 && errors.is_empty(), "{what}: {succeeded}, {errors:?}"),
        Trouble::Dropped => {}
        _ => assert!(succeeded > 0 || !errors.is_empty(), "{what}: no call has ended"),
    }
    cut.check(run.space, &format!("{what}, then a power cut")).await;
    if trouble == Trouble::Shutdown {
        // Everything written before it is durable.
        for (synced, done) in run.known.synced.iter().zip(&run.done) {
            synced.store(done.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    } else if settles(&run.store, &what).await {
        check(&run.store, run.space, &run.known, &what).await;
        run.store.validate().unwrap();
    } else {
        assert!(matches!(trouble, Trouble::Saves { .. }), "{what}: {:?}", run.store.stats().ssd.refusing);
    }
    run.image(&fixture, seed + 1).check(run.space, &format!("{what}, in the end")).await;
}

async fn with_every_trouble(operation: Operation) {
    let shutdowns = [Trouble::Shutdown; 2];
    for (seed, trouble) in TROUBLES.into_iter().chain(shutdowns).enumerate() {
        try_with(operation, trouble, seed as u64 + 31 * operation as u64).await;
    }
}

macro_rules! operations {
    ($($name:ident: $operation:expr,)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                with_every_trouble($operation).await;
            }
        )*
    };
}

operations! {
    the_pool_is_resized: ResizePool,
    the_pools_policy_is_switched: SetPoolPolicy,
    the_ssds_policy_is_switched: SetSsdPolicy,
    the_write_budget_and_the_costs_are_changed: WriteBudget,
    the_ssd_is_replaced: ReplaceSsd,
    the_ssds_mode_is_changed: Modes,
    the_ssd_is_drained: Draining,
    every_copy_is_scrubbed: Scrub,
    the_store_is_backed_up: Backup,
    the_hot_set_is_exported_and_imported: HotSet,
    pages_are_freed_and_their_room_given_back: Shrink,
    the_hints_of_a_space_are_changed: Hints,
    ghosts_traces_and_exports_run: Observe,
}
