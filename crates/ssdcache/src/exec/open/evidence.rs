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

/// Reads the SSD for a recovery.
pub(crate) struct Reader<'a> {
    pub(crate) params: &'a OpenParams,
    pub(super) bytes_read: AtomicU64,
    done: AtomicU64,
    total: u64,
    /// The sound images of the ring, by place.
    pub(super) ringed: Vec<(u32, Image)>,
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
            unread: Unread::default(),
        }
    }

    pub(super) async fn evidence(&mut self, header: &MapHeader, map: MapBody) -> Result<Evidence, OpenError> {
        self.total += map.zone().count() as u64;
        let read = try_join3(self.journal(), self.ring(), self.zone(&map)).await?;
        let ((journal, lost), (mut ringed, ring), (zone, slots)) = read;
        let closed = self.params.closed;
        self.unread = Unread { journal: lost, ring, slots };
        // After a crash an unreadable block may hold the only record or image of any page (I23).
        if !closed {
            self.unread.refuse()?;
        } else if !self.unread.ring.is_empty() {
            // An image older than the unreadable one must not repair a corrupt home. After a close none is
            // needed.
            ringed.clear();
        }
        let ring = newest_by_page(ringed.iter().map(|(_, image)| (image.page, image.stamp)));
        self.ringed = ringed;
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

    /// The sound images of the ring, by place, and the places that cannot be read.
    async fn ring(&self) -> Result<(Vec<(u32, Image)>, FxHashMap<u32, DeviceError>), DeviceError> {
        let layout = &self.params.layout;
        let indices: Vec<u32> = (0..layout.ring_pages).collect();
        self.images(&indices, |index| layout.ring_at(index)).await
    }

    /// The sound images of the zone's slots, and the slots that cannot be read.
    async fn zone(
        &self,
        map: &MapBody,
    ) -> Result<(FxHashMap<u32, Image>, FxHashMap<u32, DeviceError>), DeviceError> {
        let slots: Vec<u32> = map.zone().collect();
        let (images, unread) = self.images(&slots, |slot| self.params.layout.slot_at(slot)).await?;
        Ok((images.into_iter().collect(), unread))
    }

    /// The sound page images at the places of `indices`, and the unreadable places; bad contents are neither.
    /// Places must ascend with their indices.
    async fn images(
        &self,
        indices: &[u32],
        place: impl Fn(u32) -> u64,
    ) -> Result<(Vec<(u32, Image)>, FxHashMap<u32, DeviceError>), DeviceError> {
        let page_bytes = self.params.layout.page_size.bytes();
        let places: Vec<u64> = indices.iter().map(|index| place(*index)).collect();
        let mut runs = pin!(read_images(&self.params.ssd, self.params.seed, &places, page_bytes));
        let (mut images, mut unread) = (Vec::with_capacity(places.len()), FxHashMap::default());
        while let Some(run) = runs.next().await {
            let run = run?;
            self.note_read((run.len() * page_bytes) as u64);
            let read = run.len() as u64;
            let done = self.done.fetch_add(read, Ordering::Relaxed) + read;
            for (nth, content) in run {
                match content {
                    Content::Image(image) => images.push((indices[nth], image)),
                    Content::None => {}
                    // Single bad sectors are judged one by one. So many mean that the device is failing, and
                    // then nothing should be concluded from it.
                    Content::Unreadable(error) if unread.len() >= UNREADABLE_MAX => return Err(error),
                    Content::Unreadable(error) => drop(unread.insert(indices[nth], error)),
                }
            }
            if let Some(report) = &self.params.progress {
                report(RecoveryProgress { done, total: self.total });
            }
        }
        images.sort_unstable_by_key(|(index, _)| *index);
        Ok((images, unread))
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
