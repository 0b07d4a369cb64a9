//! The static two-tier placement of Liu & Salem 2014 (section 3): which pages belong in memory and which on
//! the SSD if their read and write counts are known. Prints the costs of the optimum and of the two-step
//! heuristic, and draws both like the paper's Figure 3.
//!
//! `cargo run --release --example placement`

use clap::Parser;
use pagetier_policy::Costs;
use pagetier_testing::placement::{PageLoad, Placed, Placement, optimal_placement, two_step_placement};
use pagetier_tpcc::args;
use plotters::prelude::*;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Finds the best static placement of pages in memory and on the SSD, and draws it.
/// The defaults are the instance of Figure 3. The paper does not give the scale of its axes. Here pages are
/// read up to 30 times and written up to 60 times, which reproduces the picture that it describes.
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct Cli {
    /// Number of pages, N; they form a square of read and write counts
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pages: u32,
    /// Pages that fit in memory, C_M
    #[arg(long, default_value_t = 150)]
    memory: usize,
    /// Pages that fit onto the SSD, C_S
    #[arg(long, default_value_t = 200)]
    ssd: usize,
    /// Milliseconds of an SSD read, HDD read, SSD write and HDD write
    #[arg(long, value_name = "R_S,R_D,W_S,W_D", value_parser = args::costs, default_value = "0.16,12,0.4,12.5")]
    costs: Costs,
    /// Read count of the most-read page
    #[arg(long, default_value_t = 30)]
    reads_max: u32,
    /// Write count of the most-written page
    #[arg(long, default_value_t = 60)]
    writes_max: u32,
    /// The chart, an SVG file
    #[arg(long, value_name = "FILE", default_value = "target/placement.svg")]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let side = f64::from(cli.pages).sqrt().ceil() as u32;
    let scaled = |at: u32, max: u32| f64::from(at + 1) * f64::from(max) / f64::from(side);
    let load = |i: u32| PageLoad {
        reads: scaled(i % side, cli.reads_max),
        writes: scaled(i / side, cli.writes_max),
    };
    let pages: Vec<PageLoad> = (0..cli.pages).map(load).collect();
    let two_step = two_step_placement(&pages, cli.memory, cli.ssd, &cli.costs);
    let optimal = optimal_placement(&pages, cli.memory, cli.ssd, &cli.costs);

    println!("{:<10} {:>12} {:>8} {:>8} {:>8} {:>8}", "", "cost ms", "memory", "SSD", "both", "neither");
    for (name, placed) in [("two-step", &two_step), ("optimal", &optimal)] {
        let [memory, ssd, both, neither] =
            [Placed::Memory, Placed::Ssd, Placed::Both, Placed::Nowhere].map(|place| placed.count(place));
        println!("{name:<10} {:>12.1} {memory:>8} {ssd:>8} {both:>8} {neither:>8}", placed.cost_ms);
    }
    println!("the heuristic costs {:.3} times the optimum", two_step.cost_ms / optimal.cost_ms);
    draw(&cli.out, &pages, [("(a) two steps", &two_step), ("(b) optimal", &optimal)])?;
    println!("chart: {}", cli.out.display());
    Ok(())
}

fn draw(out: &Path, pages: &[PageLoad], both: [(&str, &Placement); 2]) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let root = SVGBackend::new(out, (1200, 620)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = |count: fn(&PageLoad) -> f64| pages.iter().map(count).fold(1.0, f64::max) * 1.05;
    for (area, (title, placed)) in root.split_evenly((1, 2)).iter().zip(both) {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..most(|p| p.reads), 0.0..most(|p| p.writes))?;
        chart.configure_mesh().x_desc("reads").y_desc("writes").light_line_style(TRANSPARENT).draw()?;
        for (place, name, color) in [
            (Placed::Nowhere, "HDD only", RGBColor(190, 190, 190)),
            (Placed::Memory, "memory", RGBColor(31, 119, 180)),
            (Placed::Ssd, "SSD", RGBColor(255, 127, 14)),
            (Placed::Both, "memory and SSD", RGBColor(148, 52, 160)),
        ] {
            let points = pages.iter().zip(&placed.places).filter(|(_, at)| **at == place);
            let dots = points.map(|(page, _)| Circle::new((page.reads, page.writes), 4, color.filled()));
            chart
                .draw_series(dots)?
                .label(format!("{name} ({})", placed.count(place)))
                .legend(move |(x, y)| Circle::new((x + 8, y), 5, color.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    root.present()?;
    Ok(())
}
