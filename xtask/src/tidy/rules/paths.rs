//! Code and documents name no absolute path that only one machine has.

use super::super::tree::Tree;
use super::Finding;

/// First parts of absolute paths that differ from machine to machine.
const FOLDERS: &[&str] = &["work", "root", "home"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in &tree.texts {
        for (at, line) in text.text.lines().enumerate() {
            if let Some(folder) = FOLDERS.iter().find(|f| names_folder(line, f)) {
                findings.push(Finding::new(&text.path, at + 1, format!("names a path below /{folder}")));
            }
        }
    }
    findings
}

/// Does the line have an absolute path that starts with this folder?
fn names_folder(line: &str, folder: &str) -> bool {
    let path = format!("/{folder}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-*}>/".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::names_folder;

    #[test]
    fn only_absolute_paths_count() {
        assert!(names_folder(&format!("see {}home/me/x", '/'), "home"));
        assert!(!names_folder("crates/home/x and ./work/y", "home"));
        assert!(!names_folder("a uri such as /home", "home"));
    }
}
