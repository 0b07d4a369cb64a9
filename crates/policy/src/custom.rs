//! Policies from outside of this crate: how they are built, named and found by name.
//!
//! A policy is a [`FramePolicy`] or a [`SlotPolicy`]; a factory builds one for each store. To choose it in
//! code, no more is needed: `PoolPolicy::Custom(&MY_FACTORY)`. To be chosen by name as well, in a
//! configuration file or on a command line, a factory stands in a [`Catalogue`] that the program registers
//! when it starts. The package
//! `pagetier-rivals` registers those with which the papers compare.
//!
//! `pagetier_testing::conformance` checks a policy against what its callers rely on. A policy that fails
//! it costs speed, never data: the pool and the SSD check every answer before they act on it.

use crate::{FramePolicy, FramePolicyParams, SlotPolicy, SlotPolicyParams};
use parking_lot::RwLock;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Builds a pool policy of your own, for [`PoolPolicy::Custom`](crate::PoolPolicy::Custom).
pub trait PoolPolicyFactory: Send + Sync + fmt::Debug {
    /// The policy's name, for statistics and messages: lower case, without spaces. Two factories of the same
    /// name count as equal.
    fn name(&self) -> String;

    /// Builds the policy, for an empty pool. Called at each open and whenever a running store switches to
    /// the policy.
    fn build(&self, params: &FramePolicyParams) -> Box<dyn FramePolicy>;
}

/// Builds an SSD policy of your own, for [`SsdPolicy::Custom`](crate::SsdPolicy::Custom).
pub trait SsdPolicyFactory: Send + Sync + fmt::Debug {
    /// The policy's name, for statistics and messages: lower case, without spaces. Two factories of the same
    /// name count as equal.
    fn name(&self) -> String;

    /// Builds the policy, for an empty SSD of at least one slot. Called at each open, for each new SSD,
    /// and whenever a running store switches to the policy. The memory budget has 49 bytes for each slot's
    /// tables and 58 for each frame's, and no outqueue.
    fn build(&self, params: &SlotPolicyParams) -> Box<dyn SlotPolicy>;
}

/// Policies that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Catalogue {
    /// The names of the pool policies, for messages; variants with options need not be listed.
    pub pool_names: &'static [&'static str],
    /// Finds a pool policy by its name, in lower case.
    pub pool: fn(&str) -> Option<&'static dyn PoolPolicyFactory>,
    /// The names of the SSD policies, for messages.
    pub ssd_names: &'static [&'static str],
    /// Finds an SSD policy by its name, in lower case.
    pub ssd: fn(&str) -> Option<&'static dyn SsdPolicyFactory>,
}

/// What the program has registered.
static REGISTERED: RwLock<Vec<&'static Catalogue>> = RwLock::new(Vec::new());

/// Makes the policies of `catalogue` known to this process by name. Names of this crate take precedence, then
/// those registered earlier. Registering a catalogue again changes nothing.
pub fn register(catalogue: &'static Catalogue) {
    let mut registered = REGISTERED.write();
    if !registered.iter().any(|known| std::ptr::eq(*known, catalogue)) {
        registered.push(catalogue);
    }
}

/// What the program has registered, in order.
pub(crate) fn registered() -> Vec<&'static Catalogue> {
    REGISTERED.read().clone()
}

macro_rules! equal_by_name {
    ($factory:ty) => {
        impl PartialEq for $factory {
            fn eq(&self, other: &Self) -> bool {
                self.name() == other.name()
            }
        }

        impl Eq for $factory {}

        impl Hash for $factory {
            fn hash<H: Hasher>(&self, hasher: &mut H) {
                self.name().hash(hasher);
            }
        }
    };
}

equal_by_name!(dyn PoolPolicyFactory);
equal_by_name!(dyn SsdPolicyFactory);
