//! The encrypting device conforms, hides what it stores, and serves a store through power cuts.

use pagetier::device::{Device, MemoryDevice, SharedDevice};
use pagetier::{Lsn, MemoryManifest, PageId, PageSize, PageStore, SpaceId};
use pagetier_example_encrypted::{BadKey, KEY_BYTES, encrypted};
use pagetier_testing::conformance::{Growth, check_device};
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;

fn key(seed: u8) -> Vec<u8> {
    (0..KEY_BYTES as u8).map(|at| at.wrapping_mul(7) ^ seed).collect()
}

#[tokio::test]
async fn it_conforms_to_the_contract_of_devices() {
    let base: SharedDevice = Arc::new(MemoryDevice::new("base", 8 << 20));
    check_device(&encrypted(base, &key(1)).unwrap(), Growth::Grows).await;
}

#[test]
fn bad_keys_are_refused() {
    let base = || Arc::new(MemoryDevice::new("base", 8 << 20)) as SharedDevice;
    for bad in [vec![], vec![3; 10], vec![5; KEY_BYTES], key(1)[..63].to_vec()] {
        assert_eq!(encrypted(base(), &bad).err(), Some(BadKey), "{} bytes", bad.len());
    }
}

#[test]
fn the_program_says_in_a_sentence_what_is_wrong_with_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, &key(1)[..32]).unwrap();
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_pagetier-example-encrypted"));
    let out = program.arg(folder.path().join("store")).arg(&file).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    let sentence = "has 32 bytes: a key has 64 bytes, and its halves differ";
    assert_eq!(said.trim_end(), format!("{} {sentence}", file.display()));
}

struct World {
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    manifest: Arc<MemoryManifest>,
}

impl World {
    async fn open(&self, key: &[u8]) -> Result<PageStore, pagetier::OpenError> {
        let device = |base: &Arc<SimDevice>| encrypted(Arc::clone(base) as SharedDevice, key).unwrap();
        let builder = PageStore::builder()
            .in_memory(Arc::clone(&self.manifest))
            .hdd(device(&self.hdd))
            .ssd(device(&self.ssd));
        builder
            .page_size(PageSize::MIN)
            .ssd_bytes(160 * 4096)
            .ring_pages(8)
            .pool_bytes(60 * 4096)
            .open()
            .await
    }

    fn after_power_cut(&self, seed: u64) -> Self {
        let power = SimPower::new();
        Self {
            hdd: Arc::new(self.hdd.after_power_cut(seed, &power)),
            ssd: Arc::new(self.ssd.after_power_cut(seed + 1, &power)),
            manifest: Arc::new(self.manifest.fork()),
        }
    }
}

const SECRET: &[u8; 16] = b"attack at dawn!!";

async fn write(store: &PageStore, space: SpaceId, no: u32, version: u32) {
    let mut page = store.get_or_create(PageId::new(space, no)).await.unwrap();
    page.chunks_exact_mut(16).for_each(|chunk| chunk.copy_from_slice(SECRET));
    page[..4].copy_from_slice(&version.to_le_bytes());
    page.set_lsn(Lsn(version.into()));
}

#[tokio::test(start_paused = true)]
async fn nothing_readable_reaches_the_devices_and_nothing_synced_is_lost_in_power_cuts() {
    for seed in 0..20 {
        let power = SimPower::new();
        let world = World {
            hdd: Arc::new(SimDevice::new("hdd", 0, seed, &power).with_alignment(4096)),
            ssd: Arc::new(SimDevice::new("ssd", 0, seed + 1, &power).with_alignment(4096)),
            manifest: Arc::new(MemoryManifest::default()),
        };
        let store = world.open(&key(1)).await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        for version in 1..4 {
            for no in 0..300 {
                write(&store, space, no, version).await;
            }
            if version < 3 {
                store.sync().await.unwrap();
            }
        }
        for device in [&world.hdd, &world.ssd] {
            let bytes = device.snapshot();
            assert!(bytes.len() > 1 << 19, "{} is almost empty", device.name());
            assert!(!bytes.windows(SECRET.len()).any(|w| w == SECRET), "{} shows the secret", device.name());
            assert!(!bytes.windows(6).any(|w| w == b"PGTIER"), "{} shows a superblock", device.name());
        }
        let later = world.after_power_cut(seed * 3);
        drop(store);
        assert!(later.open(&key(2)).await.is_err(), "another key opens it");
        let store = later.open(&key(1)).await.unwrap();
        for no in 0..300 {
            let page = store.get(PageId::new(space, no)).await.unwrap();
            let version = u32::from_le_bytes(page[..4].try_into().unwrap());
            assert!((2..=3).contains(&version), "seed {seed}: page {no} has version {version}");
            assert!(page[16..].chunks_exact(16).all(|chunk| chunk == SECRET));
        }
        store.close().await.unwrap();
    }
}
