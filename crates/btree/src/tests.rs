//! Tests of the tree: against a map, under concurrent tasks, and across crashes.

use crate::node::{LEAF, Node};
use crate::tree::{META_PAGE, ROOT};
use crate::{Appender, Tree, full_pages};
use pagetier::{PageSize, PageStore, pool_bytes_for};
use pagetier_wal::{Wal, WalOptions, recover};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// The numbers of an entry and of its value, which [`key`] and [`value`] turn into bytes.
type Model = BTreeMap<u32, u32>;

const PAGE: u64 = 4096;
const SHORT: usize = 300;
/// Bytes that all keys have in common, so that inner nodes hold few of them.
const PREFIX: usize = 60;

async fn store(dir: &Path, wal: &Wal, pool_bytes: u64) -> Arc<PageStore> {
    let builder = PageStore::builder().directory(dir).ssd_bytes(0).pool_bytes(pool_bytes);
    let size = PageSize::new(PAGE).unwrap();
    Arc::new(builder.page_size(size).log_gate(wal.gate()).open().await.unwrap())
}

fn wal(dir: &Path) -> Wal {
    Wal::open(&dir.join("wal"), WalOptions::new().capacity_bytes(256 << 20)).unwrap()
}

async fn new_tree(dir: &Path, pool_bytes: u64) -> Tree {
    let wal = wal(dir);
    let store = store(dir, &wal, pool_bytes).await;
    recover(&store, &wal).await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    Tree::create(store, Some(wal), space, 1).await.unwrap()
}

fn mix(n: u32) -> u32 {
    n.wrapping_mul(2_654_435_761) >> 16
}

/// A key of 64 to 464 bytes, in the order of the numbers.
fn key(n: u32) -> Vec<u8> {
    let mut key = vec![b'p'; PREFIX];
    key.extend_from_slice(&n.to_be_bytes());
    let padding = if mix(n).is_multiple_of(16) { 400 } else { mix(n) as usize % 40 };
    key.resize(PREFIX + 4 + padding, b'k');
    key
}

/// Mostly short values; some take a quarter of a page, and some take several pages.
fn value(n: u32) -> Vec<u8> {
    let bytes = match mix(n) % 32 {
        0 => 4 + mix(n) as usize % 12_000,
        1..4 => 4 + mix(n) as usize % 1_000,
        _ => 4 + mix(n) as usize % 100,
    };
    let mut value = vec![n as u8; bytes];
    value[..4].copy_from_slice(&n.to_le_bytes());
    value
}

fn short(n: u32) -> [u8; SHORT] {
    let mut value = [n as u8; SHORT];
    value[..4].copy_from_slice(&n.to_le_bytes());
    value
}

fn numbers(key: &[u8], value: &[u8]) -> (u32, u32) {
    let [key, value] = [&key[PREFIX..][..4], &value[..4]].map(|bytes| <[u8; 4]>::try_from(bytes).unwrap());
    (u32::from_be_bytes(key), u32::from_le_bytes(value))
}

async fn contents(tree: &Tree) -> Vec<(u32, u32)> {
    let mut seen = Vec::new();
    let see = |k: &[u8], v: &[u8]| {
        seen.push(numbers(k, v));
        ControlFlow::Continue(())
    };
    tree.visit(&[], see).await.unwrap();
    seen
}

async fn scanned(tree: &Tree, backward: bool) -> Vec<(u32, u32)> {
    let mut scan = if backward { tree.scan(..).backward() } else { tree.scan(..) };
    let mut seen = Vec::new();
    while let Some((k, v)) = scan.next().await.unwrap() {
        seen.push(numbers(&k, &v));
    }
    seen
}

async fn assert_sound(tree: &Tree) -> crate::CheckReport {
    let report = tree.check(|_, _| ()).await.unwrap();
    assert!(report.is_sound(), "{report:#?}");
    report
}

async fn assert_is(tree: &Tree, model: &Model) {
    let mut expected: Vec<_> = model.iter().map(|(&k, &v)| (k, v)).collect();
    assert_eq!(contents(tree).await, expected);
    assert_eq!(scanned(tree, false).await, expected);
    expected.reverse();
    assert_eq!(scanned(tree, true).await, expected);
    assert_eq!(assert_sound(tree).await.entries, model.len() as u64);
}

async fn end(tree: &Tree) -> u64 {
    Tree::meta(&tree.store, tree.space).await.unwrap().unwrap().end.into()
}

/// Polls a future up to `polls` times; `None` when it had not completed and was dropped.
async fn polled<F: Future>(future: F, polls: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Performs one operation on an entry that only the caller uses; drops changes after `polls` polls. Mostly
/// inserts while the tree grows, mostly deletes otherwise.
async fn step(tree: &Tree, rng: &mut SmallRng, model: &mut Model, n: u32, growing: bool, polls: u32) {
    let (old, new) = (model.get(&n).copied(), rng.random());
    let (done, changed) = match rng.random_range(0..10) {
        0..2 => (None, old),
        n_th if (n_th < 8) == growing => {
            let put = polled(tree.put(&key(n), &value(new)), polls).await;
            (put.map(|done| done.map(|_| true).unwrap()), Some(new))
        }
        _ => {
            let delete = polled(tree.delete(&key(n)), polls).await;
            (delete.map(|done| done.unwrap().is_some() == old.is_some()), None)
        }
    };
    assert!(done != Some(false), "{n} was {old:?}");
    let found = tree.get(&key(n), <[u8]>::to_vec).await.unwrap();
    let is = |version: Option<u32>| found == version.map(value);
    assert!(is(changed) || done.is_none() && is(old), "{n} is neither {old:?} nor {changed:?}");
    match changed.filter(|_| is(changed)).or(old.filter(|_| !is(changed))) {
        Some(version) => model.insert(n, version),
        None => model.remove(&n),
    };
}

#[tokio::test]
async fn random_operations_agree_with_a_map() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 4 << 20).await;
    let (mut model, mut rng) = (Model::new(), SmallRng::seed_from_u64(1));
    let mut height = 0;
    for round in 0..20_000 {
        let n = rng.random_range(0..6_000);
        step(&tree, &mut rng, &mut model, n, round / 5_000 % 2 == 0, u32::MAX).await;
        if round % 5_000 == 4_999 {
            assert_is(&tree, &model).await;
            height = height.max(assert_sound(&tree).await.height);
        }
    }
    assert_eq!(height, 3);
    for n in model.keys() {
        assert!(tree.delete(&key(*n)).await.unwrap().is_some());
    }
    let report = assert_sound(&tree).await;
    assert_eq!((report.entries, report.height, report.free + 2), (0, 1, end(&tree).await));
}

#[tokio::test]
async fn a_part_of_a_value_is_overwritten_in_its_leaf() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 4 << 20).await;
    for n in 0..100_u32 {
        tree.put(&n.to_be_bytes(), &short(n)).await.unwrap();
    }
    assert!(tree.patch(&7_u32.to_be_bytes(), 0, &500_u32.to_le_bytes()).await.unwrap());
    assert!(tree.patch(&7_u32.to_be_bytes(), SHORT - 1, &[9]).await.unwrap());
    assert!(!tree.patch(&100_u32.to_be_bytes(), 0, &[1]).await.unwrap());
    let mut expected = short(7);
    expected[..4].copy_from_slice(&500_u32.to_le_bytes());
    expected[SHORT - 1] = 9;
    let found = tree.get(&7_u32.to_be_bytes(), <[u8]>::to_vec).await.unwrap();
    assert_eq!(found.as_deref(), Some(&expected[..]));
    let beyond = tree.patch(&7_u32.to_be_bytes(), SHORT, &[1]).await;
    assert!(beyond.unwrap_err().to_string().contains("too short"));
    tree.put(b"long", &[0; 12_000]).await.unwrap();
    assert!(tree.patch(b"long", 0, &[1]).await.unwrap_err().to_string().contains("not in its leaf"));
    assert_eq!(assert_sound(&tree).await.entries, 101);
}

#[tokio::test]
async fn ascending_inserts_fill_pages_and_so_do_runs_inside() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 4 << 20).await;
    let size = PageSize::new(PAGE).unwrap();
    let mut appender = Appender::new(&tree);
    for n in 0..20_000_u32 {
        appender.push(&(n * 1_000).to_be_bytes(), &short(n)).await.unwrap();
    }
    drop(appender);
    let loaded = end(&tree).await;
    let estimated = full_pages(20_000, 4, SHORT, size);
    assert!(loaded.abs_diff(estimated) <= 2, "{loaded} pages, not {estimated}");
    for n in 1..800_u32 {
        tree.put(&(700_000 + n).to_be_bytes(), &short(n)).await.unwrap();
    }
    let (run, full) = (end(&tree).await - loaded, full_pages(799, 4, SHORT, size));
    assert!(run <= full + 4, "{run} pages, not {full}");
    assert_eq!(assert_sound(&tree).await.entries, 20_799);
}

#[tokio::test]
async fn a_queue_reuses_its_pages_and_stays_short() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 4 << 20).await;
    for n in 0..20_000_u32 {
        tree.put(&n.to_be_bytes(), &short(n)).await.unwrap();
        if n >= 100 {
            assert!(tree.delete(&(n - 100).to_be_bytes()).await.unwrap().is_some());
        }
    }
    assert_eq!(assert_sound(&tree).await.entries, 100);
    assert!(end(&tree).await < 30, "{} pages", end(&tree).await);
}

/// The number of leaves without entries.
async fn empty_leaves(tree: &Tree) -> usize {
    let mut empty = 0;
    for no in 1..end(tree).await as u32 {
        let page = tree.store.get(tree.id(no)).await.unwrap();
        empty += usize::from(Node(&page).kind() == LEAF && Node(&page).count() == 0);
    }
    empty
}

/// What a delete has to wait for in
/// [`a_delete_dropped_while_it_waits_leaves_no_empty_leaf`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blocked {
    Structure,
    Meta,
    Parent,
    Left,
    Leaf,
    Right,
}

/// The schedule: a delete finds the last entry of a leaf whose neighbours are full, waits for a lock or for
/// one of the pages that the merge needs, and is dropped there. It must have removed nothing.
#[tokio::test]
async fn a_delete_dropped_while_it_waits_leaves_no_empty_leaf() {
    use Blocked::{Leaf, Left, Meta, Parent, Right, Structure};
    const PER_LEAF: u32 = 12;
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 4 << 20).await;
    let mut appender = Appender::new(&tree);
    for n in 0..50 * PER_LEAF {
        appender.push(&n.to_be_bytes(), &short(n)).await.unwrap();
    }
    drop(appender);
    assert_eq!(assert_sound(&tree).await.leaves, 50);
    for (nth, blocked) in (1..).zip([Structure, Meta, Parent, Left, Leaf, Right]) {
        let first = nth * 5 * PER_LEAF;
        let last = (first + PER_LEAF - 1).to_be_bytes();
        for n in first..first + PER_LEAF - 1 {
            tree.delete(&n.to_be_bytes()).await.unwrap();
        }
        let leaf = async |n: u32| tree_leaf(&tree, n).await;
        let page = match blocked {
            Structure => None,
            Meta => Some(META_PAGE),
            Parent => Some(ROOT),
            Left => Some(leaf(first - 1).await),
            Leaf => Some(leaf(first).await),
            Right => Some(leaf(first + PER_LEAF).await),
        };
        let latched = match page {
            Some(no) => Some(tree.store.get_mut(tree.id(no)).await.unwrap()),
            None => None,
        };
        let locked = if latched.is_none() { Some(tree.structure.write().await) } else { None };
        let dropped = polled(tree.delete(&last), 1).await.is_none();
        drop((latched, locked));
        // The left neighbour can take the leaf: the right one is not needed.
        assert_eq!(dropped, blocked != Right, "{blocked:?}");
        let there = tree.get(&last, <[u8]>::to_vec).await.unwrap().is_some();
        assert_eq!((there, empty_leaves(&tree).await), (dropped, 0), "{blocked:?}");
        assert_eq!(tree.delete(&last).await.unwrap().is_some(), there);
        assert_eq!(empty_leaves(&tree).await, 0, "{blocked:?}");
        assert_eq!(assert_sound(&tree).await.leaves, 50 - u64::from(nth));
    }
}

/// The page of the leaf that covers the number.
async fn tree_leaf(tree: &Tree, n: u32) -> u32 {
    tree.leaf(&n.to_be_bytes()).await.unwrap().id().no
}

/// The schedule: a delete merges a leaf, waits for the root in order to merge the nodes above, and is dropped
/// there. The next merge below the same nodes must merge them.
#[tokio::test]
async fn nodes_that_a_dropped_delete_left_small_are_merged_later() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 8 << 20).await;
    for n in 0..3_000 {
        tree.put(&key(n), &value(n)).await.unwrap();
    }
    assert_eq!(assert_sound(&tree).await.height, 3);
    let mut dropped = 0;
    for n in 0..3_000 {
        if n % 8 > 0 {
            let root = tree.store.get(tree.id(ROOT)).await.unwrap();
            dropped += u32::from(polled(tree.delete(&key(n)), 1).await.is_none());
            drop(root);
        }
        tree.delete(&key(n)).await.unwrap();
    }
    assert!(dropped > 50, "{dropped}");
    // A drop may have come between the last merge and the removal of the levels above.
    tree.put(&key(0), &value(0)).await.unwrap();
    tree.delete(&key(0)).await.unwrap();
    let report = assert_sound(&tree).await;
    assert_eq!((report.leaves, report.height, report.free + 2), (1, 1, end(&tree).await));
}

/// The schedule: every task has latched the leaf of its key when the first of them takes pages for its value.
/// The leaves pin more than half of the frames, and the value needs as many.
#[tokio::test]
async fn long_values_put_at_once_do_not_exhaust_the_pool() {
    const LEAVES: u32 = 64;
    let dir = tempfile::tempdir().unwrap();
    let pool_bytes = pool_bytes_for(100, 0, PageSize::new(PAGE).unwrap());
    let tree = Arc::new(new_tree(dir.path(), pool_bytes).await);
    let mut appender = Appender::new(&tree);
    for n in 0..LEAVES * 12 {
        appender.push(&n.to_be_bytes(), &short(n)).await.unwrap();
    }
    drop(appender);
    let meta = tree.store.get_mut(tree.id(META_PAGE)).await.unwrap();
    let mut puts = tokio::task::JoinSet::new();
    for leaf in 0..LEAVES {
        let tree = Arc::clone(&tree);
        puts.spawn(async move { tree.put(&(leaf * 12).to_be_bytes(), &vec![7; 50 * 4_000]).await });
    }
    // Long enough that all wait: the leaves are in memory.
    for _ in 0..LEAVES {
        tokio::task::yield_now().await;
    }
    drop(meta);
    while let Some(put) = puts.join_next().await {
        put.unwrap().unwrap();
    }
    assert_eq!(assert_sound(&tree).await.overflow, u64::from(LEAVES) * 50);
}

/// The bound follows the pool's present size. By the size at the open, all these changes would proceed at
/// once and pin more leaves than there are frames.
#[tokio::test]
async fn long_values_put_at_once_do_not_exhaust_a_pool_that_was_shrunk() {
    const LEAVES: u32 = 64;
    let dir = tempfile::tempdir().unwrap();
    let bytes = |frames| pool_bytes_for(frames, 0, PageSize::new(PAGE).unwrap());
    let tree = Arc::new(new_tree(dir.path(), bytes(4_000)).await);
    let mut appender = Appender::new(&tree);
    for n in 0..LEAVES * 12 {
        appender.push(&n.to_be_bytes(), &short(n)).await.unwrap();
    }
    drop(appender);
    tree.store.resize_pool(bytes(40)).await.unwrap();
    assert_eq!(tree.store.frames(), 40);
    let meta = tree.store.get_mut(tree.id(META_PAGE)).await.unwrap();
    let mut puts = tokio::task::JoinSet::new();
    for leaf in 0..LEAVES {
        let tree = Arc::clone(&tree);
        puts.spawn(async move { tree.put(&(leaf * 12).to_be_bytes(), &vec![7; 10 * 4_000]).await });
    }
    // Long enough for every change that may proceed to read its leaf and latch it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(meta);
    while let Some(put) = puts.join_next().await {
        put.unwrap().unwrap();
    }
    assert_eq!(assert_sound(&tree).await.overflow, u64::from(LEAVES) * 10);
}

/// Seven tasks change keys of their own while two others scan in both directions and check the tree: every
/// scan sees each permanent key exactly once. Splits, merges and chains interleave; the pool holds only part
/// of the pages. Some changes are dropped while they wait: each took full effect or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_do_not_lose_each_others_entries() {
    let dir = tempfile::tempdir().unwrap();
    let tree = Arc::new(new_tree(dir.path(), 1 << 20).await);
    let stay: Vec<u32> = (0..400).map(|n| n * 8 + 7).collect();
    for &n in &stay {
        tree.put(&key(n), &value(n)).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    for backward in [false, true] {
        let (tree, stop, stay) = (Arc::clone(&tree), Arc::clone(&stop), stay.clone());
        readers.spawn(async move {
            while !stop.load(Ordering::Acquire) {
                let mut seen = scanned(&tree, backward).await;
                if backward {
                    seen.reverse();
                }
                assert!(seen.is_sorted_by(|a, b| a.0 < b.0));
                seen.retain(|(n, _)| n % 8 == 7);
                assert!(seen.iter().map(|(n, _)| n).eq(&stay));
                assert_sound(&tree).await;
            }
        });
    }
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..7_u32 {
        let tree = Arc::clone(&tree);
        tasks.spawn(async move {
            let (mut mine, mut rng) = (Model::new(), SmallRng::seed_from_u64(task.into()));
            for round in 0..3_000 {
                let n = rng.random_range(0..400) * 8 + task;
                let polls = if rng.random_ratio(1, 8) { rng.random_range(1..4) } else { u32::MAX };
                step(&tree, &mut rng, &mut mine, n, round / 600 % 2 == 0, polls).await;
            }
            mine
        });
    }
    let mut model: Model = tasks.join_all().await.into_iter().flatten().collect();
    stop.store(true, Ordering::Release);
    readers.join_all().await;
    model.extend(stay.into_iter().map(|n| (n, n)));
    assert_is(&tree, &model).await;
}

/// After a split a leaf has contiguous free space only once it is compacted. The record of a compaction has
/// no copies of the cells.
#[tokio::test]
async fn inserts_in_random_order_log_each_entry_about_twice() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path(), 8 << 20).await;
    let wal = tree.wal().unwrap().clone();
    let (began, mut bytes) = (wal.end().0, 0);
    for n in 0..4_000_u32 {
        let key = n.wrapping_mul(2_654_435_761).to_be_bytes();
        tree.put(&key, &short(n)).await.unwrap();
        bytes += (key.len() + SHORT) as u64;
    }
    // Once when it is inserted, and about once when a split moves it to another page.
    let logged = wal.end().0 - began;
    assert!(logged < bytes * 5 / 2, "{logged} bytes of log for {bytes} bytes of entries");
    assert_eq!(assert_sound(&tree).await.entries, 4_000);
}

/// One life of a store: recover, a comparison with the model, more changes, and no clean close.
async fn live_and_crash(dir: &Path, life: u32, model: &mut Model) {
    let wal = wal(dir);
    let store = store(dir, &wal, 4 << 20).await;
    let recovered = recover(&store, &wal).await.unwrap();
    let tree = match store.spaces().find("t") {
        None => {
            let space = store.spaces().create("t").await.unwrap();
            Tree::create(store, Some(wal.clone()), space, 1).await.unwrap()
        }
        Some(space) => {
            assert!(recovered.records > 0 && recovered.commits.is_empty());
            Tree::open(store, Some(wal.clone()), space)
        }
    };
    assert_is(&tree, model).await;
    let mut rng = SmallRng::seed_from_u64(life.into());
    for _ in 0..1_500 {
        let n = rng.random_range(0..2_000);
        step(&tree, &mut rng, model, n, life % 3 < 2, u32::MAX).await;
    }
    wal.flush(wal.end()).await.unwrap();
}

#[test]
fn redo_restores_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    for life in 0..6 {
        // Dropping the runtime ends a life at once, background tasks included.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live_and_crash(dir.path(), life, &mut model));
    }
}
