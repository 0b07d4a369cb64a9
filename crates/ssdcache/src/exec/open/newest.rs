//! Finds the map checkpoint that was in force (I10).
//!
//! The newest sound header names it. Each area holds its header twice. If both copies are damaged, the mark
//! in the other area proves that the checkpoint was in force, and the open fails, since the previous
//! checkpoint is out of date.

use crate::exec::open::images::is_of_a_block;
use crate::exec::open::{OpenError, OpenParams, Reader};
use crate::format::layout::{BLOCK_BYTES, MAP_ENTRY_BYTES};
use crate::format::map::{MapBody, MapHeader, decode_mark};
use pagetier_devio::{DeviceError, DeviceErrorKind};

/// The map that a recovery starts from.
pub(crate) struct NewestMap {
    pub(crate) header: MapHeader,
    pub(crate) body: MapBody,
    /// Whether both copies of its header are sound.
    pub(crate) twice: bool,
}

impl Reader<'_> {
    pub(crate) async fn newest_map(&self) -> Result<NewestMap, OpenError> {
        self.find_newest().await.map_err(|error| match error {
            OpenError::Device(source) if is_of_a_block(&source) => {
                OpenError::Unreadable { part: "map", source }
            }
            other => other,
        })
    }

    async fn find_newest(&self) -> Result<NewestMap, OpenError> {
        let layout = self.params.layout;
        if layout.slots == 0 {
            return Ok(NewestMap { header: MapHeader::default(), body: MapBody::empty(0), twice: true });
        }
        let (mut headers, mut marked_in_force) = (Vec::new(), 0);
        for area in 0..2 {
            headers.extend(self.map_headers(area).await?.into_iter().map(|h| (h, area)));
            marked_in_force = marked_in_force.max(self.map_mark(area).await?.unwrap_or(0));
        }
        headers.sort_by_key(|(h, _)| std::cmp::Reverse(h.generation));
        let Some(newest) = headers.first().map(|(h, _)| h.generation) else {
            return Err(OpenError::NoMap { device: self.params.ssd.name().to_owned() });
        };
        // That checkpoint was in force, and its headers are gone. Falling back to the one before would lose
        // every page written under it (I10).
        if marked_in_force > newest {
            return Err(self.damaged("header", marked_in_force));
        }
        // A header is written only after its body is durable, so a body that does not match the newest header
        // is damaged.
        let of_newest = headers.partition_point(|(h, _)| h.generation == newest);
        for (header, area) in &headers[..of_newest] {
            // A second read, since a bit flipped in transfer is no damage (I32).
            for _ in 0..2 {
                let bytes = self.map_body(*area).await?;
                if let Some(body) = MapBody::decode(self.params.seed, &bytes, header, &layout) {
                    let twice = headers.iter().filter(|(h, _)| h == header).count() == 2;
                    return Ok(NewestMap { header: *header, body, twice });
                }
            }
        }
        Err(self.damaged("body", newest))
    }

    pub(crate) fn damaged(&self, part: &'static str, generation: u64) -> OpenError {
        let map = if generation.is_multiple_of(2) { 'A' } else { 'B' };
        OpenError::DamagedMap { device: self.params.ssd.name().to_owned(), map, part, generation }
    }

    /// The sound headers of `area`, at most two. An unreadable copy is an error only if the other is not
    /// sound.
    async fn map_headers(&self, area: u8) -> Result<Vec<MapHeader>, DeviceError> {
        let OpenParams { layout, seed, .. } = *self.params;
        let (mut headers, mut failed) = (Vec::new(), None);
        let decoded =
            |bytes: &[u8]| MapHeader::decode(seed, bytes).filter(|h| h.generation % 2 == u64::from(area));
        for copy in 0..2 {
            let sound = |bytes: &[u8]| decoded(bytes).is_some();
            match self.read_sound(layout.map_header_at(area, copy), BLOCK_BYTES, &sound).await {
                Ok(block) => headers.extend(decoded(block.as_slice())),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if headers.is_empty() => Err(error),
            _ => Ok(headers),
        }
    }

    /// The checkpoint of the other area that the mark in `area` names.
    async fn map_mark(&self, area: u8) -> Result<Option<u64>, DeviceError> {
        let OpenParams { layout, seed, .. } = *self.params;
        let decoded = |bytes: &[u8]| pagetier_page::is_blank(bytes) || decode_mark(seed, bytes).is_some();
        match self.read_sound(layout.map_mark_at(area), BLOCK_BYTES, &decoded).await {
            Ok(block) => Ok(decode_mark(seed, block.as_slice())),
            // The headers hold the same information.
            Err(DeviceError { kind: DeviceErrorKind::Io(_), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn map_body(&self, area: u8) -> Result<Vec<u8>, DeviceError> {
        let layout = self.params.layout;
        let len = layout.map_header_at(area, 1) - layout.map_header_at(area, 0) - BLOCK_BYTES;
        let mut bytes = Vec::with_capacity(len as usize);
        while (bytes.len() as u64) < len {
            let at = layout.map_at(area) + BLOCK_BYTES + bytes.len() as u64;
            let chunk = self.read(at, (len - bytes.len() as u64).min(1 << 20)).await?;
            bytes.extend_from_slice(chunk.as_slice());
        }
        debug_assert!(bytes.len() as u64 >= u64::from(layout.slots) * MAP_ENTRY_BYTES);
        Ok(bytes)
    }
}
