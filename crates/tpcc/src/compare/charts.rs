//! The charts, as SVG to embed in a page: bars as in Figures 7 and 10, points as in Figure 4, lines as in
//! Figure 6.

use minijinja::HtmlEscape;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;
use std::error::Error;

/// The shared palette, and grey.
pub(crate) const COLORS: [RGBColor; 7] = {
    let [a, b, c, d, e, f] = pagetier_ghost::COLORS;
    [a, b, c, d, e, f, RGBColor(128, 128, 128)]
};

/// A colour in the page's style.
pub(crate) fn css(RGBColor(r, g, b): RGBColor) -> String {
    format!("rgb({r},{g},{b})")
}

/// A chart's size in its own units; the page scales it.
const SIZE: (u32, u32) = (420, 300);

type Chart<T> = Result<T, Box<dyn Error>>;

/// A bar: its value, and whether its run was steady.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) value: f64,
    pub(crate) steady: bool,
}

/// Bars of one colour, one per group.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) color: RGBColor,
    pub(crate) bars: Vec<Option<Bar>>,
}

/// Grouped bars with the groups' names. A missing bar is marked as such.
pub(crate) fn bars(title: &str, y_desc: &str, groups: &[String], series: &[Series]) -> String {
    let most = series.iter().flat_map(|s| &s.bars).flatten().map(|bar| bar.value).fold(0.0, f64::max);
    drawn(title, |root| {
        // The highest bar needs space for its number.
        let top = if most > 0.0 { most * 1.12 } else { 1.0 };
        let mut chart = builder(root, title)
            .x_label_area_size(24)
            .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(y_desc)
            .light_line_style(TRANSPARENT)
            .bold_line_style(MESH)
            .y_labels(6)
            .y_label_formatter(&|y| number(*y))
            .label_style(LABEL)
            .draw()?;
        let wide = 0.84 / series.len().max(1) as f64;
        let style = LABEL.into_text_style(root).pos(Pos::new(HPos::Center, VPos::Bottom));
        for (nth, one) in series.iter().enumerate() {
            for (group, bar) in one.bars.iter().enumerate() {
                let left = group as f64 + 0.08 + nth as f64 * wide;
                let middle = left + wide / 2.0;
                let Some(Bar { value, steady }) = *bar else {
                    chart.draw_series([Text::new("n/a", (middle, 0.0), style.clone())])?;
                    continue;
                };
                let place = [(left + 0.01, 0.0), (left + wide - 0.01, value)];
                chart.draw_series([Rectangle::new(place, one.color.filled())])?;
                let label = format!("{}{}", number(value), if steady { "" } else { "*" });
                chart.draw_series([Text::new(label, (middle, value + top * 0.005), style.clone())])?;
            }
        }
        if series.iter().flat_map(|s| &s.bars).flatten().any(|bar| !bar.steady) {
            let right = LABEL.into_text_style(root).pos(Pos::new(HPos::Right, VPos::Top));
            root.draw(&Text::new("* not steady yet", (SIZE.0 as i32 - 8, 28), right))?;
        }
        // The axis would label the boundaries between the groups. Their names belong below the middles.
        let below = LABEL.into_text_style(root).pos(Pos::new(HPos::Center, VPos::Top));
        for (at, group) in groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(at as f64 + 0.5, 0.0));
            root.draw(&Text::new(group.clone(), (x, y + 6), below.clone()))?;
        }
        Ok(())
    })
}

/// The upper end of an axis: half a per cent of the points may lie beyond it.
fn upper(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    // A few outliers would otherwise press all other points into a corner.
    let last = values.len().saturating_sub(1) * 995 / 1000;
    values.get(last).copied().filter(|most| *most > 0.0).unwrap_or(1.0) * 1.06
}

/// One point per pair, and the diagonal of equality. Each axis has its own scale.
pub(crate) fn points(title: &str, x_desc: &str, y_desc: &str, points: &[(f64, f64)]) -> String {
    let (right, top) = (upper(points.iter().map(|at| at.0)), upper(points.iter().map(|at| at.1)));
    let most = right.min(top);
    let inside = points.iter().filter(|(x, y)| *x <= right && *y <= top);
    drawn(title, |root| {
        let mut chart = builder(root, title).build_cartesian_2d(0.0..right, 0.0..top)?;
        chart
            .configure_mesh()
            .x_desc(x_desc)
            .y_desc(y_desc)
            .light_line_style(TRANSPARENT)
            .bold_line_style(MESH)
            .x_labels(6)
            .y_labels(6)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| number(*y))
            .label_style(LABEL)
            .draw()?;
        chart.draw_series(inside.map(|&at| Circle::new(at, 2, COLORS[0].mix(0.45).filled())))?;
        chart.draw_series([PathElement::new([(0.0, 0.0), (most, most)], COLORS[3].stroke_width(1))])?;
        Ok(())
    })
}

/// Lines over a common x axis, with a logarithmic y axis and a line at 1.
pub(crate) fn lines(
    title: &str,
    (x_desc, y_desc): (&str, &str),
    lines: &[(RGBColor, Vec<(f64, f64)>)],
) -> String {
    let all = || lines.iter().flat_map(|(_, points)| points);
    let right = all().map(|(x, _)| *x).fold(1.0, f64::max);
    // The axis always includes the line at 1, and a logarithm needs a lower end above 0.
    let top = all().map(|(_, y)| *y).fold(2.0, f64::max) * 1.3;
    let bottom = all().map(|(_, y)| *y).fold(0.5, f64::min).max(1e-3) / 1.3;
    drawn(title, |root| {
        let mut chart = builder(root, title).build_cartesian_2d(0.0..right, (bottom..top).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(x_desc)
            .y_desc(y_desc)
            .light_line_style(TRANSPARENT)
            .bold_line_style(MESH)
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| number(*y))
            .label_style(LABEL)
            .draw()?;
        chart.draw_series([PathElement::new([(0.0, 1.0), (right, 1.0)], BLACK.stroke_width(1))])?;
        for (color, points) in lines {
            chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|&at| Circle::new(at, 2, color.filled())))?;
        }
        Ok(())
    })
}

/// A chart as a file of its own: on a white ground, with the legend below.
pub(crate) fn standalone<'a>(chart: &str, legend: impl Iterator<Item = (&'a str, RGBColor)>) -> String {
    let (width, height) = SIZE;
    let (mut left, mut top) = (52, height);
    let items = legend.map(|(name, RGBColor(r, g, b))| {
        // A letter is about 7 units wide at this size; the square and the gaps take the rest.
        let long = 36 + 7 * name.len() as u32;
        if left + long > width {
            (left, top) = (52, top + 18);
        }
        let (x, y) = (left + 17, top + 11);
        let square = format!("<rect x=\"{left}\" y=\"{top}\" width=\"12\" height=\"12\"");
        left += long;
        let name = HtmlEscape(name);
        format!("{square} fill=\"rgb({r},{g},{b})\"/>\n<text x=\"{x}\" y=\"{y}\">{name}</text>\n")
    });
    let below: String = items.collect();
    let head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"12\" \
         viewBox=\"0 0 {width} {}\"",
        top + 24
    );
    let ground = ">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>";
    // `drawn` wrote this head, unless the chart could not be drawn and is a sentence that says so.
    let Some(rest) = chart.strip_prefix(&format!("<svg viewBox=\"0 0 {width} {height}\"")) else {
        return chart.to_owned();
    };
    format!("{head}{rest}").replacen('>', ground, 1).replace("</svg>", &format!("{below}</svg>"))
}

const MESH: RGBAColor = RGBAColor(128, 128, 128, 0.3);
const LABEL: (&str, i32) = ("sans-serif", 12);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn builder<'a, 'b>(root: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(root);
    builder.caption(title, ("sans-serif", 15)).margin(8).x_label_area_size(36).y_label_area_size(52);
    builder
}

/// Draws an SVG as wide as the page allows; a chart that cannot be drawn says why.
fn drawn(title: &str, draw: impl FnOnce(&Area<'_>) -> Chart<()>) -> String {
    let mut svg = String::new();
    let result = {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&root).and_then(|()| Ok(root.present()?))
    };
    let title = HtmlEscape(title);
    match (result, svg.find('>')) {
        (Ok(()), Some(end)) => {
            let (width, height) = SIZE;
            // The library fixes width and height. The page scales its charts, and a screen reader needs their
            // titles.
            let head = format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\"");
            format!("{head}{}", &svg[end..])
        }
        (Err(error), _) => format!("<p>{title}: {}</p>\n", HtmlEscape(&error.to_string())),
        (Ok(()), None) => format!("<p>{title}: nothing was drawn</p>\n"),
    }
}

/// A number in its shortest form.
pub(crate) fn number(x: f64) -> String {
    match x.abs() {
        x if x >= 10_000.0 => format!("{:.0}k", x / 1e3),
        x if x >= 100.0 || x == 0.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}").trim_end_matches(".0").into(),
        x if x >= 1.0 => format!("{x:.2}").trim_end_matches('0').trim_end_matches('.').into(),
        x => format!("{x:.3}").trim_end_matches('0').into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::page::unsound;

    #[test]
    fn charts_are_sound_and_show_what_they_are_given() {
        let bar = |value| Some(Bar { value, steady: value < 100.0 });
        let series = [
            Series { color: COLORS[0], bars: vec![bar(812.0), None] },
            Series { color: COLORS[1], bars: vec![bar(40.0), bar(39.0)] },
        ];
        let drawn = bars("30:10 & more", "tpmC", &["1 GB".into(), "2 GB".into()], &series);
        for shown in ["812*", "* not steady yet", "n/a", ">\n40\n<", "1 GB", "30:10 &amp; more"] {
            assert!(drawn.contains(shown), "{shown}: {drawn}");
        }
        let points = points("p", "x", "y", &[(0.1, 0.2), (0.1, 0.2)]);
        assert_eq!(points.matches("<circle").count(), 2);
        let lines = lines("l", ("x", "y"), &[(COLORS[2], vec![(0.0, 0.7), (5.0, 30.0)])]);
        for chart in [&drawn, &points, &lines] {
            assert_eq!(unsound(&format!("<!DOCTYPE html>{chart}")), None);
        }
    }

    #[test]
    fn an_empty_chart_is_a_chart() {
        assert!(bars("t", "y", &[], &[]).starts_with("<svg"));
        assert!(points("t", "x", "y", &[]).starts_with("<svg"));
        assert!(lines("t", ("x", "y"), &[]).starts_with("<svg"));
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0.0, 0.25, 1.0, 3.25, 42.0, 99.5, 812.3, 12_345.0].map(number).to_vec();
        assert_eq!(shown, ["0", "0.25", "1", "3.25", "42", "99.5", "812", "12k"]);
    }
}
