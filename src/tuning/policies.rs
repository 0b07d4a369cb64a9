//! The policies of a running store: the costs that they use and their counts.

use crate::error::Error;
use crate::store::page_store::PageStore;
use pagetier_page::PageId;
use pagetier_policy::{Costs, GroupStats, PageCounts};

/// The policies of pool and SSD, the costs that they use, and their counts. See [`PageStore::policies`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// use pagetier::{Costs, PageId, SpaceId};
///
/// let store = builder.open().await?;
/// // The HDD has been exchanged for a faster one.
/// store.policies().set_costs(Costs { hdd_read_ms: 3.0, ..store.policies().costs() })?;
///
/// store.policies().set_ssd("cac").await?;
/// println!("{}: {:?}", store.policies().ssd(), store.policies().groups());
/// println!("{:?}", store.policies().counts(PageId::new(SpaceId(0), 3)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Policies<'a>(pub(crate) &'a PageStore);

impl PageStore {
    /// The policies of pool and SSD: replaces them, sets costs, reports counts.
    #[must_use]
    pub fn policies(&self) -> Policies<'_> {
        Policies(self)
    }
}

impl Policies<'_> {
    /// The device costs that the policies use.
    #[must_use]
    pub fn costs(self) -> Costs {
        self.0.shared.costs()
    }

    /// Sets the device costs for both policies. With [`Builder::online_costs`](crate::Builder::online_costs)
    /// they apply until the next measurement.
    ///
    /// # Errors
    /// [`Error::BadCosts`] when a cost is not a positive number; the policies keep their costs then.
    pub fn set_costs(self, costs: Costs) -> Result<(), Error> {
        if !costs.is_valid() {
            return Err(Error::BadCosts { costs });
        }
        self.0.shared.set_costs(costs);
        Ok(())
    }

    /// CAC's α and the miss rates behind it, per group.
    #[must_use]
    pub fn groups(self) -> Vec<GroupStats> {
        self.0.shared.tier.ask(|slots| slots.policy().groups())
    }

    /// What CAC (or CC, without logical reads) has counted for the page since it began to track it; `None`
    /// under other policies, and for a page that it does not track.
    #[must_use]
    pub fn counts(self, page: PageId) -> Option<PageCounts> {
        self.0.shared.tier.ask(|slots| slots.policy().counts(page))
    }
}
