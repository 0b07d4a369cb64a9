//! What the SSD's policy has learned, across clean restarts and other ends.

use crate::fixture::{Fixture, PAGES, grown, read, write};
use pagetier::policy::PageCounts;
use pagetier::{PageId, PageSize, PageStore, SpaceId};
use std::path::Path;

/// What is done to the file, and in words.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path));

/// The physical accesses of every page, as the policy counts them.
fn physical(store: &PageStore, space: SpaceId) -> Vec<[u64; 4]> {
    let of = |no| {
        let counts = store.policies().counts(PageId::new(space, no)).unwrap_or_default();
        let PageCounts { reads_hdd, reads_ssd, writes_hdd, writes_ssd, .. } = counts;
        [reads_hdd, reads_ssd, writes_hdd, writes_ssd]
    };
    (0..PAGES).map(of).collect()
}

async fn open(fixture: &Fixture, policy: &str) -> PageStore {
    // An outqueue for every page: the pages in memory join it at the close.
    fixture.builder().ssd_policy(policy).outqueue(PAGES as usize).open().await.unwrap()
}

/// Some pages are used more often than others.
async fn work(store: &PageStore, space: SpaceId) {
    for n in 0..3 * PAGES {
        let no = n * n % PAGES;
        read(store, space, no).await.unwrap();
        if n % 5 == 0 {
            write(store, space, no, n).await.unwrap();
        }
    }
    store.sync().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_clean_restart_keeps_it() {
    for policy in ["cac", "cac:ageing=2,sketch", "cc"] {
        let fixture = Fixture::new();
        let store = open(&fixture, policy).await;
        let space = grown(&store).await;
        work(&store, space).await;
        let before = physical(&store, space);
        assert!(before.iter().flatten().sum::<u64>() > u64::from(PAGES), "{policy}");
        store.close().await.unwrap();
        let store = open(&fixture, policy).await;
        assert_eq!(physical(&store, space), before, "{policy}");
        let groups = store.policies().groups();
        assert_eq!(groups.is_empty(), policy == "cc");
        store.close().await.unwrap();
        // What was restored is saved once more.
        let store = open(&fixture, policy).await;
        assert_eq!((physical(&store, space), store.policies().groups()), (before, groups), "{policy}");
        work(&store, space).await;
        assert_eq!(store.validate(), Ok(()));
        store.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_uses_none_of_it() {
    let fixture = Fixture::new();
    let store = open(&fixture, "cac").await;
    let space = grown(&store).await;
    work(&store, space).await;
    store.close().await.unwrap();
    let saved = fixture.manifest.policy_file();
    assert!(saved.is_some());
    let store = open(&fixture, "cac").await;
    assert!(physical(&store, space).iter().flatten().any(|&count| count > 0));
    drop(store);
    let cut = fixture.after_power_cut(1);
    assert_eq!(cut.manifest.policy_file(), saved, "the file is still there");
    let store = open(&cut, "cac").await;
    assert_eq!(physical(&store, space), vec![[0; 4]; PAGES as usize]);
    // Nor does a later close revive it.
    store.close().await.unwrap();
    assert_ne!(cut.manifest.policy_file(), saved);
    cut.manifest.set_policy_file(saved);
    let store = open(&cut, "cac").await;
    assert_eq!(physical(&store, space), vec![[0; 4]; PAGES as usize]);
}

#[tokio::test(start_paused = true)]
async fn another_policy_learns_anew() {
    let fixture = Fixture::new();
    let store = open(&fixture, "cac").await;
    let space = grown(&store).await;
    work(&store, space).await;
    // The policy at the close counts, not that of the opening.
    store.policies().set_ssd("cc").await.unwrap();
    work(&store, space).await;
    store.close().await.unwrap();
    let file = fixture.manifest.policy_file();
    for policy in ["cac", "cac:sketch", "lru2", "auto", "cc"] {
        // Of the same close each time: the manifest and the devices are forks of it.
        let again = fixture.after_power_cut(2);
        again.manifest.set_policy_file(file.clone());
        let store = open(&again, policy).await;
        let some = physical(&store, space).iter().flatten().any(|&count| count > 0);
        assert_eq!(some, policy == "cc", "{policy}");
    }
}

fn in_directory(directory: &Path) -> pagetier::Builder {
    PageStore::builder()
        .directory(directory)
        .page_size(PageSize::MIN)
        .ssd_bytes(2 << 20)
        .pool_bytes(1 << 20)
        .ssd_policy("cac")
        .outqueue(PAGES as usize)
}

/// Whatever the file is, the store opens and reads its pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_has_it_in_a_file() {
    let temporary = tempfile::tempdir().unwrap();
    let (directory, file) = (temporary.path().join("store"), temporary.path().join("store/ssd-policy"));
    let store = in_directory(&directory).open().await.unwrap();
    let space = grown(&store).await;
    work(&store, space).await;
    let before = physical(&store, space);
    store.close().await.unwrap();
    let saved = std::fs::read(&file).unwrap();
    let store = in_directory(&directory).open().await.unwrap();
    assert_eq!(physical(&store, space), before);
    store.close().await.unwrap();
    let damages: [Damage<'_>; 5] = [
        ("removed", &|file| std::fs::remove_file(file).unwrap()),
        ("of the close before", &|file| std::fs::write(file, &saved).unwrap()),
        ("cut", &|file| {
            let bytes = std::fs::read(file).unwrap();
            std::fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("another file", &|file| std::fs::write(file, "notes").unwrap()),
        ("a directory", &|file| {
            std::fs::remove_file(file).unwrap();
            std::fs::create_dir(file).unwrap();
        }),
    ];
    for (what, damage) in damages {
        damage(&file);
        let store = in_directory(&directory).open().await.unwrap();
        assert_eq!(physical(&store, space), vec![[0; 4]; PAGES as usize], "{what}");
        work(&store, space).await;
        store.close().await.unwrap();
        assert_eq!(file.is_file(), what != "a directory", "{what}");
    }
}
