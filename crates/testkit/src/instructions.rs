//! Counts instructions of pure steps with valgrind and compares them with recorded counts. Unlike times, these counts
//! are the same on a busy machine. They are of the unoptimized build that tests use: they show growth, not speed.
//!
//! A step is a function `step_NAME` in a module `instructions`, never inlined, that an ignored test calls. `compare` runs that test under valgrind
//! and reads one total for each step. `UPDATE=1` rewrites the recorded counts.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::servers;

/// A step may count this much more than recorded. Maps with random hashes make small differences.
const TOLERANCE: f64 = 0.05;
/// Functions that are counted.
const COUNTED: &str = "*::instructions::step_*";
/// The same functions, after which a total is written. valgrind ignores the second of two options with equal patterns.
const WRITTEN: &str = "*instructions::step_?*";

/// Instructions by name of step.
type Counts = BTreeMap<String, u64>;

/// Runs an ignored test of the calling test binary under valgrind and compares its steps with those of the file
/// `recorded`. Panics if a step counts more than recorded, or so much less that the record is out of date.
pub fn compare(test: &str, recorded: &Path) {
    if servers::without("valgrind") {
        return;
    }
    let counted = count(test);
    if env::var_os("UPDATE").is_some() {
        fs::write(recorded, text(&counted)).unwrap_or_else(|e| panic!("could not write {}: {e}", recorded.display()));
        return;
    }
    let expected =
        fs::read_to_string(recorded).unwrap_or_else(|e| panic!("could not read {}: {e}", recorded.display()));
    let differences = differences(&parsed(&expected), &counted);
    assert!(
        differences.is_empty(),
        "instruction counts differ from {}; if that is intended, run this test with UPDATE=1:\n{}",
        recorded.display(),
        differences.join("\n")
    );
}

fn count(test: &str) -> Counts {
    let program = env::current_exe().unwrap_or_else(|e| panic!("could not find this program: {e}"));
    let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("no temporary folder: {e}"));
    // The program is a script that looks for its parts next to itself, not next to a link to it.
    let valgrind = fs::canonicalize(servers::binary("valgrind")).unwrap_or_else(|e| panic!("no valgrind: {e}"));
    let output = Command::new(valgrind)
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .args([format!("--toggle-collect={COUNTED}"), format!("--dump-after={WRITTEN}")])
        .arg(format!("--callgrind-out-file={}", folder.path().join("counts").display()))
        .arg(program)
        .args(["--ignored", "--exact", test, "--test-threads=1"])
        .output()
        .unwrap_or_else(|e| panic!("could not start valgrind: {e}"));
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_run = output.status.success() && printed.contains("1 passed");
    assert!(is_run, "test {test} under valgrind: {printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(folder.path()).unwrap_or_else(|e| panic!("no counts: {e}"));
    let texts = files.flatten().map(|file| fs::read_to_string(file.path()).unwrap_or_default());
    let counts: Counts = texts.filter_map(|text| step(&text)).collect();
    assert!(!counts.is_empty(), "test {test} has no function that matches {COUNTED}");
    counts
}

/// Name and instructions of the step in a file that valgrind wrote when leaving it.
fn step(file: &str) -> Option<(String, u64)> {
    let trigger = file.lines().find_map(|line| line.strip_prefix("desc: Trigger: --dump-after="))?;
    let name = trigger.rsplit_once("::step_")?.1.trim();
    let total = file.lines().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")))?;
    Some((name.to_owned(), total.trim().parse().ok()?))
}

fn differences(expected: &Counts, counted: &Counts) -> Vec<String> {
    let mut found = Vec::new();
    for (step, count) in counted {
        match expected.get(step) {
            None => found.push(format!("{step}: {count}, not recorded")),
            Some(recorded) => {
                let change = *count as f64 / *recorded as f64 - 1.0;
                if change.abs() > TOLERANCE {
                    found.push(format!("{step}: {count} instead of {recorded}, {:+.1} %", change * 100.0));
                }
            }
        }
    }
    found.extend(expected.keys().filter(|step| !counted.contains_key(*step)).map(|step| format!("{step}: not run")));
    found
}

fn parsed(text: &str) -> Counts {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(step, count)| (step.to_owned(), number(count))).collect()
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is not a count"))
}

fn text(counts: &Counts) -> String {
    let mut text = "# Instructions of each step in the unoptimized build. UPDATE=1 rewrites this file.\n".to_owned();
    for (step, count) in counts {
        let _ = writeln!(text, "{step} {count}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Counts, differences, parsed, step, text};

    #[test]
    fn totals_are_read_by_step() {
        let file =
            "# callgrind format\ndesc: Trigger: --dump-after=a::b::step_apply\n\nsummary: 12345\n\ntotals: 12345\n";
        assert_eq!(step(file), Some(("apply".to_owned(), 12345)));
        assert_eq!(step("desc: Trigger: Program termination\ntotals: 5\n"), None);
    }

    #[test]
    fn more_and_much_less_are_differences() {
        let recorded: Counts = [("a".to_owned(), 1000), ("b".to_owned(), 1000), ("c".to_owned(), 1000)].into();
        assert_eq!(parsed(&text(&recorded)), recorded);
        let counted: Counts = [("a".to_owned(), 1049), ("b".to_owned(), 1051), ("d".to_owned(), 1)].into();
        assert_eq!(
            differences(&recorded, &counted),
            ["b: 1051 instead of 1000, +5.1 %", "d: 1, not recorded", "c: not run"]
        );
    }
}
