//! Moves the fragments of `changelog.d` and the section "Unreleased" of CHANGELOG.md into the section of a release.

use std::fmt::Write;

use anyhow::{Context, Result, bail};

const UNRELEASED: &str = "## Unreleased";

/// Suffix of a fragment's name and the heading its text goes under, in the order of a section.
const KINDS: &[(&str, &str)] =
    &[("security", "Security"), ("added", "Added"), ("changed", "Changed"), ("fixed", "Fixed"), ("removed", "Removed")];

/// A file of `changelog.d`.
pub(super) struct Fragment {
    pub(super) file: String,
    pub(super) text: String,
}

/// The changelog after the release. A fragment of an unknown kind is an error.
pub(super) fn released(changelog: &str, fragments: &[Fragment], version: &str, date: &str) -> Result<String> {
    if changelog.contains(&format!("\n## {version} ")) {
        bail!("CHANGELOG.md has a section {version} already");
    }
    let (before, rest) = changelog.split_once(UNRELEASED).context("CHANGELOG.md has no section Unreleased")?;
    let (unreleased, older) = rest.split_at(rest.find("\n## ").map_or(rest.len(), |at| at + 1));
    let mut section = String::new();
    if !unreleased.trim().is_empty() {
        let _ = write!(section, "{}\n\n", unreleased.trim());
    }
    for (kind, heading) in KINDS {
        let lines: Vec<String> = texts(fragments, kind).map(|text| format!("- {text}\n")).collect();
        if !lines.is_empty() {
            let _ = write!(section, "### {heading}\n\n{}\n", lines.concat());
        }
    }
    if let Some(odd) = fragments.iter().find(|fragment| !has_known_kind(&fragment.file)) {
        bail!(
            "{} is not named NAME.KIND.md with a KIND of {:?}",
            odd.file,
            KINDS.iter().map(|(kind, _)| *kind).collect::<Vec<_>>()
        );
    }
    if section.is_empty() {
        bail!("nothing to release: no fragment, and the section Unreleased is empty");
    }
    Ok(format!("{before}{UNRELEASED}\n\n## {version} - {date}\n\n{}\n\n{older}", section.trim_end())
        .trim_end()
        .to_owned()
        + "\n")
}

fn texts<'a>(fragments: &'a [Fragment], kind: &'a str) -> impl Iterator<Item = String> + 'a {
    let own = fragments.iter().filter(move |fragment| kind_of(&fragment.file) == Some(kind));
    own.map(|fragment| fragment.text.trim().replace('\n', "\n  "))
}

fn has_known_kind(file: &str) -> bool {
    KINDS.iter().any(|(kind, _)| kind_of(file) == Some(kind))
}

/// `added` of `any-name.added.md`.
fn kind_of(file: &str) -> Option<&str> {
    file.strip_suffix(".md")?.rsplit_once('.').map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(file: &str, text: &str) -> Fragment {
        Fragment { file: file.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn every_fragment_has_a_known_kind() {
        let files = crate::workspace::files(&crate::workspace::root().join("changelog.d")).unwrap();
        let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let odd: Vec<String> =
            files.iter().map(name).filter(|file| file != "README.md" && !has_known_kind(file)).collect();
        assert!(odd.is_empty(), "{odd:?}");
    }

    #[test]
    fn fragments_become_a_section_by_kind() {
        let before = "# Changelog\n\n## Unreleased\n\n- Added an old line.\n\n## 0.0.1 - 2026-01-01\n\n- First.\n";
        let fragments = [
            fragment("b.fixed.md", "B works.\n"),
            fragment("a.added.md", "A exists,\nand more.\n"),
            fragment("c.added.md", "C exists.\n"),
        ];
        let after = released(before, &fragments, "0.1.0", "2026-02-03").unwrap();
        let expected = "# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-02-03\n\n- Added an old line.\n\n### Added\n\n\
                        - A exists,\n  and more.\n- C exists.\n\n### Fixed\n\n- B works.\n\n## 0.0.1 - 2026-01-01\n\n- First.\n";
        assert_eq!(after, expected);
        assert!(released(&after, &[], "0.1.0", "2026-02-03").is_err(), "released twice");
        assert!(released(&after, &[], "0.2.0", "2026-02-03").is_err(), "nothing to release");
        assert!(released(&after, &[fragment("x.odd.md", "X.")], "0.2.0", "2026-02-03").is_err(), "an unknown kind");
    }
}
