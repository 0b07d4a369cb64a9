//! The handle of a pool. Its methods are in `pool`, and in the files of `read`, `write` and `operate`.

use crate::state::inner::PoolInner;
use crate::tier::Tier;
use std::sync::Arc;

/// A buffer pool over a [`Tier`]. Cheap to clone; all clones share one pool.
pub struct Pool<T: Tier> {
    pub(crate) inner: Arc<PoolInner<T>>,
}

impl<T: Tier> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Tier> std::fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("params", &self.inner.params()).finish_non_exhaustive()
    }
}
