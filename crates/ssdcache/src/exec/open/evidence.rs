//! Reads what a crash left on the SSD: the evidence for a recovery.

use super::images::{Content, is_of_a_block, read_images};
use super::{OpenError, OpenParams, RecoveryProgress};
use crate::exec::io::single::read_agreed;
use crate::format::journal::Block;
use crate::format::layout::BLOCK_BYTES;
use crate::format::layout::JournalSeq;
use crate::format::map::{MapBody, MapHeader};
use crate::protocol::recovery::{Evidence, Image, newest_by_page};
use futures_util::StreamExt;
use futures_util::future::try_join3;
use pagetier_devio::{DeviceError, IoBuf};
use pagetier_page::{PageId, Stamp};
use rustc_hash::FxHashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device with more unreadable places counts as failed.
const UNREADABLE_MAX: usize = 64;

/// The blocks that a recovery could not read, and why.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// A block of the journal.
    pub(crate) journal: Option<DeviceError>,
    /// Places of the ring.
    pub(crate) ring: FxHashMap<u32, DeviceError>,
    /// Slots of the zone.
    pub(crate) slots: FxHashMap<u32, DeviceError>,
}

impl Unread {
    /// Fails if a block of the journal or a place of the ring could not be read: recovery needs them all.
    pub(crate) fn refuse(&self) -> Result<(), OpenError> {
        let place = self.ring.iter().min_by_key(|(place, _)| **place).map(|(_, source)| ("ring", source));
        let first = self.journal.as_ref().map(|source| ("journal", source)).or(place);
        first.map_or(Ok(()), |(part, source)| Err(OpenError::Unreadable { part, source: source.clone() }))
    }

    /// Fails if there is an unreadable `slot` that may hold any page.
    pub(crate) fn refuse_slot(&self, slot: Option<u32>) -> Result<(), OpenError> {
        let source = slot.and_then(|slot| self.slots.get(&slot));
        source.map_or(Ok(()), |source| Err(OpenError::Unreadable { part: "zone", source: source.clone() }))
    }
}

/// What places of the SSD hold; bad contents are left out.
#[derive(Debug, Default)]
struct Places {
    /// Sound page images, by place.
    images: Vec<(u32, Image)>,
    lists: Vec<Block>,
    /// The places that cannot be read.
    unread: FxHashMap<u32, DeviceError>,
}

/// Reads the SSD for a recovery.
pub(crate) struct Reader<'a> {
    pub(crate) params: &'a OpenParams,
    pub(super) bytes_read: AtomicU64,
    done: AtomicU64,
    total: u64,
    /// The sound images of the ring, by place.
    pub(super) ringed: Vec<(u32, Image)>,
    /// The lists of pages in a ring that rested.
    lists: Vec<Block>,
    pub(crate) unread: Unread,
}

impl<'a> Reader<'a> {
    pub(super) fn new(params: &'a OpenParams) -> Self {
        let ring = u64::from(params.layout.ring_pages);
        Self {
            params,
            bytes_read: AtomicU64::new(0),
            done: AtomicU64::new(0),
            total: ring,
            ringed: Vec::new(),
            lists: Vec::new(),
            unread: Unread::default(),
        }
    }

    pub(super) async fn evidence(&mut self, header: &MapHeader, map: MapBody) -> Result<Evidence, OpenError> {
        self.total += map.zone().count() as u64;
        let read = try_join3(self.journal(), self.ring(), self.zone(&map)).await?;
        let ((journal, lost), Places { images: mut ringed, lists, unread: ring }, zone) = read;
        let closed = self.params.closed;
        self.unread = Unread { journal: lost, ring, slots: zone.unread };
        // After a crash an unreadable block may hold the only record or image of any page (I23).
        if !closed {
            self.unread.refuse()?;
        } else if !self.unread.ring.is_empty() {
            // An image older than the unreadable one must not repair a corrupt home. After a close none is
            // needed.
            ringed.clear();
        }
        let ring = newest_by_page(ringed.iter().map(|(_, image)| (image.page, image.stamp)));
        (self.ringed, self.lists) = (ringed, lists);
        let zone = zone.images.into_iter().collect();
        let unreadable = self.unread.slots.keys().copied().collect();
        let watermark = header.watermark;
        let mut evidence = Evidence { map, watermark, zone, unreadable, closed, journal, ring };
        if self.params.ring_on_hdd {
            evidence.drop_below_floor();
        }
        Ok(evidence)
    }

    /// The sound blocks of the journal, and the error of one that cannot be read.
    async fn journal(&self) -> Result<(Vec<Block>, Option<DeviceError>), DeviceError> {
        let OpenParams { layout, seed, .. } = *self.params;
        let (mut blocks, mut unread) = (Vec::new(), None);
        let decoded = |bytes: &[u8]| Block::decode(seed, bytes);
        let block = |bytes: &[u8]| decoded(bytes).is_some() || pagetier_page::is_blank(bytes);
        let sound = |bytes: &[u8]| bytes.chunks(BLOCK_BYTES as usize).all(block);
        let total = u64::from(layout.journal_blocks);
        let (mut seq, mut most) = (0, 256);
        while seq < total {
            let count = (total - seq).min(most);
            match self.read_sound(layout.journal_at(JournalSeq(seq)), count * BLOCK_BYTES, &sound).await {
                Ok(bytes) => blocks.extend(bytes.as_slice().chunks(BLOCK_BYTES as usize).filter_map(decoded)),
                // Continue block by block.
                Err(error) if is_of_a_block(&error) && count > 1 => {
                    most = 1;
                    continue;
                }
                Err(error) if is_of_a_block(&error) => unread = Some(error),
                Err(error) => return Err(error),
            }
            seq += count;
        }
        Ok((blocks, unread))
    }

    async fn ring(&self) -> Result<Places, DeviceError> {
        let layout = &self.params.layout;
        let indices: Vec<u32> = (0..layout.ring_pages).collect();
        self.places(&indices, |index| layout.ring_at(index)).await
    }

    /// The slots of the zone.
    async fn zone(&self, map: &MapBody) -> Result<Places, DeviceError> {
        let slots: Vec<u32> = map.zone().collect();
        self.places(&slots, |slot| self.params.layout.slot_at(slot)).await
    }

    /// Reads the places of `indices`, which must ascend with them.
    async fn places(&self, indices: &[u32], place: impl Fn(u32) -> u64) -> Result<Places, DeviceError> {
        let page_bytes = self.params.layout.page_size.bytes();
        let places: Vec<u64> = indices.iter().map(|index| place(*index)).collect();
        let mut runs = pin!(read_images(&self.params.ssd, self.params.seed, &places, page_bytes));
        let mut found = Places::default();
        while let Some(run) = runs.next().await {
            let run = run?;
            self.note_read((run.len() * page_bytes) as u64);
            let read = run.len() as u64;
            let done = self.done.fetch_add(read, Ordering::Relaxed) + read;
            for (nth, content) in run {
                match content {
                    Content::Image(image) => found.images.push((indices[nth], image)),
                    Content::List(list) => found.lists.push(list),
                    Content::None => {}
                    // Single bad sectors are judged one by one. So many mean that the device is failing, and
                    // then nothing should be concluded from it.
                    Content::Unreadable(error) if found.unread.len() >= UNREADABLE_MAX => return Err(error),
                    Content::Unreadable(error) => drop(found.unread.insert(indices[nth], error)),
                }
            }
            if let Some(report) = &self.params.progress {
                report(RecoveryProgress { done, total: self.total });
            }
        }
        found.images.sort_unstable_by_key(|(index, _)| *index);
        Ok(found)
    }

    /// The pages whose homes were written since the last flush that a list in the ring tells of, or were
    /// about to be (I14). Sorted.
    pub(super) fn listed(&self) -> Vec<PageId> {
        // All homes were durable before the first image of a ring that was put into use.
        let imaged = self.ringed.iter().map(|(_, image)| image.stamp);
        let floor = self.lists.iter().map(|list| list.ring_floor).chain(imaged).max().unwrap_or(Stamp::ZERO);
        let records = self.lists.iter().flat_map(|list| &list.records);
        let mut pages: Vec<PageId> =
            records.filter(|record| record.stamp >= floor).map(|record| record.page).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Reads a part of the metadata, again while it is not sound: an older checkpoint, or a journal that
    /// lacks a record, would resurrect old versions.
    pub(crate) async fn read_sound(
        &self,
        offset: u64,
        bytes: u64,
        sound: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<IoBuf, DeviceError> {
        let (buf, reads) = read_agreed(&self.params.ssd, offset, bytes, sound).await?;
        self.note_read(reads * bytes);
        Ok(buf)
    }

    pub(crate) async fn read(&self, offset: u64, bytes: u64) -> Result<IoBuf, DeviceError> {
        self.read_sound(offset, bytes, &|_| true).await
    }

    pub(super) fn note_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }
}
