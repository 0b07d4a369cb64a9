//! The write-aware pool policies of Ou, Jin & Härder, section 2: hand-computed traces, and comparison with a
//! literal model of that section.

use crate::buffer::{Buffer, Done};
use pagetier_policy::{Costs, FramePolicyParams};
use proptest::prelude::*;

fn params(frames: usize) -> FramePolicyParams {
    FramePolicyParams { cluster_pages: 4, ..FramePolicyParams::new(frames, Costs::PAPER) }
}

fn buffer(policy: &str, frames: usize) -> Buffer {
    Buffer::new(params(frames), policy)
}

/// Reads (`5`) and writes (`-5`) pages; returns the evicted ones.
fn run(buffer: &mut Buffer, requests: &[i32]) -> Vec<Option<u32>> {
    requests.iter().map(|&no| buffer.request(no.unsigned_abs(), no < 0).evicted).collect()
}

/// Like [`run`], for requests that all evict.
fn evictions(buffer: &mut Buffer, requests: &[i32]) -> Vec<u32> {
    run(buffer, requests).into_iter().map(|evicted| evicted.expect("the buffer is full")).collect()
}

#[test]
fn cflru_takes_the_clean_pages_of_its_window_first() {
    // Park's example: a window of four, in LRU order: 1 dirty, 2 clean, 3 dirty, 4 clean.
    let mut b = buffer("cflru-50", 8);
    run(&mut b, &[-1, 2, -3, 4, 5, 6, 7, 8]);
    assert_eq!(b.order(), [2, 4, 1, 3, 5, 6, 7, 8]);
    // Each new page pushes the LRU page of the working region into the window: 5, 6, 7 are clean too.
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
    // So does a use that makes a page dirty; 2 would be the next victim.
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
    // Both are cold: they are evicted in turn, and written.
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
    // 1 lies before 2 in the list: it was passed over and is cold, before 5.
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
    // 3 is evicted. 1 and 2, which lie before it, become cold; 4 lies behind it. 2 is cold-clean at the MRU
    // end, before 5.
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
    // Blocks of four pages. In the window of 12, block 0 has 0, 1, 2; block 1 has 4, 5; seven others have one
    // page each.
    let mut b = buffer("ref-60", 20);
    let window = [40, 0, 44, 4, 1, 48, 5, 52, 56, 2, 60, 64];
    run(&mut b, &window);
    run(&mut b, &[100, 104, 108, 112, 116, 120, 124, 128]);
    // Eight victim blocks: 0, 1, and the six blocks of one page that entered first.
    assert_eq!(b.order()[..12], [40, 0, 44, 4, 1, 48, 5, 52, 56, 2, 60, 64]);
    let mut small = buffer("ref-50", 24);
    run(&mut small, &[10, 14, 18, 22, 26, 30, 34, 38, 42, 0, 46, 1]);
    run(&mut small, &[100, 104, 108, 112, 116, 120, 124, 128, 132, 136, 140, 144]);
    // Block 0 is a victim block although its pages entered late. The blocks of 38, 42 and 46 are not: they
    // wait for the next search.
    assert_eq!(small.order()[..12], [10, 14, 18, 22, 26, 30, 34, 0, 1, 38, 42, 46]);
    assert_eq!(evictions(&mut small, &[200, 204, 208]), [10, 14, 18]);
    // A used page leaves the window; the page that enters instead is of no victim block.
    run(&mut small, &[0]);
    assert_eq!(small.order()[..6], [22, 26, 30, 34, 1, 38]);
    // 2 is of victim block 0, but enters the working region: 1 still goes before 38.
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

/// A page of the buffer. Policies without hot and cold pages ignore `hot`.
#[derive(Clone, Copy)]
struct Page {
    no: u32,
    dirty: bool,
    hot: bool,
}

/// The wording of section 2, over an LRU list that is searched.
trait Restated {
    /// Whether a page is hot when it is loaded.
    const LOADED_HOT: bool = false;

    /// The pages, least recently used first.
    fn list(&mut self) -> &mut Vec<Page>;

    /// Takes out the victim of a full buffer, and returns it.
    fn victim(&mut self) -> Page;

    /// Takes a page out.
    fn take_out(&mut self, at: usize) -> Page {
        self.list().remove(at)
    }

    /// Uses the page, if it is buffered; returns whether it was.
    fn hit(&mut self, no: u32, write: bool) -> bool {
        let Some(at) = self.list().iter().position(|page| page.no == no) else { return false };
        let Page { dirty, .. } = self.take_out(at);
        self.list().push(Page { no, dirty: dirty || write, hot: true });
        true
    }

    fn load(&mut self, no: u32, write: bool) {
        self.list().push(Page { no, dirty: write, hot: Self::LOADED_HOT });
    }
}

/// CFLRU.
struct CleanFirst {
    list: Vec<Page>,
    window: usize,
}

impl Restated for CleanFirst {
    fn list(&mut self) -> &mut Vec<Page> {
        &mut self.list
    }

    fn victim(&mut self) -> Page {
        let clean = self.list.iter().take(self.window).position(|page| !page.dirty);
        self.list.remove(clean.unwrap_or(0))
    }
}

/// LRU-WSR.
#[derive(Default)]
struct SecondChance {
    list: Vec<Page>,
}

impl Restated for SecondChance {
    const LOADED_HOT: bool = true;

    fn list(&mut self) -> &mut Vec<Page> {
        &mut self.list
    }

    fn victim(&mut self) -> Page {
        loop {
            let page = self.list.remove(0);
            if !page.dirty || !page.hot {
                return page;
            }
            self.list.push(Page { hot: false, ..page });
        }
    }
}

/// CCF-LRU.
#[derive(Default)]
struct ColdCleanFirst {
    list: Vec<Page>,
}

impl Restated for ColdCleanFirst {
    fn list(&mut self) -> &mut Vec<Page> {
        &mut self.list
    }

    fn victim(&mut self) -> Page {
        // Loops at most twice: a search that finds no cold page makes all pages cold.
        loop {
            if let Some(cold_clean) = self.list.iter().position(|page| !page.dirty && !page.hot) {
                return self.list.remove(cold_clean);
            }
            for _ in 0..self.list.len() {
                let page = self.list.remove(0);
                if !page.hot {
                    return page;
                }
                self.list.push(Page { hot: false, ..page });
            }
        }
    }
}

/// REF: the last `working` pages of the list are the working region; `blocks` are the victim blocks.
struct VictimBlocks {
    list: Vec<Page>,
    working: usize,
    blocks: Vec<u32>,
}

impl VictimBlocks {
    fn window(&self) -> &[Page] {
        &self.list[..self.list.len().saturating_sub(self.working)]
    }

    /// The victim blocks to choose: most pages in the window first; among equals, by the first page in it.
    fn search(&self) -> Vec<u32> {
        let mut blocks: Vec<(usize, usize, u32)> = Vec::new();
        for (at, &Page { no, .. }) in self.window().iter().enumerate() {
            match blocks.iter_mut().find(|b| b.2 == no / 4) {
                Some(block) => block.0 += 1,
                None => blocks.push((1, at, no / 4)),
            }
        }
        blocks.sort_by_key(|&(pages, first, _)| (usize::MAX - pages, first));
        blocks.into_iter().take(8).map(|b| b.2).collect()
    }
}

impl Restated for VictimBlocks {
    fn list(&mut self) -> &mut Vec<Page> {
        &mut self.list
    }

    fn victim(&mut self) -> Page {
        if self.blocks.is_empty() {
            self.blocks = self.search();
        }
        let found = self.window().iter().position(|page| self.blocks.contains(&(page.no / 4))).unwrap();
        self.take_out(found)
    }

    /// Takes a page out; a block without a page in the window ceases to be a victim block.
    fn take_out(&mut self, at: usize) -> Page {
        let in_window = at < self.window().len();
        let page = self.list.remove(at);
        if in_window {
            // The page leaves before another enters the window.
            let mut blocks = std::mem::take(&mut self.blocks);
            blocks.retain(|block| self.window().iter().any(|page| page.no / 4 == *block));
            self.blocks = blocks;
        }
        page
    }
}

const FRAMES: usize = 24;

/// Requests to pages of a space, skewed towards the lower numbers.
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
        if !restated.hit(no, write) {
            if restated.list().len() == FRAMES {
                let victim = restated.victim();
                expected.evicted = Some(victim.no);
                expected.written.extend(victim.dirty.then_some(victim.no));
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
