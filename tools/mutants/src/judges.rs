//! The programs that judge, and what is known of their tests.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

/// A program that judges: the tests of one binary, or a run of the campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judge {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Its working directory: tests expect that of their package.
    pub(crate) folder: PathBuf,
    /// Its package's sources, relative to the root of the repository.
    pub(crate) package: String,
    /// Whether its tests are selected by name. Otherwise the whole run counts as one test.
    pub(crate) by_name: bool,
    pub(crate) tests: Vec<Test>,
}

/// The measurements of a test, run alone and without a mutant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) reached: BTreeSet<u32>,
}

/// The mutants that `judges` reach.
pub(crate) fn reached(judges: &[Judge]) -> HashSet<u32> {
    judges.iter().flat_map(|j| &j.tests).flat_map(|t| t.reached.iter().copied()).collect()
}
