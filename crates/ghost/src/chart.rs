//! Draws cost against the size of the SSD, with a line per size of the pool, as SVG.

use crate::what_if::{WhatIf, bytes};
use plotters::prelude::*;
use std::error::Error;

/// A palette for colour-blind readers (Okabe and Ito's).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// Draws the chart as a complete SVG file. The present sizes are circled.
///
/// # Errors
/// Drawing failed.
pub fn chart(what_if: &WhatIf) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    draw(what_if, &mut svg)?;
    Ok(svg)
}

fn draw(what_if: &WhatIf, svg: &mut String) -> Result<(), Box<dyn Error>> {
    let mib = |pages: u32| f64::from(pages) * what_if.page_bytes as f64 / 1_048_576.0;
    let right = what_if.ssds().last().map_or(1.0, |&pages| mib(pages)).max(1.0) * 1.02;
    let top = what_if.costs.iter().map(crate::WhatIfCost::total_ms).fold(0.0, f64::max).max(1e-3) * 1.06;
    let root = SVGBackend::with_string(svg, (900, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("{}+{}: I/O against sizes", what_if.pool_policy, what_if.ssd_policy);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("SSD, MiB").y_desc("ms of I/O per 1,000 requests").light_line_style(TRANSPARENT).draw()?;
    for (&pool, &color) in what_if.pools().iter().zip(COLORS.iter().cycle()) {
        let line = what_if.costs.iter().filter(|cost| cost.pool_pages == pool);
        let points: Vec<(f64, f64)> = line.map(|cost| (mib(cost.ssd_pages), cost.total_ms())).collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
            .label(format!("pool {}", bytes(u64::from(pool) * what_if.page_bytes)))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
    }
    if let Some(now) = what_if.present() {
        let at = (mib(now.ssd_pages), now.total_ms());
        chart.draw_series([Circle::new(at, 8, BLACK.stroke_width(2))])?;
    }
    let mut labels = chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
