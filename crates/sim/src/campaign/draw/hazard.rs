//! The hazards that a fixed share of all seeds is directed at: situations that random work seldom meets. A
//! hazard determines geometry and latencies ([`Plan`](super::plan::Plan)), faults and the order of the work
//! (`work::directed`).

use clap::ValueEnum;

/// The hazard that a seed is directed at. The order determines which seeds are directed at which.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Hazard {
    /// None: random work.
    Free,
    /// Clean copies on the SSD become obsolete: their pages are changed and go home, through the ring many
    /// times over, before the next checkpoint. Only the journal records that.
    ColdCopies,
    /// Pages go home from the pool while the SSD is writing older versions of them back: drains and mode
    /// changes.
    TwoWaysHome,
    /// `ColdCopies` while every checkpoint's header write takes very long: more goes home than the journal
    /// holds.
    SlowMap,
    /// Versions that were just written to the SSD are the next victims.
    FreshVictims,
    /// Pages are discarded or changed while the copy made at their eviction is being written to the SSD.
    JustEvicted,
    /// `ColdCopies` after a failed slot write: nothing more goes to the SSD.
    SlotFails,
    /// Pages are discarded right after a recovery whose slots backed home writes that the crash tore.
    TornHomes,
    /// The process is killed repeatedly, recoveries included, before the power is cut.
    Killed,
    /// Flushes fail; the store is closed, dropped or killed, and opened again without a reboot.
    FlushFails,
    /// Calls are dropped while the flush that they wait for fails.
    DroppedFlush,
    /// The store is dropped with slow writes in flight and opened again at once.
    Reopened,
    /// Opens are dropped at an await.
    DroppedOpen,
    /// The HDD cannot grow.
    FullDisk,
    /// The medium is corrupted between lives (bit rot).
    Rot,
    /// Devices with a past: another store's, older copies, truncated ones.
    Past,
    /// Home writes without a doublewrite ring.
    NoRing,
    /// Pages are written during their second chance.
    SecondChances,
    /// Pages are discarded while a drain writes them home.
    DrainedDiscards,
    /// Home writes fail once, and their pages are discarded.
    FailedHomes,
    /// Spaces are continually created, filled and dropped.
    DroppedSpaces,
    /// Homes for which the ring holds images of several versions become corrupt.
    RottenHomes,
    /// Saves of the manifest, superblock writes and growth fail.
    Records,
    /// Others open the store while it is open, or at the same time.
    Openers,
    /// The SSD is given up, readmitted, switched off; its loss is accepted and acknowledged.
    SsdLife,
    /// The running operations: pages are freed and their numbers reused, spaces shrink, the pool is resized,
    /// the SSD's policy and write budget change, the store is backed up, shut down, and gets another SSD. No
    /// seed draws this hazard, so that the other hazards keep their seeds: use `--with hazard=Upkeep`.
    Upkeep,
    /// An engine with a log: see `log`. Ordinary seeds draw it beside their own lives.
    Log,
}

impl Hazard {
    /// Every hazard that seeds are directed at.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &Self::value_variants()[1..]
    }

    /// The hazard of seed `seed`: every third seed has one, in rotation.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        // These two joined later: in the rotation, they would give every old seed another hazard.
        let all = Self::all().strip_suffix(&[Self::Upkeep, Self::Log]).unwrap_or_default();
        if seed % 3 == 1 { all[(seed / 3) as usize % all.len()] } else { Self::Free }
    }

    /// Whether the hazard determines the order of the work.
    pub(crate) fn has_work(self) -> bool {
        matches!(
            self,
            Self::ColdCopies
                | Self::SlowMap
                | Self::SlotFails
                | Self::TwoWaysHome
                | Self::FreshVictims
                | Self::JustEvicted
                | Self::TornHomes
                | Self::DrainedDiscards
                | Self::FailedHomes
        )
    }

    /// The kind of work ([`Plan::KINDS`]) that the hazard belongs to.
    pub(crate) fn kind(self) -> Option<&'static str> {
        match self {
            Self::Killed => Some("kill"),
            Self::FlushFails => Some("flush-fails"),
            Self::DroppedFlush => Some("drop-future"),
            Self::Reopened => Some("reopen"),
            Self::DroppedOpen => Some("drop-open"),
            Self::FullDisk => Some("growth-fails"),
            Self::Rot | Self::RottenHomes => Some("rot"),
            Self::DroppedSpaces => Some("drop-space"),
            Self::Past => Some("past"),
            Self::Records => Some("records-fail"),
            Self::Openers => Some("openers"),
            Self::SsdLife => Some("ssd-life"),
            Self::Upkeep => Some("upkeep"),
            _ => None,
        }
    }
}
