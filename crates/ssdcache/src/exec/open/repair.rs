//! Repairs homes that a crash may have left torn, missing or too old (I22), from the slots and the ring that
//! backed them.

use super::images::{is_of_a_block, readable};
use super::make_durable::CHUNK_BYTES;
use super::{OpenParams, Reader, RecoveryFlushes};
use crate::exec::check;
use crate::exec::io::single::{ATTEMPTS_MAX, read_one, write_one};
use crate::format::map::Entry;
use crate::protocol::recovery::{Evidence, Image, Verdict, newest_by_page};
use crate::remember::{Flushed, Unverified};
use futures_util::StreamExt;
use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::{Defect, Header, PageId, Stamp};
use rustc_hash::FxHashSet;

/// The number of homes examined at once.
pub(super) const REPAIRS_MAX: usize = 16;

/// Why a recovery wrote a home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rewrite {
    /// It was torn, missing or too old.
    Repaired,
    /// It was sound, but may not have been durable.
    Again,
}

/// The homes that a recovery wrote.
#[derive(Debug, Default)]
pub(super) struct HomesWritten {
    pub(super) pages: FxHashSet<PageId>,
    pub(super) repaired: u64,
    pub(super) again: u64,
}

impl HomesWritten {
    fn note(&mut self, page: PageId, written: Option<Rewrite>) {
        self.pages.extend(written.map(|_| page));
        self.repaired += u64::from(written == Some(Rewrite::Repaired));
        self.again += u64::from(written == Some(Rewrite::Again));
    }

    /// Those of `pages` that are not among them.
    pub(super) fn others(&self, pages: &[PageId]) -> Vec<PageId> {
        pages.iter().copied().filter(|page| !self.pages.contains(page)).collect()
    }

    pub(super) fn add(&mut self, other: Self) {
        self.pages.extend(other.pages);
        self.repaired += other.repaired;
        self.again += other.again;
    }
}

impl Reader<'_> {
    /// The slots from which homes may have to be repaired, each with the home's offset, in order of offsets.
    fn homes_backed_by_slots(
        &self,
        evidence: &Evidence,
        verdict: &Verdict,
        unverified: &Unverified,
    ) -> Vec<(u64, usize)> {
        let last: FxHashSet<PageId> = evidence.last_write_back().into_iter().collect();
        let listed: FxHashSet<PageId> = unverified.homes.iter().copied().collect();
        let from = evidence.slots_back_from();
        let entries = verdict.entries.iter().enumerate().filter_map(|(slot, e)| Some((slot, (*e)?)));
        // The last write-back may have been cut short; those before it ended with an HDD flush (I4). Under
        // the doublewrite policy the journal gives the stamp from which on homes may be torn.
        let may = entries.filter(|(_, e)| {
            let backs = from.is_some_and(|from| e.stamp >= from) || listed.contains(&e.page);
            last.contains(&e.page) || (!e.clean && backs)
        });
        let mut repair: Vec<(u64, usize)> =
            may.filter_map(|(slot, e)| Some((self.params.homes.place(e.page)?, slot))).collect();
        repair.sort_unstable();
        repair
    }

    /// Rewrites from their slots the homes that a write-back, or a home write backed by the page's own slot,
    /// left torn. While a slot holds the page, no request reads the home; but the page may be discarded, or
    /// its home given to another page. After a failed flush of the HDD this rewrites all of these homes,
    /// sound or not. Returns the homes written.
    pub(super) async fn repair_from_slots(
        &self,
        evidence: &Evidence,
        verdict: &Verdict,
        unverified: &Unverified,
    ) -> Result<HomesWritten, DeviceError> {
        let mut written = HomesWritten::default();
        for (home, slot) in self.homes_backed_by_slots(evidence, verdict, unverified) {
            let Some(Entry { page, .. }) = verdict.entries[slot] else { continue };
            let (at, bytes) = (self.params.layout.slot_at(slot as u32), self.params.layout.page_size.bytes());
            let image = match self.read(at, bytes as u64).await {
                // Reads of the page will report the error: its newest version is in this slot.
                Err(error) if is_of_a_block(&error) => continue,
                read => read?,
            };
            let stamp = verdict.entries[slot].map(|e| e.stamp);
            if self.check(image.as_slice(), page, stamp).is_err() {
                continue;
            }
            let home_is_sound = self.home_is_sound(page, home).await?;
            // A sound home needs nothing, unless a failed flush may have left it in a volatile cache alone
            // (I14). With the ring on the HDD its image tells which, and the slot's version, of which the
            // ring may have no image, is not written over a sound home: a crash could tear it, and the SSD be
            // lost. The page stays an only copy.
            let imaged = self.params.ring_on_hdd && self.params.layout.ring_pages > 0;
            if home_is_sound && (!unverified.hdd || imaged) {
                continue;
            }
            self.grow_to(home)?;
            write_one(&self.params.hdd, home, image, IoClass::Recovery).await?;
            written.note(page, Some(if home_is_sound { Rewrite::Again } else { Rewrite::Repaired }));
        }
        Ok(written)
    }

    /// Grows the HDD to contain `home`, since a crash may have undone the growth.
    fn grow_to(&self, home: u64) -> Result<(), DeviceError> {
        let (hdd, end) = (&self.params.hdd, home + self.params.layout.page_size.bytes() as u64);
        if hdd.size() < end { hdd.grow(end) } else { Ok(()) }
    }

    fn check(&self, image: &[u8], page: PageId, stamp: Option<Stamp>) -> Result<Header, Defect> {
        check(self.params.seed, image, page, stamp)
    }

    /// Whether the home holds a sound image of any page, or nothing. An unreadable home counts as damaged,
    /// since a block that cannot be read can often be written.
    async fn home_is_sound(&self, page: PageId, home: u64) -> Result<bool, DeviceError> {
        let hdd = &self.params.hdd;
        let bytes = self.params.layout.page_size.bytes();
        if hdd.size() < home + bytes as u64 {
            return Ok(true);
        }
        let (buf, result) = read_one(hdd, home, IoBuf::zeroed(bytes), IoClass::Recovery).await;
        if !readable(result)? {
            return Ok(false);
        }
        let unsound = |defect| match defect {
            Defect::Checksum { .. } | Defect::Format { .. } => true,
            Defect::Blank => !self.params.homes.may_be_blank(page),
            _ => false,
        };
        Ok(!self.check(buf.as_slice(), page, None).is_err_and(unsound))
    }

    /// Whether the HDD keeps pages whole. If there is a ring, each home that a recovery writes has an image
    /// in a slot or in the ring, so the recovery does not ask for whole writes before its end.
    pub(super) fn keep_whole(&self) -> bool {
        let OpenParams { hdd, layout, .. } = self.params;
        let bytes = layout.page_size.bytes();
        let whole = hdd.writes_whole(bytes);
        hdd.keep_whole(if whole && layout.ring_pages == 0 { bytes } else { 0 });
        whole
    }

    /// The place at which the ring continues. An HDD that keeps pages `whole` needs no images, so all are
    /// wiped: they would outlive newer homes, and a later recovery would repair a corrupt home from them
    /// (I48).
    pub(super) async fn ring_from(&self, whole: bool, flushes: &RecoveryFlushes) -> Result<u32, DeviceError> {
        let OpenParams { hdd, ssd, layout, .. } = self.params;
        let (pages, bytes) = (layout.ring_pages, layout.page_size.bytes());
        let from = self.behind_newest().await?;
        if !whole || pages == 0 {
            return Ok(from);
        }
        if !self.ringed.is_empty() {
            // The outdated ones first: of those that are left, a crash may keep any.
            flushes.flush(&[Flushed::Ssd]).await?;
            let end = layout.ring_at(0) + u64::from(pages) * bytes as u64;
            for at in (layout.ring_at(0)..end).step_by(CHUNK_BYTES as usize) {
                let zeroes = IoBuf::zeroed(CHUNK_BYTES.min(end - at) as usize);
                write_one(ssd, at, zeroes, IoClass::Recovery).await?;
            }
        }
        // Also of places that could not be read, which were wiped before.
        if !(self.ringed.is_empty() && self.unread.ring.is_empty()) {
            flushes.flush(&[Flushed::Ssd]).await?;
        }
        hdd.keep_whole(bytes);
        Ok(0)
    }

    /// Rewrites homes that are torn, missing or older than their image in the ring; with `all`, also sound
    /// ones.
    pub(super) async fn repair_from_ring(
        &self,
        evidence: &Evidence,
        all: bool,
    ) -> Result<HomesWritten, DeviceError> {
        let mut homes = HomesWritten::default();
        let floor = evidence.ring_floor();
        let written_back = evidence.written_back();
        let newest = newest_by_page(self.ringed.iter().map(|(_, image)| (image.page, image.stamp)));
        let mut wanted: Vec<(u64, u32, Image)> = Vec::new();
        for (index, found) in &self.ringed {
            let newest = newest[&found.page] == found.stamp;
            // The slot of that newer version repairs the home, or was given away because the version was
            // durable on the HDD.
            let superseded = written_back.get(&found.page).is_some_and(|newer| *newer > found.stamp);
            // Below the floor the home was durable before the crash, and may hold a newer version by now.
            let needed = newest && !superseded && found.stamp >= floor;
            // The image of a version that a slot backed shows that its home may be volatile.
            let backed = newest && !needed && all && self.params.ring_on_hdd;
            let home = self.params.homes.place(found.page);
            if let Some(home) = home.filter(|_| backed) {
                homes.note(found.page, self.rewrite_as_imaged(*found, home).await?);
            }
            wanted.extend(home.filter(|_| needed).map(|home| (home, *index, *found)));
        }
        wanted.sort_unstable_by_key(|(home, ..)| *home);
        let page_bytes = self.params.layout.page_size.bytes();
        self.note_read((wanted.len() * page_bytes) as u64);
        let repairs = wanted.into_iter().map(|(home, index, found)| async move {
            self.repair_one_from_ring(found, home, index, all).await.map(|written| (found.page, written))
        });
        let mut repairs = futures_util::stream::iter(repairs).buffer_unordered(REPAIRS_MAX);
        while let Some(one) = repairs.next().await {
            let (page, written) = one?;
            homes.note(page, written);
        }
        Ok(homes)
    }

    /// Rewrites a home that holds the version of its image in the ring.
    async fn rewrite_as_imaged(&self, found: Image, home: u64) -> Result<Option<Rewrite>, DeviceError> {
        let (hdd, page_bytes) = (&self.params.hdd, self.params.layout.page_size.bytes());
        if hdd.size() < home + page_bytes as u64 {
            return Ok(None);
        }
        let (current, result) = read_one(hdd, home, IoBuf::zeroed(page_bytes), IoClass::Recovery).await;
        if !readable(result)? || self.check(current.as_slice(), found.page, Some(found.stamp)).is_err() {
            return Ok(None);
        }
        write_one(hdd, home, current, IoClass::Recovery).await?;
        Ok(Some(Rewrite::Again))
    }

    /// The place at which the ring continues: behind its newest image. Wipes images superseded by newer ones
    /// of the same page: they would outlive those, and a later recovery would repair a corrupt home from
    /// them.
    async fn behind_newest(&self) -> Result<u32, DeviceError> {
        let newest = newest_by_page(self.ringed.iter().map(|(_, image)| (image.page, image.stamp)));
        let outdated = self.ringed.iter().filter(|(_, image)| newest[&image.page] != image.stamp);
        for (place, _) in outdated {
            self.void(self.params.layout.ring_at(*place)).await?;
        }
        let last = self.ringed.iter().max_by_key(|(_, image)| image.stamp);
        Ok(last.map_or(0, |(place, _)| (place + 1) % self.params.layout.ring_pages))
    }

    /// Repairs the home of the page at `index` of the ring if necessary; with `always`, also rewrites a sound
    /// home.
    async fn repair_one_from_ring(
        &self,
        found: Image,
        home: u64,
        index: u32,
        always: bool,
    ) -> Result<Option<Rewrite>, DeviceError> {
        let (hdd, layout) = (&self.params.hdd, &self.params.layout);
        let page_bytes = layout.page_size.bytes();
        self.grow_to(home)?;
        let (current, result) = read_one(hdd, home, IoBuf::zeroed(page_bytes), IoClass::Recovery).await;
        let newest = |h: Header| h.stamp >= found.stamp;
        if readable(result)? && self.check(current.as_slice(), found.page, None).is_ok_and(newest) {
            // The home is sound but perhaps not durable, so write the same bytes again (I14).
            if always {
                write_one(hdd, home, current, IoClass::Recovery).await?;
            }
            return Ok(always.then_some(Rewrite::Again));
        }
        let mut image = current;
        // Another attempt helps if only the transfer was bad.
        for _ in 0..ATTEMPTS_MAX {
            let result;
            (image, result) =
                read_one(&self.params.ssd, layout.ring_at(index), image, IoClass::Recovery).await;
            result?;
            if self.check(image.as_slice(), found.page, Some(found.stamp)).is_ok() {
                break;
            }
        }
        if self.check(image.as_slice(), found.page, Some(found.stamp)).is_err() {
            tracing::error!(page = %found.page, "the image in the doublewrite ring is damaged: \
                if the page was torn on the HDD, it stays so and reads as corrupt");
            return Ok(None);
        }
        write_one(hdd, home, image, IoClass::Recovery).await?;
        Ok(Some(Rewrite::Repaired))
    }
}
