//! Tests of the tree: against a map, under concurrent tasks, and across crashes.

use super::node::{self, NONE};
use super::{Appender, RowLens, Tree};
use pagetier::{PageId, PageSize, PageStore};
use pagetier_wal::{Wal, WalLimits, redo};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const KEY: usize = 4;
const VAL: usize = 300;
/// With overhead, which no operation may touch or overwrite.
const ROW: RowLens = RowLens { key: KEY, val: VAL, overhead: 5 };

async fn store(dir: &Path, wal: &Wal) -> Arc<PageStore> {
    let builder = PageStore::builder().directory(dir).ssd_bytes(0).pool_bytes(4 << 20);
    let size = PageSize::new(4096).unwrap();
    Arc::new(builder.page_size(size).log_gate(Arc::new(wal.clone())).open().await.unwrap())
}

fn wal(dir: &Path) -> Wal {
    Wal::open(&dir.join("wal"), WalLimits { capacity_bytes: 64 << 20 }).unwrap()
}

async fn new_tree(dir: &Path) -> Tree {
    let wal = wal(dir);
    let store = store(dir, &wal).await;
    let space = store.spaces().create("t").await.unwrap();
    Tree::create(store, Some(wal), space, ROW).await.unwrap()
}

fn value(n: u32) -> [u8; VAL] {
    let mut val = [n as u8; VAL];
    val[..4].copy_from_slice(&n.to_le_bytes());
    val
}

async fn contents(tree: &Tree) -> Vec<(u32, u32)> {
    let mut seen = Vec::new();
    let see = |k: &[u8], v: &[u8]| {
        seen.push((
            u32::from_be_bytes(k.try_into().unwrap()),
            u32::from_le_bytes(v[..4].try_into().unwrap()),
        ));
        ControlFlow::Continue(())
    };
    tree.scan(&[0; KEY], see).await.unwrap();
    seen
}

/// Walks the whole tree and checks order, levels and key ranges; checks that its pages and the free list add
/// up to the space.
async fn validate(tree: &Tree) -> u64 {
    let mut pages = 1;
    let mut leaves = Vec::new();
    let mut todo = vec![(0, None, vec![0; KEY], vec![u8::MAX; KEY])];
    while let Some((no, level, low, high)) = todo.pop() {
        let page = tree.store.get(PageId::new(tree.space, no)).await.unwrap();
        pages += 1;
        assert!(level.is_none_or(|level| level == node::level(&page)));
        let layout = if node::level(&page) == 0 { &tree.leaf } else { &tree.inner };
        let n = node::count(&page);
        let keys: Vec<_> = (0..n).map(|slot| layout.key(&page, slot).to_vec()).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert!(keys.iter().all(|key| *key >= low && *key <= high));
        if node::level(&page) == 0 {
            leaves.push((no, node::next(&page)));
            continue;
        }
        for slot in (0..n).rev() {
            let high = keys.get(slot + 1).unwrap_or(&high).clone();
            todo.push((layout.child(&page, slot), Some(node::level(&page) - 1), keys[slot].clone(), high));
        }
    }
    let links: Vec<_> = leaves.iter().skip(1).map(|leaf| leaf.0).chain([NONE]).collect();
    assert_eq!(leaves.iter().map(|leaf| leaf.1).collect::<Vec<_>>(), links);
    let mut free = node::next(&tree.store.get(PageId::new(tree.space, 1)).await.unwrap());
    while free != NONE {
        pages += 1;
        free = node::next(&tree.store.get(PageId::new(tree.space, free)).await.unwrap());
    }
    pages
}

fn space_pages(tree: &Tree) -> u64 {
    tree.store.spaces().list().into_iter().find(|space| space.id == tree.space).unwrap().pages.into()
}

#[tokio::test]
async fn random_operations_agree_with_a_map() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path()).await;
    let mut model = BTreeMap::new();
    let mut rng = SmallRng::seed_from_u64(1);
    for round in 0..20_000_u32 {
        // Mostly inserts, then mostly deletes: the tree grows to three levels and shrinks again.
        let key: u32 = rng.random_range(0..6_000);
        let bytes = key.to_be_bytes();
        let growing = round / 5_000 % 2 == 0;
        match rng.random_range(0..10) {
            0..2 => {
                let found = tree.get(&bytes, |v| v.to_vec()).await.unwrap();
                assert_eq!(found, model.get(&key).map(|&n| value(n).to_vec()));
            }
            2 => {
                let found = tree.patch(&bytes, 0, &round.to_le_bytes()).await.unwrap();
                assert_eq!(found, model.contains_key(&key));
                if let Some(old) = model.get(&key).copied() {
                    tree.patch(&bytes, 4, &value(round)[4..]).await.unwrap();
                    assert_ne!(old, round);
                    model.insert(key, round);
                }
            }
            n if (n < 8) == growing => {
                tree.put(&bytes, &value(round)).await.unwrap();
                model.insert(key, round);
            }
            _ => assert_eq!(tree.delete(&bytes).await.unwrap(), model.remove(&key).is_some()),
        }
    }
    assert_eq!(contents(&tree).await, model.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>());
    assert_eq!(validate(&tree).await, space_pages(&tree));
    let from = 3_000_u32;
    let mut first = None;
    let see = |k: &[u8], _: &[u8]| {
        first = Some(u32::from_be_bytes(k.try_into().unwrap()));
        ControlFlow::Break(())
    };
    tree.scan(&from.to_be_bytes(), see).await.unwrap();
    assert_eq!(first, model.range(from..).next().map(|(&k, _)| k));
    let last = tree.last_key().await.unwrap().map(|k| u32::from_be_bytes(k.try_into().unwrap()));
    assert_eq!(last, model.keys().last().copied());
}

#[tokio::test]
async fn ascending_inserts_fill_pages_and_so_do_runs_inside() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path()).await;
    let per_leaf = tree.leaf.capacity() as u64;
    let mut appender = Appender::new(&tree);
    for n in 0..2_000_u32 {
        appender.push(&(n * 1_000).to_be_bytes(), &value(n)).await.unwrap();
    }
    drop(appender);
    let loaded = space_pages(&tree);
    assert!(loaded <= 2_000_u64.div_ceil(per_leaf) + 6, "{loaded} pages");
    for n in 1..800_u32 {
        tree.put(&(700_000 + n).to_be_bytes(), &value(n)).await.unwrap();
    }
    let run = space_pages(&tree) - loaded;
    assert!(run <= 800_u64.div_ceil(per_leaf) + 4, "{run} pages");
    assert_eq!(contents(&tree).await.len(), 2_799);
    assert_eq!(validate(&tree).await, space_pages(&tree));
}

#[tokio::test]
async fn a_queue_reuses_its_pages_and_stays_short() {
    let dir = tempfile::tempdir().unwrap();
    let tree = new_tree(dir.path()).await;
    for n in 0..20_000_u32 {
        tree.put(&n.to_be_bytes(), &value(n)).await.unwrap();
        if n >= 100 {
            assert!(tree.delete(&(n - 100).to_be_bytes()).await.unwrap());
        }
    }
    assert_eq!(contents(&tree).await.len(), 100);
    assert_eq!(validate(&tree).await, space_pages(&tree));
    assert!(space_pages(&tree) < 200, "{} pages", space_pages(&tree));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_do_not_lose_each_others_entries() {
    let dir = tempfile::tempdir().unwrap();
    let tree = Arc::new(new_tree(dir.path()).await);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u32 {
        let tree = Arc::clone(&tree);
        tasks.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(task.into());
            let mut mine = BTreeMap::new();
            for round in 0..1_500_u32 {
                let key = rng.random_range(0..400) * 8 + task;
                if rng.random_range(0..3) > 0 {
                    tree.put(&key.to_be_bytes(), &value(round)).await.unwrap();
                    mine.insert(key, round);
                } else {
                    let there = tree.delete(&key.to_be_bytes()).await.unwrap();
                    assert_eq!(there, mine.remove(&key).is_some());
                }
                if round % 100 == 0 {
                    assert!(contents(&tree).await.is_sorted());
                }
            }
            mine
        });
    }
    let model: BTreeMap<_, _> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(contents(&tree).await, model.into_iter().collect::<Vec<_>>());
    assert_eq!(validate(&tree).await, space_pages(&tree));
}

/// One life of a store: redo, a comparison with the model, more changes, and no clean close.
async fn live_and_crash(dir: &Path, life: u32, model: &mut BTreeMap<u32, u32>) {
    let wal = wal(dir);
    let store = store(dir, &wal).await;
    let tree = match store.spaces().find("t") {
        None => {
            let space = store.spaces().create("t").await.unwrap();
            Tree::create(store, Some(wal.clone()), space, ROW).await.unwrap()
        }
        Some(space) => {
            let redone = redo(&store, &wal).await.unwrap();
            assert!(redone.records > 0 && redone.commits.is_empty());
            Tree::open(store, Some(wal.clone()), space, ROW)
        }
    };
    assert_eq!(contents(&tree).await, model.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>());
    validate(&tree).await;
    let mut rng = SmallRng::seed_from_u64(life.into());
    for round in 0..700 {
        let key: u32 = rng.random_range(0..2_000);
        if rng.random_range(0..10) < 7 {
            tree.put(&key.to_be_bytes(), &value(life * 1_000 + round)).await.unwrap();
            model.insert(key, life * 1_000 + round);
        } else {
            tree.delete(&key.to_be_bytes()).await.unwrap();
            model.remove(&key);
        }
    }
    wal.flush(wal.end()).await.unwrap();
}

#[test]
fn redo_restores_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = BTreeMap::new();
    for life in 0..6 {
        // Dropping its runtime ends a life at once, background tasks included.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live_and_crash(dir.path(), life, &mut model));
    }
}
