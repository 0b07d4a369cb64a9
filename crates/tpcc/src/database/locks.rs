//! Exclusive row locks, first come, first served.
//!
//! A transaction takes its locks in ascending order of [`RowKey`] (warehouse, district, customer, stock), so
//! there is no deadlock, and holds them until its changes are applied.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use tokio::sync::oneshot;

/// A row, in the order in which rows are locked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RowKey(u64);

impl RowKey {
    const fn new(class: u64, w: u16, d: u8, n: u32) -> Self {
        // The class has the highest bits, so that the order of keys is the order of locking whatever the
        // numbers are.
        Self(class << 60 | (w as u64) << 40 | (d as u64) << 32 | n as u64)
    }

    pub(crate) const fn warehouse(w: u16) -> Self {
        Self::new(0, w, 0, 0)
    }

    /// A district, with its orders, new-orders and order-lines.
    pub(crate) const fn district(w: u16, d: u8) -> Self {
        Self::new(1, w, d, 0)
    }

    pub(crate) const fn customer(w: u16, d: u8, c: u32) -> Self {
        Self::new(2, w, d, c)
    }

    pub(crate) const fn stock(w: u16, i: u32) -> Self {
        Self::new(3, w, 0, i)
    }
}

type Waiters = VecDeque<oneshot::Sender<()>>;

const SHARDS: usize = 16;

/// The held locks and their waiters.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    shards: [Mutex<FxHashMap<RowKey, Waiters>>; SHARDS],
}

/// A row that is locked until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct RowLock<'t> {
    table: &'t LockTable,
    key: RowKey,
}

/// A wait that may be cancelled: the lock may have been granted by then.
struct Waiting<'t> {
    table: &'t LockTable,
    key: RowKey,
    turn: oneshot::Receiver<()>,
    done: bool,
}

impl LockTable {
    /// Waits for the row's lock. Cancel-safe.
    pub(crate) async fn lock(&self, key: RowKey) -> RowLock<'_> {
        let turn = match self.shard(key).lock().entry(key) {
            Entry::Vacant(row) => {
                // An entry means that the row is locked, even while its queue is empty.
                row.insert(VecDeque::new());
                None
            }
            Entry::Occupied(mut row) => {
                let (sender, turn) = oneshot::channel();
                row.get_mut().push_back(sender);
                Some(turn)
            }
        };
        if let Some(turn) = turn {
            let mut waiting = Waiting { table: self, key, turn, done: false };
            // A sender is dropped only by sending: the row stays in the table while there are waiters.
            let _granted = (&mut waiting.turn).await;
            waiting.done = true;
        }
        RowLock { table: self, key }
    }

    fn release(&self, key: RowKey) {
        let mut shard = self.shard(key).lock();
        if let Entry::Occupied(mut row) = shard.entry(key) {
            while let Some(next) = row.get_mut().pop_front() {
                // The lock passes on without becoming free, so that no newcomer overtakes the queue. A
                // dropped waiter is skipped.
                if next.send(()).is_ok() {
                    return;
                }
            }
            row.remove();
        }
    }

    fn shard(&self, key: RowKey) -> &Mutex<FxHashMap<RowKey, Waiters>> {
        // All bits of the key reach the high bits of the product: the rows of the warehouses, which differ in
        // the middle of it alone, are in several shards.
        let mixed = key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }

    /// The number of locked rows.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl Drop for RowLock<'_> {
    fn drop(&mut self) {
        self.table.release(self.key);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.done {
            // Close first: no release can grant the lock afterwards, so `try_recv` has the last word.
            self.turn.close();
            if self.turn.try_recv().is_ok() {
                self.table.release(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn rows_are_ordered_warehouse_district_customer_stock() {
        let rows = [
            RowKey::warehouse(9),
            RowKey::district(1, 1),
            RowKey::district(1, 2),
            RowKey::customer(1, 1, 1),
            RowKey::stock(1, 5),
            RowKey::stock(2, 1),
        ];
        assert!(rows.is_sorted());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_at_a_time_and_nothing_is_left_behind() {
        let table = Arc::new(LockTable::default());
        let inside = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let (table, inside) = (Arc::clone(&table), Arc::clone(&inside));
            tasks.spawn(async move {
                for _ in 0..200 {
                    let _w = table.lock(RowKey::warehouse(1)).await;
                    let _c = table.lock(RowKey::customer(1, 1, 1)).await;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(table.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_passes_the_lock_on() {
        let table = LockTable::default();
        let key = RowKey::stock(1, 1);
        let held = table.lock(key).await;
        let mut given_up = Box::pin(table.lock(key));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut given_up).await.is_err());
        let mut waits = Box::pin(table.lock(key));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut waits).await.is_err());
        drop(held);
        drop(given_up);
        drop(waits.await);
        assert_eq!(table.len(), 0);
    }
}
