//! The calls that change the SSD's state, dropped or interrupted by a crash at any moment: no page becomes
//! older than its last `sync`, and every call can be repeated.

use crate::fixture::{self, Fixture, read, write};
use pagetier::{DrainOptions, Error, PageId, PageStore, SpaceId, SsdMode, stats::SsdState};
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const COUNT: u32 = 90;
const LATENCY: Duration = Duration::from_micros(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Drain,
    Off,
    OffAndOn,
    Readmit,
    Abandon,
}

/// What follows the dropped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The store continues.
    Use,
    /// The store is dropped and opened again at once.
    Reopen,
    Kill,
    PowerCut,
}

/// Pages whose newest version is on the SSD alone, in memory, or at home; all synced.
async fn filled(fixture: &Fixture) -> (PageStore, SpaceId) {
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..COUNT {
        fixture::fill(&mut store.allocate(space).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    assert_eq!(store.ssd().drain(DrainOptions::new()).await.left, 0);
    for no in (0..COUNT).step_by(2) {
        write(&store, space, no, 2).await.unwrap();
    }
    store.sync().await.unwrap();
    assert!(store.stats().ssd.dirty_pages > 10);
    (store, space)
}

fn synced(no: u32) -> u32 {
    2 - no % 2
}

async fn make(call: Call, store: &PageStore) -> Result<(), Error> {
    match call {
        Call::Drain => {
            store.ssd().drain(DrainOptions::new()).await;
        }
        Call::Off => store.ssd().set_mode(SsdMode::Off).await?,
        Call::OffAndOn => {
            store.ssd().set_mode(SsdMode::Off).await?;
            store.ssd().set_mode(SsdMode::WriteBack).await?;
        }
        Call::Readmit => {
            store.ssd().readmit().await?;
        }
        Call::Abandon => {
            store.ssd().abandon().await?;
        }
    }
    Ok(())
}

fn after(fixture: &Fixture, killed: bool, seed: u64) -> Fixture {
    let power = SimPower::new();
    let back = |device: &SimDevice, nth| {
        let seed = seed * 3 + nth;
        let device =
            if killed { device.after_kill(seed, &power) } else { device.after_power_cut(seed, &power) };
        Arc::new(device.with_latency(LATENCY))
    };
    Fixture {
        hdd: back(&fixture.hdd, 0),
        ssd: back(&fixture.ssd, 1),
        ring: back(&fixture.ring, 2),
        manifest: Arc::new(fixture.manifest.fork()),
        on_hdd: fixture.on_hdd,
    }
}

/// Checks that every page reads as synced, unless the SSD was given up and the list names the page.
async fn check(store: &PageStore, space: SpaceId, call: Call, when: &str) {
    for no in 0..COUNT {
        let listed = store.ssd().loss().is_some_and(|loss| loss.contains(PageId::new(space, no)));
        match read(store, space, no).await {
            Ok(version) if version == synced(no) => {}
            _ if listed && call == Call::Abandon => {}
            found => panic!("{when}: page {no} reads as {found:?}, synced was {}", synced(no)),
        }
    }
    store.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_moment_harms_nothing_whatever_follows() {
    for call in [Call::Drain, Call::Off, Call::OffAndOn, Call::Readmit, Call::Abandon] {
        let mut cut_short = 0;
        for then in [Then::Use, Then::Reopen, Then::Kill, Then::PowerCut] {
            let mut moment = 1;
            loop {
                let when = format!("{call:?} dropped after {moment} steps, then {then:?}");
                let fixture = Fixture::with_latency(LATENCY * 4, LATENCY);
                let (store, space) = filled(&fixture).await;
                if call == Call::Readmit {
                    fixture.ssd.set_present(false);
                    let found = (0..COUNT).map(|no| read(&store, space, no));
                    let _ = futures_util::future::join_all(found).await;
                    fixture.ssd.set_present(true);
                    assert_eq!(store.stats().ssd.state(), SsdState::Degraded, "{when}");
                }
                let ended = timeout(LATENCY * moment, make(call, &store)).await;
                let over = ended.is_ok();
                cut_short += u32::from(!over);
                if let Ok(ended) = ended {
                    ended.unwrap_or_else(|e| panic!("{when}: {e}"));
                }
                let (store, fixture) = match then {
                    Then::Use => (store, fixture),
                    Then::Reopen => {
                        drop(store);
                        (fixture.open().await, fixture)
                    }
                    Then::Kill | Then::PowerCut => {
                        let fixture = after(&fixture, then == Then::Kill, u64::from(moment));
                        (fixture.open().await, fixture)
                    }
                };
                // The call can be repeated, also on a store that was opened again, which accepts its SSD.
                make(call, &store).await.unwrap_or_else(|e| panic!("{when}: {e}"));
                check(&store, space, call, &when).await;
                drop(store);
                let fixture = after(&fixture, false, 77);
                check(&fixture.open().await, space, call, &format!("{when}, then a power cut")).await;
                if over {
                    break;
                }
                moment += 1 + moment / 2;
            }
        }
        assert!(cut_short >= 8, "{call:?}: {cut_short}");
    }
}
