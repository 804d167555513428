//! Output of istioctl with our server and with istiod, made comparable: without ages, versions and free ports. What differs
//! for a reason is left out by name here, so this file is the list of differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use testkit::istioctl::IstioctlRun;

use crate::mesh::Mesh;

/// A command is not slower than this, or than istiod by this factor: one run on a busy machine proves nothing closer.
const FLOOR: Duration = Duration::from_secs(2);
const FACTOR: u32 = 2;

/// What a command printed, as comparable lines, and how long it took.
pub(crate) type Outputs = BTreeMap<String, (Vec<String>, Duration)>;

/// What of a command is compared.
#[derive(Clone, Copy)]
enum View {
    /// Every cell of every row.
    Table,
    /// A table without the columns of these names.
    TableWithout(&'static [&'static str]),
    /// The header of a table, and rows that begin with these cells.
    Rows(&'static [&'static str]),
    /// Lines up to the first colon: what follows are versions.
    Labels,
    /// Keys of the element with the most, or of the object. istiod lists clients that only ask, with fewer.
    Keys,
    /// Elements that each peer must have.
    Elements(&'static [&'static str]),
    /// Types of the parts of a dump.
    DumpTypes,
    /// The first lines of standard error.
    Refusal,
    /// Nothing but success and the time.
    Success,
}

const COMMANDS: &[(&str, View)] = &[
    ("version", View::Labels),
    ("ps", View::Table),
    ("ps -v 1", View::Table),
    ("ps web.shop", View::Table),
    ("pc cluster web.shop", View::Table),
    ("pc listener web.shop", View::Table),
    ("pc route web.shop", View::Table),
    ("pc endpoint web.shop", View::Table),
    ("pc eds web.shop", View::Table),
    ("pc bootstrap web.shop", View::Keys),
    ("pc secret web.shop", View::TableWithout(&["SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"])),
    ("pc ecds web.shop", View::Refusal),
    ("pc all web.shop", View::Table),
    ("pc log web.shop", View::Success),
    ("x internal-debug syncz", View::Keys),
    ("x internal-debug --list", View::Elements(&["syncz", "registryz", "configz", "config_dump", "clusterz"])),
    ("x internal-debug registryz", View::Keys),
    ("x internal-debug config_dump?proxyID=web.shop", View::DumpTypes),
    ("x describe pod web.shop", View::Table),
    ("x describe svc web.shop", View::Table),
    ("admin log --level ads:debug", View::Success),
    ("admin log", View::Rows(&["ads", "default"])),
    ("admin log --reset", View::Success),
    ("remote-clusters", View::Table),
    ("bug-report --istio-namespace istio-system --dir parts --output-dir .", View::Success),
];
const AFTER_RESTART: &[&str] = &["ps", "ps -v 1", "ps web.shop"];

pub(crate) async fn outputs(mesh: &Mesh) -> Outputs {
    let mut outputs = Outputs::new();
    for (line, view) in COMMANDS {
        let (lines, took) = output(mesh, line, *view).await;
        outputs.insert((*line).to_owned(), (lines, took));
    }
    outputs
}

pub(crate) async fn outputs_after_restart(mesh: &Mesh) -> Outputs {
    let mut outputs = Outputs::new();
    for (line, view) in COMMANDS.iter().filter(|(line, _)| AFTER_RESTART.contains(line)) {
        outputs.insert(format!("{line} (after a restart)"), output(mesh, line, *view).await);
    }
    outputs
}

async fn output(mesh: &Mesh, line: &str, view: View) -> (Vec<String>, Duration) {
    let run = mesh.istioctl.run(line).await;
    assert!(run.succeeded || matches!(view, View::Refusal), "istioctl {line}: {}\n{}", run.stderr, run.stdout);
    let mut lines: Vec<String> = lines(&run, view).into_iter().map(|line| with_port_names(line, &mesh.ports)).collect();
    if line.starts_with("pc ") {
        // istioctl sorts by port, and ports are drawn.
        lines.sort();
    }
    (lines, run.took)
}

fn lines(run: &IstioctlRun, view: View) -> Vec<String> {
    let json = || serde_json::from_str::<Value>(&run.stdout).unwrap_or_else(|e| panic!("{run:?}: {e}"));
    match view {
        View::Table => joined(&run.table()),
        View::TableWithout(columns) => without(&run.stdout, columns),
        View::Rows(first) => {
            let is_wanted =
                |(at, row): &(usize, &Vec<String>)| *at == 0 || row.first().is_some_and(|c| first.contains(&&**c));
            let table = run.table();
            let mut rows: Vec<Vec<String>> =
                table.iter().enumerate().filter(is_wanted).map(|(_, r)| r.clone()).collect();
            // Descriptions are prose of each program.
            rows.iter_mut().filter(|row| row.len() > 2).for_each(|row| drop(row.remove(1)));
            joined(&rows)
        }
        View::Labels => run.stdout.lines().map(|l| l.split(": ").next().unwrap_or_default().to_owned()).collect(),
        View::Keys => {
            let page = json();
            let elements = page.as_array().into_iter().flatten();
            let fullest = elements.max_by_key(|element| element.as_object().map_or(0, serde_json::Map::len));
            fullest.unwrap_or(&page).as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
        }
        View::Elements(names) => {
            let page = json();
            let all: BTreeSet<&str> = page.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            names.iter().filter(|name| all.contains(*name)).map(|name| (*name).to_owned()).collect()
        }
        View::DumpTypes => {
            let page = json();
            let parts = page["configs"].as_array().into_iter().flatten();
            parts.map(|part| part["@type"].as_str().unwrap_or_default().to_owned()).collect()
        }
        View::Refusal => run.stderr.lines().take(1).map(str::to_owned).collect(),
        View::Success => Vec::new(),
    }
}

/// Rows as lines, without times.
fn joined(rows: &[Vec<String>]) -> Vec<String> {
    let age = |cell: &String| match cell.split_once(" (") {
        Some((state, rest)) if rest.ends_with("s)") || rest.ends_with("ago)") || rest.contains("RDS last") => {
            state.to_owned()
        }
        _ => cell.clone(),
    };
    let line = |row: &Vec<String>| row.iter().map(age).collect::<Vec<_>>().join(" | ");
    rows.iter().map(line).filter(|line| !line.is_empty()).collect()
}

/// A table without some columns. Cells are found by the offsets of the header, because some are empty.
fn without(text: &str, columns: &[&str]) -> Vec<String> {
    let header = text.lines().next().unwrap_or_default();
    let left_out = columns.iter().filter_map(|column| header.find(column)).min().unwrap_or(header.len());
    text.lines()
        .map(|line| line.get(..left_out).unwrap_or(line).split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

fn with_port_names(line: String, ports: &[(u16, &str)]) -> String {
    ports.iter().fold(line, |line, (port, name)| line.replace(&port.to_string(), name))
}

/// Our tables equal the other's.
pub(crate) fn same_tables(ours: &Outputs, other: &Outputs) {
    let of = |outputs: &Outputs| {
        let text = outputs.iter().map(|(line, (lines, _))| format!("$ istioctl {line}\n{}\n", lines.join("\n")));
        text.collect::<String>()
    };
    assert_eq!(of(ours), of(other), "ours is on the left");
}

/// None of our commands takes longer than the limit or than istiod's.
pub(crate) fn none_is_slower(ours: &Outputs, istiod: &Outputs) {
    for (line, (_, took)) in ours {
        let peer = istiod.get(line).map(|(_, took)| *took).unwrap_or_default();
        eprintln!("istioctl {line}: {took:?}, with istiod {peer:?}");
    }
    for (line, (_, took)) in ours {
        let limit = istiod.get(line).map_or(FLOOR, |(_, peer)| FLOOR.max(*peer * FACTOR));
        assert!(*took < limit, "istioctl {line} took {took:?}; istiod's limit is {limit:?}");
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/istioctl/istiod.txt")
}

/// Keeps istiod's output for machines without it.
pub(crate) fn record(istiod: &Outputs) {
    let text: String =
        istiod.iter().map(|(line, (lines, _))| format!("$ istioctl {line}\n{}\n\n", lines.join("\n"))).collect();
    let kept = fs::read_to_string(file()).unwrap_or_default();
    if std::env::var_os("PILOTAGE_RECORD").is_some() {
        fs::write(file(), text).unwrap();
        return;
    }
    assert_eq!(kept, text, "tests/istioctl/istiod.txt is not what istiod prints: run with PILOTAGE_RECORD=1");
}

/// What istiod printed when it was recorded.
pub(crate) fn recorded() -> Outputs {
    let text = fs::read_to_string(file()).unwrap();
    let commands = text.split("$ istioctl ").filter(|part| !part.trim().is_empty());
    let command = |part: &str| {
        let mut lines = part.trim_end().lines().map(str::to_owned);
        (lines.next().unwrap_or_default(), (lines.collect(), Duration::ZERO))
    };
    commands.map(command).collect()
}
