//! A store that never had a log: no record describes its pages, so a log with records is none of its own.

use super::model::{Found, Model};
use super::open::{causes, look};
use super::watch::{Media, Moment, Watch};
use crate::campaign::contract::content::fill;
use crate::campaign::draw::plan::Plan;
use crate::campaign::world::examine::in_virtual_time;
use pagetier::{PageId, PageStore};
use std::sync::Arc;

/// The number of its pages: those that a log with records changes first.
const PAGES: u32 = 12;

/// Its contents have these numbers from 1 on, above those of any store under test.
const CONTENTS: u32 = 1 << 26;

/// Makes the store, and closes it.
pub(super) fn made(plan: &Plan, blank: Media) -> Result<Moment, String> {
    let watch = Watch::new(plan, blank, Model::default(), 1);
    in_virtual_time(async {
        let opened = plan.builder_on(watch.devices(), &watch.manifest).open().await;
        let store = opened.map_err(|error| causes(&error))?;
        fill_in(&store, &watch).await.map_err(|error| causes(&error))?;
        store.close().await.map_err(|error| causes(&error))?;
        Ok(watch.now())
    })
}

async fn fill_in(store: &PageStore, watch: &Watch) -> Result<(), pagetier::Error> {
    let name = watch.model.lock().space_name();
    let space = store.spaces().create(&name).await?;
    watch.model.lock().created(space, name);
    let mut changes: Vec<(PageId, Arc<[u8]>)> = Vec::new();
    for nth in 1..=PAGES {
        let mut guard = store.allocate(space).await?;
        let page = guard.id();
        fill(&mut guard, page, CONTENTS + nth);
        changes.push((page, guard[..].into()));
    }
    store.sync().await?;
    let mut model = watch.model.lock();
    model.unlogged(&changes);
    let all = model.unsynced();
    model.synced(&all);
    Ok(())
}

/// Checks that the pages are as they were made, whatever log the store was opened with.
pub(super) async fn unchanged(store: &PageStore, model: &Model) -> Result<u64, String> {
    let pages = model.known_pages();
    for page in &pages {
        let found: Found = look(store, *page).await?;
        // As of position 0: no record of whatever log may have reached these pages.
        model.judge(*page, &found, 0, false)?;
    }
    Ok(pages.len() as u64)
}
