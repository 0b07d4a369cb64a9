//! The write-aware pool policies of Ou, Jin & Härder, section 2, by hand and beside the obvious restatement of what that section says.

mod buffer;

use buffer::{Buffer, Done};
use pagetier_policy::{Costs, PoolPolicyParams};
use proptest::prelude::*;

fn params(frames: usize) -> PoolPolicyParams {
    PoolPolicyParams { cluster_pages: 4, ..PoolPolicyParams::new(frames, Costs::PAPER) }
}

fn buffer(policy: &str, frames: usize) -> Buffer {
    Buffer::new(params(frames), policy)
}

/// Reads (`5`) and writes (`-5`) pages; the evicted ones.
fn run(buffer: &mut Buffer, requests: &[i32]) -> Vec<Option<u32>> {
    requests.iter().map(|&no| buffer.request(no.unsigned_abs(), no < 0).evicted).collect()
}

/// As [`run`], when every request evicts.
fn evictions(buffer: &mut Buffer, requests: &[i32]) -> Vec<u32> {
    run(buffer, requests).into_iter().map(|evicted| evicted.expect("the buffer is full")).collect()
}

#[test]
fn cflru_takes_the_clean_pages_of_its_window_first() {
    // Park's example: a window of four, in LRU order: 1 dirty, 2 clean, 3 dirty, 4 clean.
    let mut b = buffer("cflru-50", 8);
    run(&mut b, &[-1, 2, -3, 4, 5, 6, 7, 8]);
    assert_eq!(b.order(), [2, 4, 1, 3, 5, 6, 7, 8]);
    // Each page that comes pushes the LRU one of the working region into the window: 5, 6, 7 are clean too.
    assert_eq!(evictions(&mut b, &[9, 10, 11]), [2, 4, 5]);
}

#[test]
fn cflru_writes_the_lru_page_when_its_window_is_all_dirty() {
    let mut b = buffer("cflru-50", 4);
    run(&mut b, &[-1, -2, -3, 4]);
    assert_eq!(b.request(5, false), Done { written: vec![1], evicted: Some(1) });
    // 4 is clean but outside of the window until 6 pushes it in.
    assert_eq!(b.request(6, false), Done { written: vec![2], evicted: Some(2) });
    assert_eq!(b.request(7, false), Done { written: vec![], evicted: Some(4) });
}

#[test]
fn a_page_used_leaves_the_window_of_cflru() {
    let mut b = buffer("cflru-50", 4);
    run(&mut b, &[1, 2, 3, 4, 1]);
    assert_eq!(b.order(), [2, 3, 4, 1]);
    // A use that makes it dirty, too; 2 would be next.
    run(&mut b, &[-2]);
    assert_eq!(b.order(), [3, 4, 1, 2]);
}

#[test]
fn a_recoverability_write_puts_a_page_at_the_midpoint_of_the_clean_ones() {
    let mut b = buffer("cflru-100", 10);
    run(&mut b, &[-1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    b.flush(1);
    // Eight clean pages in the window, 2 to 9: three are old, and 4 is the midpoint.
    assert_eq!(b.order(), [2, 3, 1, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn lru_wsr_passes_a_hot_dirty_page_once() {
    let mut b = buffer("lru-wsr", 4);
    run(&mut b, &[-1, -2, 3, 4]);
    // 1 and 2 are dirty and hot: marked cold and moved to the MRU end; 3 is clean.
    assert_eq!(run(&mut b, &[5]), [Some(3)]);
    assert_eq!(b.order(), [4, 1, 2, 5]);
    // Cold now, they go when it is their turn, and are written.
    assert_eq!(b.request(6, false), Done { written: vec![], evicted: Some(4) });
    assert_eq!(b.request(7, false), Done { written: vec![1], evicted: Some(1) });
}

#[test]
fn lru_wsr_finds_a_page_cold_when_it_has_passed_all() {
    let mut b = buffer("lru-wsr", 3);
    run(&mut b, &[-1, -2, -3]);
    assert_eq!(b.request(4, false), Done { written: vec![1], evicted: Some(1) });
    // The search passed 2 and 3 as well: they are cold.
    assert_eq!(b.order(), [2, 3, 4]);
    // A use makes 2 hot again.
    run(&mut b, &[2]);
    assert_eq!(b.order(), [3, 4, 2]);
    assert_eq!(evictions(&mut b, &[5, 6, 7]), [3, 4, 5]);
}

#[test]
fn a_page_flushed_is_clean_for_lru_wsr() {
    let mut b = buffer("lru-wsr", 4);
    run(&mut b, &[-1, -2, 3, 4]);
    b.flush(2);
    assert_eq!(b.order(), [2, 3, 4, 1]);
    assert_eq!(b.request(5, false), Done { written: vec![], evicted: Some(2) });
    // 1 lies before it in the list: passed over, it is cold, and before 5.
    assert_eq!(b.order(), [3, 4, 1, 5]);
}

#[test]
fn ccf_lru_takes_the_classes_in_order() {
    let mut b = buffer("ccf-lru", 8);
    // 1 and 2 hot-dirty, 3 and 4 hot-clean, 5 and 6 cold-dirty, 7 and 8 cold-clean.
    run(&mut b, &[-1, -2, 3, 4, -5, -6, 7, 8, 1, 2, 3, 4]);
    assert_eq!(b.order(), [7, 8, 5, 6, 3, 4, 1, 2]);
    assert_eq!(evictions(&mut b, &[9]), [7]);
}

#[test]
fn ccf_lru_gives_second_chances_to_those_it_passes() {
    let mut b = buffer("ccf-lru", 4);
    // In the order of the list: 1 hot-dirty, 2 hot-clean, 3 cold-dirty, 4 hot-clean.
    run(&mut b, &[-1, 2, 1, 2, -3, 4, 4]);
    assert_eq!(b.order(), [3, 2, 4, 1]);
    // 3 goes, and 1 and 2, which lie before it, are cold from now on; 4 lies behind it. 2 is cold-clean at the MRU end, before 5.
    assert_eq!(b.request(5, false), Done { written: vec![3], evicted: Some(3) });
    assert_eq!(b.order(), [2, 5, 1, 4]);
}

#[test]
fn ccf_lru_cools_all_when_all_are_hot() {
    let mut b = buffer("ccf-lru", 3);
    run(&mut b, &[-1, 2, 3, 1, 2, 3]);
    assert_eq!(b.order(), [2, 3, 1]);
    assert_eq!(run(&mut b, &[4]), [Some(2)]);
    // 3 is cold-clean, 1 cold-dirty, 4 new.
    assert_eq!(b.order(), [3, 4, 1]);
}

#[test]
fn ref_takes_the_pages_of_its_victim_blocks_in_lru_order() {
    // Blocks of four pages. In the window of 12: block 0 has 0, 1, 2; block 1 has 4, 5; ten others have one or two.
    let mut b = buffer("ref-60", 20);
    let window = [40, 0, 44, 4, 1, 48, 5, 52, 56, 2, 60, 64];
    run(&mut b, &window);
    run(&mut b, &[100, 104, 108, 112, 116, 120, 124, 128]);
    // Eight victim blocks: 0 and 1, and of those with one page the six that entered first.
    assert_eq!(b.order()[..12], [40, 0, 44, 4, 1, 48, 5, 52, 56, 2, 60, 64]);
    let mut small = buffer("ref-50", 24);
    run(&mut small, &[10, 14, 18, 22, 26, 30, 34, 38, 42, 0, 46, 1]);
    run(&mut small, &[100, 104, 108, 112, 116, 120, 124, 128, 132, 136, 140, 144]);
    // Block 0 is a victim block though its pages are the last, 42 and 46 are not: they wait for the next search.
    assert_eq!(small.order()[..12], [10, 14, 18, 22, 26, 30, 34, 0, 1, 38, 42, 46]);
    assert_eq!(evictions(&mut small, &[200, 204, 208]), [10, 14, 18]);
    // A page used leaves the window, and what comes in instead is of no victim block.
    run(&mut small, &[0]);
    assert_eq!(small.order()[..6], [22, 26, 30, 34, 1, 38]);
    // 2 comes in later, and is of one: it goes before 38, which came long ago.
    run(&mut small, &[2]);
    assert_eq!(small.order()[..5], [26, 30, 34, 1, 38]);
    run(&mut small, &[300, 304, 308, 312, 316, 320, 324, 328, 332, 336]);
    assert!(!small.order().contains(&1));
}

#[test]
fn ref_does_not_tell_clean_from_dirty() {
    let mut b = buffer("ref-50", 4);
    run(&mut b, &[-1, 2, 9, 13]);
    assert_eq!(b.request(17, false), Done { written: vec![1], evicted: Some(1) });
    assert_eq!(b.request(21, false), Done { written: vec![], evicted: Some(2) });
}

/// What section 2 says, word by word, over lists that are searched.
trait Restated {
    /// The request hits.
    fn hit(&mut self, no: u32, write: bool);
    /// The victim of a full buffer, already taken out, and whether it is dirty.
    fn victim(&mut self) -> (u32, bool);
    /// The page was loaded.
    fn load(&mut self, no: u32, write: bool);
    fn contains(&self, no: u32) -> bool;
    fn len(&self) -> usize;
}

/// CFLRU: an LRU list of pages, whether dirty.
struct CleanFirst {
    list: Vec<(u32, bool)>,
    window: usize,
}

impl Restated for CleanFirst {
    fn hit(&mut self, no: u32, write: bool) {
        let at = self.list.iter().position(|p| p.0 == no).unwrap();
        let (_, dirty) = self.list.remove(at);
        self.list.push((no, dirty || write));
    }

    fn victim(&mut self) -> (u32, bool) {
        let clean = self.list.iter().take(self.window).position(|p| !p.1);
        self.list.remove(clean.unwrap_or(0))
    }

    fn load(&mut self, no: u32, write: bool) {
        self.list.push((no, write));
    }

    fn contains(&self, no: u32) -> bool {
        self.list.iter().any(|p| p.0 == no)
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

/// LRU-WSR: an LRU list of pages, whether dirty, whether marked cold.
#[derive(Default)]
struct SecondChance {
    list: Vec<(u32, bool, bool)>,
}

impl Restated for SecondChance {
    fn hit(&mut self, no: u32, write: bool) {
        let at = self.list.iter().position(|p| p.0 == no).unwrap();
        let (_, dirty, _) = self.list.remove(at);
        self.list.push((no, dirty || write, false));
    }

    fn victim(&mut self) -> (u32, bool) {
        loop {
            let (no, dirty, cold) = self.list.remove(0);
            if !dirty || cold {
                return (no, dirty);
            }
            self.list.push((no, dirty, true));
        }
    }

    fn load(&mut self, no: u32, write: bool) {
        self.list.push((no, write, false));
    }

    fn contains(&self, no: u32) -> bool {
        self.list.iter().any(|p| p.0 == no)
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

/// CCF-LRU: an LRU list of pages, whether dirty, whether hot.
#[derive(Default)]
struct ColdCleanFirst {
    list: Vec<(u32, bool, bool)>,
}

impl Restated for ColdCleanFirst {
    fn hit(&mut self, no: u32, write: bool) {
        let at = self.list.iter().position(|p| p.0 == no).unwrap();
        let (_, dirty, _) = self.list.remove(at);
        self.list.push((no, dirty || write, true));
    }

    fn victim(&mut self) -> (u32, bool) {
        // At most twice: a search that finds no cold page has made all pages cold.
        loop {
            if let Some(cold_clean) = self.list.iter().position(|&(_, dirty, hot)| !dirty && !hot) {
                let (no, dirty, _) = self.list.remove(cold_clean);
                return (no, dirty);
            }
            for _ in 0..self.list.len() {
                let (no, dirty, hot) = self.list.remove(0);
                if !hot {
                    return (no, dirty);
                }
                self.list.push((no, dirty, false));
            }
        }
    }

    fn load(&mut self, no: u32, write: bool) {
        self.list.push((no, write, false));
    }

    fn contains(&self, no: u32) -> bool {
        self.list.iter().any(|p| p.0 == no)
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

/// REF: an LRU list of pages, whether dirty, of which the last are the working region; the victim blocks.
struct VictimBlocks {
    list: Vec<(u32, bool)>,
    working: usize,
    blocks: Vec<u32>,
}

impl VictimBlocks {
    fn window(&self) -> &[(u32, bool)] {
        &self.list[..self.list.len().saturating_sub(self.working)]
    }

    /// Blocks by their pages in the window, most first; then by their first page in it.
    fn search(&self) -> Vec<u32> {
        let mut blocks: Vec<(usize, usize, u32)> = Vec::new();
        for (at, &(no, _)) in self.window().iter().enumerate() {
            match blocks.iter_mut().find(|b| b.2 == no / 4) {
                Some(block) => block.0 += 1,
                None => blocks.push((1, at, no / 4)),
            }
        }
        blocks.sort_by_key(|&(pages, first, _)| (usize::MAX - pages, first));
        blocks.into_iter().take(8).map(|b| b.2).collect()
    }

    /// Takes a page out; a block without a page in the window is no victim block any more.
    fn remove(&mut self, at: usize) -> (u32, bool) {
        let page = self.list.remove(at);
        let mut blocks = std::mem::take(&mut self.blocks);
        // A page taken out of the window has left before another enters it.
        let left = self.window();
        blocks.retain(|block| left.iter().any(|&(no, _)| no / 4 == *block));
        self.blocks = blocks;
        page
    }
}

impl Restated for VictimBlocks {
    fn hit(&mut self, no: u32, write: bool) {
        let at = self.list.iter().position(|p| p.0 == no).unwrap();
        let dirty = if at < self.window().len() { self.remove(at).1 } else { self.list.remove(at).1 };
        self.list.push((no, dirty || write));
    }

    fn victim(&mut self) -> (u32, bool) {
        if self.blocks.is_empty() {
            self.blocks = self.search();
        }
        let found = self.window().iter().position(|p| self.blocks.contains(&(p.0 / 4))).unwrap();
        self.remove(found)
    }

    fn load(&mut self, no: u32, write: bool) {
        self.list.push((no, write));
    }

    fn contains(&self, no: u32) -> bool {
        self.list.iter().any(|p| p.0 == no)
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

const FRAMES: usize = 24;

/// Requests to pages of a space; the lower numbers more often.
fn requests() -> impl Strategy<Value = Vec<(u32, bool)>> {
    let no = prop_oneof![2 => 0..FRAMES as u32, 2 => 0..48u32, 1 => 0..160u32];
    prop::collection::vec((no, prop::bool::weighted(0.4)), 1..500)
}

fn agrees(
    policy: &str,
    mut restated: impl Restated,
    requests: Vec<(u32, bool)>,
) -> Result<(), TestCaseError> {
    let mut buffer = buffer(policy, FRAMES);
    for (no, write) in requests {
        let mut expected = Done::default();
        if restated.contains(no) {
            restated.hit(no, write);
        } else {
            if restated.len() == FRAMES {
                let (victim, dirty) = restated.victim();
                expected.evicted = Some(victim);
                expected.written.extend(dirty.then_some(victim));
            }
            restated.load(no, write);
        }
        prop_assert_eq!(buffer.request(no, write), expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cflru_is_what_is_said_of_it(requests in requests()) {
        agrees("cflru-25", CleanFirst { list: Vec::new(), window: FRAMES / 4 }, requests.clone())?;
        agrees("cflru-75", CleanFirst { list: Vec::new(), window: FRAMES * 3 / 4 }, requests)?;
    }

    #[test]
    fn lru_wsr_is_what_is_said_of_it(requests in requests()) {
        agrees("lru-wsr", SecondChance::default(), requests)?;
    }

    #[test]
    fn ccf_lru_is_what_is_said_of_it(requests in requests()) {
        agrees("ccf-lru", ColdCleanFirst::default(), requests)?;
    }

    #[test]
    fn ref_is_what_is_said_of_it(requests in requests()) {
        agrees("ref", VictimBlocks { list: Vec::new(), working: FRAMES / 2, blocks: Vec::new() }, requests)?;
    }
}
