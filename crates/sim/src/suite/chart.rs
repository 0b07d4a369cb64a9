//! Draws the regrets of every pair as curves, in SVG.

use super::Judged;
use plotters::prelude::*;
use std::error::Error;

const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// The highest regret that the chart shows, in per cent.
const TOP_PERCENT: f64 = 60.0;

/// Draws one curve per pair, its regrets in ascending order, and returns an SVG file.
///
/// # Errors
/// The drawing failed.
pub fn chart(judged: &[Judged]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    draw(judged, &mut svg)?;
    Ok(svg)
}

fn draw(judged: &[Judged], svg: &mut String) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::with_string(svg, (900, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Cost beyond the best fixed setting of each case", ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..100.0, -5.0..TOP_PERCENT)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("cases, in per cent, the best first")
        .y_desc("per cent beyond the best")
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (one, &color) in judged.iter().zip(COLORS.iter().cycle()) {
        let last = (one.regrets.len().max(2) - 1) as f64;
        let at = |(no, &regret): (usize, &f64)| (100.0 * no as f64 / last, regret.min(TOP_PERCENT));
        chart
            .draw_series(LineSeries::new(one.regrets.iter().enumerate().map(at), color.stroke_width(2)))?
            .label(one.pair.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
