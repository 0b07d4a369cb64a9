//! Grows spaces, and gives disk space back. A growth takes all that it needs, or nothing.
//!
//! A growth reaches the HDD (durably), then the manifest, then the table that pages are allocated from. A
//! page far beyond its space's end needs many extents: the HDD grows to hold all of them before the space
//! gets the first, so that a number for which there is no room takes none from others. If a later step fails,
//! the extents that the space got meanwhile are given back, and the HDD is cut back to its size before.

use crate::error::Error;
use crate::manifest::changes::Change;
use crate::manifest::contents::Manifest;
use crate::store::handles::Spaces;
use crate::store::record::manifest_state::ManifestState;
use crate::store::shared::Shared;
use crate::volume::growth_plan::{Ahead, Growth};
use crate::volume::table::EXTENT_PAGES;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass};
use pagetier_page::{PageId, SpaceId, StoreSeed};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of bytes of the HDD formatted per write.
const FORMAT_BYTES: usize = 1 << 20;

/// The number of bytes of a reservation that are taken at a time.
const RESERVED_AT_ONCE: u64 = 64 << 20;

/// How far the HDD's file grows ahead, in bytes: an eighth of its size within these bounds.
const AHEAD_BYTES: (u64, u64) = (1 << 20, 256 << 20);

impl Spaces<'_> {
    /// Gives `space` disk space for all of its first `pages` pages now: creating them later cannot fail for
    /// want of it. The pages do not exist yet: [`Spaces::pages`] does not count them. Of several reservations
    /// the largest counts. Durable when it returns. Completes even if the future is dropped.
    ///
    /// The disk space belongs to the space until `pages` is 0, which gives the reservation up:
    /// [`Spaces::shrink`] returns none of it before. It costs its bytes on the HDD, the time to write them
    /// there once, and time after a crash: the open reads the reserved disk space from its end down to the
    /// last page that was written. [`Builder::page_gap_max`](crate::Builder::page_gap_max) does not limit it.
    /// A backup does not contain it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// # let store = builder.open().await?;
    /// let space = store.spaces().create("t").await?;
    /// store.spaces().reserve(space, 10_000).await?;
    /// assert_eq!(store.spaces().pages(space)?, 0);
    /// store.overwrite(pagetier::PageId::new(space, 9_999)).await?; // the HDD does not grow
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The space does not exist, the HDD cannot grow, or the manifest cannot be written. What was taken
    /// beyond the space's end is given back; extents that [`Spaces::shrink`] had taken from its middle may be
    /// filled.
    pub async fn reserve(self, space: SpaceId, pages: u32) -> Result<(), Error> {
        self.0.shared.in_task(move |shared| async move { shared.reserve(space, pages).await }).await
    }
}

impl Shared {
    async fn reserve(&self, space: SpaceId, pages: u32) -> Result<(), Error> {
        let _operation = self.ending.enter()?;
        self.volume.pages(space).ok_or(Error::NoSuchSpace { space })?;
        let (room, hdd_bytes) = (self.volume.reserved(space), self.hdd.size());
        let grown = self.take_room(space, pages).await;
        if grown.is_err() {
            let mut meta = self.meta.lock().await;
            self.undo_growth(space, room / u64::from(EXTENT_PAGES), hdd_bytes, &mut meta).await;
        }
        self.watch_room();
        grown
    }

    /// Takes the disk space of a reservation piece by piece: others get the manifest in between, since all of
    /// it is written once, which may take the disk minutes.
    async fn take_room(&self, space: SpaceId, pages: u32) -> Result<(), Error> {
        let page_bytes = self.page_size().bytes() as u64;
        let step = ((RESERVED_AT_ONCE / page_bytes) as u32).max(EXTENT_PAGES);
        let missing = u64::from(pages).saturating_sub(self.volume.reserved(space));
        if missing > 0 {
            // The disk first: a lack of disk space shows before anything is written. (Free extents may do.)
            let extents = missing.div_ceil(u64::from(EXTENT_PAGES));
            let bytes = extents.saturating_mul(u64::from(EXTENT_PAGES) * page_bytes);
            let mut meta = self.meta.lock().await;
            match self.grow_hdd(&mut meta, self.volume.end().saturating_add(bytes)).await {
                Err(Error::Device(error)) if is_full(&error) && self.volume.has_free_extents() => {}
                grown => grown?,
            }
        }
        let mut upto = 0;
        while upto < pages {
            if self.ending.has_begun() {
                return Err(Error::Closed);
            }
            upto = upto.saturating_add(step).min(pages);
            let mut meta = self.meta.lock().await;
            // The end first, which is one growth.
            let mut next = Some(upto - 1).filter(|last| u64::from(*last) >= self.volume.reserved(space));
            while let Some(no) = next.take().or_else(|| self.volume.first_without_room(space, upto)) {
                self.grow_to(PageId::new(space, no), Ahead::None, &mut meta).await?;
            }
        }
        let mut meta = self.meta.lock().await;
        self.note_reserved(space, pages, &mut meta).await
    }

    /// Records that `space` keeps the disk space of its first `pages` pages; of none, that it keeps no more
    /// than it uses.
    async fn note_reserved(&self, space: SpaceId, pages: u32, meta: &mut ManifestState) -> Result<(), Error> {
        let record = |manifest: &Manifest| manifest.spaces.iter().position(|record| record.id == space.0);
        let at = record(&meta.manifest).ok_or(Error::NoSuchSpace { space })?;
        let extents = u64::from(pages.div_ceil(EXTENT_PAGES));
        let before = meta.manifest.spaces[at].reserved_extents;
        if extents > before || (extents == 0 && before > 0) {
            meta.change(&self.volume, |manifest| manifest.spaces[at].reserved_extents = extents).await?;
        }
        Ok(())
    }

    /// Gives `space` disk space for page `no`.
    pub(crate) async fn grow_space(self: &Arc<Self>, space: SpaceId, no: u32) -> Result<(), Error> {
        if no == u32::MAX {
            return Err(Error::SpaceFull { space });
        }
        // In a task of its own: a growth that a dropped caller cut short would keep what it has taken, and
        // its formatting writes could land on pages of the next growth.
        self.in_task(move |shared| async move { shared.grow(PageId::new(space, no)).await }).await
    }

    async fn grow(&self, page: PageId) -> Result<(), Error> {
        let _operation = self.ending.enter()?;
        // Held to the end: another growth must not plan with the same extents.
        let mut meta = self.meta.lock().await;
        // Another call has grown the space while this one waited.
        if self.volume.has_room(page) {
            return Ok(());
        }
        self.volume.pages(page.space).ok_or(Error::NoSuchSpace { space: page.space })?;
        // Counted from the disk space, not from the last page: disk space is durable before its pages exist,
        // so redo after a crash meets no gap for a page that existed.
        let room = self.volume.reserved(page.space);
        let (gap, gap_max) = (u64::from(page.no).saturating_sub(room), self.config.options.page_gap_max);
        if gap > gap_max.into() {
            return Err(Error::PageGap { page, gap, gap_max });
        }
        // What a failure returns to.
        let hdd_bytes = self.hdd.size();
        let grown = self.grow_to(page, Ahead::Some, &mut meta).await;
        if let Err(error) = &grown {
            tracing::debug!(%page, %error, "a growth failed");
            // Otherwise a failed attempt would keep what it had taken from a disk that is full (I36).
            self.undo_growth(page.space, room / u64::from(EXTENT_PAGES), hdd_bytes, &mut meta).await;
        }
        // The alarm asks the file systems, which may take a while on a busy disk.
        drop(meta);
        self.watch_room();
        grown
    }

    async fn grow_to(&self, page: PageId, mut ahead: Ahead, meta: &mut ManifestState) -> Result<(), Error> {
        while !self.volume.has_room(page) {
            let growth = self.volume.plan_growth(page, ahead);
            let growth = growth.ok_or(Error::NoSuchSpace { space: page.space })?;
            match self.grow_by(&growth, meta).await {
                // There may be room for this page, though not for those to come.
                Err(Error::Device(error)) if is_full(&error) && ahead == Ahead::Some => ahead = Ahead::None,
                done => done?,
            }
        }
        Ok(())
    }

    async fn grow_by(&self, growth: &Growth, meta: &mut ManifestState) -> Result<(), Error> {
        let (bytes, end) = self.volume.growth_bytes(growth);
        // An earlier growth of the same disk space that failed may be in the file, for another space or other
        // pages: homes that are formatted for this one would read as damaged there.
        meta.settle(&self.volume).await?;
        // In this order (I19): a manifest that names space which the HDD lacks does not open, and a page in
        // memory whose extent no manifest names is lost by a crash.
        self.grow_hdd(meta, end).await?;
        let seed = self.config.seed(&meta.manifest.store);
        if let Err(error) = self.format(growth, bytes.clone(), seed).await {
            // What it has taken of a full disk others need.
            self.punch(&[bytes]).await;
            return Err(error.into());
        }
        self.tier.flush_home().await?;
        meta.append(&self.volume, &growth.change()).await?;
        // Impossible while the mutex is held. But memory and manifest differ now, so no page may be written
        // there.
        if !self.volume.grow(growth) {
            let cause = Arc::from("a growth of a space does not match the extents in memory");
            return Err(Error::Refusing { cause });
        }
        Ok(())
    }

    /// Formats the homes of a growth, which lie in `bytes` of the HDD: a page that is never written there
    /// does not read as damaged, and one that was written does, if its home turns to zeroes (I23). Writes
    /// regardless of what reads return: after a failed flush, the homes that an earlier growth formatted may
    /// be readable and never become durable.
    async fn format(&self, growth: &Growth, bytes: Range<u64>, seed: StoreSeed) -> Result<(), DeviceError> {
        let page_bytes = self.page_size().bytes();
        let first = growth.nth * u64::from(EXTENT_PAGES);
        // A MiB at a time, so that reads of others get their turn.
        for at in bytes.clone().step_by(FORMAT_BYTES) {
            let mut homes = IoBuf::zeroed((bytes.end - at).min(FORMAT_BYTES as u64) as usize);
            let no = first + (at - bytes.start) / page_bytes as u64;
            let page = PageId::new(growth.space, no as u32);
            pagetier_page::format_homes(seed, homes.as_mut_slice(), page_bytes, page);
            self.hdd.write(at, IoBufs::from_iter([homes]), IoClass::Meta).await.result?;
        }
        Ok(())
    }

    /// Grows the HDD to `end`, durably.
    async fn grow_hdd(&self, meta: &mut ManifestState, end: u64) -> Result<(), Error> {
        // Not the current size: an earlier growth may have grown the file and then failed to flush it (I19).
        if meta.hdd_bytes_durable >= end {
            return Ok(());
        }
        let size = self.hdd.size();
        if size < end {
            // Grow by more than is needed, so that the file grows rarely. But on a disk that is nearly full
            // the rest belongs to others: the manifest, the SSD's file, other programs.
            let rest = self.room().hdd_free_bytes.unwrap_or(u64::MAX).saturating_sub(end - size);
            let ahead = (end / 8).clamp(AHEAD_BYTES.0, AHEAD_BYTES.1).min(rest / 8) & !4095;
            if self.hdd.grow(end + ahead).is_err() {
                self.hdd.grow(end)?;
            }
        }
        // Read before the flush: what grows during it is not covered.
        let bytes = self.hdd.size();
        self.tier.flush_home().await?;
        meta.hdd_bytes_durable = bytes;
        Ok(())
    }

    /// Gives back what a failed growth of `space` has taken: the space had `extents` extents before, and the
    /// HDD `hdd_bytes` bytes.
    async fn undo_growth(&self, space: SpaceId, extents: u64, hdd_bytes: u64, meta: &mut ManifestState) {
        // They are recorded and lie beyond the last number, where they do no harm: `shrink` gives them back
        // later.
        match self.cut_tail(space, extents, meta).await {
            // They may lie below others, where the HDD is not cut.
            Ok(given) => self.punch(&given).await,
            Err(error) => {
                tracing::warn!(
                    %space, %error,
                    "a growth failed; the space keeps what it had taken until `spaces().shrink` gives it back"
                );
                return;
            }
        }
        let bytes = self.volume.end().max(hdd_bytes);
        if bytes >= self.hdd.size() {
            return;
        }
        // The record that failed may be in the file nevertheless: a store whose manifest names more than the
        // HDD has does not open. So the HDD is cut only once the manifest is certain again.
        match meta.settle(&self.volume).await.and_then(|()| Ok(self.hdd.cut(bytes)?)) {
            Ok(()) => meta.hdd_bytes_durable = meta.hdd_bytes_durable.min(bytes),
            Err(error) => {
                tracing::warn!(%error, "a growth failed, and the HDD's file keeps its larger size, which later growths use")
            }
        }
    }

    /// Gives the disk space of these ranges of the HDD, which no space has, back to the file system. Called
    /// under the manifest's mutex: a hole punched after a growth would destroy pages.
    pub(crate) async fn punch(&self, ranges: &[Range<u64>]) {
        for range in ranges {
            // Only a hint: a failure loses nothing but space in the file system.
            if let Err(error) = self.hdd.discard(range.start, range.end - range.start).await {
                tracing::debug!(%error, "no hole was punched");
            }
        }
    }

    /// Gives back the extents of `space` beyond its last number, except its first `kept`. Returns their byte
    /// ranges.
    pub(crate) async fn cut_tail(
        &self,
        space: SpaceId,
        kept: u64,
        meta: &mut ManifestState,
    ) -> Result<Vec<Range<u64>>, Error> {
        // Withheld first: a page created in them after the record would have its home in another space (I36).
        let tail = self.volume.withhold_tail(space, kept);
        if tail.runs.is_empty() {
            return Ok(Vec::new());
        }
        let cut = Change::Cut { space: space.0, extents: tail.kept };
        if let Err(error) = meta.append(&self.volume, &cut).await {
            // The manifest may have given the extents away nevertheless: a page created in them could be lost
            // after a crash. `sync` saves the manifest again before it promises anything.
            self.doubtful.store(true, Ordering::Release);
            self.volume.restore_tail(space, &tail);
            return Err(error);
        }
        Ok(self.volume.give_back_tail(&tail))
    }
}

fn is_full(error: &DeviceError) -> bool {
    matches!(error.kind, DeviceErrorKind::NoSpace | DeviceErrorKind::FileSizeLimit { .. })
}
