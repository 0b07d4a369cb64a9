//! The file against a model, with crashes; a killed redb, of whose commits none is lost.

use pagetier::{Builder, MemoryManifest, PageSize, PageStore, blocking};
use pagetier_example_redb::file::File;
use pagetier_example_redb::kills::killed;
use pagetier_testing::{SimDevice, SimPower};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

fn open(dir: &Path) -> (Arc<blocking::PageStore>, File) {
    // With the page size that it has, or the default one.
    let builder = PageStore::builder().directory(dir).ssd_bytes(4 << 20).pool_bytes(4 << 20);
    open_as(builder)
}

fn open_as(builder: Builder) -> (Arc<blocking::PageStore>, File) {
    let store = Arc::new(blocking::PageStore::open(builder).unwrap());
    let file = File::open(Arc::clone(&store), "f").unwrap();
    (store, file)
}

fn contents(file: &File) -> Vec<u8> {
    let mut all = vec![1; file.len() as usize + 9];
    let read = file.read_at(&mut all, 0).unwrap();
    assert_eq!(read as u64, file.len());
    all.truncate(read);
    all
}

/// Bytes to write somewhere in the first `within` bytes: any, or one to three of an engine's pages. Some are
/// blank in places.
fn piece(rng: &mut SmallRng, unit: usize, within: u64, bytes_max: usize) -> (u64, Vec<u8>) {
    let (at, bytes) = if rng.random_bool(0.5) {
        (rng.random_range(0..within), rng.random_range(1..bytes_max))
    } else {
        (rng.random_range(0..within / unit as u64) * unit as u64, rng.random_range(1..4) * unit)
    };
    let mut data: Vec<u8> = (0..bytes).map(|_| rng.random_range(1..=255)).collect();
    for _ in 0..rng.random_range(0..4) {
        let from = rng.random_range(0..bytes);
        let blank = rng.random_range(0..200).min(bytes - from);
        data[from..from + blank].fill(0);
    }
    (at, data)
}

/// The store is dropped like a process that ends: nothing is written any more.
fn crash(store: Arc<blocking::PageStore>, file: File) {
    drop(file);
    let left = store.wait_closed();
    let store = Arc::into_inner(store).expect("the file is gone");
    drop(store);
    drop(left);
}

/// Seeds of the model test. `PAGETIER_FILE_SEEDS` sets more.
fn seeds() -> u64 {
    std::env::var("PAGETIER_FILE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3)
}

#[test]
fn the_file_is_the_model_and_a_crash_leaves_what_was_synced() {
    for seed in 0..seeds() {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = SmallRng::seed_from_u64(seed);
        let size = if seed % 2 == 0 { PageSize::MIN } else { PageSize::DEFAULT };
        let builder = PageStore::builder().directory(folder.path()).page_size(size);
        let (mut store, mut file) = open_as(builder.ssd_bytes(4 << 20).pool_bytes(4 << 20));
        let (mut model, mut synced): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut since_sync: Vec<u64> = Vec::new();
        for _ in 0..80 {
            match rng.random_range(0..100) {
                0..60 => {
                    let (at, data) = piece(&mut rng, size.bytes(), 300_000, 30_000);
                    assert_eq!(file.write_at(&data, at).unwrap(), data.len());
                    model.resize(model.len().max(at as usize + data.len()), 0);
                    model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                }
                60..75 => {
                    let len = rng.random_range(0..400_000);
                    file.set_len(len).unwrap();
                    model.resize(len as usize, 0);
                    since_sync.push(len);
                }
                75..90 => {
                    file.sync().unwrap();
                    synced.clone_from(&model);
                    since_sync.clear();
                }
                _ => {
                    // All is synced first, or nothing of what was written later is looked at but the length.
                    if rng.random_bool(0.5) {
                        file.sync().unwrap();
                        synced.clone_from(&model);
                    }
                    let exact = synced == model;
                    crash(store, file);
                    (store, file) = open(folder.path());
                    assert_eq!(file.len(), synced.len() as u64, "seed {seed}: the durable length");
                    if exact {
                        assert!(contents(&file) == synced, "seed {seed}");
                    }
                    // Whatever lay beyond the durable end is gone.
                    file.set_len(synced.len() as u64 + 500_000).unwrap();
                    let all = contents(&file);
                    assert!(all[synced.len()..].iter().all(|byte| *byte == 0), "seed {seed}: stale bytes");
                    file.set_len(synced.len() as u64).unwrap();
                    file.sync().unwrap();
                    model = contents(&file);
                    synced.clone_from(&model);
                }
            }
            assert!(contents(&file) == model, "seed {seed}");
        }
        file.close().unwrap();
    }
}

#[test]
fn bytes_beside_those_that_are_written_stay_through_a_power_cut() {
    const UNIT: usize = 4096;
    for seed in 0..seeds() * 50 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let power = SimPower::new();
        let [hdd, ssd] = [1, 2].map(|no| Arc::new(SimDevice::new("device", 0, seed * 2 + no, &power)));
        let manifest = Arc::new(MemoryManifest::default());
        let open = |hdd: &Arc<SimDevice>, ssd: &Arc<SimDevice>, manifest: &Arc<MemoryManifest>| {
            let builder = PageStore::builder().in_memory(Arc::clone(manifest)).page_size(PageSize::MIN);
            let builder = builder.hdd(Arc::clone(hdd)).ssd(Arc::clone(ssd));
            open_as(builder.ssd_bytes(2 << 20).pool_bytes(2 << 20))
        };
        let (store, file) = open(&hdd, &ssd, &manifest);
        let mut durable = vec![0; 4 * UNIT];
        file.set_len(durable.len() as u64).unwrap();
        file.sync().unwrap();
        power.cut_at(power.ops() + rng.random_range(1..200));
        let (mut now, mut written) = (durable.clone(), vec![false; durable.len()]);
        for round in 0.. {
            let mut has_power = round < 100;
            for _ in 0..rng.random_range(1..4) {
                let (at, mut data) = piece(&mut rng, UNIT, 4 * UNIT as u64, UNIT);
                data.truncate(durable.len() - at as usize);
                now[at as usize..][..data.len()].copy_from_slice(&data);
                written[at as usize..][..data.len()].fill(true);
                // Part of it may be there even if this fails. It takes operations: it reads, or syncs in
                // between.
                has_power &= file.write_at(&data, at).is_ok();
            }
            if !has_power || file.sync().is_err() {
                break;
            }
            (durable, written) = (now.clone(), vec![false; now.len()]);
        }
        power.cut_now();
        let after = SimPower::new();
        let [hdd, ssd] = [hdd, ssd].map(|device| Arc::new(device.after_power_cut(seed, &after)));
        let manifest = Arc::new(manifest.fork());
        crash(store, file);
        let (_store, file) = open(&hdd, &ssd, &manifest);
        let found = contents(&file);
        assert_eq!(found.len(), durable.len());
        for (at, written) in written.iter().enumerate() {
            assert!(
                *written || found[at] == durable[at],
                "seed {seed}: byte {at} was not written: {} in place of {}",
                found[at],
                durable[at]
            );
        }
    }
}

#[test]
fn a_pause_keeps_writers_out_and_other_spaces_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (store, file) = open(&folder.path().join("store"));
    file.write_at(&[7; 50_000], 10).unwrap();
    std::thread::scope(|scope| {
        let (done, written) = channel();
        let file = &file;
        let backup = file.paused(|store| {
            scope.spawn(move || done.send(file.write_at(&[8; 10], 0).unwrap()));
            assert!(written.recv_timeout(Duration::from_millis(100)).is_err(), "a writer entered");
            store.block_on(store.backup(folder.path().join("chain"), pagetier::backup::BackupOptions::new()))
        });
        assert!(backup.unwrap().unwrap().pages > 0);
        assert_eq!(written.recv(), Ok(10));
    });
    let other = store.block_on(store.spaces().create("other")).unwrap();
    store.allocate(other).unwrap()[0] = 1;
    assert_eq!(File::open(store, "other").unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn a_killed_redb_has_every_acknowledged_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetier-example-redb"));
    killed(command.arg("commit").arg(folder.path()), || rng.random_range(1..200));
}
