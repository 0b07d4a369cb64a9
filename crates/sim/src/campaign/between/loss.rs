//! The SSD is lost for good: the report of the loss must list every page that reads as older than allowed,
//! even if the open that accepts the loss was dropped repeatedly before.

use crate::campaign::contract::model::SpaceState;
use crate::campaign::polls::up_to;
use crate::campaign::report::totals::Totals;
use crate::campaign::world::crash::{Crash, Moment, bounded_power};
use crate::campaign::world::examine::{in_virtual_time, look};
use pagetier::{PageId, PageStore, SpaceId};
use pagetier_devio::SharedDevice;
use pagetier_testing::SimDevice;
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;

/// Accepts the loss of the SSD of a crashed store.
pub(crate) fn examine(crash: Crash<'_>, rng: &mut SmallRng, totals: &mut Totals) -> Result<(), String> {
    let Crash { plan, moment, .. } = crash;
    let exists = moment.manifest.to_bytes().is_some() || plan.on_hdd > 0 && !moment.model.spaces.is_empty();
    if plan.slots == 0 || !exists {
        return Ok(());
    }
    let hdd = Arc::new(crash.devices().hdd) as SharedDevice;
    let ring = Arc::new(SimDevice::new("ring", 0, 5, &bounded_power())) as SharedDevice;
    let manifest = Arc::new(moment.manifest.fork());
    let builder = || {
        let builder = plan.with_manifest(&manifest).ssd_bytes(0).accept_ssd_loss(true);
        let builder = builder.hdd(Arc::clone(&hdd));
        if plan.on_hdd > 0 { builder } else { builder.ring_device(Arc::clone(&ring)) }
    };
    // Without faults, a ring on the HDD repairs every home that the crash tore. An HDD without a ring tears
    // none.
    let whole = (plan.on_hdd > 0 || plan.ring == 0) && !plan.faults;
    let dropped = rng.random_range(0..3);
    let named = in_virtual_time(async {
        for _ in 0..dropped {
            // Equivalent to a crash at one of its awaits, or right after it.
            drop(up_to(rng.random_range(1..30), builder().open()).await);
        }
        let opened = builder().open().await;
        compare(&opened.map_err(|e| format!("does not open: {e}"))?, moment, whole).await
    });
    let named =
        named.map_err(|wrong| format!("without its SSD, opening dropped {dropped} times: {wrong}"))?;
    let ended = if named > 0 { "older pages, all of them reported" } else { "nothing missing" };
    totals.tamper("the SSD is lost for good", ended);
    Ok(())
}

/// The number of pages that read as older than allowed; each must be listed. `whole`: none may be torn.
async fn compare(store: &PageStore, moment: &Moment, whole: bool) -> Result<u64, String> {
    let mut older = 0;
    let there = store.spaces().list();
    for (space, s) in moment.model.spaces.iter().filter(|(_, s)| s.state == SpaceState::Live) {
        // Its drop failed with an error, but what was saved of it may show after a crash.
        if s.unverified_drop.is_some() && !there.iter().any(|listed| listed.id.0 == *space) {
            continue;
        }
        for (no, model) in &s.pages {
            let page = PageId::new(SpaceId(*space), *no);
            let found = match look(store, page).await? {
                Ok(Some(_)) if model.is_absent() => {
                    return Err(format!("page {page} was freed, but exists"));
                }
                Ok(version) => Some(version.unwrap_or(0)),
                Err(error) if !whole && error.to_string().contains("corrupt") => None,
                Err(error) => return Err(format!("page {page}: {error}")),
            };
            if found.is_some_and(|version| model.allows(version)) {
                continue;
            }
            older += 1;
            if !store.ssd().loss().is_some_and(|loss| loss.contains(page)) {
                let reported = if store.ssd().loss().is_some() {
                    "the report of the loss omits it"
                } else {
                    "no loss is reported"
                };
                return Err(format!(
                    "page {page} reads as version {found:?}, allowed is {}, and {reported}",
                    model.allowed()
                ));
            }
        }
    }
    Ok(older)
}
