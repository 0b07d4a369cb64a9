//! The catalog: one page in its own space that describes the database, written when the load is complete.

use crate::database::error::DbError;
use crate::database::random::Constants;
use pagetier::{PageId, PageStore};
use pagetier_btree::ENTRY_BYTES;

const SPACE: &str = "tpcc_catalog";
const MAGIC: &[u8; 8] = b"TPCCLITE";
const VERSION: u32 = 3;

/// The size of the population. Clause 1.2.1 allows only [`Scale::full`]; tests use smaller ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scale {
    /// Warehouses, from 1.
    pub(crate) warehouses: u16,
    /// Items, which is also the number of stock rows per warehouse.
    pub(crate) items: u32,
    /// Customers per district, which is also its number of initial orders.
    pub(crate) customers: u32,
    /// Bytes that each row takes in addition to its columns; at least [`ENTRY_BYTES`].
    pub(crate) row_overhead: u16,
}

impl Scale {
    /// The specified population.
    pub(crate) const fn full(warehouses: u16, row_overhead: u16) -> Self {
        Self { warehouses, items: 100_000, customers: 3_000, row_overhead }
    }

    /// The overhead of a row that the tree does not have by itself, which its value has at its end.
    pub(crate) fn unused_bytes(self) -> usize {
        usize::from(self.row_overhead).saturating_sub(ENTRY_BYTES)
    }

    /// The value that a tree stores for a row.
    pub(crate) fn stored(self, row: &[u8]) -> Vec<u8> {
        // The overhead is real bytes, so that a page holds about as many rows as in InnoDB.
        let mut stored = row.to_vec();
        stored.resize(row.len() + self.unused_bytes(), 0);
        stored
    }

    /// The number of different last names.
    pub(crate) fn names(self) -> u32 {
        self.customers.min(1_000)
    }
}

/// The parameters of a loaded database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Catalog {
    /// The size of its population.
    pub(crate) scale: Scale,
    /// The seed of the load.
    pub(crate) seed: u64,
    /// The constants of the load.
    pub(crate) constants: Constants,
}

impl Catalog {
    /// Reads the catalog in `store`; `None` when no load was completed.
    pub(crate) async fn read(store: &PageStore) -> Result<Option<Self>, DbError> {
        let Some(space) = store.spaces().find(SPACE) else {
            return Ok(None);
        };
        let page = match store.get(PageId::new(space, 0)).await {
            Ok(page) => page,
            // A crash came after the space and before its page: the load was not complete.
            Err(pagetier::Error::NoSuchPage { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // A crash may have left the page allocated but not written: the load was not complete.
        if page[..8] == [0; 8] {
            return Ok(None);
        }
        // Rows have no version of their own: under another layout every field would be read from the
        // wrong place.
        if page[..8] != *MAGIC || word(&page, 8) != VERSION {
            return Err(DbError::NotOurs(format!("its catalog begins {:02x?}", &page[..12])));
        }
        Ok(Some(Self {
            scale: Scale {
                warehouses: word(&page, 12) as u16,
                items: word(&page, 36),
                customers: word(&page, 40),
                row_overhead: word(&page, 44) as u16,
            },
            constants: Constants { last: word(&page, 16), customer: word(&page, 20), item: word(&page, 24) },
            seed: u64::from(word(&page, 28)) | u64::from(word(&page, 32)) << 32,
        }))
    }

    /// Marks the load as complete, durably.
    pub(crate) async fn write(&self, store: &PageStore) -> Result<(), DbError> {
        let space = store.spaces().create(SPACE).await?;
        let mut page = store.allocate(space).await?;
        page[..8].copy_from_slice(MAGIC);
        let Constants { last, customer, item } = self.constants;
        let Scale { warehouses, items, customers, row_overhead } = self.scale;
        let (seed_low, seed_high) = (self.seed as u32, (self.seed >> 32) as u32);
        let words = [
            VERSION,
            warehouses.into(),
            last,
            customer,
            item,
            seed_low,
            seed_high,
            items,
            customers,
            row_overhead.into(),
        ];
        for (at, word) in (8..).step_by(4).zip(words) {
            page[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        // A sync does not cover a change whose guard still lives.
        drop(page);
        store.sync().await?;
        Ok(())
    }
}

fn word(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}
