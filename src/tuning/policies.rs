//! The policies of a running store: which they are, the costs that they use, and their counts.

use crate::error::Error;
use crate::store::handles::Policies;
use crate::store::shared::Shared;
use pagetier_devio::Causes;
use pagetier_page::PageId;
use pagetier_policy::{
    Costs, FramePolicyParams, GroupStats, PageCounts, PoolPolicy, SlotPolicyParams, SsdPolicy, UnknownPolicy,
};

impl Policies<'_> {
    /// The device costs that the policies use.
    #[must_use]
    pub fn costs(self) -> Costs {
        self.0.shared.costs()
    }

    /// Sets the device costs for both policies. With
    /// [`CostSource::Online`](crate::options::CostSource::Online) they apply until the next measurement.
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

    /// Replaces the pool's policy while the store is in use; `policy` is a value such as [`PoolPolicy::Lru`]
    /// or a name. The pages in memory stay there and keep their order of eviction; the previous policy's
    /// statistics are lost. Takes some milliseconds per ten thousand pages, during which misses wait. The
    /// store's next open uses the builder's policy.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.policies().set_pool("gd2l:frequency")?;
    /// println!("{}", store.policies().pool());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`]; the policy in use is kept.
    pub fn set_pool(self, policy: impl TryInto<PoolPolicy, Error: Into<UnknownPolicy>>) -> Result<(), Error> {
        let policy: PoolPolicy = policy.try_into().map_err(Into::into)?;
        let shared = &self.0.shared;
        // Hold the lock until the pool has the policy, so that the later one of two switches is named.
        let mut in_use = shared.devices.in_use.lock();
        // Hold the costs' lock: a change of costs comes either before the policy is built, or after it is in
        // use.
        shared.at_costs(|costs| {
            shared.pool.set_policy(policy.build(&FramePolicyParams::new(shared.frames(), costs)));
        });
        in_use.pool_policy = policy;
        tracing::info!(%policy, "the pool has a new policy");
        Ok(())
    }

    /// The pool's policy; [`Policies::set_pool`] replaces it.
    #[must_use]
    pub fn pool(self) -> PoolPolicy {
        self.0.shared.devices.in_use.lock().pool_policy
    }

    /// Replaces the SSD's policy while the store is in use; `policy` is a value such as [`SsdPolicy::None`]
    /// or a name. Any policy may follow any other. The SSD stays warm: its copies keep their slots, even
    /// under a policy that allocates slots in another order, and nothing is drained or formatted. The
    /// previous policy's statistics are lost. Under a policy that writes through, copies that are newer than
    /// the HDD's versions remain so until they are written again or drained
    /// ([`Ssd::drain`](crate::Ssd::drain)).
    ///
    /// The sizes are those of the new name: `cac` has the default zone and outqueue, whatever the policy
    /// before had. For a longer outqueue the pool gives up frames, which waits for guards: hold none.
    ///
    /// Flushes the HDD and writes a map checkpoint; meanwhile reads continue and writes wait. On a store
    /// whose SSD is off, the policy applies once an SSD is in use. The store's next open uses the
    /// builder's policy. Cancel-safe: a switch that has begun completes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// use pagetier::SsdPolicy;
    ///
    /// let store = builder.ssd_policy("cac").open().await?;
    /// store.policies().set_ssd("cac").await?;
    /// assert_eq!(store.policies().ssd().to_string(), "cac");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`]; the HDD cannot be flushed, or the store refuses writes; or the pool cannot
    /// make room for a longer outqueue. The policy in use is kept.
    pub async fn set_ssd(
        self,
        policy: impl TryInto<SsdPolicy, Error: Into<UnknownPolicy>>,
    ) -> Result<(), Error> {
        let policy: SsdPolicy = policy.try_into().map_err(Into::into)?;
        let shared = &self.0.shared;
        drop(shared.ending.enter()?);
        shared.alone(move |shared| async move { shared.switch_ssd_policy(policy).await }).await
    }

    /// The SSD's policy.
    #[must_use]
    pub fn ssd(self) -> SsdPolicy {
        self.0.shared.devices.in_use.lock().ssd_policy
    }
}

impl Shared {
    async fn switch_ssd_policy(&self, policy: SsdPolicy) -> Result<(), Error> {
        // An outqueue that is longer than the last one takes the space for it from the pool first.
        self.make_room(self.tier.slots(), policy).await?;
        let params = SlotPolicyParams::new(self.costs(), self.tier.slots() as usize, self.frames());
        let zone = policy.zone().get();
        let switched =
            self.tier.set_policy(policy.build(&params), zone, |switch| self.pool.with_pages(switch)).await;
        if switched.is_ok() {
            self.devices.in_use.lock().ssd_policy = policy;
        }
        if let Err(error) = self.fit_pool().await {
            tracing::warn!(error = %Causes(&error), "the pool keeps its size after the switch of the SSD's policy");
        }
        switched?;
        // The costs may have been measured again while the switch waited.
        self.at_costs(|costs| self.tier.set_costs(costs));
        tracing::info!(%policy, "the SSD has a new policy");
        Ok(())
    }
}
