//! A line over time as SVG.

use std::fmt::Write as _;

use super::MemorySample;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 50.0;
/// Lines of the grid in each direction.
const STEPS: u32 = 5;

pub(super) fn plot(title: &str, samples: &[MemorySample]) -> String {
    let most = |value: fn(&MemorySample) -> f64| samples.iter().map(value).fold(1.0, f64::max);
    let (minutes, megabytes) = (most(|sample| sample.minutes), most(|sample| sample.megabytes) * 1.1);
    let x = |value: f64| MARGIN + value / minutes * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - value / megabytes * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{title}</text>\n"
    );
    for step in 0..=STEPS {
        let share = f64::from(step) / f64::from(STEPS);
        let (across, up) = (minutes * share, megabytes * share);
        let _ = writeln!(
            svg,
            "<path d=\"M{MARGIN} {:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">\
             {up:.0}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{across:.0}</text>",
            y(up),
            WIDTH - MARGIN,
            MARGIN - 6.0,
            y(up) + 4.0,
            x(across),
            HEIGHT - MARGIN + 18.0
        );
    }
    let points: Vec<String> =
        samples.iter().map(|sample| format!("{:.1},{:.1}", x(sample.minutes), y(sample.megabytes))).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f77b4\"/>\n</svg>", points.join(" "));
    svg
}
