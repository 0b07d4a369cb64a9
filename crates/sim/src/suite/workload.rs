//! The workloads: generated ones, traces, and two of either joined. A seed draws the parameters of the
//! generators, each workload's length, the part of a trace, the sizes of the tiers, and which generated
//! workloads are joined.

use super::generators::{KINDS, Stream};
use super::{Class, SuiteError};
use crate::Trace;
use pagetier_ghost::Reference;
use pagetier_policy::{PageId, SpaceId};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};

/// The number of parameter sets of a generator.
const SETS: usize = 3;

/// The number of generated workloads that are joined with another one.
const JOINED: usize = 5;

/// The fewest references of a workload, unless a trace or the suite's limit is shorter.
const SHORTEST: usize = 60_000;

/// The fewest frames of a pool.
const FRAMES_MIN: usize = 32;

/// Added to the spaces of the second of two joined workloads.
const SPACES_APART: u32 = 1 << 20;

/// Half of the workloads. A policy is tuned on one half, and what is reported of it comes from the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    Tune,
    Report,
}

impl Half {
    /// The half of the workload or trace of this name. A hash of its family, the part before the first dash
    /// or slash, says which, so that a workload stays in its half when others come, and relatives such as
    /// `sprite` and `sprite-read-only` are in the same one.
    fn of(name: &str) -> Self {
        let family = name.split(['-', '/']).next().unwrap_or_default();
        let hash = family.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // The lowest bits depend on the lowest bits of the letters alone. Bit 6 mixes whole letters, and
        // splits the kinds evenly (see the test).
        if hash >> 6 & 1 == 1 { Self::Tune } else { Self::Report }
    }
}

#[derive(Clone, Debug)]
enum Origin {
    Generated { kind: usize, set: usize },
    Trace(PathBuf),
    Joined(Box<[Origin; 2]>),
}

/// A stream of references, by name.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) seed: u64,
    origin: Origin,
}

/// The references of a workload, and the tiers that serve them.
pub(super) struct Drawn {
    pub(super) references: Vec<Reference>,
    /// Where the second of two joined workloads begins.
    pub(super) joined_at: Option<usize>,
    pub(super) pool_pages: u32,
    pub(super) ssd_pages: u32,
}

/// All workloads of a half, with the traces of `folder`.
pub(super) fn all(folder: Option<&Path>, half: Half, seed: u64) -> std::io::Result<Vec<Workload>> {
    let generated =
        (0..KINDS.len()).flat_map(|kind| (0..SETS).map(move |set| Origin::Generated { kind, set }));
    // The halves are separated before workloads are joined: otherwise a policy would be tuned on
    // workloads that the other half reports.
    let mut generated: Vec<Origin> = generated.filter(|one| Half::of(&one.name()) == half).collect();
    let mut traces = folder.map(traces).transpose()?.unwrap_or_default();
    traces.retain(|trace| Half::of(&trace.name()) == half);
    let mut origins = [&generated[..], &traces].concat();
    generated.shuffle(&mut SmallRng::seed_from_u64(seed));
    generated.truncate(JOINED);
    for group in [generated, traces] {
        // Each is joined with the next one, and the last with the first, in both orders.
        let next = group.iter().cycle().skip(1);
        for (one, other) in group.iter().zip(next).filter(|_| group.len() > 1) {
            origins.push(Origin::Joined(Box::new([one.clone(), other.clone()])));
            origins.push(Origin::Joined(Box::new([other.clone(), one.clone()])));
        }
    }
    Ok(origins.into_iter().map(|origin| Workload { name: origin.name(), seed, origin }).collect())
}

fn traces(folder: &Path) -> std::io::Result<Vec<Origin>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ptr"));
    // A folder lists its files in any order, and the neighbours in this one are joined.
    paths.sort();
    Ok(paths.into_iter().map(Origin::Trace).collect())
}

/// Draws a number between these such that each doubling is as likely as any other.
fn log_uniform(rng: &mut SmallRng, least: usize, most: usize) -> usize {
    let (least, most) = (least.min(most) as f64, most as f64);
    (least * (most / least).powf(rng.random())) as usize
}

impl Origin {
    fn name(&self) -> String {
        match self {
            Self::Generated { kind, set } => format!("{}/{}", KINDS[*kind].0, set + 1),
            Self::Trace(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Joined(pair) => format!("{} > {}", pair[0].name(), pair[1].name()),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Generated { .. } => Class::Synthetic,
            Self::Trace(_) => Class::Real,
            Self::Joined(pair) => pair[0].class(),
        }
    }

    /// The references, and where the second of two joined workloads begins.
    fn references(
        &self,
        seed: u64,
        longest: usize,
        rng: &mut SmallRng,
    ) -> Result<(Vec<Reference>, Option<usize>), SuiteError> {
        match self {
            Self::Generated { kind, set } => {
                let length = log_uniform(rng, SHORTEST, longest);
                Ok((Stream::generate(*kind, *set, seed, length), None))
            }
            Self::Trace(path) => {
                let trace = Trace::read(path).map_err(|error| SuiteError::Trace(path.clone(), error))?;
                let all = trace.references();
                let length = log_uniform(rng, SHORTEST, longest.min(all.len()));
                // Any part may be drawn, so that a policy does not depend on how a trace begins.
                let from = rng.random_range(0..=all.len() - length);
                Ok((all[from..from + length].to_vec(), None))
            }
            Self::Joined(pair) => {
                let (mut all, _) = pair[0].references(seed, longest, rng)?;
                let (second, _) = pair[1].references(seed, longest, rng)?;
                let at = all.len();
                // The second workload has pages of its own: shared numbers would be hits from the first,
                // and the change no change.
                all.extend(second.into_iter().map(apart));
                Ok((all, Some(at)))
            }
        }
    }
}

fn apart(reference: Reference) -> Reference {
    let PageId { space, no } = reference.page;
    Reference { page: PageId::new(SpaceId(space.0 + SPACES_APART), no), ..reference }
}

impl Workload {
    pub(super) fn class(&self) -> Class {
        self.origin.class()
    }

    /// The references, `longest` at most, and the sizes of the tiers: a pool of a tenth of the pages at most,
    /// and an SSD of 3 to 12 times as many pages, three fifths of all at most.
    pub(super) fn draw(&self, longest: usize) -> Result<Drawn, SuiteError> {
        // The name seeds the draw, not its position: a workload keeps its length and its sizes when
        // others are added.
        let name = self
            .name
            .bytes()
            .fold(self.seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let rng = &mut SmallRng::seed_from_u64(name);
        let (references, joined_at) = self.origin.references(self.seed, longest, rng)?;
        let pages = references.iter().map(|r| r.page).collect::<rustc_hash::FxHashSet<PageId>>().len();
        let pool = log_uniform(rng, FRAMES_MIN, (pages / 10).max(FRAMES_MIN));
        let ssd = (pool as f64 * rng.random_range(3.0..12.0)) as usize;
        // The SSD holds three fifths at most, so the HDD still matters: tiers that hold every page cost
        // about the same under all policies.
        let ssd = ssd.min(pages * 3 / 5).max(pool);
        Ok(Drawn { references, joined_at, pool_pages: pool as u32, ssd_pages: ssd as u32 })
    }
}

#[cfg(test)]
#[test]
fn relatives_share_a_half_and_each_half_has_half_of_the_kinds() {
    let tune = KINDS.iter().filter(|(name, _)| Half::of(&format!("{name}/1")) == Half::Tune).count();
    assert_eq!((tune, KINDS.len()), (8, 17));
    assert_eq!(Half::of("sprite"), Half::of("sprite-read-only"));
}
