//! Tests of the log alone: what survives a power cut at any byte, and what truncation keeps.

mod archive;
mod crowded;
mod disk_space;
mod engine;
mod faults;
mod files;
mod full;
mod gone;
mod limits;
mod moments;
mod shelf;
mod sim;
mod spares;
mod stalls;
mod truncation;

use crate::log::segments::FIRST_LSN;
use crate::record::{self, Kind, Records};
use crate::recovery::redo::redo;
use crate::{Keep, Media, Wal, WalError, WalOptions};
use pagetier::{Builder, Lsn, MemoryManifest, PageSize, PageStore, device::SharedDevice};
use pagetier_testing::SimDevice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The bytes of a segment's header.
const HEADER: u64 = 32;

const LIMITS: WalOptions = WalOptions { capacity_bytes: 1 << 20, keep: Keep::ForCrash, ssd_log_bytes: None };

/// A segment has 64 KiB, so that a history has several.
const SMALL: WalOptions = WalOptions { capacity_bytes: 64 << 10, keep: Keep::ForCrash, ssd_log_bytes: None };

/// A small store on `devices`: HDD, SSD and ring.
fn builder(manifest: &Arc<MemoryManifest>, devices: [&Arc<SimDevice>; 3]) -> Builder {
    let [hdd, ssd, ring] = devices.map(|device| Arc::clone(device) as SharedDevice);
    PageStore::builder()
        .in_memory(Arc::clone(manifest))
        .hdd(hdd)
        .ssd(ssd)
        .ring_device(ring)
        .page_size(PageSize::MIN)
        .ssd_bytes(64 * 4096)
        .ring_pages(8)
        .exhausted_after(Duration::from_secs(2))
}

/// A log that is in use, as after a store has accepted it.
fn in_use(media: Box<dyn Media>, options: WalOptions) -> Result<Wal, WalError> {
    let wal = Wal::on(media, options)?;
    wal.0.write_out(false)?;
    Ok(wal)
}

fn bodies(wal: &Wal) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for start in wal.segment_starts() {
        let bytes = wal.segment(start).unwrap();
        all.extend(Records::new(start, &bytes).map(|r| (r.lsn, r.body.to_vec())));
    }
    all
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some()).collect();
    files.sort();
    files
}

async fn append_and_flush(wal: &Wal, body: &[u8]) -> Lsn {
    let lsn = wal.append_commit(body).unwrap();
    wal.flush(lsn).await.unwrap();
    lsn
}

#[tokio::test]
async fn a_log_cut_anywhere_keeps_its_whole_records_and_continues() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    for n in 0..5_u8 {
        append_and_flush(&wal, &vec![n; usize::from(n) * 10]).await;
    }
    let whole = bodies(&wal);
    drop(wal);
    let file = segments(dir.path()).pop().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    for cut in HEADER as usize..bytes.len() {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        let wal = Wal::open(dir.path(), LIMITS).unwrap();
        let kept: Vec<_> =
            whole.iter().filter(|(lsn, _)| lsn - FIRST_LSN + HEADER <= cut as u64).cloned().collect();
        assert_eq!(bodies(&wal), kept);
        append_and_flush(&wal, b"next").await;
        assert_eq!(bodies(&wal).last().unwrap().1, b"next");
        assert_eq!(bodies(&wal).len(), kept.len() + 1);
    }
}

#[tokio::test]
async fn only_unflushed_records_are_lost() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    append_and_flush(&wal, b"kept").await;
    wal.append_commit(b"lost").unwrap();
    drop(wal);
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    assert_eq!(bodies(&wal).into_iter().map(|b| b.1).collect::<Vec<_>>(), [b"kept"]);
}

#[test]
fn every_flipped_bit_ends_the_sound_part_before_its_record() {
    let mut bytes = Vec::new();
    let middle = record::put(&mut bytes, 100, Kind::Commit, |b| b.extend_from_slice(b"first"));
    record::put(&mut bytes, middle, Kind::Applied, |b| b.extend_from_slice(&7_u64.to_le_bytes()));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let sound = usize::from(bit / 8 >= (middle - 100) as usize);
        assert_eq!(Records::new(100, &bad).count(), sound, "bit {bit}");
    }
    assert_eq!(Records::new(100, &bytes).count(), 2);
    assert_eq!(Records::new(101, &bytes).count(), 0, "records of another position");
}

#[tokio::test]
async fn truncation_keeps_every_record_from_the_given_one_on() {
    let dir = pagetier_testing::scratch();
    let file = Wal::open(dir.path(), LIMITS).unwrap();
    for wal in [file, Wal::in_memory(LIMITS)] {
        let mut lsns = Vec::new();
        for n in 0..60_u8 {
            lsns.push(append_and_flush(&wal, &[n; 10_000]).await);
        }
        let before = wal.len_bytes();
        let keep = lsns[40];
        wal.truncate(keep, keep).await.unwrap();
        let kept = bodies(&wal);
        assert!(kept.first().unwrap().0 <= keep.0 && kept.first().unwrap().0 > lsns[20].0);
        assert_eq!(kept.last().unwrap().0, lsns[59].0);
        assert!(wal.len_bytes() < before);
    }
    // The loop has dropped the log on the file.
    let reopened = Wal::open(dir.path(), LIMITS).unwrap();
    assert_eq!(bodies(&reopened).last().unwrap().1, vec![59; 10_000]);
}

#[test]
fn a_log_is_opened_once_at_a_time() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    assert!(matches!(Wal::open(dir.path(), LIMITS), Err(WalError::InUse { .. })));
    drop(wal);
    assert!(Wal::open(dir.path(), LIMITS).is_ok());
}

#[tokio::test]
async fn damage_before_the_last_segment_is_an_error_not_an_end() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    for n in 0..20_u8 {
        append_and_flush(&wal, &[n; 10_000]).await;
    }
    drop(wal);
    let first = segments(dir.path()).remove(0);
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[20_000] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    assert!(matches!(Wal::open(dir.path(), LIMITS), Err(WalError::Damaged { .. })));
}

#[tokio::test]
async fn commits_without_their_applied_come_back_in_order() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(&dir.path().join("wal"), LIMITS).unwrap();
    let [a, b, c] = [b"a", b"b", b"c"].map(|body| wal.append_commit(body).unwrap());
    let applied = wal.append_applied(b);
    assert_eq!(wal.oldest_unfinished(), Some(a));
    wal.flush(applied).await.unwrap();
    drop(wal);
    let wal = Wal::open(&dir.path().join("wal"), LIMITS).unwrap();
    let builder = PageStore::builder().directory(dir.path().join("store")).ssd_bytes(0).pool_bytes(4 << 20);
    let store = builder.open().await.unwrap();
    let redone = redo(&store, &wal).await.unwrap();
    assert_eq!(redone.commits.into_iter().collect::<Vec<_>>(), [(a, b"a".to_vec()), (c, b"c".to_vec())]);
    assert_eq!(wal.oldest_unfinished(), Some(a));
}

#[tokio::test]
async fn many_committers_share_syncs_and_all_become_durable() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32_u8 {
        let wal = wal.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                append_and_flush(&wal, &[n; 8]).await;
            }
        });
    }
    tasks.join_all().await;
    drop(wal);
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    assert_eq!(bodies(&wal).len(), 160);
}

#[tokio::test]
async fn a_large_batch_fills_several_segments() {
    let wal = Wal::in_memory(LIMITS);
    let mut last = Lsn(0);
    for n in 0..40_u8 {
        last = wal.append_commit(&[n; 10_000]).unwrap();
    }
    wal.flush(last).await.unwrap();
    assert!(wal.segment_starts().len() > 3);
    assert_eq!(bodies(&wal).len(), 40);
    wal.truncate(last, last).await.unwrap();
    assert!(wal.len_bytes() < 150_000 && wal.segment_starts().len() == 1);
}

#[tokio::test]
async fn held_log_stays_and_does_not_count() {
    let wal = Wal::in_memory(LIMITS);
    append_and_flush(&wal, b"held").await;
    let (hold, oldest) = wal.hold();
    for n in 0..40_u8 {
        append_and_flush(&wal, &[n; 10_000]).await;
    }
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    assert_eq!((wal.oldest(), bodies(&wal).len()), (oldest, 41));
    assert!(wal.len_bytes() < 150_000, "{}", wal.len_bytes());
    drop(hold);
    wal.truncate(wal.end(), wal.end()).await.unwrap();
    assert!(bodies(&wal).len() < 20);
}

#[tokio::test]
async fn a_segment_of_another_log_is_an_error() {
    let [one, other] = [pagetier_testing::scratch(), pagetier_testing::scratch()];
    for dir in [&one, &other] {
        let wal = Wal::open(dir.path(), LIMITS).unwrap();
        for n in 0..40_u8 {
            append_and_flush(&wal, &[n; 10_000]).await;
        }
    }
    let [last, foreign] = [&one, &other].map(|dir| segments(dir.path()).into_iter().max().unwrap());
    assert!(last.file_name() == foreign.file_name() && segments(one.path()).len() > 1);
    std::fs::copy(foreign, &last).unwrap();
    assert!(matches!(Wal::open(one.path(), LIMITS), Err(WalError::Io { .. })));
}

#[tokio::test]
async fn an_opening_rewrites_the_last_segment_in_place_and_cuts_off_its_torn_tail() {
    use std::os::unix::fs::MetadataExt;
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    append_and_flush(&wal, b"first").await;
    append_and_flush(&wal, b"second").await;
    drop(wal);
    let path = segments(dir.path()).pop().unwrap();
    let (inode, sound) = (std::fs::metadata(&path).unwrap().ino(), std::fs::read(&path).unwrap());
    let torn = [&sound[..], b"torn"].concat();
    std::fs::write(&path, torn).unwrap();

    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    assert_ne!(std::fs::read(&path).unwrap(), sound, "an open only reads");
    wal.0.write_out(false).unwrap();
    // A copy would need space that a full disk does not have.
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(std::fs::read(&path).unwrap(), sound);
    append_and_flush(&wal, b"third").await;
    drop(wal);
    let wal = Wal::open(dir.path(), LIMITS).unwrap();
    let expected = [&b"first"[..], b"second", b"third"];
    assert_eq!(bodies(&wal).into_iter().map(|b| b.1).collect::<Vec<_>>(), expected);
}
