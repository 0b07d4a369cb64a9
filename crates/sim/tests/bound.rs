//! The static placement of a run's own pages, checked by hand.

use pagetier_policy::{Costs, PageId, SpaceId};
use pagetier_sim::{Accesses, Reference, Use};

const COSTS: Costs = Costs { hdd_read_ms: 70.0, hdd_write_ms: 50.0, ssd_read_ms: 1.0, ssd_write_ms: 3.0 };

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Builds accesses with a transaction per string: `r1 w2 c3` reads page 1, writes page 2 and creates page 3.
fn accesses(transactions: &[&str]) -> Accesses {
    let mut accesses = Accesses::default();
    for transaction in transactions {
        accesses.begin();
        for word in transaction.split(' ') {
            let page = p(word[1..].parse().expect(word));
            let used = match &word[..1] {
                "r" => Use::Read,
                "w" => Use::Write,
                _ => Use::Create,
            };
            accesses.add(Reference { page, used, sequential: false });
        }
    }
    accesses
}

#[test]
fn the_dearest_pages_are_kept_off_the_disk() {
    // Page 1: three reads; page 2: two reads and two writes; page 3: one read.
    let run = accesses(&["r1", "r1 w2", "r1 w2", "r3"]);
    // Pages 2 (240 ms on the disk) and 1 (210 ms) are kept, page 2 in memory: on the SSD it would cost 8 ms,
    // and page 1 costs 3 ms there.
    let bound = run.write_back(1, 1, &COSTS);
    assert_eq!((bound.hdd_accesses, bound.hdd_reads, bound.cost_ms), (1, 1, 70.0 + 3.0));
    let bound = run.write_back(0, 1, &COSTS);
    assert_eq!((bound.hdd_accesses, bound.hdd_reads, bound.cost_ms), (4, 4, 280.0 + 8.0));
    assert_eq!(run.write_back(9, 9, &COSTS).hdd_accesses, 0);
}

#[test]
fn a_transaction_reads_and_writes_a_page_once() {
    let run = accesses(&["r1 w1 r1 w1", "c2 w2 r2"]);
    let bound = run.write_back(0, 0, &COSTS);
    // One read and one write of page 1, one write of page 2, which did not exist before.
    assert_eq!((bound.hdd_accesses, bound.hdd_reads), (3, 1));
}

#[test]
fn memory_that_is_written_through_keeps_no_writes_off_the_disk() {
    let run = accesses(&["w1", "w1", "r2"]);
    let bound = run.write_through(1, 0, &COSTS);
    // Page 1 in memory saves its two reads; its two writes and the read of page 2 remain.
    assert_eq!((bound.hdd_accesses, bound.hdd_reads, bound.cost_ms), (3, 1, 170.0));
    assert_eq!(run.write_back(1, 0, &COSTS).hdd_accesses, 1);
}

#[test]
fn what_was_known_before_may_be_wrong() {
    let (before, run) = (accesses(&["r1", "r1", "r2"]), accesses(&["r2", "r2", "r3"]));
    // Page 1 is kept, but is not used any more.
    assert_eq!(run.write_back_by(&before, 1, 0, &COSTS).hdd_accesses, 3);
    assert_eq!(run.write_back(1, 0, &COSTS).hdd_accesses, 1);
}
