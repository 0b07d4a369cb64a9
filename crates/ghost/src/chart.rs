//! Line charts as SVG, and the chart of cost against the size of the SSD, with a line per size of the pool.

use crate::what_if::{WhatIf, bytes};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// A palette for colour-blind readers (Okabe and Ito's), readable on light and dark backgrounds.
pub const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// A chart's size in its own units.
const SIZE: (u32, u32) = (900, 560);

/// Lines over common axes, with a legend beside them.
#[derive(Debug)]
pub struct LineChart<'a> {
    /// The heading.
    pub title: String,
    /// What the x axis shows, and its ends.
    pub x: (&'a str, Range<f64>),
    /// What the y axis shows, and its ends.
    pub y: (&'a str, Range<f64>),
    /// The name and the points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// Whether each point of a line is marked.
    pub dots: bool,
    /// A point to circle.
    pub circled: Option<(f64, f64)>,
}

impl LineChart<'_> {
    /// Draws the chart as a complete SVG file.
    ///
    /// # Errors
    /// Drawing failed.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        self.draw(&mut svg)?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        // Beside the plot, not in it: no corner is free of lines in every chart.
        let longest = self.lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let (plot, legend) = root.split_horizontally(SIZE.0 as i32 - 40 - 7 * longest as i32);
        for (nth, ((name, _), color)) in self.lines.iter().zip(COLORS.iter().cycle()).enumerate() {
            let y = 52 + 20 * nth as i32;
            legend.draw(&PathElement::new([(0, y), (18, y)], color.stroke_width(2)))?;
            legend.draw(&Text::new(name.clone(), (26, y - 6), ("sans-serif", 12)))?;
        }
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(self.x.1.clone(), self.y.1.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x.0).y_desc(self.y.0).light_line_style(TRANSPARENT).draw()?;
        for ((_, points), &color) in self.lines.iter().zip(COLORS.iter().cycle()) {
            chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
            if self.dots {
                chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
            }
        }
        chart.draw_series(self.circled.map(|at| Circle::new(at, 8, BLACK.stroke_width(2))))?;
        root.present()?;
        Ok(())
    }
}

/// Draws the chart as a complete SVG file. The present sizes are circled.
///
/// # Errors
/// Drawing failed.
pub fn chart(what_if: &WhatIf) -> Result<String, Box<dyn Error>> {
    let mib = |pages: u32| f64::from(pages) * what_if.page_bytes as f64 / 1_048_576.0;
    // An axis of no length cannot be drawn, and a circle at the largest size needs space beyond it.
    let right = what_if.ssds().last().map_or(1.0, |&pages| mib(pages)).max(1.0) * 1.02;
    let top = what_if.costs.iter().map(crate::WhatIfCost::total_ms).fold(0.0, f64::max).max(1e-3) * 1.06;
    let line = |&pool: &u32| {
        let costs = what_if.costs.iter().filter(|cost| cost.pool_pages == pool);
        let name = format!("pool {}", bytes(u64::from(pool) * what_if.page_bytes));
        (name, costs.map(|cost| (mib(cost.ssd_pages), cost.total_ms())).collect())
    };
    let chart = LineChart {
        title: format!("{}+{}: I/O against sizes", what_if.pool_policy, what_if.ssd_policy),
        x: ("SSD, MiB", 0.0..right),
        y: ("ms of I/O per 1,000 requests", 0.0..top),
        lines: what_if.pools().iter().map(line).collect(),
        dots: true,
        circled: what_if.present().map(|now| (mib(now.ssd_pages), now.total_ms())),
    };
    chart.svg()
}
