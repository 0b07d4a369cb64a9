//! Compares CAC and CC, on random events, with a model that keeps a log per page and computes everything from
//! it.

mod model;

use model::{Model, SLOTS};
use pagetier_policy::ssd::{Cac, CacOptions, Dropped};
use pagetier_policy::{
    Access, Cause, Costs, Location, Millis, PageId, SlotId, SlotPolicy, SlotPolicyParams, SpaceId, Verdict,
};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Read(PageId, Option<Location>, Access),
    Logical(PageId, u32, Option<Location>),
    /// The page leaves the pool, and the verdict is carried out. The bits mark the unusable slots.
    Evicted(PageId, u32),
    Cleaned(PageId, u32),
    Invalidated(PageId),
    /// Reports that the version of this page in this slot was copied to the HDD.
    CopiedHome(PageId, u32),
    Forget(PageId),
    StartZone(usize, u32),
    SetCosts(f64),
    Pass(u64),
}

fn page() -> impl Strategy<Value = PageId> {
    (1..3u32, 0..12u32).prop_map(|(space, no)| PageId::new(SpaceId(space), no))
}

fn event() -> impl Strategy<Value = Event> {
    let location = prop_oneof![Just(Location::Ssd), Just(Location::Hdd)];
    // Mostly the page's own home; late and early reports occur too.
    let said = prop_oneof![9 => Just(None), 1 => location.prop_map(Some)];
    let access = prop_oneof![5 => Just(Access::Random), 1 => Just(Access::Sequential)];
    let unusable = prop_oneof![2 => Just(0u32), 1 => any::<u32>()];
    let logical = prop_oneof![9 => 1..20u32, 1 => 1..60_000u32];
    prop_oneof![
        10 => (page(), said.clone(), access).prop_map(|(p, h, a)| Event::Read(p, h, a)),
        10 => (page(), logical, said).prop_map(|(p, n, h)| Event::Logical(p, n, h)),
        10 => (page(), unusable.clone()).prop_map(|(p, u)| Event::Evicted(p, u)),
        5 => (page(), unusable.clone()).prop_map(|(p, u)| Event::Cleaned(p, u)),
        2 => page().prop_map(Event::Invalidated),
        2 => (page(), 0..SLOTS).prop_map(|(p, slot)| Event::CopiedHome(p, slot)),
        1 => page().prop_map(Event::Forget),
        2 => (0..6usize, unusable).prop_map(|(k, u)| Event::StartZone(k, u)),
        1 => (1.0..90.0f64).prop_map(Event::SetCosts),
        3 => (1..200_000u64).prop_map(Event::Pass),
    ]
}

struct Pair<'a> {
    real: &'a mut dyn SlotPolicy,
    model: Model,
    now: Millis,
}

impl Pair<'_> {
    fn location(&self, id: PageId) -> Location {
        let on_ssd = self.model.pages.get(&id).is_some_and(|page| page.slot.is_some());
        if on_ssd { Location::Ssd } else { Location::Hdd }
    }

    /// Considers a page without an SSD copy, checks that both verdicts agree, and carries them out.
    fn consider(&mut self, id: PageId, cause: Cause, unusable: u32) -> Result<(), TestCaseError> {
        if self.location(id) == Location::Ssd {
            return Ok(());
        }
        let free = (0..SLOTS).find(|&slot| self.model.page_in(slot).is_none());
        let free_slots = usize::from(free.is_some());
        let usable = &mut |slot: SlotId| unusable & 1 << slot.0 == 0;
        let verdict = self.real.consider(id, cause, free_slots, usable, self.now);
        prop_assert_eq!(verdict, self.model.consider(id, cause, free_slots, unusable, self.now));
        let slot = match verdict {
            Verdict::Reject => return Ok(()),
            Verdict::AdmitFree => free.unwrap(),
            Verdict::AdmitOver(slot) => {
                let before = self.model.page_in(slot.0).unwrap();
                self.real.removed(before, true, self.now);
                self.model.removed(before, true, self.now);
                slot.0
            }
        };
        self.real.inserted(id, SlotId(slot), self.now);
        self.model.inserted(id, slot, self.now);
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Read(id, said, access) => {
                let from = Some(said.unwrap_or(self.location(id))).filter(|_| id.no != 11);
                self.real.read(id, from, access, self.now);
                self.model.read(id, from, access, self.now);
            }
            Event::Logical(id, n, said) => {
                let location = said.unwrap_or(self.location(id));
                self.real.logical(id, n, location, self.now);
                self.model.logical(id, n, location, self.now);
            }
            Event::Evicted(id, unusable) => {
                self.consider(id, Cause::Evicted, unusable)?;
                self.real.left_pool(id, self.now);
                self.model.left_pool(id, self.now);
            }
            Event::Cleaned(id, unusable) => {
                self.consider(id, Cause::Cleaned, unusable)?;
                let location = self.location(id);
                self.real.wrote(id, location, self.now);
                self.model.wrote(id, location, self.now);
            }
            Event::Invalidated(id) => {
                self.real.removed(id, false, self.now);
                self.model.removed(id, false, self.now);
            }
            Event::CopiedHome(id, slot) => {
                // Mostly the page's own slot; late reports occur too.
                let slot = if slot < 2 {
                    slot
                } else {
                    self.model.pages.get(&id).and_then(|p| p.slot).unwrap_or(slot)
                };
                self.real.copied_home(id, SlotId(slot));
                self.model.copied_home(id, slot);
            }
            Event::Forget(id) => {
                self.real.forget(id);
                self.model.discard(id);
            }
            Event::StartZone(k, ineligible) => {
                let mut out = Vec::new();
                self.real.start_zone(k, &mut |slot| ineligible & 1 << slot.0 == 0, self.now, &mut out);
                let zone = self.model.start_zone(k, ineligible);
                prop_assert_eq!(out, zone.into_iter().map(SlotId).collect::<Vec<_>>());
            }
            Event::SetCosts(hdd_read_ms) => {
                let costs = Costs { hdd_read_ms, ..self.model.params.costs };
                let before = self.model.params.costs.hdd_read_ms - costs.ssd_read_ms;
                self.model.ceiling *= (costs.hdd_read_ms - costs.ssd_read_ms) / before;
                self.real.set_costs(costs);
                self.model.params.costs = costs;
                for slot in self.model.zone.iter().map(|c| c.0).collect::<Vec<_>>() {
                    self.model.refile(self.model.page_in(slot).unwrap());
                }
            }
            Event::Pass(ms) => self.now.0 += ms,
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        self.real.validate().map_err(TestCaseError::fail)?;
        for (space, no) in (1..3).flat_map(|space| (0..12).map(move |no| (space, no))) {
            let id = PageId::new(SpaceId(space), no);
            prop_assert_eq!(self.real.benefit(id), self.model.benefit(id), "page {}", id);
            prop_assert_eq!(self.real.counts(id), self.model.counts(id), "page {}", id);
        }
        for group in self.real.groups() {
            let key = (group.space, group.subrange as u16);
            prop_assert_eq!([group.miss_rate_ssd, group.miss_rate_hdd], self.model.miss_rates(key));
            prop_assert_eq!(group.alpha, self.model.alpha(key));
            let pages = self.model.pages.values().filter(|p| p.group == Some(key)).count();
            prop_assert_eq!(group.pages, pages as u64);
        }
        Ok(())
    }
}

fn run(real: &mut dyn SlotPolicy, model: Model, events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut pair = Pair { real, model, now: Millis(0) };
    for event in events {
        pair.apply(event)?;
        pair.compare()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cac_and_cc_agree_with_the_logs(
        events in prop::collection::vec(event(), 1..250),
        anticipates in prop::bool::weighted(0.75),
        kept in any::<bool>(),
        outqueue_entries in 0..8usize,
        group_width_per_min in prop_oneof![Just(1.0), Just(40.0)],
    ) {
        let params = SlotPolicyParams {
            outqueue_entries,
            group_width_per_min,
            subranges_max: 50,
            dropped: if kept { Dropped::Kept } else { Dropped::Subtracted },
            ..SlotPolicyParams::new(Costs::PAPER, 2, 0)
        };
        let model = Model::new(params, anticipates);
        if anticipates {
            run(&mut Cac::new(CacOptions::CAC, &params), model, events)?;
        } else {
            run(&mut Cac::new(CacOptions::CC, &params), model, events)?;
        }
    }
}
