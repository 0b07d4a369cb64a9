//! Pairs of policies, by name.

use crate::args::PolicyPair;

/// A pool policy and an SSD policy, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Policies {
    /// The pool's policy.
    pub(crate) pool: String,
    /// The SSD's policy.
    pub(crate) ssd: String,
}

impl From<&PolicyPair> for Policies {
    fn from(pair: &PolicyPair) -> Self {
        Self { pool: pair.pool.to_string(), ssd: pair.ssd.to_string() }
    }
}
