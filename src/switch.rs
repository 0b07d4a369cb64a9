//! Another pool policy while the store is in use.

use crate::error::OpenError;
use crate::store::PageStore;
use pagetier_policy::{FramePolicyParams, PoolPolicy, UnknownPolicy};

impl PageStore {
    /// Replaces the pool's policy, given as [`PoolPolicy::Lru`] or by name, while the store is in use. The
    /// pages in memory stay there and keep their order of eviction; what the policy before had counted of
    /// them is lost. Takes some milliseconds per ten thousand pages, during which misses wait. The store's
    /// next opening uses the builder's policy.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.set_pool_policy("gd2l:frequency")?;
    /// println!("{}", store.pool_policy());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::UnknownPolicy`]; the policy in use is kept.
    pub fn set_pool_policy(
        &self,
        policy: impl TryInto<PoolPolicy, Error: Into<UnknownPolicy>>,
    ) -> Result<(), OpenError> {
        let policy: PoolPolicy = policy.try_into().map_err(Into::into)?;
        let shared = &self.shared;
        let params = FramePolicyParams {
            cluster_pages: shared.builder.options.cluster_pages,
            ..FramePolicyParams::new(shared.pool.params().frames, shared.costs())
        };
        let built = policy.build(&params);
        let mut switched = shared.builder.switched_pool_policy.lock();
        shared.pool.set_policy(built);
        *switched = Some(policy);
        tracing::info!(%policy, "the pool's policy");
        Ok(())
    }

    /// The pool's policy.
    #[must_use]
    pub fn pool_policy(&self) -> PoolPolicy {
        let switched = *self.shared.builder.switched_pool_policy.lock();
        switched.unwrap_or(self.shared.builder.options.pool_policy)
    }
}
