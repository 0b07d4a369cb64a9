//! Guards and scans that keep a blocking store open, its runtime included.

use super::PageStore;
use crate::{Error, OwnedPageMut, OwnedPageRef, OwnedScan, PageId, PageRef, SpaceId};
use std::ops::Range;
use std::sync::Arc;

/// Defines owned forms of this store's calls: `$owned` of `$name`.
macro_rules! owned {
    ($($owned:ident: $name:ident($arg:ident: $type:ty) -> $guard:ident;)*) => {
        $(
            #[doc = concat!("See [`crate::PageStore::", stringify!($owned), "`].\n\n# Errors\nAs there.")]
            #[inline]
            pub fn $owned(self: &Arc<Self>, $arg: $type) -> Result<$guard<Self>, Error> {
                Ok($guard::new(self.$name($arg)?, &self.store, self))
            }
        )*
    };
}

impl PageStore {
    owned! {
        get_owned: get(page: PageId) -> OwnedPageRef;
        get_mut_owned: get_mut(page: PageId) -> OwnedPageMut;
        allocate_owned: allocate(space: SpaceId) -> OwnedPageMut;
        overwrite_owned: overwrite(page: PageId) -> OwnedPageMut;
        get_or_create_owned: get_or_create(page: PageId) -> OwnedPageMut;
    }

    /// See [`crate::PageStore::try_get_owned`].
    #[must_use]
    #[inline]
    pub fn try_get_owned(self: &Arc<Self>, page: PageId) -> Option<OwnedPageRef<Self>> {
        Some(OwnedPageRef::new(self.store.try_get(page)?, &self.store, self))
    }

    /// See [`crate::PageStore::try_get_mut_owned`].
    #[must_use]
    #[inline]
    pub fn try_get_mut_owned(self: &Arc<Self>, page: PageId) -> Option<OwnedPageMut<Self>> {
        Some(OwnedPageMut::new(self.store.try_get_mut(page)?, &self.store, self))
    }

    /// See [`crate::PageStore::scan_owned`].
    #[must_use]
    #[inline]
    pub fn scan_owned(self: &Arc<Self>, space: SpaceId, range: Range<u32>) -> OwnedScan<Self> {
        OwnedScan { cursor: self.store.cursor(space, range), store: Arc::clone(self) }
    }
}

impl Iterator for OwnedScan<PageStore> {
    type Item = Result<OwnedPageRef<PageStore>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let store = &self.store;
        let page = store.block_on(self.cursor.next(&store.store.pool))?;
        Some(page.map(|page| OwnedPageRef::new(PageRef(page), &store.store, store)).map_err(Error::from))
    }
}
