//! Two openers at once: one gets the store, and the other starts no operation, neither while the store is
//! open nor while a dropped one is leaving.

use crate::campaign::draw::plan::Plan;
use crate::campaign::report::coverage::State;
use crate::campaign::world::crash::bounded_power;
use crate::campaign::world::examine::{is_busy, names_the_record};
use crate::campaign::world::probe::{Lease, Probe};
use pagetier::{OpenError, PageStore, options::Create};
use pagetier_devio::SharedDevice;
use pagetier_testing::SimDevice;
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;
use std::time::Duration;

/// How another opener accesses the store's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// As the store itself.
    Same,
    /// As a new store, by force.
    Force,
    /// As a new store with its own HDD, by force.
    SsdAlone,
}

/// Occasionally tries to open the store while it is open. Every attempt must be refused without effect.
pub(super) async fn intrude(probe: Arc<Probe>, plan: Arc<Plan>, mut rng: SmallRng) -> Result<(), String> {
    for _ in 0..rng.random_range(1..=4) {
        tokio::time::sleep(Duration::from_micros(rng.random_range(1..200 * plan.ssd_us))).await;
        let mut way = [Way::Same, Way::Force, Way::SsdAlone][rng.random_range(0..3)];
        if plan.on_hdd > 0 || way == Way::SsdAlone && probe.may_lack_ssd() {
            // An HDD with a manifest is its store, however it is opened. And the store may have given the SSD
            // up, in this life or an earlier one.
            way = Way::Same;
        }
        let mut disks = probe.forbidden();
        let mut manifest = Arc::clone(&probe.manifest);
        if way != Way::Same {
            manifest = Arc::default();
        }
        if way == Way::SsdAlone {
            disks.hdd = Arc::new(SimDevice::new("another hdd", 0, 1, &bounded_power())) as SharedDevice;
        }
        let saves = manifest.saves();
        probe.mark(State::Intruded);
        let create = if way == Way::Same { Create::OnBlank } else { Create::Overwriting };
        let opened = plan.builder_on(disks, &manifest).create(create).open().await;
        match opened {
            Ok(_) => return Err(format!("a second opener ({way:?}) opens the store while it is open")),
            Err(error) if !is_busy(&error) => {
                return Err(format!(
                    "a second opener ({way:?}) gets an error other than \"in use\": {error}"
                ));
            }
            Err(_) if way == Way::Same || saves == manifest.saves() => {}
            Err(_) => return Err(format!("a second opener ({way:?}) was refused, but wrote a manifest")),
        }
        probe.violation()?;
    }
    Ok(())
}

/// Starts two opens of the store at once: at most one may succeed.
pub(super) async fn at_once(probe: &Arc<Probe>, plan: &Plan) -> Result<Result<PageStore, OpenError>, String> {
    let leases = [Arc::<Lease>::default(), Arc::<Lease>::default()];
    probe.mark(State::TwoOpeners);
    // Once dropped, neither may continue.
    let [first, second] = leases.each_ref().map(|lease| Ended { lease: Arc::clone(lease), on: true });
    let [one, two] = leases.each_ref().map(|lease| probe.leased(plan, lease).open());
    let (winner, opened, loser) = match tokio::join!(one, two) {
        (Ok(_), Ok(_)) => return Err("two concurrent opens both succeed".to_owned()),
        (Ok(store), Err(loser)) => (first, Ok(store), loser),
        (Err(loser), Ok(store)) => (second, Ok(store), loser),
        (Err(one), Err(two)) if is_busy(&one) => (second, Err(two), one),
        (Err(one), Err(two)) => (first, Err(one), two),
    };
    // The first may have failed before the other began.
    if !is_busy(&loser) && !names_the_record(&loser) {
        return Err(format!("the second of two openers gets an error other than \"in use\": {loser}"));
    }
    if opened.is_ok() {
        probe.hold(&winner.lease);
        winner.goes_on();
    }
    Ok(opened)
}

/// Releases the lease of an open that has failed, or was dropped.
struct Ended {
    lease: Arc<Lease>,
    on: bool,
}

impl Ended {
    fn goes_on(mut self) {
        self.on = false;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if self.on {
            self.lease.release();
        }
    }
}
