//! Figures as tables, and how they grow with the size of the mesh or the fleet.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use testkit::trend::exponent;

/// The columns of the comparison.
pub(crate) const ISTIOD: &str = "istiod";
pub(crate) const PILOTAGE: &str = "Pilotage";

/// One measured value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    unit: Unit,
    pub(crate) value: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    Mebibytes,
    MebibytesAMinute,
    Bytes,
    Count,
    ASecond,
    Times,
}

impl Unit {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
            Unit::Mebibytes => "MiB",
            Unit::MebibytesAMinute => "MiB/min",
            Unit::Bytes => "B",
            Unit::Count | Unit::Times => "",
            Unit::ASecond => "/s",
        }
    }
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: Unit, value: f64) -> Figure {
        Figure { name: name.into(), unit, value }
    }

    /// The value with two or three digits that matter, and its unit.
    fn text(&self) -> String {
        let is_whole = self.value.abs() >= 100.0 || matches!(self.unit, Unit::Count);
        let digits = if is_whole { 0 } else { 2 };
        format!("{:.digits$} {}", self.value, self.unit.symbol()).trim_end().to_owned()
    }

    pub(crate) fn label(&self) -> String {
        format!("{} ({})", self.name, self.unit.symbol())
    }
}

/// Values over minutes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The measured values of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Column {
    pub(crate) title: String,
    /// What was measured, on which machine.
    pub(crate) origin: String,
    pub(crate) figures: Vec<Figure>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) series: Vec<Series>,
}

impl Column {
    pub(crate) fn get(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

/// A Markdown table with one row per figure and one column per run. Next to istiod a further column has the ratio, and
/// marks what Pilotage loses.
pub(crate) fn table(columns: &[Column]) -> String {
    let find = |title: &str| columns.iter().find(|column| column.title == title);
    let both = find(ISTIOD).zip(find(PILOTAGE));
    let mut text = String::from("|");
    columns.iter().for_each(|column| _ = write!(text, " | {}", column.title));
    text.push_str(if both.is_some() { " | istiod / Pilotage |\n|---|---" } else { " |\n|---" });
    columns.iter().for_each(|_| text.push_str("|---"));
    text.push_str("|\n");
    for name in names(columns) {
        let _ = write!(text, "| {name}");
        for column in columns {
            let _ = write!(text, " | {}", column.get(&name).map(Figure::text).unwrap_or_default());
        }
        if let Some((istiod, pilotage)) = both {
            let values = istiod.get(&name).zip(pilotage.get(&name));
            let _ = write!(text, " | {}", values.map(|(istiod, own)| ratio(istiod, own)).unwrap_or_default());
        }
        text.push_str(" |\n");
    }
    text
}

/// How many times more istiod needs. All figures but rates are better if they are smaller.
fn ratio(istiod: &Figure, own: &Figure) -> String {
    let ratio = istiod.value / own.value;
    if matches!(own.unit, Unit::ASecond) || !ratio.is_finite() {
        return String::new();
    }
    if ratio < 1.0 { format!("**{ratio:.2}: Pilotage is worse**") } else { format!("{ratio:.1}") }
}

/// The names of all figures, in the order of their first appearance.
pub(crate) fn names(columns: &[Column]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for figure in columns.iter().flat_map(|column| &column.figures) {
        if !names.contains(&figure.name) {
            names.push(figure.name.clone());
        }
    }
    names
}

/// The points of one figure over sizes, which are the titles of the columns.
pub(crate) fn points(columns: &[Column], name: &str) -> Vec<(f64, f64)> {
    columns.iter().filter_map(|column| Some((column.title.parse().ok()?, column.get(name)?.value))).collect()
}

/// A table of growth exponents: 0 means that a figure does not depend on the size, 1 that it is proportional.
pub(crate) fn exponents(columns: &[Column], of: &str) -> String {
    let mut text = format!("| growth with {of} | exponent |\n|---|---|\n");
    for name in names(columns) {
        let points = points(columns, &name);
        if let Some(exponent) = exponent(&points).filter(|_| points.len() > 1) {
            let _ = writeln!(text, "| {name} | {exponent:.2} |");
        }
    }
    text
}
