//! The pages of measured figures: for each part its columns as JSON, a page with tables and plots made from them, and an
//! index. A run replaces the columns that it measured; all other columns and pages stay as they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use testkit::plot::{PlottedLine, Scale, plot};

use crate::parts::{PARTS, Part, PartContent};
use crate::report::{Column, exponents, points, table};

/// Figures of which the growth is plotted.
const PLOTTED: [&str; 5] =
    ["sync: CPU", "one endpoint: CPU", "one endpoint: p99", "one VirtualService: CPU", "memory with proxies (RssAnon)"];

/// Adds or replaces columns of a part, and writes its page and the index.
pub(crate) fn write(folder: &Path, part: &Part, measured: &[Column]) {
    let mut columns = read(folder, part);
    for column in measured {
        match columns.iter_mut().find(|known| known.title == column.title) {
            Some(known) => known.clone_from(column),
            None => columns.push(column.clone()),
        }
    }
    if matches!(part.content, PartContent::Growth(_)) {
        columns.sort_by_key(|column| column.title.parse::<usize>().unwrap_or(usize::MAX));
    }
    let json = serde_json::to_string_pretty(&columns).unwrap_or_else(|e| panic!("could not print columns: {e}"));
    put(folder, &format!("{}.json", part.name), &format!("{json}\n"));
    put(folder, &format!("{}.md", part.name), &page(folder, part, &columns));
    put(folder, "README.md", &index(folder));
}

/// The columns measured so far.
fn read(folder: &Path, part: &Part) -> Vec<Column> {
    let path = folder.join(format!("{}.json", part.name));
    let Ok(text) = fs::read_to_string(&path) else { return Vec::new() };
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{} is damaged: {e}", path.display()))
}

fn put(folder: &Path, name: &str, text: &str) {
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(name), text));
    written.unwrap_or_else(|e| panic!("could not write {name}: {e}"));
}

fn page(folder: &Path, part: &Part, columns: &[Column]) -> String {
    let Part { name, title, about, .. } = part;
    let mut page = format!(
        "# {title}\n\nWritten by `cargo bench -p discovery --bench fleet -- --part {name}`; do not edit.\n\n{about}\n\n{}",
        table(columns)
    );
    if let PartContent::Growth(of) = part.content {
        let lines: Vec<PlottedLine> = PLOTTED.iter().filter_map(|figure| line(columns, figure)).collect();
        put(folder, &format!("{name}.svg"), &plot(title, of, Scale::Logarithmic, &lines));
        let _ = write!(page, "\n{}\n![{title}]({name}.svg)\n", exponents(columns, of));
    }
    for (label, lines) in series(columns) {
        let file = format!("{name}-{}.svg", slug(&label));
        put(folder, &file, &plot(&label, "minutes", Scale::Linear, &lines));
        let _ = write!(page, "\n![{label}]({file})\n");
    }
    page.push_str("\n## Measured on\n\n");
    let mut origins: Vec<(&str, Vec<&str>)> = Vec::new();
    for column in columns {
        match origins.iter_mut().find(|(origin, _)| *origin == column.origin) {
            Some((_, titles)) => titles.push(&column.title),
            None => origins.push((&column.origin, vec![&column.title])),
        }
    }
    origins.iter().for_each(|(origin, titles)| _ = writeln!(page, "- {}: {origin}", titles.join(", ")));
    page
}

fn line(columns: &[Column], figure: &str) -> Option<PlottedLine> {
    let label = columns.iter().find_map(|column| column.get(figure))?.label();
    Some(PlottedLine { label, points: points(columns, figure) })
}

/// Series with the same label of all columns, for one plot each.
fn series(columns: &[Column]) -> BTreeMap<String, Vec<PlottedLine>> {
    let mut plots: BTreeMap<String, Vec<PlottedLine>> = BTreeMap::new();
    for column in columns {
        for series in &column.series {
            let line = PlottedLine { label: column.title.clone(), points: series.points.clone() };
            plots.entry(series.label.clone()).or_default().push(line);
        }
    }
    plots
}

fn slug(label: &str) -> String {
    let words = label.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

/// The list of all parts, with links to those that were measured.
fn index(folder: &Path) -> String {
    let mut text = String::from(
        "# Measured fleets\n\nWritten by `make bench`; do not edit. Simulated proxies on a real API server, on the same \
         machine: CPU time and memory are those of the server alone. Figures that are worse than istiod's are marked.\n\n\
         | part | content |\n|---|---|\n",
    );
    for Part { name, title, about, .. } in PARTS {
        let is_measured = folder.join(format!("{name}.md")).exists();
        let shown = if is_measured { format!("[{title}]({name}.md)") } else { format!("{title} (not measured yet)") };
        let _ = writeln!(text, "| {shown} | {about} |");
    }
    text
}
