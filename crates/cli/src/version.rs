//! What this binary is, in upstream's words: istioctl and Kiali read `VERSION-REVISION-STATUS`
//! or the JSON of the same.

use serde_json::{Value, json};

/// The release of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of this build: the build script reads it from git, or is given it. `development` in debug builds.
const REVISION: &str = env!("PILOTAGE_REVISION");

/// `Clean`, or `Modified` for a build with local changes, as upstream's release scripts say it.
const STATUS: &str = env!("PILOTAGE_BUILD_STATUS");

/// One line: `VERSION-REVISION-STATUS`.
pub fn line() -> String {
    format!("{VERSION}-{REVISION}-{STATUS}")
}

/// The same as upstream's build info; the field named after Go tells that there is none.
pub fn info() -> Value {
    json!({
        "version": VERSION,
        "revision": REVISION,
        "golang_version": "none (rust)",
        "status": STATUS,
        "tag": VERSION,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use crate::revision::{Revision, of_checkout};

    fn git(folder: &Path, arguments: &[&str]) {
        let author = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
        let done = Command::new("git").arg("-C").arg(folder).args(author).args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn hole_15_a_build_names_its_commit_and_whether_sources_were_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(of_checkout(path), None, "no git");
        git(path, &["init", "-q"]);
        fs::create_dir(path.join("inside")).unwrap();
        fs::write(path.join("file"), "1").unwrap();
        git(path, &["add", "file"]);
        git(path, &["commit", "-q", "-m", "first"]);
        let Some(Revision { commit, status: "Clean" }) = of_checkout(path) else { panic!("{:?}", of_checkout(path)) };
        assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
        fs::write(path.join("file"), "2").unwrap();
        assert_eq!(of_checkout(path), Some(Revision { commit, status: "Modified" }));
        // Sources unpacked inside another project's checkout are not of its commit.
        assert_eq!(of_checkout(&path.join("inside")), None);
    }

    #[test]
    fn hole_15_a_version_never_says_unknown() {
        assert!(!super::line().contains("unknown"), "{}", super::line());
        assert_eq!(super::line().split('-').count(), 3);
    }
}
