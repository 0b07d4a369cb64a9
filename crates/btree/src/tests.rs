//! Tests of the tree: against a map, under concurrent tasks, and across crashes.

use crate::{Appender, Tree, full_pages};
use pagetier::{PageSize, PageStore};
use pagetier_wal::{Wal, WalLimits, redo};
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

/// The numbers of an entry and of its value, which [`key`] and [`value`] turn into bytes.
type Model = BTreeMap<u32, u32>;

const PAGE: u64 = 4096;
const SHORT: usize = 300;
/// Bytes that all keys have in common, so that inner nodes hold few of them.
const PREFIX: usize = 60;

async fn store(dir: &Path, wal: &Wal, pool_bytes: u64) -> Arc<PageStore> {
    let builder = PageStore::builder().directory(dir).ssd_bytes(0).pool_bytes(pool_bytes);
    let size = PageSize::new(PAGE).unwrap();
    Arc::new(builder.page_size(size).log_gate(Arc::new(wal.clone())).open().await.unwrap())
}

fn wal(dir: &Path) -> Wal {
    Wal::open(&dir.join("wal"), WalLimits { capacity_bytes: 256 << 20 }).unwrap()
}

async fn new_tree(dir: &Path, pool_bytes: u64) -> Tree {
    let wal = wal(dir);
    let store = store(dir, &wal, pool_bytes).await;
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

/// One life of a store: redo, a comparison with the model, more changes, and no clean close.
async fn live_and_crash(dir: &Path, life: u32, model: &mut Model) {
    let wal = wal(dir);
    let store = store(dir, &wal, 4 << 20).await;
    let tree = match store.spaces().find("t") {
        None => {
            let space = store.spaces().create("t").await.unwrap();
            Tree::create(store, Some(wal.clone()), space, 1).await.unwrap()
        }
        Some(space) => {
            let redone = redo(&store, &wal).await.unwrap();
            assert!(redone.records > 0 && redone.commits.is_empty());
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
