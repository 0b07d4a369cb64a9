//! The policies that the four papers compare with. Nothing else in Pagetier knows them: they are found by
//! name, through the same extension point as policies of your own ([`crate::custom`]).

pub mod pool;
pub mod ssd;

pub use pool::{RivalPool, WindowPercent};
pub use ssd::RivalSsd;

use crate::custom::Catalogue;

pub(crate) static CATALOGUE: Catalogue =
    Catalogue { pool_names: pool::NAMES, pool: pool::find, ssd_names: ssd::NAMES, ssd: ssd::find };
