//! The scenario of a seed: the store's geometry and the work on it, drawn from the seed. A replay can
//! override each part.

use super::hazard::Hazard;
use super::twist::Twist;
use clap::ValueEnum;
use pagetier_ssdcache::SLOTS_MIN;
use pagetier_testing::FlushFailure;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// One seed's scenario. [`Plan::from_seed`] draws it; [`Plan::set`] changes the fields that a shrunk replay
/// overrides.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed, from which every later choice derives.
    pub seed: u64,
    /// Lives of the store, each ended by a crash or a close.
    pub lives: u32,
    /// Operations of each task in one life.
    pub ops: u32,
    /// The number of concurrent tasks.
    pub tasks: u32,
    /// The maximum number of pages in the store.
    pub pages: u32,
    /// Frames of the pool.
    pub frames: u32,
    /// Slots of the SSD; 0: no SSD, only the ring.
    pub slots: u32,
    /// Pages of the ring.
    pub ring: u32,
    /// The eviction zone, in per cent.
    pub zone_percent: u32,
    /// Entries of the outqueue.
    pub outqueue: u32,
    pub ssd_policy: &'static str,
    pub pool_policy: &'static str,
    /// The seeds of the hostile policies that replace the SSD's and the pool's policy, if any. A hostile
    /// policy answers randomly or adversarially.
    pub hostile: [Option<u32>; 2],
    /// The maximum duration of an HDD operation, in microseconds.
    pub hdd_us: u64,
    /// The maximum duration of an SSD operation, in microseconds.
    pub ssd_us: u64,
    /// The number of moments at which each life is crashed.
    pub images: u32,
    /// The number of outcomes examined per moment.
    pub outcomes: u32,
    /// Whether devices fail occasionally.
    pub faults: bool,
    /// The effect of a failed flush, of the HDD and of the SSD.
    pub flush_failures: [FlushFailure; 2],
    /// The maximum time for the embedder's log to become durable, in microseconds; 0: there is no log.
    pub gate_us: u32,
    /// The disabled kinds of work, as bits of [`Plan::KINDS`].
    pub without: u64,
    /// 1: the manifest is at the head of the HDD, and not in memory.
    pub on_hdd: u32,
    /// The number of slots whose entries a checkpoint captures at a time; 0: all.
    pub map_piece: u32,
    /// How often the store lists its hot set, in milliseconds; 0: it keeps none.
    pub hot_ms: u32,
    /// The page size, in KiB.
    pub page_kib: u32,
    /// The alignment that the devices of pages ask for, in bytes.
    pub sector_bytes: u32,
    /// The unit of writes that the HDD offers to keep whole, in KiB; 0: none.
    pub whole_kib: u32,
    /// The hazard that the work is directed at.
    pub hazard: Hazard,
    /// With a log: what the adversary does after every crash; `None`: it draws.
    pub twist: Option<Twist>,
}

/// The papers' policies that evict within a zone.
const WITHIN_ZONE: [&str; 3] = ["cac", "cc", "lru2"];

/// Policies that append or write through; half of all seeds run one of them.
const OTHERS: [&str; 4] = ["mv-fifo", "mv-fifo-gsc", "doublewrite", "tac"];

/// SSD policies of this project's own, the default first.
const OWN: [&str; 2] = ["auto", "cac:strict-zone"];

/// Pool policies, the default first.
const POOL_POLICIES: [&str; 13] = [
    "auto",
    "gd2l",
    "gd2l:frequency",
    "gd2l:write-back",
    "lru",
    "midpoint-lru",
    "cflru",
    "lru-wsr",
    "ccf-lru",
    "ref",
    "cfdc",
    "casa",
    "sawc",
];

/// The SSD policy of that name, if the campaign uses it.
#[must_use]
pub fn ssd_policy(name: &str) -> Option<&'static str> {
    let all = WITHIN_ZONE.iter().chain(&OTHERS).chain(&OWN).chain(&["none"]);
    all.copied().find(|known| *known == name)
}

impl Plan {
    /// The kinds of work that can be disabled, by name.
    pub const KINDS: [&str; 39] = [
        // The position of a kind is its bit in `without`, and seeds disable the first `OPTIONAL` ones:
        // append new kinds, so that an old seed still draws its scenario.
        "scan",
        "discard",
        "drop-space",
        "flush-to",
        "drop-future",
        "hold",
        "prefetch",
        "close",
        "pause",
        "kill",
        "flush-fails",
        "reopen",
        "drop-open",
        "growth-fails",
        "rot",
        "past",
        "records-fail",
        "openers",
        "ssd-life",
        "upkeep",
        "whole",
        "free",
        "ssd",
        "operate",
        "backup",
        "trouble",
        "insert",
        "far",
        "wrong-reads",
        "readmit-spares",
        "reuse-in-backup",
        "abandon-in-backup",
        "backup-after-loss",
        "bulk",
        "steps",
        "long-records",
        "log-fails",
        "readmit",
        "twists",
    ];

    /// Kinds that a seed disables unless `on=` enables them: the store does not yet withstand them.
    pub const PENDING: [&str; 0] = [];

    /// The number of kinds that a seed may disable; the others are hazards.
    const OPTIONAL: usize = 9;

    /// A value of [`Plan::without`] that disables every hazard other than power cuts.
    pub(crate) const ORDINARY: u64 = (1 << Self::KINDS.len()) - (1 << Self::OPTIONAL);

    /// The scenario of a seed: every third seed is directed at a hazard.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self::directed(seed, Hazard::of_seed(seed))
    }

    /// The scenario of a seed, directed at `hazard`.
    #[must_use]
    pub fn directed(seed: u64, hazard: Hazard) -> Self {
        let mut plan = Self::within_zone(seed, hazard);
        plan.draw_policy();
        // A generator of its own, as in `draw_policy`.
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x0a5e_11e4_d015_7a2b);
        // `Past` puts an older HDD beside a newer manifest. With the manifest on the HDD both would be
        // equally old.
        plan.on_hdd = u32::from(hazard != Hazard::Past && rng.random_ratio(1, 6));
        plan.hot_ms = [0, 0, 0, 0, 0, 12, 60, 400][rng.random_range(0..8)];
        plan.page_kib = if rng.random_ratio(1, 12) { 16 } else { 4 };
        plan.sector_bytes = if rng.random_ratio(1, 6) { 4096 } else { 512 };
        let page = plan.page_kib;
        // Most disks offer nothing. Half a page is an offer that must not count: such pages need the ring.
        plan.whole_kib = [0, 0, 0, 0, 0, 0, 0, page, page, page * 4, page / 2][rng.random_range(0..11)];
        plan
    }

    /// The scenario under CAC, CC or LRU2.
    #[must_use]
    pub fn within_zone(seed: u64, hazard: Hazard) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x9e37_79b9_7f4a_7c15);
        let rng = &mut rng;
        let slots = if rng.random_ratio(1, 16) { 0 } else { rng.random_range(32..=90) };
        let ssd_policy = if rng.random_ratio(1, 24) { "none" } else { WITHIN_ZONE[rng.random_range(0..3)] };
        let pool_policy = if rng.random_bool(0.5) {
            POOL_POLICIES[0]
        } else {
            POOL_POLICIES[rng.random_range(0..POOL_POLICIES.len())]
        };
        let mut plan = Self {
            seed,
            // Everything is small, so that a life fills the pool, the SSD, the zone, the ring and the
            // journal repeatedly.
            lives: rng.random_range(2..=6),
            ops: [60, 150, 300, 600][rng.random_range(0..4)],
            tasks: [1, 2, 3, 4][rng.random_range(0..4)],
            pages: rng.random_range(24..=180),
            frames: rng.random_range(20..=44),
            slots,
            ring: rng.random_range(2..=8),
            zone_percent: [10, 25, 40, 100][rng.random_range(0..4)],
            outqueue: [4, 40, 120][rng.random_range(0..3)],
            ssd_policy,
            pool_policy,
            hostile: [None; 2],
            hdd_us: [300, 3000, 12000][rng.random_range(0..3)],
            ssd_us: [50, 300, 3000][rng.random_range(0..3)],
            images: 40,
            outcomes: 2,
            // Few seeds: after a fault the checks must allow errors, so the lives without faults are the
            // stricter test.
            faults: rng.random_ratio(1, 8),
            // Half of the seeds lack some kinds: a store that is never synced, or never at rest, gets into
            // other states.
            without: if rng.random_bool(0.5) {
                0
            } else {
                rng.random_range(0..1_u32 << Self::OPTIONAL).into()
            },
            flush_failures: [FlushFailure::NeverDurable; 2],
            gate_us: 0,
            on_hdd: 0,
            map_piece: 0,
            hot_ms: 0,
            page_kib: 4,
            sector_bytes: 512,
            whole_kib: 0,
            hazard: Hazard::Free,
            twist: None,
        };
        // Later additions draw from generators of their own: a seed that found a fault must find it again.
        plan.draw_world();
        plan.shape(hazard, rng);
        Self::PENDING.iter().for_each(|kind| plan.disable(kind));
        plan
    }

    /// Changes the plan so that the hazard is likely.
    fn shape(&mut self, hazard: Hazard, rng: &mut SmallRng) {
        self.hazard = hazard;
        if hazard == Hazard::Free {
            self.widen();
            return;
        }
        let draw = |rng: &mut SmallRng, from: u32, to: u32| rng.random_range(from..=to);
        (self.lives, self.ops, self.tasks) = (draw(rng, 1, 3), 240, draw(rng, 1, 2));
        (self.frames, self.slots, self.pages) = (20, draw(rng, 34, 44), draw(rng, 60, 90));
        (self.faults, self.zone_percent) = (false, [25, 40, 100][rng.random_range(0..3)]);
        // Hazards are states of an SSD's pages.
        if self.ssd_policy == "none" {
            self.ssd_policy = "cac";
        }
        match hazard {
            Hazard::ColdCopies | Hazard::SlotFails => {
                (self.ring, self.hdd_us, self.ssd_us) = (draw(rng, 4, 8), 1000, 300);
            }
            Hazard::SlowMap => (self.ring, self.hdd_us, self.ssd_us) = (draw(rng, 2, 4), 500, 200),
            Hazard::TwoWaysHome => {
                // A slow HDD keeps one way home in flight until the other begins.
                (self.tasks, self.ring) = (draw(rng, 2, 4), draw(rng, 2, 8));
                (self.hdd_us, self.ssd_us) = (12_000, [300, 3000][rng.random_range(0..2)]);
            }
            Hazard::FreshVictims => {
                // In the smallest SSD with all of it as zone, LRU-2 evicts pages that were admitted just
                // before.
                (self.slots, self.zone_percent, self.ssd_policy) = (draw(rng, 32, 36), 100, "lru2");
                (self.hdd_us, self.ssd_us) = (500, [50, 500][rng.random_range(0..2)]);
            }
            // The slot write of an evicted page outlasts many reads from the HDD, so its page comes back,
            // and is changed, while the copy is in flight.
            Hazard::JustEvicted => (self.zone_percent, self.hdd_us, self.ssd_us) = (100, 300, 12_000),
            Hazard::Killed
            | Hazard::FlushFails
            | Hazard::DroppedFlush
            | Hazard::Reopened
            | Hazard::NoRing => {
                (self.lives, self.ops, self.ring) = (draw(rng, 3, 6), draw(rng, 60, 200), draw(rng, 2, 8));
                (self.hdd_us, self.ssd_us) = (12_000, [300, 3000][rng.random_range(0..2)]);
                (self.without, self.images) = (0, 15);
                if hazard == Hazard::NoRing {
                    self.ring = 0;
                }
                if hazard == Hazard::Reopened && rng.random_bool(0.5) {
                    // Every write goes home.
                    self.slots = 0;
                }
                if matches!(hazard, Hazard::FlushFails | Hazard::DroppedFlush) {
                    // A failed flush without an effect would test nothing.
                    let harmful = [FlushFailure::NeverDurable, FlushFailure::Reverted];
                    self.flush_failures = [(); 2].map(|()| harmful[rng.random_range(0..2)]);
                }
            }
            Hazard::SecondChances => {
                (self.ssd_policy, self.ring, self.without) = ("mv-fifo-gsc", draw(rng, 2, 8), 0);
                (self.tasks, self.ops, self.ssd_us) = (draw(rng, 2, 4), 400, 3000);
            }
            Hazard::DrainedDiscards => {
                (self.ring, self.zone_percent, self.without) = (draw(rng, 2, 8), 25, 0);
                (self.hdd_us, self.ssd_us) = (3000, 300);
            }
            Hazard::FailedHomes => {
                (self.ring, self.hdd_us, self.ssd_us) = (draw(rng, 2, 8), 1000, 300);
                (self.slots, self.without) = (if rng.random_bool(0.5) { 0 } else { self.slots }, 0);
            }
            Hazard::TornHomes => {
                // Slow home writes are in flight at most crashes, and quick slot writes back them:
                // recovery has torn homes to repair from slots (I22).
                (self.lives, self.ssd_policy, self.zone_percent) = (4, "doublewrite", 100);
                (self.ring, self.hdd_us, self.ssd_us) = (draw(rng, 2, 8), 12_000, 50);
            }
            _ => self.shape_lives(hazard, rng),
        }
    }

    /// As [`Plan::shape`], for hazards that need several lives.
    fn shape_lives(&mut self, hazard: Hazard, rng: &mut SmallRng) {
        let draw = |rng: &mut SmallRng, from: u32, to: u32| rng.random_range(from..=to);
        match hazard {
            Hazard::DroppedOpen | Hazard::Rot | Hazard::Past => {
                (self.lives, self.ops, self.ring) = (draw(rng, 3, 6), draw(rng, 30, 120), draw(rng, 2, 8));
                self.without = 0;
            }
            Hazard::FullDisk => {
                (self.lives, self.ops, self.ring) = (draw(rng, 3, 6), draw(rng, 60, 200), draw(rng, 2, 8));
                // Many extents, so that the space has to grow throughout the life, also after the fault.
                (self.pages, self.without) = (600, 0);
            }
            Hazard::DroppedSpaces => {
                (self.lives, self.ops, self.ring) = (draw(rng, 2, 4), 200, draw(rng, 2, 8));
                self.without = 0;
            }
            Hazard::Records => {
                (self.lives, self.ops, self.ring) = (draw(rng, 3, 6), 120, draw(rng, 2, 8));
                (self.pages, self.without, self.images) = (500, 0, 20);
            }
            Hazard::Openers | Hazard::SsdLife => {
                (self.lives, self.ops, self.ring) = (draw(rng, 2, 5), draw(rng, 60, 200), draw(rng, 1, 8));
                (self.hdd_us, self.ssd_us) = (3000, [300, 3000][rng.random_range(0..2)]);
                self.without = 0;
            }
            Hazard::Upkeep => {
                (self.lives, self.ops, self.ring) = (draw(rng, 2, 5), draw(rng, 60, 200), draw(rng, 1, 8));
                (self.tasks, self.pages) = (draw(rng, 1, 3), draw(rng, 100, 220));
                (self.hdd_us, self.ssd_us) = (3000, [300, 3000][rng.random_range(0..2)]);
                (self.without, self.images) = (0, 20);
            }
            Hazard::Log => {
                (self.lives, self.ops, self.ring) = (draw(rng, 2, 4), draw(rng, 30, 100), draw(rng, 1, 8));
                (self.tasks, self.pages) = (draw(rng, 1, 3), draw(rng, 30, 90));
                (self.hdd_us, self.ssd_us) = ([300, 3000][rng.random_range(0..2)], 300);
                // Without a gate of the campaign's own: the engine's log is the store's gate.
                (self.without, self.images, self.outcomes, self.gate_us) = (0, 24, 1, 0);
            }
            Hazard::RottenHomes => {
                (self.lives, self.ops, self.ring) = (6, draw(rng, 15, 60), draw(rng, 4, 8));
                // A slot could repair a home, too. Without slots only the ring can, and few pages have
                // several images each in it (I22).
                (self.slots, self.pages, self.without) = (0, draw(rng, 24, 30), 0);
                (self.hdd_us, self.ssd_us) = (1000, 300);
            }
            _ => {}
        }
    }

    /// Changes the plan so that its lives draw the whole table: several tasks, in fewer moments.
    fn widen(&mut self) {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0x31c5_0b6e_77a1_942d);
        (self.lives, self.tasks) = (rng.random_range(2..=4), rng.random_range(1..=5));
        (self.ops, self.images) = ([60, 100, 160][rng.random_range(0..3)], 25);
        if rng.random_ratio(1, 6) {
            self.ring = 0;
        }
    }

    /// Draws the hostility of the environment and extreme geometries, with a generator of its own as for the
    /// policy.
    fn draw_world(&mut self) {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0x2b99_4c11_d03e_8a67);
        self.flush_failures =
            [(); 2].map(|()| FlushFailure::ALL[rng.random_range(0..FlushFailure::ALL.len())]);
        self.gate_us = [0, 0, 500, 20_000][rng.random_range(0..4)];
        let hostile = [rng.random_ratio(1, 24), rng.random_ratio(1, 48)];
        self.hostile = hostile.map(|yes| yes.then(|| rng.random_range(0..1000)));
        // The smallest sizes have code paths of their own, which a draw from a range would seldom reach.
        match rng.random_range(0..16) {
            0 => self.ring = 0,
            1 => self.ring = 1,
            2 if self.slots > 0 => self.slots = SLOTS_MIN,
            3 => self.zone_percent = 1,
            _ => {}
        }
        self.map_piece = [0, 4, 9, 30][rng.random_range(0..4)];
    }

    /// The probability that a life ends with a close.
    pub(crate) fn closing(&self) -> f64 {
        match self.hazard {
            Hazard::Past | Hazard::Rot => 0.8,
            Hazard::FlushFails | Hazard::Reopened | Hazard::Records => 0.5,
            _ => 0.2,
        }
    }

    /// The probability that a life has reopenings.
    pub(crate) fn reopening(&self) -> f64 {
        let usual = if matches!(self.hazard, Hazard::Records | Hazard::Openers) { 0.6 } else { 0.12 };
        self.share("reopen", usual)
    }

    /// The probability of a kind of work: `usual`; 0.8 if the seed is directed at it; 0 if it is disabled.
    pub(crate) fn share(&self, kind: &str, usual: f64) -> f64 {
        match self.hazard.kind() {
            _ if !self.has(kind) => 0.0,
            Some(directed) if directed == kind => 0.8,
            _ => usual,
        }
    }

    /// Draws the policy: every second seed runs a policy that appends or writes through, every eighth the
    /// default, every eighth one of the project's own. A generator of its own keeps the rest of the scenario
    /// independent of the policy.
    fn draw_policy(&mut self) {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0x51ed_270b_0a1f_39c3);
        let drawn = rng.random_range(0..2 * OTHERS.len());
        let fixed = matches!(self.hazard, Hazard::FreshVictims | Hazard::TornHomes | Hazard::SecondChances)
            || self.ssd_policy == "none";
        if fixed {
            return;
        }
        self.ssd_policy = match drawn {
            0..4 => OTHERS[drawn],
            4 => OWN[0],
            5 => OWN[rng.random_range(0..OWN.len())],
            _ => self.ssd_policy,
        };
    }

    /// Sets one part, such as `lives=2` or `without=scan+discard`: an argument of `--with` in a report's
    /// replay command.
    ///
    /// # Errors
    /// There is no such part, or the value is invalid for it.
    pub fn set(&mut self, part: &str) -> Result<(), String> {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("{part}: expected name=value"))?;
        let number = || value.parse::<u32>().map_err(|e| format!("{part}: {e}"));
        match name {
            "hazard" => {
                let hazard = Hazard::from_str(value, true).map_err(|_| format!("{part}: no such hazard"))?;
                *self = Self::directed(self.seed, hazard);
            }
            "policy" => {
                self.ssd_policy = ssd_policy(value).ok_or_else(|| format!("{part}: no such policy"))?;
            }
            "twist" => {
                let twist = Twist::from_str(value, true).map_err(|_| format!("{part}: no such twist"))?;
                self.twist = Some(twist);
            }
            "faults" => self.faults = number()? != 0,
            "hostile" => self.hostile[0] = (value != "no").then(number).transpose()?,
            "hostile_pool" => self.hostile[1] = (value != "no").then(number).transpose()?,
            "without" => self.without = without(value)?,
            "on" => self.without &= !without(value)?,
            _ => match self.numbers().into_iter().find(|(known, _)| *known == name) {
                Some((_, field)) => *field = number()?,
                None => {
                    return Err(format!(
                        "{name}: no such part of a plan; the parts are hazard, policy, twist, lives, ops, tasks, \
                         pages, images, outcomes, faults, hostile, hostile_pool, ring, slots, gate_us, \
                         on_hdd, map_piece, hot_ms, page_kib, sector_bytes, whole_kib, without, on"
                    ));
                }
            },
        }
        // Tasks draw from the pages that there are.
        self.pages = self.pages.max(1);
        Ok(())
    }

    /// The parts that are numbers, by name.
    fn numbers(&mut self) -> [(&'static str, &mut u32); 15] {
        [
            ("lives", &mut self.lives),
            ("ops", &mut self.ops),
            ("tasks", &mut self.tasks),
            ("pages", &mut self.pages),
            ("images", &mut self.images),
            ("outcomes", &mut self.outcomes),
            ("ring", &mut self.ring),
            ("slots", &mut self.slots),
            ("gate_us", &mut self.gate_us),
            ("on_hdd", &mut self.on_hdd),
            ("map_piece", &mut self.map_piece),
            ("hot_ms", &mut self.hot_ms),
            ("page_kib", &mut self.page_kib),
            ("sector_bytes", &mut self.sector_bytes),
            ("whole_kib", &mut self.whole_kib),
        ]
    }

    /// The differences from the seed's own scenario, as arguments of `--with`.
    pub fn overrides(&self) -> Vec<String> {
        let mut drawn = Self::directed(self.seed, self.hazard);
        let mut all = Vec::new();
        let mut add = |differs: bool, part: String| all.extend(differs.then_some(part));
        // The hazard comes first, because it determines all other parts.
        add(self.hazard != Hazard::of_seed(self.seed), format!("hazard={:?}", self.hazard));
        let twist = self.twist.map_or_else(String::new, |twist| format!("{twist:?}"));
        add(self.twist.is_some(), format!("twist={twist}"));
        add(self.ssd_policy != drawn.ssd_policy, format!("policy={}", self.ssd_policy));
        for ((name, is), (_, was)) in self.clone().numbers().into_iter().zip(drawn.numbers()) {
            add(is != was, format!("{name}={is}"));
        }
        add(self.faults != drawn.faults, format!("faults={}", u32::from(self.faults)));
        for (at, name) in ["hostile", "hostile_pool"].into_iter().enumerate() {
            let seed = self.hostile[at].map_or("no".to_owned(), |seed| seed.to_string());
            add(self.hostile[at] != drawn.hostile[at], format!("{name}={seed}"));
        }
        let kinds = Self::KINDS.iter().enumerate().filter(|(bit, _)| self.without >> bit & 1 == 1);
        let names: Vec<&str> = kinds.map(|(_, name)| *name).collect();
        add(self.without != drawn.without, format!("without={}", names.join("+")));
        all
    }

    /// Whether pages go home without the ring as long as the HDD offers what it does at first.
    pub(crate) fn homes_are_whole(&self) -> bool {
        self.ring == 0 || self.whole_kib >= self.page_kib
    }

    /// Whether the lives draw the whole table.
    pub(crate) fn is_whole(&self) -> bool {
        self.hazard == Hazard::Free && self.has("whole")
    }

    /// Whether the lives make files: backups and others.
    pub(crate) fn makes_files(&self) -> bool {
        self.is_whole() || self.hazard == Hazard::Upkeep
    }

    /// Whether the tasks free pages.
    pub(crate) fn frees(&self) -> bool {
        self.has("free") && (self.is_whole() || self.hazard == Hazard::Upkeep)
    }

    /// Whether this kind of work is enabled.
    pub(crate) fn has(&self, kind: &str) -> bool {
        let bit = Self::KINDS.iter().position(|k| *k == kind);
        bit.is_none_or(|bit| self.without >> bit & 1 == 0)
    }

    /// An SSD policy by name, not necessarily the plan's.
    pub(crate) fn any_ssd_policy(rng: &mut SmallRng) -> &'static str {
        let all = [&WITHIN_ZONE[..], &OTHERS, &OWN].concat();
        all[rng.random_range(0..all.len())]
    }

    /// A pool policy by name, not necessarily the plan's.
    pub(crate) fn any_pool_policy(rng: &mut SmallRng) -> &'static str {
        POOL_POLICIES[rng.random_range(0..POOL_POLICIES.len())]
    }

    /// Disables a kind of work.
    pub(crate) fn disable(&mut self, kind: &str) {
        let bit = Self::KINDS.iter().position(|k| *k == kind);
        self.without |= bit.map_or(0, |bit| 1 << bit);
    }
}

fn without(value: &str) -> Result<u64, String> {
    let mut bits = 0_u64;
    for name in value.split('+').filter(|n| !n.is_empty()) {
        let bit = Plan::KINDS.iter().position(|k| *k == name);
        bits |= 1
            << bit.ok_or_else(|| {
                format!("{name}: no such kind of work; the kinds are {}", Plan::KINDS.join(", "))
            })?;
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overridden_reads_back() {
        let mut plan = Plan::from_seed(7);
        assert!(plan.overrides().is_empty());
        plan.set("lives=1").unwrap();
        plan.set("without=scan+hold").unwrap();
        let mut again = Plan::from_seed(7);
        for part in plan.overrides() {
            again.set(&part).unwrap();
        }
        assert_eq!(plan, again);
        assert!(again.set("lives").is_err() && again.set("x=1").is_err() && again.set("without=y").is_err());
    }
}
