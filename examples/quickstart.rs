//! Opens a store, writes a page, reads it back, closes the store, and finds the page again.
//!
//! `cargo run --example quickstart [DIR]`; without DIR it uses `target/quickstart`.

use pagetier::PageStore;
use std::path::PathBuf;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).map_or_else(|| PathBuf::from("target/quickstart"), PathBuf::from);

    // 8 MiB of memory over 64 MiB of SSD cache. Here SSD and HDD are files in `dir`.
    let store = PageStore::builder().directory(&dir).pool_bytes(8 << 20).ssd_bytes(64 << 20).open().await?;
    let space = match store.spaces().find("greetings") {
        Some(space) => space,
        None => store.spaces().create("greetings").await?,
    };

    // A new page is zeroed and latched exclusively until the guard is dropped.
    let mut page = store.allocate(space).await?;
    page[..5].copy_from_slice(b"hello");
    let id = page.id();
    drop(page);

    // Readers share a page; a guard may be held across `.await`.
    let page = store.get(id).await?;
    println!("page {id} says {}", String::from_utf8_lossy(&page[..5]));
    drop(page);

    // Everything written before `sync` survives a crash; `close` also keeps the caches warm for the next
    // open.
    store.sync().await?;
    store.close().await?;

    let store = PageStore::builder().directory(&dir).pool_bytes(8 << 20).ssd_bytes(64 << 20).open().await?;
    let page = store.get(id).await?;
    println!("after reopening, page {id} says {}", String::from_utf8_lossy(&page[..5]));
    drop(page);
    store.close().await?;
    Ok(())
}
