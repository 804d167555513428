//! The table of `docs/conformance/README.md`: counts of each profile from the suite's report, and of the whole run.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

const README: &str = "README.md";
/// Everything from here on is written by the command.
const MARK: &str = "<!-- counts of the last run -->";

/// Counts of one profile; a test may belong to several.
#[derive(Debug, PartialEq)]
pub(super) struct ProfileCounts {
    pub(super) name: String,
    pub(super) passed: u32,
    pub(super) failed: u32,
}

/// The whole run.
pub(super) struct ConformanceRun {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) seconds: f64,
}

/// Counts of the profiles of a report. The suite writes the fields of objects in alphabetical order, so a profile's name
/// follows its counts.
pub(super) fn profiles(report: &str) -> Vec<ProfileCounts> {
    let mut all = Vec::new();
    let (mut passed, mut failed) = (0, 0);
    for line in report.lines().map(str::trim) {
        let number = |text: &str| text.trim().parse::<u32>().unwrap_or_default();
        if let Some(count) = line.strip_prefix("Passed:") {
            passed += number(count);
        } else if let Some(count) = line.strip_prefix("Failed:") {
            failed += number(count);
        } else if let Some(name) = line.strip_prefix("name: ").filter(|_| passed + failed > 0) {
            all.push(ProfileCounts { name: name.to_owned(), passed, failed });
            (passed, failed) = (0, 0);
        }
    }
    all
}

/// Writes the table of a run into the folder of its report.
pub(super) fn write_table(root: &Path, report: &Path, run: &ConformanceRun) -> Result<()> {
    let text = fs::read_to_string(report).with_context(|| format!("could not read {}", report.display()))?;
    let readme = report.with_file_name(README);
    let before = fs::read_to_string(&readme).unwrap_or_default();
    let kept = before.split(MARK).next().unwrap_or_default().trim_end();
    fs::write(&readme, format!("{kept}\n\n{MARK}\n\n{}", table(&profiles(&text), run, &commit(root)?)))?;
    Ok(())
}

fn table(profiles: &[ProfileCounts], run: &ConformanceRun, commit: &str) -> String {
    let mut text = "| profile | passed | failed | seconds | commit |\n|---|---|---|---|---|\n".to_owned();
    for ProfileCounts { name, passed, failed } in profiles {
        text.push_str(&format!("| {name} | {passed} | {failed} | | |\n"));
    }
    let ConformanceRun { passed, failed, seconds } = run;
    text.push_str(&format!("| all, each test once | {passed} | {failed} | {seconds:.0} | `{commit}` |\n"));
    text
}

/// The commit that was tested, with a mark if the tree differs from it.
fn commit(root: &Path) -> Result<String> {
    let output =
        Command::new("git").current_dir(root).args(["describe", "--always", "--dirty", "--exclude=*"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{ConformanceRun, ProfileCounts, profiles, table};

    #[test]
    fn counts_are_read_from_a_report() {
        let report = "implementation:\n  name: ours\nprofiles:\n- core:\n    statistics:\n      Failed: 1\n      \
            Passed: 37\n  extended:\n    statistics:\n      Failed: 0\n      Passed: 54\n  name: GATEWAY-HTTP\n- core:\n    \
            statistics:\n      Failed: 0\n      Passed: 2\n  name: MESH-HTTP\n  summary: fine\n";
        let of = |name: &str, passed, failed| ProfileCounts { name: name.to_owned(), passed, failed };
        let found = profiles(report);
        assert_eq!(found, [of("GATEWAY-HTTP", 91, 1), of("MESH-HTTP", 2, 0)]);
        let text = table(&found, &ConformanceRun { passed: 92, failed: 1, seconds: 120.4 }, "abc");
        assert!(
            text.ends_with("| MESH-HTTP | 2 | 0 | | |\n| all, each test once | 92 | 1 | 120 | `abc` |\n"),
            "{text}"
        );
    }
}
