//! The workloads: generated ones, traces, and two of either joined.

use super::generators::{KINDS, Stream};
use super::{Class, SuiteError};
use crate::Trace;
use pagetier_ghost::Reference;
use pagetier_policy::{PageId, SpaceId};
use std::path::{Path, PathBuf};

/// The number of parameter sets of a generator.
const SETS: usize = 3;

/// Generated workloads to join, in both orders: kind and parameter set of each.
const JOINED: [[(&str, usize); 2]; 5] = [
    [("zipf", 1), ("moving", 1)],
    [("cyclic", 2), ("latest", 0)],
    [("loop-hot", 2), ("drift", 1)],
    [("stack-wide", 0), ("queue", 1)],
    [("tenants", 1), ("append", 2)],
];

/// Added to the spaces of the second of two joined workloads.
const SPACES_APART: u32 = 1 << 20;

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
    origin: Origin,
}

/// All workloads, with the traces of `folder`.
pub(super) fn all(folder: Option<&Path>) -> std::io::Result<Vec<Workload>> {
    let mut workloads: Vec<Workload> = (0..KINDS.len())
        .flat_map(|kind| (0..SETS).map(move |set| Origin::Generated { kind, set }))
        .map(Workload::new)
        .collect();
    let mut traces = folder.map(traces).transpose()?.unwrap_or_default();
    workloads.extend(traces.iter().cloned().map(Workload::new));
    let generated = |(name, set): (&str, usize)| {
        let kind = KINDS.iter().position(|(other, _)| *other == name).unwrap_or_default();
        Origin::Generated { kind, set }
    };
    let mut pairs: Vec<[Origin; 2]> = JOINED.iter().map(|pair| pair.map(generated)).collect();
    // Each trace is joined with the next one, and the last with the first.
    let next: Vec<Origin> = traces.iter().cycle().skip(1).take(traces.len()).cloned().collect();
    pairs.extend(traces.drain(..).zip(next).map(|(one, other)| [one, other]));
    for [one, other] in pairs {
        workloads.push(Workload::new(Origin::Joined(Box::new([one.clone(), other.clone()]))));
        workloads.push(Workload::new(Origin::Joined(Box::new([other, one]))));
    }
    Ok(workloads)
}

fn traces(folder: &Path) -> std::io::Result<Vec<Origin>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ptr"));
    paths.sort();
    Ok(paths.into_iter().map(Origin::Trace).collect())
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
    fn references(&self, seed: u64, length: usize) -> Result<(Vec<Reference>, Option<usize>), SuiteError> {
        match self {
            Self::Generated { kind, set } => Ok((Stream::generate(*kind, *set, seed, length), None)),
            Self::Trace(path) => {
                let trace = Trace::read(path).map_err(|error| SuiteError::Trace(path.clone(), error))?;
                let all = trace.references();
                Ok((all[..all.len().min(2 * length)].to_vec(), None))
            }
            Self::Joined(pair) => {
                let (mut all, _) = pair[0].references(seed, length)?;
                let (second, _) = pair[1].references(seed, length)?;
                let at = all.len();
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
    fn new(origin: Origin) -> Self {
        Self { name: origin.name(), origin }
    }

    pub(super) fn class(&self) -> Class {
        self.origin.class()
    }

    pub(super) fn references(
        &self,
        seed: u64,
        length: usize,
    ) -> Result<(Vec<Reference>, Option<usize>), SuiteError> {
        self.origin.references(seed, length)
    }
}
