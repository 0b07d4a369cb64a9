//! Reads ahead: one operation of the HDD for each stretch of homes, and copies from the SSD.

use crate::common::{PAGE, formatted, layout, page, params, write};
use pagetier_bufpool::Tier;
use pagetier_devio::IoBuf;
use pagetier_policy::Location;
use pagetier_ssdcache::{OpenParams, SsdMode, SsdTier};
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_stretch_of_homes_takes_one_read_and_a_copy_on_the_ssd_ends_it() {
    let power = SimPower::new();
    let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
    let (hdd, ssd, layout) = (device("hdd", 1), device("ssd", 2), layout(8));
    formatted(&ssd, layout).await;
    let tier = SsdTier::open(OpenParams { mode: SsdMode::ReadOnly, ..params(&hdd, &ssd, layout, "lru2") });
    let tier = tier.await.expect("it opens");
    for no in 0..8 {
        assert_eq!(write(&tier, no, 1).await.expect("written"), Location::Hdd);
    }
    tier.shutdown().await.expect("closed");
    drop(tier);
    let (hdd, ssd) = (Arc::new(hdd.after_kill(1, &power)), Arc::new(ssd.after_kill(1, &power)));
    let tier = SsdTier::open(OpenParams { epoch: 2, closed: true, ..params(&hdd, &ssd, layout, "lru2") });
    let tier = tier.await.expect("it opens");
    assert_eq!(write(&tier, 3, 2).await.expect("written"), Location::Ssd);
    // What the maintenance does about that has ended.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = (hdd.ops(), ssd.ops());
    let run = tier.fetch_run(page(0), (0..8).map(|_| IoBuf::zeroed(PAGE)).collect()).await;
    assert_eq!((hdd.ops() - before.0, ssd.ops() - before.1), (2, 1));
    let versions: Vec<u8> = run.iter().map(|one| one.buf.as_slice()[2000]).collect();
    assert!(run.iter().all(|one| one.result.is_ok()));
    assert_eq!(versions, [1, 1, 1, 2, 1, 1, 1, 1]);
}
