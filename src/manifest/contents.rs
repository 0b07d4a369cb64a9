//! The manifest: the store's identity, its spaces, and where on the HDD they lie; how it is encoded, and
//! which numbers in it are possible.

use super::changes::{LogRecord, Record, Slack};
use super::extents::{EXTENT_PAGES, HOLE, append, hole_to, reserved, without};
use super::memory::MemoryManifest;
use super::only_copies::{OnlyCopies, UnverifiedRecord, added};
use super::page_runs::PageRuns;
use super::superblock::{AREA_BYTES_MAX, AREA_UNIT, HEAD_BYTES};
use super::tail;
use crate::error::OpenError;
use pagetier_page::{PageSize, SpaceId, Stamp};
use pagetier_ssdcache::{Layout, RING_PAGES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::{io, path};

/// The newest manifest format: of a store with free pages beyond the end of a space, which `shrink` lowered.
const MANIFEST_FORMAT: u32 = 8;

/// What a file with areas says to versions before these. No manifest has it.
const MANIFEST_FORMAT_PREAMBLE: u32 = 7;

/// The format of other stores with their ring on the HDD.
const MANIFEST_FORMAT_RING: u32 = 6;

/// The format of all others, which earlier versions read, too.
const MANIFEST_FORMAT_OTHER: u32 = 5;

/// The first format of which each extent of a space was formatted ([`Manifest::unformatted`]).
const MANIFEST_FORMAT_FORMATTED: u32 = 5;

/// The oldest format that this version reads: it has neither a tail nor free pages.
const MANIFEST_FORMAT_MIN: u32 = 2;

/// A bound far above any real store: even with the largest pages, the volume's end is a valid file size.
const EXTENTS_MAX: u64 = 1 << 40;

/// A bound above the end of the largest areas and the largest ring that a volume can have.
const EXTENTS_AT_MAX: u64 = HEAD_BYTES + 2 * AREA_BYTES_MAX + (RING_PAGES_MAX as u64 + 1) * (64 << 10);

/// The manifest, with the changes of its tail applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The size of the file, if it has no areas: a shorter one has been cut, perhaps within its tail. Present
    /// in the file only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_bytes: Option<u64>,
    pub(crate) format: u32,
    /// The store's id, which both devices bear too.
    pub(crate) store: String,
    pub(crate) page_bytes: u64,
    /// Incremented by every attempt to replace the manifest or to append a record to it.
    pub(crate) generation: u64,
    /// Incremented by every open, before anything else is written.
    pub(crate) epoch: u32,
    /// The last open that both devices have recorded; an open writes nothing else before that. 0: the
    /// store's first open has not completed.
    pub(crate) opened: u32,
    /// The last open that ended in a clean close.
    pub(crate) closed: u32,
    /// The id of the SSD, if the store has one.
    pub(crate) ssd: Option<String>,
    /// Where the SSD was when it was last opened or put into use; for messages alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ssd_at: Option<String>,
    /// The pages whose newest version was on the SSD alone at a clean close. `None` while the store is open,
    /// and after a crash.
    #[serde(default)]
    pub(crate) ssd_pages: Option<OnlyCopies>,
    /// The loss with SSDs that were given up, until the user acknowledges it.
    #[serde(default)]
    pub(crate) loss: Option<OnlyCopies>,
    /// Every change older than this log position is on the HDD, whatever is lost with the SSD: the newest
    /// position that was handed out for that loss. `None`: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ssd_redo_from: Option<u64>,
    /// What is known of the embedder's log. `None`: there is none, or an earlier version wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<LogRecord>,
    /// The number of losses so far, acknowledged ones included: a backup continues none from before a loss.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) losses: u64,
    /// The devices' costs in milliseconds (R_D, W_D, R_S, W_S), if they were calibrated when the store was
    /// created.
    #[serde(default)]
    pub(crate) costs_ms: Option<[String; 4]>,
    /// The ids of the last backups, the newest last: a backup continues only one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) backups: Vec<String>,
    /// What failed flushes left unverified.
    /// [`ManifestStore`](super::manifest_store::ManifestStore) maintains it and ignores a caller's value.
    #[serde(rename = "unproved", default, skip_serializing_if = "Option::is_none")]
    pub(crate) unverified: Option<UnverifiedRecord>,
    pub(crate) next_space: u32,
    /// Extents of the HDD in use, counted from its start.
    pub(crate) extents_used: u64,
    /// The byte offset of the first extent, if the HDD has the manifest, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) extents_at: Option<u64>,
    /// The doublewrite ring on the HDD, before the first extent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ring_on_hdd: Option<RingOnHdd>,
    /// Runs of extents that dropped and shrunk spaces gave back: first, count.
    pub(crate) extents_free: Vec<(u64, u64)>,
    /// Runs of extents, in the order of the HDD, that spaces got from a version that did not format them:
    /// there a home of zeroes was never written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unformatted: Vec<(u64, u64)>,
    pub(crate) spaces: Vec<SpaceRecord>,
}

impl Manifest {
    /// The manifest of a store without spaces.
    pub(crate) fn new(store: String, page_size: PageSize) -> Self {
        Self {
            file_bytes: None,
            format: MANIFEST_FORMAT_OTHER,
            store,
            page_bytes: page_size.bytes() as u64,
            generation: 0,
            epoch: 0,
            opened: 0,
            closed: 0,
            ssd: None,
            ssd_at: None,
            ssd_pages: None,
            loss: None,
            ssd_redo_from: None,
            log: None,
            losses: 0,
            costs_ms: None,
            backups: Vec::new(),
            unverified: None,
            // Space 0 does not exist: page ids of zeroes, as in a blank header, then never name a page.
            next_space: 1,
            extents_used: 0,
            extents_at: None,
            ring_on_hdd: None,
            extents_free: Vec::new(),
            unformatted: Vec::new(),
            spaces: Vec::new(),
        }
    }

    /// Places a ring of `pages` at `at` on the HDD, before the first extent.
    pub(crate) fn place_ring(&mut self, at: u64, page_size: PageSize, pages: u32) {
        let end = at + Layout::ring_only(page_size, pages).end();
        self.ring_on_hdd = Some(RingOnHdd { at, pages });
        self.set_format();
        // A page must not lie across the units that a device writes whole: they are powers of two.
        self.extents_at = Some(end.next_multiple_of(AREA_UNIT));
    }

    /// Sets the oldest format that has all that the manifest says.
    pub(crate) fn set_format(&mut self) {
        self.format = match self.ring_on_hdd {
            _ if self.spaces.iter().any(|space| space.free.end() > space.pages) => MANIFEST_FORMAT,
            Some(_) => MANIFEST_FORMAT_RING,
            None => MANIFEST_FORMAT_OTHER,
        };
    }

    pub(crate) fn add_space(&mut self, id: u32, name: &str) {
        let space = SpaceRecord {
            id,
            name: name.to_owned(),
            pages: 0,
            runs: Vec::new(),
            free: PageRuns::default(),
            reserved_extents: 0,
            dropping: false,
        };
        self.spaces.push(space);
    }

    /// The error for an SSD that was not found at `place`, for the reason `what`.
    pub(crate) fn ssd_missing(&self, what: String, place: &str) -> OpenError {
        // The process that replaced the SSD may have crashed before its configuration named the new one.
        let is_there = |at: &str| at == place || path::absolute(place).is_ok_and(|p| p.as_os_str() == at);
        let last = self.ssd_at.as_deref().filter(|at| !is_there(at));
        let last = last.map_or_else(String::new, |at| format!(" (it was last used at {at})"));
        // Without an SSD, what is missing is the ring's file.
        let expected = self.ssd.clone().unwrap_or_else(|| "ring".into());
        OpenError::SsdMissing { expected, what: what + &last }
    }

    /// Adds the pages `lost` to the losses.
    pub(crate) fn lose(&mut self, lost: OnlyCopies) {
        // An open may list an empty loss, for example of an SSD that was drained. Counting it would only
        // make the next backup full for no reason (I34).
        self.losses += u64::from(!lost.is_none());
        self.loss = added(self.loss.take(), lost);
    }

    /// Removes pages that exist again from the lists of free pages.
    pub(crate) fn list_reused(&mut self, reused: &[(SpaceId, PageRuns)]) {
        for space in &mut self.spaces {
            for (_, pages) in reused.iter().filter(|(id, _)| id.0 == space.id) {
                for (first, count) in pages.iter() {
                    let _ = space.free.remove(first, count);
                }
            }
        }
    }

    /// The byte offset of the first extent on the HDD.
    pub(crate) fn extents_at(&self) -> u64 {
        self.extents_at.unwrap_or(HEAD_BYTES)
    }

    /// The byte offset at which the HDD's last extent ends.
    pub(crate) fn extents_end(&self) -> u64 {
        let extent_bytes = u64::from(EXTENT_PAGES) * self.page_bytes;
        self.extents_at().saturating_add(self.extents_used.saturating_mul(extent_bytes))
    }

    /// No open has completed, so the store is empty.
    pub(crate) fn is_unused(&self) -> bool {
        self.opened == 0
    }

    /// The last open was closed cleanly: the page counts are exact.
    pub(crate) fn is_clean(&self) -> bool {
        self.closed == self.opened
    }

    /// How a save of this manifest may use the file's slack, given the one `before`.
    pub(crate) fn slack_after(&self, before: &Self) -> Slack {
        // More spaces and extents mean more to record later, perhaps on a full disk, so such a save must
        // leave room for that. Any other save may use it up, for example one that records a failed flush
        // (I36).
        let extents = |m: &Self| m.spaces.iter().flat_map(|s| &s.runs).map(|(_, count)| count).sum::<u64>();
        let more = self.spaces.len() > before.spaces.len() || extents(self) > extents(before);
        if more { Slack::Keep } else { Slack::Use }
    }

    /// Checks that the numbers are possible for a store: allocation and recovery compute with them.
    fn check(&self) -> Result<(), &'static str> {
        // Stamps hold the epoch in their high bits. If it wrapped, the next open would write stamps below
        // those on the devices, and recovery would prefer the older versions (I11).
        if self.epoch >= Stamp::EPOCHS - 1 {
            return Err("the store was opened as often as its format allows, and cannot be opened again");
        }
        if self.opened > self.epoch || self.closed > self.opened {
            return Err("it records a close without its open, or an open that had not begun");
        }
        if self.extents_used > EXTENTS_MAX || self.extents_at.is_some_and(|at| at > EXTENTS_AT_MAX) {
            return Err("it has more extents than any device");
        }
        if let (Some(ring), Ok(page_size)) = (self.ring_on_hdd, PageSize::new(self.page_bytes)) {
            let layout = Layout::ring_only(page_size, ring.pages);
            let end = ring.at.saturating_add(layout.end());
            if !layout.is_sound() || ring.at < HEAD_BYTES || end > self.extents_at() {
                return Err("its ring lies over its extents");
            }
        }
        if self.unverified.as_ref().is_some_and(|unverified| !unverified.is_valid()) {
            return Err("it lists more pages after failed flushes than there can be");
        }
        // Copies on the SSD are found by space and page number. Two spaces of one id would read each other's
        // pages.
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for space in &self.spaces {
            let named_twice = !space.dropping && !names.insert(&space.name);
            if space.id >= self.next_space || !ids.insert(space.id) || named_twice {
                return Err("its spaces have a duplicate id or name, or an id not yet assigned");
            }
            // Every page below `pages` must have a home or be free: recovery computes homes without asking
            // again.
            if u64::from(space.end()) > reserved(&space.runs) {
                return Err("a space has more pages than its extents hold");
            }
            // Only `shrink` leaves such numbers, in a manifest of the newest format, and no others beyond the
            // end: an open would find something left of one, and end the space there.
            let all_free = space.free.begin_before(space.end()) <= space.pages;
            if space.free.end() > space.pages && !(self.format == MANIFEST_FORMAT && all_free) {
                return Err("a free page is beyond the end of its space");
            }
            // A page in a hole has no home, so it must not exist: its write would have nowhere to go.
            let mut at = 0_u64;
            for (first, count) in &space.runs {
                let pages =
                    (at.saturating_mul(EXTENT_PAGES.into()), count.saturating_mul(EXTENT_PAGES.into()));
                if *first == HOLE && !space.free.has_run(pages.0, pages.1) {
                    return Err("a page without room is not free");
                }
                at = at.saturating_add(*count);
            }
        }
        // Sorted by place, two runs overlap only if they are neighbours. An overlap would let two spaces
        // write over each other, so it is worth a check at every open.
        let placed = self.spaces.iter().flat_map(|s| &s.runs).filter(|(first, _)| *first != HOLE);
        let mut runs: Vec<(u64, u64)> = placed.chain(&self.extents_free).copied().collect();
        runs.sort_unstable();
        let mut end = 0;
        for (first, count) in runs {
            let Some(after) = first.checked_add(count).filter(|after| *after <= self.extents_used) else {
                return Err("a run of extents ends beyond the volume");
            };
            if first < end {
                return Err("an extent is used twice");
            }
            end = after;
        }
        Ok(())
    }
}

/// Where on the HDD the doublewrite ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingOnHdd {
    /// The byte offset of its superblock.
    pub(crate) at: u64,
    /// Its pages. 0: the embedder wants none, or an earlier version found an HDD that writes pages whole.
    pub(crate) pages: u32,
}

fn is_zero(losses: &u64) -> bool {
    *losses == 0
}

/// A space as the manifest records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpaceRecord {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Pages allocated when the manifest was saved; after a crash there may be more.
    pub(crate) pages: u32,
    /// Its extents in page order, as runs: first, count.
    pub(crate) runs: Vec<(u64, u64)>,
    /// Its freed pages, which do not exist.
    #[serde(default, skip_serializing_if = "PageRuns::is_empty")]
    pub(crate) free: PageRuns,
    /// The extents from its begin that were reserved: it keeps them, whatever pages they have.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) reserved_extents: u64,
    /// The space is being dropped; the next open completes that.
    #[serde(default)]
    pub(crate) dropping: bool,
}

impl SpaceRecord {
    /// The number after the last page that exists or is listed as free.
    pub(crate) fn end(&self) -> u32 {
        self.pages.max(self.free.end())
    }

    /// Lists the numbers from the end of the space to `end`, that of an extent, as free. They need no disk
    /// space.
    pub(crate) fn list_free(&mut self, end: u32) {
        let _ = self.free.insert(self.end(), end.saturating_sub(self.end()));
        let has = reserved(&self.runs) / u64::from(EXTENT_PAGES);
        if let Some(run) = hole_to(has, end) {
            append(&mut self.runs, run);
        }
    }
}

/// Encodes the manifest as one line of JSON and a line with its CRC32C.
pub(crate) fn encode(manifest: &Manifest) -> io::Result<Vec<u8>> {
    Ok(tail::sealed(&serde_json::to_vec(manifest)?, 0))
}

/// The only field that a manifest of every version has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The manifest with the changes that its tail records.
pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, OpenError> {
    let bad = |why: &str| OpenError::BadManifest { why: why.to_owned() };
    let file = tail::parse(bytes).map_err(bad)?;
    // Parsed on its own first: another version's manifest may have other fields.
    let Format { format: found } = serde_json::from_str(file.contents).map_err(|e| bad(&e.to_string()))?;
    if !(MANIFEST_FORMAT_MIN..=MANIFEST_FORMAT).contains(&found) || found == MANIFEST_FORMAT_PREAMBLE {
        let reads = format!("{MANIFEST_FORMAT_MIN} to {MANIFEST_FORMAT_RING} and {MANIFEST_FORMAT}");
        return Err(OpenError::Format { device: "the manifest".into(), found, reads });
    }
    let mut manifest: Manifest = serde_json::from_str(file.contents).map_err(|e| bad(&e.to_string()))?;
    // A shorter file may lack records that were acknowledged: it opens as if they had never been made. Refuse
    // it (I41).
    if let Some(size) = manifest.file_bytes.take()
        && (bytes.len() as u64) < size
    {
        return Err(bad(&format!("it was cut: it has {} of {size} bytes", bytes.len())));
    }
    manifest.check().map_err(bad)?;
    manifest.spaces.sort_unstable_by_key(|space| space.id);
    // A gap means that a durable record is missing: those after it would be applied to the wrong contents
    // (I41).
    for (n, json) in (0..).zip(&file.records) {
        let record: Record = serde_json::from_str(json).map_err(|e| bad(&e.to_string()))?;
        if record.n != n || record.generation <= manifest.generation {
            return Err(bad("a record in its tail is damaged"));
        }
        manifest.apply(&record.change).map_err(bad)?;
        manifest.generation = record.generation;
    }
    // Each record was valid when it was appended, but a wrong record that passes its checksum could still
    // combine into a manifest that allocation cannot work with.
    if !file.records.is_empty() {
        manifest.check().map_err(bad)?;
    }
    if found < MANIFEST_FORMAT_FORMATTED {
        manifest.unformatted = without(&[(0, manifest.extents_used)], (0, 0));
    }
    // What is written from here on is of a present format; the number must say so even before the first save.
    manifest.set_format();
    Ok(manifest)
}

impl MemoryManifest {
    /// Test-only: a copy whose contents are one line and its checksum, without a tail.
    #[doc(hidden)]
    #[must_use]
    pub fn compacted(&self) -> Self {
        let compact = |bytes: Vec<u8>| decode(&bytes).ok().and_then(|manifest| encode(&manifest).ok());
        self.to_bytes().and_then(compact).map_or_else(Self::default, Self::from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::{LogMark, Lsn};

    #[test]
    fn a_manifest_reads_back_and_damage_is_noticed() {
        let manifest = Manifest {
            file_bytes: None,
            format: MANIFEST_FORMAT_RING,
            store: "s".into(),
            page_bytes: 16384,
            generation: 9,
            epoch: 3,
            opened: 3,
            closed: 2,
            ssd: Some("x".into()),
            ssd_at: Some("/dev/x".into()),
            ssd_pages: Some(OnlyCopies { redo_from: Some(5), runs: vec![(1, 2, 3)], coarse: false }),
            loss: None,
            losses: 4,
            ssd_redo_from: Some(6),
            log: Some(LogRecord::from(LogMark {
                id: u64::MAX,
                generation: 7 << 32,
                end: Lsn(9),
                from: Lsn(8),
                restored: true,
            })),
            costs_ms: None,
            backups: vec!["b".into()],
            unverified: Some(UnverifiedRecord { hdd: true, ssd: false, homes: vec![(1, 2, 3)] }),
            next_space: 2,
            extents_at: Some(33 << 20),
            ring_on_hdd: Some(RingOnHdd { at: 1 << 20, pages: 256 }),
            extents_used: 5,
            extents_free: vec![(1, 1)],
            unformatted: vec![(2, 1)],
            spaces: vec![SpaceRecord {
                id: 1,
                name: "stock".into(),
                pages: 9,
                runs: vec![(0, 1), (2, 3)],
                free: PageRuns::from_iter([2, 3, 7]),
                reserved_extents: 3,
                dropping: false,
            }],
        };
        let bytes = encode(&manifest).unwrap();
        assert_eq!(decode(&bytes).unwrap(), manifest);
        for at in [0, 20, bytes.len() - 3] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_err());
        }
        assert!(decode(&bytes[..10]).is_err());
        // Only the versions that know of free pages beyond the end of a space may open it then.
        for (pages, format) in [(8, MANIFEST_FORMAT_RING), (7, MANIFEST_FORMAT)] {
            let mut shrunk = manifest.clone();
            shrunk.spaces[0].pages = pages;
            shrunk.set_format();
            assert_eq!((decode(&encode(&shrunk).unwrap()).unwrap(), shrunk.format), (shrunk, format));
        }
        // No manifest has the number of the preamble, and a later version's is refused.
        for format in [MANIFEST_FORMAT_PREAMBLE, MANIFEST_FORMAT + 1] {
            let other = encode(&Manifest { format, ..manifest.clone() }).unwrap();
            assert!(matches!(decode(&other), Err(OpenError::Format { found, .. }) if found == format));
        }
        for at in [0, 33 << 20, u64::MAX] {
            let mut overlapping = manifest.clone();
            overlapping.ring_on_hdd = Some(RingOnHdd { at, pages: 256 });
            assert!(decode(&encode(&overlapping).unwrap()).is_err(), "a ring at {at}");
        }
    }

    #[test]
    fn a_file_that_was_cut_is_refused_wherever_its_records_end() {
        let manifest = Manifest::new("s".into(), PageSize::MIN);
        let size = 64 << 10;
        let mut bytes = encode(&Manifest { file_bytes: Some(size as u64), ..manifest.clone() }).unwrap();
        let contents = bytes.len();
        bytes.resize(size, b'\n');
        assert_eq!(decode(&bytes).unwrap(), manifest);
        bytes.push(b'\n');
        assert_eq!(decode(&bytes).unwrap(), manifest, "a file may be longer");
        for len in [contents, contents + 1, tail::BLOCK, 5 * tail::BLOCK, size - 1] {
            let error = decode(&bytes[..len]).unwrap_err().to_string();
            assert!(error.contains("it was cut"), "{len}: {error}");
        }
    }

    #[test]
    fn a_manifest_without_a_tail_or_free_pages_still_reads() {
        let json = concat!(
            r#"{"format":2,"store":"s","page_bytes":4096,"generation":7,"epoch":2,"opened":2,"closed":1,"#,
            r#""ssd":null,"ssd_pages":null,"loss":null,"costs_ms":null,"next_space":2,"extents_used":2,"#,
            r#""leftovers_to":0,"extents_free":[],"#,
            r#""spaces":[{"id":1,"name":"a","pages":70,"runs":[[0,2]],"dropping":false}]}"#,
        );
        let mut bytes = format!("{json}\ncrc32c 01234567\n").into_bytes();
        assert!(decode(&bytes).is_err());
        bytes = tail::sealed(json.as_bytes(), 0);
        bytes.resize(64 << 10, b'\n');
        let mut expected = Manifest::new("s".into(), PageSize::MIN);
        (expected.generation, expected.epoch, expected.opened, expected.closed) = (7, 2, 2, 1);
        (expected.next_space, expected.extents_used) = (2, 2);
        expected.unformatted = vec![(0, 2)];
        expected.add_space(1, "a");
        (expected.spaces[0].pages, expected.spaces[0].runs) = (70, vec![(0, 2)]);
        assert_eq!(decode(&bytes).unwrap(), expected);
    }

    /// A store that was opened as often as possible, with a space of 128 pages in extents 0 and 2; extent 1
    /// is free.
    fn at_its_limits() -> Manifest {
        let mut manifest = Manifest::new("s".into(), PageSize::MIN);
        manifest.epoch = Stamp::EPOCHS - 2;
        (manifest.opened, manifest.closed) = (manifest.epoch, manifest.epoch);
        (manifest.next_space, manifest.extents_used) = (2, 3);
        manifest.extents_free = vec![(1, 1)];
        manifest.add_space(1, "a");
        manifest.spaces[0].runs = vec![(0, 1), (2, 1)];
        manifest.spaces[0].pages = 2 * EXTENT_PAGES;
        manifest
    }

    #[test]
    fn impossible_numbers_are_refused_and_the_largest_valid_ones_are_not() {
        assert_eq!(at_its_limits().check(), Ok(()));
        type Edit = fn(&mut Manifest);
        let changes: [(&str, Edit); 14] = [
            ("no epoch is left", |m| m.epoch += 1),
            ("opened before its epoch", |m| m.opened += 1),
            ("closed before it was opened", |m| m.closed += 1),
            ("too many extents", |m| m.extents_used = EXTENTS_MAX + 1),
            ("a space id not yet assigned", |m| m.spaces[0].id = 2),
            ("one id twice", |m| m.add_space(1, "b")),
            ("one name twice", |m| {
                m.next_space = 3;
                m.add_space(2, "a");
            }),
            ("a page without room", |m| m.spaces[0].pages += 1),
            ("a free page beyond the end", |m| m.spaces[0].free = PageRuns::from_iter([2 * EXTENT_PAGES])),
            ("an extent beyond the volume", |m| m.spaces[0].runs[1].0 = 3),
            ("a free extent beyond the volume", |m| m.extents_free = vec![(3, 1)]),
            ("an extent used twice", |m| m.extents_free = vec![(2, 1)]),
            ("a run without end", |m| m.extents_free = vec![(1, u64::MAX)]),
            ("a page in a hole that is not free", |m| m.spaces[0].runs[1] = (HOLE, 1)),
        ];
        for (what, change) in changes {
            let mut manifest = at_its_limits();
            change(&mut manifest);
            assert!(manifest.check().is_err(), "{what}");
        }
        let full = Manifest { extents_used: EXTENTS_MAX, ..at_its_limits() };
        assert_eq!(full.check(), Ok(()));
        let mut holed = at_its_limits();
        holed.spaces[0].runs[1] = (HOLE, 1);
        holed.spaces[0].free = (EXTENT_PAGES..2 * EXTENT_PAGES).collect();
        assert_eq!(holed.check(), Ok(()), "free pages need no room");
        let mut dropped = at_its_limits();
        dropped.next_space = 3;
        dropped.spaces[0].dropping = true;
        dropped.add_space(2, "a");
        assert_eq!(dropped.check(), Ok(()), "the name of a space being dropped is free");
    }
}
