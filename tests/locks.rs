//! The order of the async locks: stated in `ARCHITECTURE.md`, checked in debug builds.

use pagetier_devio::locks::Rank;

#[test]
fn the_order_is_the_one_that_the_document_states() {
    let document = include_str!("../ARCHITECTURE.md");
    let (_, section) = document.split_once("## Locking order").unwrap();
    let stated: Vec<&str> = section
        .lines()
        .skip_while(|line| !line.starts_with("1. "))
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(stated.len(), Rank::ALL.len(), "{stated:?}");
    for (nth, (line, rank)) in stated.iter().zip(Rank::ALL).enumerate() {
        assert!(line.starts_with(&format!("{}. {}", nth + 1, rank.name())), "{line:?} is not {rank:?}");
    }
    assert!(Rank::ALL.is_sorted());
}

#[cfg(debug_assertions)]
mod checked {
    use crate::fixture::{Fixture, grown};
    use pagetier::PageId;
    use pagetier_devio::locks::{Mutex, Rank, Violations, observed};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_a_guard_is_found_under_the_manifests_mutex_and_allowed_without_it() {
        let store = Fixture::new().open().await;
        let space = grown(&store).await;
        let page = PageId::new(space, 7);
        let (manifest, found) = (Mutex::new(Rank::Manifest, ()), Violations::default());
        let discard = async |locked: bool| {
            let guard = store.get(page).await.unwrap();
            let waits = observed(&found, async {
                let _held = if locked { Some(manifest.lock().await) } else { None };
                store.discard(page).await
            });
            let ends = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(guard);
            };
            let (discarded, ()) = tokio::join!(waits, ends);
            discarded.unwrap();
            store.overwrite(page).await.unwrap();
        };
        discard(false).await;
        assert_eq!(found.all(), []);
        discard(true).await;
        let ranks: Vec<_> = found.all().iter().map(|one| (one.held.0, one.wanted.0)).collect();
        assert_eq!(ranks, [(Rank::Manifest, Rank::Latch)]);
    }
}
