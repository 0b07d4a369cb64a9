//! A sample of the pages agrees with all pages, within a bound.

use pagetier_ghost::{GhostParams, Ghosts, Sampled, WhatIf};
use pagetier_page::Sampling;
use pagetier_sim::{Reference, Source, Zipf};

fn report(references: &[Reference], sampling: Sampling) -> WhatIf {
    let mut ghosts = Ghosts::new(GhostParams {
        sampling,
        pool_factors: vec![0.5, 1.0, 2.0],
        ssd_factors: vec![0.5, 1.0, 2.0],
        ..GhostParams::new(1_000, 5_000)
    })
    .unwrap();
    let half = references.len() / 2;
    for (at, &reference) in references.iter().enumerate() {
        if at == half {
            ghosts.mark();
        }
        if sampling.takes(reference.page) {
            ghosts.apply(reference);
        }
    }
    ghosts.validate().unwrap();
    ghosts.report(Sampled { requests: half as u64, ..Sampled::default() }, false)
}

#[test]
fn a_tenth_of_the_pages_is_within_a_tenth_of_all_on_a_zipf_stream() {
    let (mut zipf, mut references) = (Zipf::new(30_000, 0.9, 0.2, 7), Vec::new());
    while references.len() < 200_000 {
        assert!(zipf.batch(&mut references));
    }
    let all = report(&references, Sampling::ALL);
    let sample = report(&references, Sampling::new(0.1));
    for (here, there) in sample.costs.iter().zip(&all.costs) {
        let off = here.total_ms() / there.total_ms() - 1.0;
        assert!(off.abs() < 0.1, "{here:?} and {there:?}: {off}");
    }
    // Larger sizes never cost more.
    for line in all.costs.chunks(3) {
        assert!(line.windows(2).all(|pair| pair[1].total_ms() < pair[0].total_ms()), "{all}");
    }
}
