//! Version of this binary in upstream's format, which istioctl and Kiali parse: `VERSION-REVISION-STATUS` or the same as
//! JSON.

use serde_json::{Value, json};

/// Release number of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of this build, set by the build script. `development` in debug builds.
const REVISION: &str = env!("PILOTAGE_REVISION");

/// `Clean`, or `Modified` for a build with local changes, as in upstream.
const STATUS: &str = env!("PILOTAGE_BUILD_STATUS");

/// `VERSION-REVISION-STATUS`
pub fn line() -> String {
    format!("{VERSION}-{REVISION}-{STATUS}")
}

/// The version in the shape of upstream's build info. The field for the Go version says that there is none.
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
    fn hole_15_a_build_names_its_commit_and_whether_sources_were_modified() {
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
        // Sources unpacked inside another project's checkout do not belong to its commit.
        assert_eq!(of_checkout(&path.join("inside")), None);
    }

    #[test]
    fn hole_15_a_version_never_says_unknown() {
        assert!(!super::line().contains("unknown"), "{}", super::line());
        assert_eq!(super::line().split('-').count(), 3);
    }
}
