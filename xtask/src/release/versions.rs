//! The version is set in the root Cargo.toml; deployment files repeat it because Helm and kubectl read nothing else.

use anyhow::{Result, bail};

/// A file with the version, and what precedes and follows it in its line.
pub(super) const PLACES: &[(&str, &str, &str)] = &[
    ("Cargo.toml", "version = \"", "\""),
    ("deploy/chart/Chart.yaml", "version: ", ""),
    ("deploy/chart/Chart.yaml", "appVersion: ", ""),
    ("deploy/chart/values.yaml", "image: pilotage/pilot:", ""),
    ("deploy/manifest.yaml", "image: pilotage/pilot:", ""),
];

/// The text with another version on that line.
pub(super) fn replaced(text: &str, before: &str, after: &str, version: &str) -> Result<String> {
    let mut done = false;
    let mut line_of = |line: &str| {
        let trimmed = line.trim_start();
        if done || !trimmed.starts_with(before) || !trimmed.ends_with(after) {
            return format!("{line}\n");
        }
        done = true;
        format!("{}{before}{version}{after}\n", &line[..line.len() - trimmed.len()])
    };
    let text: String = text.lines().map(&mut line_of).collect();
    if !done {
        bail!("no line begins with {before:?}");
    }
    Ok(text)
}

/// `MAJOR.MINOR.PATCH`, with an optional `-SUFFIX`.
pub(super) fn is_version(text: &str) -> bool {
    let (numbers, suffix) = text.split_once('-').unwrap_or((text, "rc"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && !suffix.is_empty()
        && suffix.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    fn version(text: &str, before: &str, after: &str) -> Option<String> {
        text.lines().find_map(|line| line.trim_start().strip_prefix(before)?.strip_suffix(after)).map(str::to_owned)
    }

    #[test]
    fn every_file_has_the_version_of_the_workspace() {
        let root = crate::workspace::root();
        let read = |(file, before, after): &(&str, &str, &str)| {
            let text = fs::read_to_string(root.join(file)).unwrap();
            version(&text, before, after).unwrap_or_else(|| panic!("{file} has no version"))
        };
        let versions: BTreeSet<String> = PLACES.iter().map(read).collect();
        assert_eq!(versions.len(), 1, "{versions:?}");
    }

    #[test]
    fn only_the_version_changes() {
        let text = "name: x\n  version: 0.1.0\nversion: 2\n";
        assert_eq!(replaced(text, "version: ", "", "0.2.0").unwrap(), "name: x\n  version: 0.2.0\nversion: 2\n");
        assert!(replaced(text, "absent: ", "", "0.2.0").is_err());
    }

    #[test]
    fn versions_have_three_numbers() {
        assert!(is_version("0.1.0") && is_version("1.20.3-rc.1"));
        assert!(!is_version("0.1") && !is_version("v0.1.0") && !is_version("0.1.x") && !is_version("0.1.0-"));
    }
}
