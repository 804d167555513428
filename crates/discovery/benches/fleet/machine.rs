//! Where figures come from: the commit that was built and the machine.

use std::fs;
use std::process::Command;

/// The commit and the machine in one line.
pub(crate) fn origin() -> String {
    format!("commit {}, {}", commit(), machine())
}

/// The short hash, marked if files of the project differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = git(&["rev-parse", "--short=7", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ":/crates", ":/Cargo.lock"]);
    if changed.is_some_and(|files| !files.is_empty()) { format!("{hash} with changes") } else { hash }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name))?.trim_start_matches([':', ' ', '\t']);
        Some(line.trim().to_owned())
    };
    let kib = field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{cores} cores ({model}), {:.0} GiB", kib.unwrap_or_default() / f64::from(1 << 20))
}
