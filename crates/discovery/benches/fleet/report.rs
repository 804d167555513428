//! Figures as tables, and how they grow with the size of the mesh or the fleet.

use std::fmt::Write as _;

/// One measured value.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    unit: Unit,
    pub(crate) value: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    Mebibytes,
    Bytes,
}

impl Unit {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
            Unit::Mebibytes => "MiB",
            Unit::Bytes => "B",
        }
    }
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: Unit, value: f64) -> Figure {
        Figure { name: name.into(), unit, value }
    }

    /// The value with two or three digits that matter, and its unit.
    fn text(&self) -> String {
        let digits = if self.value.abs() >= 100.0 { 0 } else { 2 };
        format!("{:.digits$} {}", self.value, self.unit.symbol())
    }

    pub(crate) fn label(&self) -> String {
        format!("{} ({})", self.name, self.unit.symbol())
    }
}

/// The measured values of one run.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) title: String,
    pub(crate) figures: Vec<Figure>,
}

impl Column {
    fn get(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

/// A Markdown table with one row per figure and one column per run.
pub(crate) fn table(columns: &[Column]) -> String {
    let mut text = String::from("|");
    columns.iter().for_each(|column| _ = write!(text, " | {}", column.title));
    text.push_str(" |\n|---");
    columns.iter().for_each(|_| text.push_str("|---"));
    text.push_str("|\n");
    for name in names(columns) {
        let _ = write!(text, "| {name}");
        for column in columns {
            let _ = write!(text, " | {}", column.get(&name).map(Figure::text).unwrap_or_default());
        }
        text.push_str(" |\n");
    }
    text
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

/// Runs that differ in one size.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// What grows, such as "services".
    pub(crate) of: &'static str,
    pub(crate) sizes: Vec<usize>,
    pub(crate) columns: Vec<Column>,
}

impl Sweep {
    /// The points of one figure.
    pub(crate) fn points(&self, name: &str) -> Vec<(f64, f64)> {
        let pairs = self.sizes.iter().zip(&self.columns);
        pairs.filter_map(|(size, column)| Some((*size as f64, column.get(name)?.value))).collect()
    }

    /// A table of growth exponents: 0 means that a figure does not depend on the size, 1 that it is proportional.
    pub(crate) fn exponents(&self) -> String {
        let mut text = format!("| growth with {} | exponent |\n|---|---|\n", self.of);
        for name in names(&self.columns) {
            if let Some(exponent) = exponent(&self.points(&name)) {
                let _ = writeln!(text, "| {name} | {exponent:.2} |");
            }
        }
        text
    }
}

/// The slope of the line through the points on logarithmic axes, by least squares.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    if logs.len() < 2 || logs.len() < points.len() {
        return None;
    }
    let count = logs.len() as f64;
    let (mean_x, mean_y) =
        (logs.iter().map(|(x, _)| x).sum::<f64>() / count, logs.iter().map(|(_, y)| y).sum::<f64>() / count);
    let over: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let under: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    Some(over / under)
}
