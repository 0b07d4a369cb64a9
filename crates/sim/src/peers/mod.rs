//! Peers: eviction policies of the literature, as pool policies and as SSD policies, for comparison alone. A
//! store cannot select them; they are simple rather than fast, and know neither costs nor homes.

mod lists;
mod order;
mod pool;
mod ssd;

pub(crate) use pool::PeerPool;
pub(crate) use ssd::PeerSsd;

use order::{Arc, Lirs, Lru, Order, S3Fifo, Sieve, TwoQ, WTinyLfu};

/// A peer's order of eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    Lru,
    S3Fifo,
    Arc,
    Lirs,
    Sieve,
    TwoQ,
    WTinyLfu,
}

impl Peer {
    pub(crate) const ALL: [Self; 7] =
        [Self::Lru, Self::S3Fifo, Self::Arc, Self::Lirs, Self::Sieve, Self::TwoQ, Self::WTinyLfu];

    /// Its name, without the `peer-` that precedes it in pairs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
            Self::Arc => "arc",
            Self::Lirs => "lirs",
            Self::Sieve => "sieve",
            Self::TwoQ => "2q",
            Self::WTinyLfu => "w-tinylfu",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|peer| peer.name() == name)
    }

    fn order(self, places: usize) -> Box<dyn Order> {
        match self {
            Self::Lru => Box::new(Lru::new()),
            Self::S3Fifo => Box::new(S3Fifo::new(places)),
            Self::Arc => Box::new(Arc::new(places)),
            Self::Lirs => Box::new(Lirs::new(places)),
            Self::Sieve => Box::new(Sieve::new()),
            Self::TwoQ => Box::new(TwoQ::new(places)),
            Self::WTinyLfu => Box::new(WTinyLfu::new(places)),
        }
    }
}

/// Which pages a peer admits to the SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Every page.
    All,
    /// Those offered before, as far as a history of as many pages as slots remembers.
    Second,
    /// Dirty pages, and clean ones offered before.
    SecondClean,
    /// Those used more often than the page that they would replace.
    TinyLfu,
}

impl Admission {
    pub(crate) const ALL: [Self; 4] = [Self::All, Self::Second, Self::SecondClean, Self::TinyLfu];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Second => "second",
            Self::SecondClean => "secondclean",
            Self::TinyLfu => "tinylfu",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|admission| admission.name() == name)
    }
}
