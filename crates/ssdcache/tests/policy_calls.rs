//! The events and questions that a policy receives, and which of its answers take effect: it learns
//! everything that its decisions need, and no answer can lose data.

use crate::common::{PAGE, formatted, layout, page, params, write};
use pagetier_bufpool::Tier;
use pagetier_devio::IoBuf;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::{Access, Cause, Location, Millis, SlotId, SlotPolicy, SlotReport, Usable, Verdict};
use pagetier_ssdcache::{Entry, Homes, OpenParams, Plan, SlotParams, Slots, SsdFlush, SsdTier};
use pagetier_testing::{SimDevice, SimPower};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

const NOW: Millis = Millis(0);
const SLOTS: u32 = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Read(PageId),
    Considered(PageId, Cause),
    Wrote(PageId, Location),
    Inserted(PageId, SlotId),
    Removed(PageId, bool),
    CopiedHome(PageId, SlotId),
}

type Notes = Arc<Mutex<Vec<Told>>>;

/// Gives preset answers and records its notifications.
#[derive(Debug)]
struct Script {
    notes: Notes,
    verdict: Verdict,
    through: bool,
    /// The number of slots that it reclaims at a time, if it appends.
    group: Option<usize>,
    /// The candidate that it asks about before it decides.
    candidate: Option<SlotId>,
    /// Whether it names slots to write back.
    names_victims: bool,
}

impl Script {
    fn new(verdict: Verdict, through: bool) -> (Box<Self>, Notes) {
        let notes = Notes::default();
        let own = Arc::clone(&notes);
        (
            Box::new(Self {
                notes: own,
                verdict,
                through,
                group: None,
                candidate: None,
                names_victims: false,
            }),
            notes,
        )
    }

    fn note(&self, told: Told) {
        self.notes.lock().unwrap().push(told);
    }
}

impl SlotPolicy for Script {
    fn read(&mut self, page: PageId, _: Option<Location>, _: Access, _: Millis) {
        self.note(Told::Read(page));
    }

    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        _: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _: Millis,
    ) -> Verdict {
        self.note(Told::Considered(page, cause));
        self.candidate.map(usable);
        self.verdict
    }

    fn wrote(&mut self, page: PageId, home: Location, _: Millis) {
        self.note(Told::Wrote(page, home));
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, _: Millis) {
        self.note(Told::Inserted(page, slot));
    }

    fn removed(&mut self, page: PageId, evicted: bool, _: Millis) {
        self.note(Told::Removed(page, evicted));
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _: Millis, out: &mut Vec<SlotId>) {
        out.extend((0..SLOTS).map(SlotId).filter(|slot| eligible(*slot)).take(k));
    }

    fn copied_home(&mut self, page: PageId, slot: SlotId) {
        self.note(Told::CopiedHome(page, slot));
    }

    fn next_victims(&mut self, n: usize, _: Millis, out: &mut Vec<SlotId>) {
        out.extend((0..SLOTS).map(SlotId).take(if self.names_victims { n } else { 0 }));
    }

    fn write_through(&self) -> bool {
        self.through
    }

    fn append_group(&self) -> Option<usize> {
        self.group
    }
}

impl SlotReport for Script {}

/// Slots whose first `pages` hold clean copies, with a zone of `zone` slots.
fn slots(policy: Box<Script>, pages: u32, zone: u32) -> Slots {
    let entry = |no| Entry { page: page(no), stamp: Stamp::from_bits(u64::from(no) + 1), clean: true };
    let map: Vec<_> = (0..SLOTS).map(|no| (no < pages).then(|| entry(no))).collect();
    let params = SlotParams { slots: SLOTS, zone, reserve: 4, burst: 4, clean_ahead: 2 };
    let mut slots = Slots::new(params, policy, &map, 0);
    slots.begin_checkpoint(NOW);
    slots.end_checkpoint(true);
    slots
}

fn stamp() -> Stamp {
    Stamp::from_bits(100)
}

#[test]
fn of_a_slot_write_that_failed_the_policy_is_told_that_its_page_is_not_there() {
    let (policy, notes) = Script::new(Verdict::AdmitFree, false);
    let mut slots = slots(policy, 0, SLOTS);
    let Plan::Ssd(ticket) = slots.plan_dirty(page(1), NOW, &mut stamp) else { panic!("there is room") };
    slots.end_write(ticket, false, SsdFlush(1), NOW);
    let told = [Told::Inserted(page(1), ticket.slot), Told::Removed(page(1), false)];
    assert_eq!(notes.lock().unwrap()[1..], told);
    slots.validate().unwrap();
}

#[test]
fn the_policy_learns_which_slots_a_write_back_made_clean() {
    let (mut policy, notes) = Script::new(Verdict::AdmitFree, false);
    policy.names_victims = true;
    let mut slots = slots(policy, 0, SLOTS);
    for no in 0..6 {
        let mut stamp = || Stamp::from_bits(u64::from(no) + 100);
        let Plan::Ssd(ticket) = slots.plan_dirty(page(no), NOW, &mut stamp) else { panic!("there is room") };
        slots.end_write(ticket, true, SsdFlush(1), NOW);
    }
    slots.begin_checkpoint(NOW);
    slots.end_checkpoint(true);
    let batch = slots.begin_write_back(&|_| false, 32, NOW);
    assert_eq!(batch.len(), 2);
    let ended = notes.lock().unwrap().len();
    let (failed, copied) = (batch[0], batch[1]);
    slots.end_write_back(failed, false);
    slots.end_write_back(copied, true);
    assert_eq!(notes.lock().unwrap()[ended..], [Told::CopiedHome(copied.page, copied.slot)]);
    slots.validate().unwrap();
}

#[test]
fn a_policy_that_admits_without_room_gets_no_slot_of_the_reserve() {
    let (policy, _) = Script::new(Verdict::AdmitFree, false);
    let mut slots = slots(policy, SLOTS - 4, SLOTS);
    assert_eq!(slots.free_slots().writable, 4, "the reserve");
    assert_eq!(slots.plan_dirty(page(100), NOW, &mut stamp), Plan::Hdd);
    assert_eq!(slots.plan_copy(page(100), Cause::Evicted, NOW, &mut stamp), None);
}

#[test]
fn a_copy_takes_the_place_of_a_victim_when_no_slot_is_free() {
    let (policy, notes) = Script::new(Verdict::AdmitOver(SlotId(2)), false);
    let mut slots = slots(policy, SLOTS, SLOTS);
    let ticket = slots.plan_copy(page(100), Cause::Evicted, NOW, &mut stamp).expect("a victim's slot");
    assert_eq!((ticket.slot, ticket.displaced), (SlotId(2), Some(page(2))));
    assert!(notes.lock().unwrap().contains(&Told::Removed(page(2), true)));
}

#[test]
fn a_page_written_through_is_considered_and_one_that_must_not_be_is_not() {
    for may in [true, false] {
        let (policy, notes) = Script::new(Verdict::AdmitFree, true);
        let mut slots = slots(policy, 0, SLOTS);
        assert_eq!(slots.plan_arrived(page(1), may, NOW, &mut stamp).is_some(), may);
        assert_eq!(notes.lock().unwrap().contains(&Told::Considered(page(1), Cause::Cleaned)), may);
    }
}

#[test]
fn a_page_written_through_that_finds_no_slot_loses_its_copy_and_the_policy_is_told() {
    for may in [true, false] {
        let (policy, notes) = Script::new(Verdict::Reject, true);
        // Outside the zone, its own slot cannot be written.
        let mut slots = slots(policy, SLOTS, 8);
        let last = page(SLOTS - 1);
        assert_eq!(slots.plan_arrived(last, may, NOW, &mut stamp), None);
        assert_eq!(slots.location(last), Location::Hdd);
        assert_eq!(notes.lock().unwrap().last(), Some(&Told::Removed(last, false)));
        assert_eq!(slots.counts().rejected_no_slot, u64::from(may));
    }
}

#[test]
fn a_zone_without_victims_is_named_anew_only_when_something_has_changed() {
    let (policy, _) = Script::new(Verdict::Reject, false);
    let mut slots = slots(policy, SLOTS, 8);
    assert_eq!(slots.map_work(false, NOW), None, "the next zone would be the same");
}

async fn tier(policy: Box<dyn SlotPolicy>) -> SsdTier {
    tier_over(policy, None).await
}

async fn tier_over(policy: Box<dyn SlotPolicy>, homes: Option<Arc<dyn Homes>>) -> SsdTier {
    let power = SimPower::new();
    let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
    let (hdd, ssd) = (device("hdd", 1), device("ssd", 2));
    formatted(&ssd, layout(8)).await;
    let params = params(&hdd, &ssd, layout(8), "none");
    let homes = homes.unwrap_or(Arc::clone(&params.homes));
    SsdTier::open(OpenParams { policy, homes, ..params }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_told_of_every_write_and_where_it_went() {
    for (verdict, through) in [
        (Verdict::Reject, true),
        (Verdict::AdmitFree, true),
        (Verdict::Reject, false),
        (Verdict::AdmitFree, false),
    ] {
        let (policy, notes) = Script::new(verdict, through);
        let tier = tier(policy).await;
        let home = write(&tier, 3, 0).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let ssd = verdict == Verdict::AdmitFree;
        assert_eq!(home, if ssd { Location::Ssd } else { Location::Hdd });
        let wrote = if ssd && !through { Location::Ssd } else { Location::Hdd };
        let notes = notes.lock().unwrap();
        let writes: Vec<_> = notes.iter().filter(|told| matches!(told, Told::Wrote(..))).collect();
        assert_eq!(writes, [&Told::Wrote(page(3), wrote)], "{verdict:?}, through: {through}");
    }
}

/// Its slot only backs the home write that follows.
#[tokio::test(start_paused = true)]
async fn a_policy_that_appends_and_writes_through_is_told_when_a_page_is_home() {
    let (policy, notes) = Script::new(Verdict::AdmitFree, true);
    let tier = tier(Box::new(Script { group: Some(1), ..*policy })).await;
    assert_eq!(write(&tier, 3, 0).await.unwrap(), Location::Ssd);
    let notes = notes.lock().unwrap();
    let last = notes.iter().rfind(|told| matches!(told, Told::Wrote(..)));
    assert_eq!(last, Some(&Told::Wrote(page(3), Location::Hdd)));
}

/// The pages of a space that is being dropped.
struct GivenUp;

impl Homes for GivenUp {
    fn offset(&self, _: PageId) -> Option<u64> {
        None
    }

    fn is_given_up(&self, _: PageId) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_page_written_through_whose_home_is_given_up_no_copy_is_made() {
    let (policy, notes) = Script::new(Verdict::AdmitFree, true);
    let tier = tier_over(policy, Some(Arc::new(GivenUp))).await;
    assert_eq!(write(&tier, 3, 0).await.unwrap(), Location::Hdd);
    assert_eq!(*notes.lock().unwrap(), [Told::Wrote(page(3), Location::Hdd)]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_admits_nothing_on_reading_is_not_asked() {
    let (policy, notes) = Script::new(Verdict::Reject, false);
    let tier = tier(policy).await;
    assert_eq!(write(&tier, 3, 0).await.unwrap(), Location::Hdd);
    notes.lock().unwrap().clear();
    let fetched = tier.fetch(page(3), Access::Random, IoBuf::zeroed(PAGE)).await;
    assert_eq!(fetched.result.unwrap(), Location::Hdd);
    assert_eq!(*notes.lock().unwrap(), [Told::Read(page(3))]);
}

/// A page that is rejected although there was a candidate is worth too little; another zone would not help.
#[test]
fn a_new_zone_is_looked_for_only_if_the_policy_found_no_candidate_in_this_one() {
    for candidate in [None, Some(SlotId(0))] {
        let (policy, _) = Script::new(Verdict::Reject, false);
        let mut slots = slots(Box::new(Script { candidate, ..*policy }), SLOTS, 4);
        for no in SLOTS..SLOTS + 4 {
            assert_eq!(slots.plan_copy(page(no), Cause::Evicted, NOW, &mut stamp), None);
        }
        assert_eq!(slots.wants_look(), candidate.is_none(), "{candidate:?}");
    }
}
