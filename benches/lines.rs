//! The cache lines that every thread writes: `RUSTFLAGS="--cfg rustix_use_libc" cargo bench --bench lines`.
//!
//! Such a line moves from core to core with each request, which many cores show and two hardly do. So it is
//! counted: the bench runs itself under valgrind's tool lackey, which prints every store. Two threads take
//! turns with pages of their own, so a line that both write is shared by requests that have nothing in
//! common. Lines that one page alone has, such as its frame's, are not among them.
//!
//! | column | meaning |
//! | --- | --- |
//! | locked | instructions of one operation with a lock, such as an atomic addition |
//! | stores | those that write to memory, the stack included |
//! | shared | those of them whose line the other thread writes, too |
//! | lines | how many lines these are; below the table they stand by the functions that write them |
//!
//! HDD and manifest are in memory, and a miss ends on the thread that asked: what a ring adds is not counted.

mod common;

use common::{Length, Workers, has_valgrind, runtime};
use pagetier::{MemoryManifest, PageId, PageSize, PageStore, SpaceId, device::MemoryDevice};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

/// The variable that makes a process perform a case: its name, and the operations of each thread.
const TASK: &str = "PAGETIER_LINES_TASK";
/// Few and small ones: the tool prints each store of filling the store, too.
const PAGES: u32 = 256;
const THREADS: usize = 2;
/// Pages of one `get_many`.
const MANY: usize = 16;
const CASES: [(&str, &str); 4] = [
    ("hit, `get`", "get"),
    ("hit, `get_mut`", "get_mut"),
    ("hit, `get_many`, per page", "get_many"),
    ("miss", "miss"),
];

/// A store to one of these begins the turn of a thread, or ends it.
static MARKS: [AtomicU64; THREADS + 1] = [const { AtomicU64::new(0) }; THREADS + 1];

fn main() {
    if let Ok(task) = std::env::var(TASK) {
        let (case, operations) = task.split_once(' ').expect("a case and a number");
        perform(case, operations.parse().expect("a number"));
        return;
    }
    if !has_valgrind() || !cfg!(rustix_use_libc) {
        println!("needs valgrind, and RUSTFLAGS=\"--cfg rustix_use_libc\"");
        return;
    }
    println!("| operation | locked | stores | shared | lines |\n| --- | ---: | ---: | ---: | ---: |");
    let mut written = String::new();
    for (name, case) in CASES {
        let operations = Length::selected().pick(32, 256, 1024);
        let traced = Traced::of(case, operations);
        let shared = traced.shared();
        let of_all = |stores: u64| stores as f64 / (operations * THREADS as u64) as f64;
        let stores = traced.lines.values().map(Line::stores).sum();
        let to_shared = shared.iter().map(|line| line.stores()).sum();
        let [locked, stores, to_shared] = [traced.locked, stores, to_shared].map(of_all);
        println!("| {name} | {locked:.1} | {stores:.1} | {to_shared:.2} | {} |", shared.len());
        let mut kinds: BTreeMap<BTreeSet<&str>, (usize, u64)> = BTreeMap::new();
        for line in &shared {
            let by = line.by.keys().map(|at| traced.names.get(at).map_or("?", String::as_str)).collect();
            let (lines, stores) = kinds.entry(by).or_default();
            (*lines, *stores) = (*lines + 1, *stores + line.stores());
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, (_, stores))| std::cmp::Reverse(*stores));
        for (by, (lines, stores)) in kinds.into_iter().filter(|(_, (_, stores))| of_all(*stores) >= 0.02) {
            let by = Vec::from_iter(by).join(", ");
            written += &format!("- {name}: {lines} lines, {:.2} stores: {by}\n", of_all(stores));
        }
    }
    println!("\n{written}");
}

/// The stores of both threads to one line.
#[derive(Default)]
struct Line {
    of: [u64; THREADS],
    /// By the address of the instruction.
    by: HashMap<u64, u64>,
}

impl Line {
    fn stores(&self) -> u64 {
        self.of.iter().sum()
    }
}

/// What the turns of a case wrote.
#[derive(Default)]
struct Traced {
    lines: HashMap<u64, Line>,
    locked: u64,
    /// The functions of the instructions that write shared lines.
    names: HashMap<u64, String>,
}

impl Traced {
    fn of(case: &str, operations: u64) -> Self {
        let program = std::env::current_exe().expect("this program's path");
        let mut command = Command::new("valgrind");
        command.args(["--tool=lackey", "--trace-mem=yes"]).arg(&program);
        command.env(TASK, format!("{case} {operations}"));
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("valgrind starts");
        // Known before the first turn.
        let known = Arc::new(OnceLock::new());
        let (trace, place) = (child.stderr.take().expect("a pipe"), Arc::clone(&known));
        let code = std::fs::read(&program).expect("this program");
        let reading =
            std::thread::spawn(move || Self::read(BufReader::with_capacity(1 << 20, trace), &place, &code));
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut said).expect("the marks");
        let words: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("an address")).collect();
        let [marks, base, code, offset] = words[..] else { panic!("{said}") };
        known.set(Place { marks, code, offset }).expect("set once");
        child.stdin.take().expect("a pipe").write_all(b"\n").expect("it waits");
        let mut traced = reading.join().expect("no panic");
        assert!(child.wait().expect("it ends").success(), "{case}");
        let at: Vec<u64> = traced.shared().iter().flat_map(|line| line.by.keys().copied()).collect();
        traced.names = names(&program, &at, base);
        traced
    }

    fn read(trace: impl BufRead, place: &OnceLock<Place>, code: &[u8]) -> Self {
        let (mut traced, mut turn, mut by) = (Self::default(), None, 0);
        for line in trace.split(b'\n').map_while(Result::ok) {
            let Some(Place { marks, code: code_at, offset, .. }) = place.get() else { continue };
            let text = line.get(3..).and_then(|rest| rest.split(|byte| *byte == b',').next());
            let hex = text.and_then(|text| std::str::from_utf8(text).ok());
            let Some(at) = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()) else { continue };
            match line[..2] {
                [b'I', _] => {
                    by = at;
                    let bytes = code.get((at.wrapping_sub(*code_at).wrapping_add(*offset)) as usize..);
                    traced.locked += u64::from(turn.is_some() && bytes.is_some_and(is_locked));
                }
                [_, b'S' | b'M'] => {
                    let mark = at.wrapping_sub(*marks) / 8;
                    if mark <= THREADS as u64 {
                        turn = Some(mark as usize).filter(|thread| *thread < THREADS);
                    } else if let Some(thread) = turn {
                        let line = traced.lines.entry(at / 64).or_default();
                        line.of[thread] += 1;
                        *line.by.entry(by).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        traced
    }

    /// The lines that both threads write, those with the most stores first.
    fn shared(&self) -> Vec<&Line> {
        let mut shared: Vec<_> = self.lines.values().filter(|line| line.of.iter().all(|n| *n > 0)).collect();
        shared.sort_by_key(|line| std::cmp::Reverse(line.stores()));
        shared
    }
}

/// Where a process has the marks, and the program's code, with the offset of the code in the file.
#[derive(Debug)]
struct Place {
    marks: u64,
    code: u64,
    offset: u64,
}

/// Whether the instruction that begins with these bytes locks memory: it has the prefix, or is an exchange.
fn is_locked(bytes: &[u8]) -> bool {
    let prefixes =
        bytes.iter().take_while(|byte| matches!(byte, 0x40..=0x4f | 0x66 | 0xf0 | 0xf2 | 0xf3)).count();
    let exchanges = matches!(bytes[prefixes..], [0x86 | 0x87, operands, ..] if operands < 0xc0);
    exchanges || bytes[..prefixes].contains(&0xf0)
}

/// The functions that have the instructions at these addresses of `program`, which was loaded at `base`.
fn names(program: &std::path::Path, at: &[u64], base: u64) -> HashMap<u64, String> {
    let mut command = Command::new("addr2line");
    command.args(["-f", "-C", "-e"]).arg(program);
    command.args(at.iter().map(|at| format!("{:#x}", at.wrapping_sub(base))));
    let out = command.output().map(|out| out.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&out).into_owned();
    // A name, then its place. Of the name the last two parts tell enough.
    let short = |name: &str| {
        let parts = name.rsplit("::").take(2).collect::<Vec<_>>();
        parts.into_iter().rev().collect::<Vec<_>>().join("::")
    };
    at.iter().copied().zip(text.lines().step_by(2).map(short)).collect()
}

/// Lets the threads take turns: first one that is not counted, in which each gets what it keeps.
fn perform(case: &str, operations: u64) {
    let builder = PageStore::builder().in_memory(Arc::new(MemoryManifest::default())).ssd_bytes(0);
    let pool = if case == "miss" { 384 << 10 } else { 4 << 20 };
    let builder =
        builder.hdd(Arc::new(MemoryDevice::new("hdd", 0))).pool_bytes(pool).page_size(PageSize::MIN);
    let opener = runtime(Workers::One);
    let store = opener.block_on(async {
        let store = builder.open().await.expect("opened");
        let space = store.spaces().create("pages").await.expect("created");
        for _ in 0..PAGES {
            drop(store.allocate(space).await.expect("allocated"));
        }
        store.sync().await.expect("synced");
        store
    });
    std::thread::scope(|scope| {
        let turns: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (turn, turns) = mpsc::channel::<bool>();
                let (end, ended) = mpsc::channel();
                let store = &store;
                scope.spawn(move || {
                    let runtime = runtime(Workers::One);
                    for is_counted in turns {
                        runtime.block_on(work(store, case, operations, thread, is_counted));
                        end.send(()).expect("it waits");
                    }
                });
                (turn, ended)
            })
            .collect();
        for is_counted in [false, true] {
            if is_counted {
                let [base, code, offset] = place();
                println!("{} {base} {code} {offset}", MARKS.as_ptr() as u64);
                std::io::stdout().flush().expect("a pipe");
                std::io::stdin().read_exact(&mut [0]).expect("a byte");
            }
            for (turn, ended) in &turns {
                turn.send(is_counted).expect("it waits");
                ended.recv().expect("it works");
            }
        }
    });
}

/// Where the program was loaded, and its code, with the code's offset in the file.
fn place() -> [u64; 3] {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its memory");
    let program = std::env::current_exe().expect("this program's path");
    let parts: Vec<&str> = maps.lines().filter(|line| line.ends_with(&*program.to_string_lossy())).collect();
    let code = parts.iter().find(|line| line.contains(" r-x")).expect("its code");
    let hex = |line: &str, nth: usize| {
        let word = line.split(['-', ' ']).nth(nth).expect("a word");
        u64::from_str_radix(word, 16).expect("a number")
    };
    [hex(parts[0], 0), hex(code, 0), hex(code, 4)]
}

async fn work(store: &PageStore, case: &str, operations: u64, thread: usize, is_counted: bool) {
    // Neighbours belong to different threads.
    let page = |nth: u64| {
        let no = (nth as u32 * THREADS as u32 + thread as u32) % PAGES;
        PageId::new(SpaceId(1), no)
    };
    if is_counted {
        MARKS[thread].store(1, Ordering::SeqCst);
    }
    if case == "get_many" {
        for first in (0..operations).step_by(MANY) {
            let pages: [PageId; MANY] = std::array::from_fn(|nth| page(first + nth as u64));
            black_box(store.get_many(&pages).await.expect("in memory"));
        }
    } else if case == "get_mut" {
        for nth in 0..operations {
            black_box(store.get_mut(page(nth)).await.expect("in memory"));
        }
    } else {
        for nth in 0..operations {
            black_box(store.get(page(nth)).await.expect("read"));
        }
    }
    if is_counted {
        MARKS[THREADS].store(1, Ordering::SeqCst);
    }
}
