//! Line plots on logarithmic axes as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 100.0;
const COLOURS: [&str; 5] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"];

/// A line with its label.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Decades that contain all values of one axis.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Axis {
        let logs: Vec<f64> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
        let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
        if low.is_finite() { Axis { low, high: high.max(low + 1.0) } } else { Axis { low: 0.0, high: 1.0 } }
    }

    /// The position of a value between 0 and 1.
    fn at(&self, value: f64) -> f64 {
        (value.log10() - self.low) / (self.high - self.low)
    }

    fn decades(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power))
    }
}

/// A plot of lines over one quantity.
pub(crate) fn plot(title: &str, over: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (horizontal, vertical) = (Axis::of(points().map(|(x, _)| *x)), Axis::of(points().map(|(_, y)| *y)));
    let x = |value| LEFT + horizontal.at(value) * (WIDTH - LEFT - RIGHT);
    let y = |value| HEIGHT - BOTTOM - vertical.at(value) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    for value in vertical.decades() {
        let (at, right) = (y(value), WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for value in horizontal.decades() {
        let (at, bottom) = (x(value), HEIGHT - BOTTOM);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{value}</text>",
            bottom + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{over}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - BOTTOM + 34.0
    );
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let drawn: Vec<String> = line.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
        let below = HEIGHT - BOTTOM + 50.0 + 12.0 * number as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{LEFT}\" y=\"{below:.1}\" fill=\"{colour}\">{}</text>",
            drawn.join(" "),
            line.label
        );
    }
    svg.push_str("</svg>\n");
    svg
}
