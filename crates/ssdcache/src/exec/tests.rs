//! What is left behind when a future is dropped, or a batch comes to nothing.

use crate::exec::open::{OpenParams, format, open};
use crate::exec::remember::RememberInMemory;
use crate::exec::write_home::{HomeBound, Outcome};
use crate::exec::{Core, Homes};
use crate::format::journal::Backing;
use crate::format::layout::Layout;
use crate::format::superblock::{Marks, Superblock};
use crate::mode::SsdMode;
use crate::protocol::slots::Located;
use pagetier_bufpool::{DirtyPage, WrittenPage};
use pagetier_devio::{Fault, FaultEffect, IoBuf, IoClass, IoOp, SharedDevice, SimDevice, SimPower};
use pagetier_page::{Flags, Header, Lsn, PageId, PageSize, SpaceId, Stamp, StoreSeed};
use pagetier_policy::{Access, Costs, Home, SlotPolicyParams, SsdPolicy};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const PAGE: usize = 4096;
const LONG: Duration = Duration::from_secs(600);
const SEED: StoreSeed = StoreSeed::NONE;

/// Every page lies where its number says.
struct Flat;

impl Homes for Flat {
    fn offset(&self, page: PageId) -> Option<u64> {
        Some(u64::from(page.no) * PAGE as u64)
    }
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn image(no: u32) -> IoBuf {
    let mut image = IoBuf::zeroed(PAGE);
    let header = Header { page: page(no), lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE };
    header.put(image.as_mut_slice());
    image
}

/// A tier without its maintenance, over a new SSD.
async fn core(policy: &str) -> (Arc<Core>, Arc<SimDevice>) {
    let power = SimPower::new();
    let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
    let (hdd, ssd) = (device("hdd", 1), device("ssd", 2));
    let layout = Layout::for_bytes(1 << 19, PageSize::MIN, 8).expect("a layout");
    let superblock = Superblock { store: [0; 16], ssd: [2; 16], layout, marks: Marks::default() };
    let shared = Arc::clone(&ssd) as SharedDevice;
    format(&shared, &superblock, SEED).await.expect("formatted");
    let params = SlotPolicyParams::new(Costs::PAPER, layout.slots as usize, 64);
    let opened = open(OpenParams {
        hdd: hdd as SharedDevice,
        ssd: shared,
        seed: SEED,
        layout,
        homes: Arc::new(Flat),
        policy: policy.parse::<SsdPolicy>().expect("a policy").build(&params),
        zone_percent: 50.0,
        epoch: 1,
        admissions_max: 4,
        mode: SsdMode::WriteBack,
        closed: false,
        remember: Arc::new(RememberInMemory::default()),
        progress: None,
        #[cfg(feature = "mutations")]
        mutation: None,
    });
    (Arc::new(opened.await.expect("it opens").0), ssd)
}

impl Core {
    async fn write_one(self: &Arc<Self>, no: u32) {
        let dirty = DirtyPage { page: page(no), image: image(no), logical: 1, recovery_lsn: Lsn(0) };
        let done = |written: WrittenPage| assert!(written.result.is_ok(), "{written:?}");
        timeout(LONG, self.write_dirty(vec![dirty], IoClass::Clean, &done)).await.expect("it ends");
    }
}

#[tokio::test(start_paused = true)]
async fn second_chances_that_are_dropped_end_and_their_new_slots_are_not_used_again() {
    let (core, ssd) = core("mv-fifo-gsc").await;
    let mut dropped = false;
    let bad = |core: &Core| core.state.lock().slots.count_bad();
    for no in 0..2000 {
        ssd.inject(Fault::new(FaultEffect::Slow(LONG)).on(IoOp::Write).times(1));
        dropped = timeout(LONG / 2, core.give_second_chances()).await.is_err();
        ssd.clear_faults();
        if dropped {
            break;
        }
        core.write_one(no).await;
        core.state.lock().slots.note_read(page(no), Some(Home::Ssd), Access::Random, core.now());
        while core.state.lock().slots.map_work(false, core.now()).is_some() {
            core.checkpoint().await.expect("written");
            core.flush_ssd().await.expect("flushed");
        }
        let now = core.now();
        let batch = core.state.lock().begin_write_back(32, now);
        core.copy_home(batch, IoClass::WriteBack).await.result.expect("written back");
    }
    assert!(dropped, "nothing got a second chance");
    assert!(bad(&core) > 0, "the slot of a dropped write may be written at any time");
    let mut state = core.state.lock();
    state.slots.validate().expect("sound slots");
    assert_eq!(state.slots.readers(), 0, "no slot is held");
    for no in state.slots.copies() {
        assert!(matches!(state.slots.begin_read(no), Located::Slot { .. }), "the old copy counts");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_pages_are_all_superseded_wakes_those_that_wait_for_them() {
    let (core, _) = core("doublewrite").await;
    core.write_one(1).await;
    core.flush_hdd().await.expect("flushed");
    // A version that its slot does not hold any more.
    let mut image = image(1);
    pagetier_page::seal(SEED, image.as_mut_slice(), Stamp::from_bits(5), Flags::NONE);
    core.state.lock().home.append(page(1), Stamp::from_bits(5));
    let waiting = Arc::clone(&core);
    let waiter = tokio::spawn(async move { waiting.when(|state| !state.home.keeps_copy(page(1))).await });
    tokio::task::yield_now().await;
    let each = |_, _, outcome| {
        assert!(matches!(outcome, Outcome::Superseded), "{outcome:?}");
        core.state.lock().home.give_up_append(page(1), Stamp::from_bits(5));
    };
    let pages = vec![HomeBound::new(page(1), image, Lsn(0))];
    core.write_home(Backing::Appended, pages, IoClass::Clean, &each).await;
    timeout(LONG, waiter).await.expect("it is woken").expect("it ends");
}
