//! Looks at a crashed store without writing: a read-only open recovers it in memory and reads what an
//! open would, an inspection reports, and neither changes a byte.

use crate::campaign::report::totals::Totals;
use crate::campaign::world::crash::Crash;
use crate::campaign::world::examine::{Lenient, check, in_virtual_time};
use parking_lot::Mutex;
use std::sync::Arc;

/// Opens a crashed store for reading only, and inspects it.
pub(crate) fn examine(crash: Crash<'_>, totals: &mut Totals) -> Result<(), String> {
    let Crash { plan, moment, outcome } = crash;
    let manifest = Arc::new(moment.manifest.fork());
    let recorded = manifest.to_bytes();
    // A crash before the first save leaves no store, and this open makes none.
    let exists = recorded.is_some() || plan.on_hdd > 0 && !moment.model.spaces.is_empty();
    if !exists {
        return Ok(());
    }
    let [hdd, ssd, ring] = crash.devices().each().map(Arc::new);
    let before = [&hdd, &ssd, &ring].map(|device| device.snapshot());
    let disks =
        crate::campaign::world::disks::SharedDisks { hdd: hdd.clone(), ssd: ssd.clone(), ring: ring.clone() };
    let lenient = Lenient { volatile: outcome.keeps_power(), ..Lenient::default() };
    let mut checked = in_virtual_time(async {
        let inspected = plan.builder_on(disks.clone(), &manifest).inspect().await;
        inspected.map_err(|error| format!("cannot be inspected: {error}"))?;
        let opened = plan.builder_on(disks, &manifest).open_read_only().await;
        let store = opened.map_err(|error| format!("does not open for reading only: {error}"))?;
        check(&store, &Mutex::new(moment.model.clone()), lenient).await
    })
    .map_err(|wrong| format!("read only: {wrong}"))?;
    let changed = [&hdd, &ssd, &ring].map(|device| device.snapshot()) != before;
    if changed || manifest.to_bytes() != recorded {
        return Err("a read-only open changed the store".to_owned());
    }
    checked.meet(&crash);
    totals.crash(&checked);
    Ok(())
}
