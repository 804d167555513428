//! Line plots as SVG, on linear or logarithmic axes.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Height of a line of the legend.
const ROW: f64 = 16.0;
/// Steps of a linear axis.
const STEPS: u32 = 5;
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

/// The scale of both axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    Logarithmic,
}

/// A line with its label.
#[derive(Debug)]
pub struct PlottedLine {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// A plot of lines over one quantity.
pub fn plot(title: &str, over: &str, scale: Scale, lines: &[PlottedLine]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = Axis::new(scale, points().map(|(x, _)| *x));
    let up = Axis::new(scale, points().map(|(_, y)| *y));
    let x = |value| LEFT + across.position(value) * (WIDTH - LEFT - RIGHT);
    let y = |value| HEIGHT - BOTTOM - up.position(value) * (HEIGHT - TOP - BOTTOM);
    let (total, right, bottom) = (HEIGHT + ROW * lines.len() as f64, WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{total}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    for value in up.marks() {
        let at = y(value);
        let (left, text, shown) = (LEFT - 6.0, at + 4.0, short(value));
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{left:.1}\" y=\"{text:.1}\" \
             text-anchor=\"end\">{shown}</text>"
        );
    }
    for value in across.marks() {
        let at = x(value);
        let (text, shown) = (bottom + 16.0, short(value));
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{text:.1}\" \
             text-anchor=\"middle\">{shown}</text>"
        );
    }
    let (middle, below) = ((LEFT + right) / 2.0, bottom + 34.0);
    let _ = writeln!(svg, "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{over}</text>");
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let drawn: Vec<String> = line.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
        let (drawn, label, row) = (drawn.join(" "), &line.label, HEIGHT + ROW * number as f64);
        let _ = writeln!(
            svg,
            "<polyline points=\"{drawn}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{LEFT}\" y=\"{row:.1}\" fill=\"{colour}\">{label}</text>"
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The range of one axis: from zero if it is linear, else whole decades, as logarithms.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = match scale {
            Scale::Linear => (0.0, values.fold(0.0, f64::max) * 1.05),
            Scale::Logarithmic => {
                let logs: Vec<f64> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
                let low = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
                (low, logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0))
            }
        };
        let is_range = low.is_finite() && high.is_finite() && high > low;
        let (low, high) = if is_range { (low, high) } else { (0.0, 1.0) };
        Axis { scale, low, high }
    }

    /// The position of a value between 0 and 1.
    fn position(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.log10().max(self.low),
        };
        (value - self.low) / (self.high - self.low)
    }

    fn marks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => (0..=STEPS).map(|step| self.high * f64::from(step) / f64::from(STEPS)).collect(),
            Scale::Logarithmic => (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power)).collect(),
        }
    }
}

/// A number with as many digits as a mark needs.
fn short(value: f64) -> String {
    let digits = if value == 0.0 || value >= 10.0 { 0 } else { (1.0 - value.log10().floor()).clamp(0.0, 6.0) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::{Axis, PlottedLine, Scale, plot, short};

    #[test]
    fn linear_axis_begins_at_zero_and_logarithmic_one_at_a_decade() {
        let linear = Axis::new(Scale::Linear, [50.0, 100.0].into_iter());
        assert_eq!((linear.low, linear.high), (0.0, 105.0));
        let logarithmic = Axis::new(Scale::Logarithmic, [20.0, 2000.0].into_iter());
        assert_eq!(logarithmic.marks(), [10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn marks_are_short() {
        assert_eq!([0.0, 0.25, 1.0, 12.6, 0.001].map(short), ["0", "0.25", "1", "13", "0.001"]);
    }

    #[test]
    fn line_without_points_is_no_error() {
        let line = PlottedLine { label: "none".to_owned(), points: Vec::new() };
        assert!(plot("title", "minutes", Scale::Logarithmic, &[line]).ends_with("</svg>\n"));
    }
}
