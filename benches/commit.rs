//! What does a commit of 8 pages of 4 KiB cost without a log? `cargo bench --bench commit [-- --quick]`.
//!
//! A commit changes 8 random pages in memory and waits for `sync`, as engines do that were not written for
//! the store (redb, SQLite). The limit is a plain file: `pwrite` of the same pages, and `fdatasync`. All ways
//! take turns in each round; the figures are per commit, and medians of the rounds. The goal is 0.85 of the
//! file's commits where storage is fast.
//!
//! | column | meaning |
//! | --- | --- |
//! | of the file | commits a second, to those of the plain file in the same round |
//! | CPU, switches | time in user and system mode, and switches, of all threads of the process |
//! | writes, flushes | operations of HDD and SSD (`PageStore::stats`) |
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name folders; without them the bench uses files under `target/`.

mod common;

use common::report::Report;
use common::target::Pair;
use common::{Length, median};
use pagetier::blocking::PageStore;
use pagetier::{PageId, PageSize, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, read_dir, read_to_string};
use std::os::unix::fs::FileExt;
use std::time::Instant;

const PAGE_BYTES: u64 = 4096;
const PAGES: u32 = 8192;
const CHANGED_PAGES: u32 = 2048;

/// The ways, with the sizes of SSD (in MiB) and ring (in pages) where they are not the default.
const WAYS: [(&str, u64, Option<u32>); 5] = [
    ("plain file", 0, None),
    ("SSD", 64, None),
    ("SSD, full", 24, None),
    ("HDD alone, with the ring", 0, None),
    ("HDD alone, without", 0, Some(0)),
];

enum Way {
    File(File),
    Store(Box<PageStore>, SpaceId),
}

/// Seconds, CPU seconds, switches of living threads, writes, flushes: so far, or per commit.
type Figures = [f64; 5];

fn main() {
    let pair = Pair::selected();
    let mut report = Report::new("commit", &pair.name(), &[&pair.hdd.about, &pair.ssd.about]);
    let (rounds, commits) = Length::selected().pick((1, 20), (3, 200), (9, 500));
    let mut figures: [Vec<Figures>; WAYS.len()] = Default::default();
    let mut ways: Vec<Way> = (0..WAYS.len()).map(|way| open(&pair, way)).collect();
    for round in 0..=rounds {
        for (way, figures) in ways.iter_mut().zip(&mut figures) {
            let measured = commit(way, round, commits);
            figures.extend((round > 0).then_some(measured));
        }
    }
    report.line(format_args!("\n{commits} commits in each of {rounds} rounds."));
    report.head(&["what", "us", "of the file", "CPU, us", "switches", "writes", "flushes"]);
    for (way, own) in figures.iter().enumerate() {
        let [s, cpu, switches, writes, flushes] = std::array::from_fn(|at| median(own.iter().map(|f| f[at])));
        let ratio = median(own.iter().zip(&figures[0]).map(|(own, file)| file[0] / own[0]));
        let (name, us, cpu) = (WAYS[way].0, s * 1e6, cpu * 1e6);
        report.line(format_args!(
            "| {name} | {us:.0} | {ratio:.2} | {cpu:.0} | {switches:.1} | {writes:.2} | {flushes:.2} |"
        ));
    }
    report.finish();
}

fn open(pair: &Pair, way: usize) -> Way {
    let (_, ssd_mib, ring) = WAYS[way];
    let folder = if ssd_mib > 0 { pair.ssd.store_folder() } else { pair.hdd.store_folder() }.keep();
    if way == 0 {
        let file = File::create_new(folder.join("plain")).expect("a file");
        file.write_all_at(&vec![1; (u64::from(PAGES) * PAGE_BYTES) as usize], 0).expect("written");
        return Way::File(file);
    }
    let builder = pagetier::PageStore::builder().directory(folder).page_size(PageSize::MIN);
    let builder = builder.hdd(pair.hdd.folder().join(format!("hdd-{way}.vol"))).ssd_bytes(ssd_mib << 20);
    let builder = builder.pool_bytes(2 * u64::from(PAGES) * PAGE_BYTES);
    let builder = ring.into_iter().fold(builder, pagetier::Builder::ring_pages);
    let store = PageStore::open(builder).expect("a store");
    let space = store.block_on(store.spaces().create("pages")).expect("a space");
    (0..PAGES).for_each(|_| drop(store.allocate(space).expect("room")));
    store.sync().expect("synced");
    Way::Store(Box::new(store), space)
}

fn commit(way: &mut Way, seed: u64, commits: u32) -> Figures {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (began, before) = (Instant::now(), used(way));
    for _ in 0..commits {
        let pages: [u32; 8] = std::array::from_fn(|_| rng.random_range(0..CHANGED_PAGES));
        match way {
            Way::File(file) => {
                for page in pages {
                    let image = [rng.random(); PAGE_BYTES as usize];
                    file.write_all_at(&image, u64::from(page) * PAGE_BYTES).expect("written");
                }
                file.sync_data().expect("synced");
            }
            Way::Store(store, space) => {
                for page in pages {
                    store.get_mut(PageId::new(*space, page)).expect("in memory").fill(rng.random());
                }
                store.sync().expect("synced");
            }
        }
    }
    let (took, after) = (began.elapsed().as_secs_f64(), used(way));
    let of = |at: usize| if at == 0 { took } else { after[at] - before[at] };
    std::array::from_fn(|at| of(at) / f64::from(commits))
}

fn used(way: &Way) -> Figures {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let threads = read_dir("/proc/self/task").into_iter().flatten().flatten();
    let said: String =
        threads.filter_map(|thread| read_to_string(thread.path().join("status")).ok()).collect();
    let counts = said.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    let switches: f64 = counts.filter_map(|(_, count)| count.trim().parse::<f64>().ok()).sum();
    let stats = if let Way::Store(store, ..) = way { Some(store.stats()) } else { None };
    let devices = stats.iter().flat_map(|stats| [&stats.hdd_device, &stats.ssd_device]);
    let (writes, flushes) = devices.fold((0, 0), |(writes, flushes), device| {
        (writes + device.totals().write.ops, flushes + device.flush.ops)
    });
    [0.0, cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9, switches, writes as f64, flushes as f64]
}
