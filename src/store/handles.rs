//! The handles to a store's parts. Their methods lie in the rooms: those of [`Spaces`] in `spaces`, of
//! [`Ssd`] in `ssd`, of [`HotSet`] in `hot`, of the others in `tuning`.

use super::page_store::PageStore;

/// The spaces of a store. See [`PageStore::spaces`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// use pagetier::{SpaceHints, SpaceId};
///
/// let store = builder.open().await?;
/// let space = match store.spaces().find("orders") {
///     Some(space) => space,
///     None => store.spaces().create("orders").await?,
/// };
/// assert_eq!(store.spaces().pages(space)?, 0);
/// assert_eq!(store.spaces().list()[0].name, "orders");
/// // Say how the space is used, free pages, and return their disk space.
/// store.spaces().set_hints(space, SpaceHints::new().never_to_ssd(true))?;
/// assert!(store.spaces().list()[0].hints.never_to_ssd);
/// store.allocate(space).await?;
/// store.spaces().sync(space).await?; // durable, without the pages of other spaces
/// assert_eq!(store.free((space, 0..u32::MAX)).await?, 1);
/// store.spaces().shrink(space).await?;
/// store.spaces().drop(space).await?;
/// // A restored engine's log names pages by the number of their space.
/// store.spaces().create_as(SpaceId(7), "customers").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Spaces<'a>(pub(crate) &'a PageStore);

/// The SSD: its mode, drains, events and losses. See [`PageStore::ssd`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// use pagetier::{DrainOptions, PageStore, SsdMode, stats::SsdState};
///
/// # let builder = PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// let store = builder.open().await?;
/// assert_eq!(store.stats().ssd.state(), SsdState::Active);
///
/// // Before the SSD is removed: write through it, and write home what it alone holds.
/// store.ssd().set_mode(SsdMode::WriteThrough).await?;
/// let report = store.ssd().drain(DrainOptions::new()).await;
/// assert_eq!(report.left, 0);
///
/// // The store continues without it, and later takes a blank one into use.
/// let mut events = store.ssd().events();
/// store.ssd().set_mode(SsdMode::Off).await?;
/// println!("{:?}", events.try_next());
/// store.ssd().readmit().await?;
/// assert_eq!(store.stats().ssd.mode, SsdMode::WriteThrough);
/// store.ssd().set_write_budget(Some(50 << 30)); // 50 GiB a day
/// # Ok(())
/// # }
/// ```
///
/// After a failure it comes back, or it is given up:
///
/// ```
/// # use pagetier::*;
/// # async fn example(store: &PageStore, log_starts_at: Lsn)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// // The log from here on would repair the loss of the SSD.
/// let repairable = store.stats().ssd.oldest_lsn.is_none_or(|oldest| oldest >= log_starts_at);
/// if store.ssd().readmit().await.is_err() && repairable {
///     store.ssd().abandon().await?;
///     // The engine redoes its log over these pages, then syncs.
///     println!("{:?}", store.ssd().loss());
///     store.ssd().acknowledge_loss().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ssd<'a>(pub(crate) &'a PageStore);

/// The policies of pool and SSD, the costs that they use, and their counts. See [`PageStore::policies`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// use pagetier::{Costs, PageId, SpaceId};
///
/// let store = builder.open().await?;
/// // The HDD has been exchanged for a faster one.
/// store.policies().set_costs(Costs { hdd_read_ms: 3.0, ..store.policies().costs() })?;
///
/// store.policies().set_ssd("cac").await?;
/// println!("{}: {:?}", store.policies().ssd(), store.policies().groups());
/// println!("{:?}", store.policies().counts(PageId::new(SpaceId(0), 3)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Policies<'a>(pub(crate) &'a PageStore);

/// The recording of page traces. See [`PageStore::trace`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// let store = builder.open().await?;
/// let space = store.spaces().create("t").await?;
/// store.trace().start(temporary.path().join("requests.ptr"))?;
/// let page = store.allocate(space).await?.id();
/// drop(store.get(page).await?);
/// println!("{:?}", store.trace().progress());
/// assert_eq!(store.trace().stop().await?.records, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a>(pub(crate) &'a PageStore);

/// Simulated pools and SSDs of other sizes. See [`PageStore::what_if`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// use pagetier::what_if::WhatIfOptions;
///
/// let store = builder.open().await?;
/// store.what_if().start(&WhatIfOptions::new())?;
/// // ... the load runs ...
/// if let Some(report) = store.what_if().report() {
///     println!("{report:?}");
/// }
/// let report = store.what_if().stop().await;
/// assert!(report.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Estimates<'a>(pub(crate) &'a PageStore);

/// The pages that memory holds: saved to a file and read back, or kept on the HDD by the store itself. See
/// [`PageStore::hot_set`].
#[derive(Clone, Copy, Debug)]
pub struct HotSet<'a>(pub(crate) &'a PageStore);
