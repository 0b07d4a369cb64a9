//! Compile-time check: every type that a public method returns, or that such a type contains, has a name in
//! `pagetier`.

use pagetier::{
    Costs, DrainReport, Error, Location, OpenError, OwnedPageMut, OwnedPageRef, PageId, PageMut, PageRef,
    PageSize, PageStore, Policies, ReadmitReport, RecoveryReport, Scan, SpaceId, SpaceInfo, Spaces, Ssd,
    SsdEvents, SsdLoss, SsdMode,
    device::{
        ClassStats, DeviceError, DeviceErrorKind, DeviceStats, DirStats, ErrorCounts, IoOp, RetryCounts,
        TimeHistogram,
    },
    errors::{Advice, Exhausted, PoolError, ReadmitError, SsdOpenError, SsdTooSmall, TierError},
    policy::{GroupStats, PageCounts},
    scrub::{Scrub, ScrubFinding, ScrubProgress, ScrubReport},
    stats::SsdState,
    stats::{FreeSlots, PoolMemory, PoolStats, SlotCounts, Stats, TierStats},
    what_if::{Estimates, Trace, TraceSummary, WhatIf},
};
use std::sync::Arc;

#[allow(dead_code, reason = "it compiles, which is all that it is for")]
fn statistics(store: &PageStore) {
    let stats: Stats = store.stats();
    let (_, _): (PoolStats, PoolMemory) = (stats.pool, stats.pool_memory);
    let ssd: TierStats = stats.ssd;
    let (_, _, _): (FreeSlots, SlotCounts, SsdMode) = (ssd.free, ssd.counts, ssd.mode);
    let device: DeviceStats = stats.hdd_device;
    let class: ClassStats = device.classes[0].clone();
    let direction: DirStats = class.read;
    let (_, _): (TimeHistogram, TimeHistogram) = (direction.service, direction.latency);
    let (_, _): (ErrorCounts, RetryCounts) = (device.errors, device.retries);
    let policies: Policies<'_> = store.policies();
    let (_, _): (Costs, Vec<GroupStats>) = (policies.costs(), policies.groups());
    let page = PageId::new(SpaceId(1), 0);
    let (_, _): (Option<PageCounts>, Location) = (policies.counts(page), store.location(page));
    let (_, _): (RecoveryReport, PageSize) = (store.recovery(), store.page_size());
}

#[allow(dead_code, reason = "it compiles, which is all that it is for")]
async fn pages(store: &Arc<PageStore>, page: PageId) -> Result<(), Error> {
    let _: PageRef<'_> = store.get(page).await?;
    let exclusive: PageMut<'_> = store.get_mut(page).await?;
    let _: PageRef<'_> = exclusive.downgrade();
    let owned: OwnedPageMut = store.get_mut(page).await?.into_owned(store);
    let _: OwnedPageRef = owned.downgrade();
    let mut scan: Scan<'_> = store.scan(page.space, 0..1);
    let _: Option<Result<PageRef<'_>, Error>> = scan.next().await;
    let spaces: Spaces<'_> = store.spaces();
    let _: Vec<SpaceInfo> = spaces.list();
    Ok(())
}

#[allow(dead_code, reason = "it compiles, which is all that it is for")]
async fn control(store: &PageStore) -> Result<(), Box<dyn std::error::Error>> {
    let ssd: Ssd<'_> = store.ssd();
    let (_, _): (SsdState, SsdEvents) = (store.stats().ssd.state(), ssd.events());
    let (_, _): (Option<SsdLoss>, ReadmitReport) = (ssd.loss(), ssd.readmit().await?);
    let drained: DrainReport = ssd.drain(pagetier::DrainOptions::new()).await;
    let _: Option<DeviceError> = drained.stopped_by;
    let scrub: Scrub = store.scrub(pagetier::scrub::ScrubOptions::default());
    let _: ScrubProgress = scrub.progress();
    let report: ScrubReport = scrub.finished().await;
    let _: Vec<ScrubFinding> = report.findings;
    let trace: Trace<'_> = store.trace();
    let _: TraceSummary = trace.stop().await?;
    let estimates: Estimates<'_> = store.what_if();
    let _: Option<WhatIf> = estimates.report();
    Ok(())
}

#[allow(dead_code, reason = "it compiles, which is all that it is for")]
fn errors(error: Error, opening: OpenError) {
    let _: Advice = error.advice();
    match error {
        Error::Pool(PoolError::Exhausted { why, .. }) => {
            let _: Exhausted = *why;
        }
        Error::Pool(PoolError::Tier(TierError::Corrupt { defect, .. })) => {
            let _: pagetier::errors::Defect = defect;
        }
        Error::Device(DeviceError { op, kind, .. }) => {
            let (_, _): (IoOp, DeviceErrorKind) = (op, kind);
        }
        Error::Readmit(error) => {
            let _: ReadmitError = error;
        }
        _ => {}
    }
    match opening {
        OpenError::Ssd(error) => {
            let _: SsdOpenError = error;
        }
        OpenError::SsdTooSmall(error) => {
            let _: SsdTooSmall = error;
        }
        _ => {}
    }
}
