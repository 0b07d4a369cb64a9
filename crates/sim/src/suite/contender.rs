//! The pairs that the suite compares: policies of the store, and policies for comparison alone.

use crate::peers::{Admission, Peer, PeerPool, PeerSsd};
use pagetier_ghost::{TierParams, Tiers};
use pagetier_policy::{FramePolicy, FramePolicyParams, PoolPolicy, SlotPolicy, SlotPolicyParams, SsdPolicy};
use std::fmt;
use std::str::FromStr;

/// A pool policy with an SSD policy; either may be one that a store cannot select.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contender {
    pool: PoolSide,
    ssd: SsdSide,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PoolSide {
    Policy(PoolPolicy),
    Peer(Peer),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SsdSide {
    Policy(SsdPolicy),
    Peer(Peer, Admission),
}

/// Precedes a peer's name: `peer-arc` as a pool policy, `peer-arc:second` as an SSD policy.
const PEER: &str = "peer-";

impl Contender {
    /// Empty tiers under this pair.
    pub fn build(&self, params: TierParams) -> Tiers {
        let (pool_pages, ssd_pages) = (params.pool_pages as usize, params.ssd_pages as usize);
        let frames = FramePolicyParams::new(pool_pages, params.costs);
        let slots = SlotPolicyParams::new(params.costs, ssd_pages, pool_pages);
        let pool: Box<dyn FramePolicy> = match self.pool {
            PoolSide::Policy(policy) => policy.build(&frames),
            PoolSide::Peer(peer) => Box::new(PeerPool::new(peer, pool_pages)),
        };
        let ssd: Box<dyn SlotPolicy> = match self.ssd {
            SsdSide::Policy(policy) => policy.build(&slots),
            SsdSide::Peer(peer, admission) => Box::new(PeerSsd::new(peer, admission, ssd_pages)),
        };
        Tiers::new(params, pool, ssd)
    }
}

/// Every peer as a pool policy without an SSD, beside the default's, LRU and GD2L with its extensions.
#[must_use]
pub fn pool_peers() -> Vec<String> {
    let ours = ["auto", "lru", "gd2l:frequency,write-back"].map(|pool| format!("{pool}+none"));
    ours.into_iter().chain(Peer::ALL.iter().map(|peer| format!("{PEER}{}+none", peer.name()))).collect()
}

/// Every peer with every admission as an SSD policy below the default's pool.
#[must_use]
pub fn ssd_peers() -> Vec<String> {
    let with = |peer: Peer| {
        Admission::ALL.map(|admission| format!("auto+{PEER}{}:{}", peer.name(), admission.name()))
    };
    Peer::ALL.into_iter().flat_map(with).collect()
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pool {
            PoolSide::Policy(policy) => write!(f, "{policy}+")?,
            PoolSide::Peer(peer) => write!(f, "{PEER}{}+", peer.name())?,
        }
        match self.ssd {
            SsdSide::Policy(policy) => write!(f, "{policy}"),
            SsdSide::Peer(peer, admission) => write!(f, "{PEER}{}:{}", peer.name(), admission.name()),
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Names of rivals parse only once they are registered; a second call changes nothing.
        pagetier_rivals::register();
        let Some((pool, ssd)) = text.split_once('+') else {
            return Err(format!("{text:?} is not a pair of policies, POOL+SSD, such as gd2l+cac"));
        };
        Ok(Self { pool: pool.parse()?, ssd: ssd.parse()? })
    }
}

impl FromStr for PoolSide {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let peer = text.strip_prefix(PEER).and_then(Peer::named).map(Self::Peer);
        match peer {
            // A name that no peer has goes to the parser of the store, whose error lists the names.
            Some(peer) => Ok(peer),
            None => text.parse().map(Self::Policy).map_err(|why| format!("{why}")),
        }
    }
}

impl FromStr for SsdSide {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let peer = text.strip_prefix(PEER).and_then(|peer| peer.split_once(':'));
        let peer =
            peer.and_then(|(peer, admission)| Some((Peer::named(peer)?, Admission::named(admission)?)));
        match peer {
            Some((peer, admission)) => Ok(Self::Peer(peer, admission)),
            None => text.parse().map(Self::Policy).map_err(|why| format!("{why}")),
        }
    }
}

/// Pairs separated by commas. A part with a `+` starts a pair, unless it starts with an option of the pool's
/// policy; any other part is an option of the policy before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contenders(pub Vec<Contender>);

impl FromStr for Contenders {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut pairs: Vec<String> = Vec::new();
        for part in list.split(',') {
            // An option of the pool may carry the `+`: in `gd2l:frequency,write-back+cac`, the second
            // part continues the first, although it looks like a pair.
            let option = PoolPolicy::PARTS.contains(&part.split('+').next().unwrap_or_default());
            let begins = part.contains('+') || part.starts_with("gd2l:");
            match pairs.last_mut().filter(|_| option || !begins) {
                Some(pair) => *pair = format!("{pair},{part}"),
                None => pairs.push(part.to_owned()),
            }
        }
        pairs.iter().map(|pair| pair.parse()).collect::<Result<_, _>>().map(Self)
    }
}
