//! `cargo xtask test`: everything that CI checks, one step after the other, with a closing
//! table. A failing step does not hide the ones after it.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{setup, tidy};

/// Tests that start real servers fight for the cores when more than this run at once.
const MAX_TEST_THREADS: usize = 4;

struct Step {
    name: &'static str,
    passed: bool,
    took: Duration,
}

/// What `cargo test` said at the end of each of its programs, summed up.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    programs: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// Runs every check; an error when one failed.
pub(crate) fn run(root: &Path) -> Result<()> {
    let missing = setup::run(root, &[])?;
    let mut counts = Counts::default();
    let steps = [
        step("fmt", || cargo(root, &["fmt", "--all", "--check"])),
        step("clippy", || {
            cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
        }),
        step("tidy", || tidy::run(root)),
        step("test", || tests(root, &missing, &mut counts)),
    ];
    println!();
    for s in &steps {
        println!("{:8} {:8} {:6.1} s", s.name, if s.passed { "ok" } else { "FAILED" }, s.took.as_secs_f64());
    }
    let Counts { programs, passed, failed, ignored } = counts;
    println!("tests: {passed} passed, {failed} failed, {ignored} ignored in {programs} programs");
    if !missing.is_empty() {
        println!("without {}: what needs it was left out", missing.join(", "));
    }
    if steps.iter().any(|s| !s.passed) {
        bail!("not all checks passed");
    }
    Ok(())
}

fn step(name: &'static str, check: impl FnOnce() -> Result<()>) -> Step {
    println!("== {name}");
    let start = Instant::now();
    let result = check();
    if let Err(error) = &result {
        eprintln!("{name}: {error:#}");
    }
    Step { name, passed: result.is_ok(), took: start.elapsed() }
}

fn cargo_command(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    let status = cargo_command(root).args(args).status().context("could not run cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args[0]);
    }
    Ok(())
}

/// testkit leaves out what needs a part named in `PILOTAGE_WITHOUT`; otherwise a missing part fails.
fn tests(root: &Path, missing: &[&str], counts: &mut Counts) -> Result<()> {
    let mut child = cargo_command(root)
        .args(["test", "--workspace", "--locked", "--no-fail-fast"])
        .env("RUST_TEST_THREADS", test_threads())
        .env("PILOTAGE_WITHOUT", missing.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .context("could not run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        counts.add(&line);
    }
    if !child.wait()?.success() {
        bail!("cargo test failed");
    }
    Ok(())
}

fn test_threads() -> OsString {
    env::var_os("RUST_TEST_THREADS").unwrap_or_else(|| {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        cores.min(MAX_TEST_THREADS).to_string().into()
    })
}

impl Counts {
    /// Takes in a line such as "test result: ok. 17 passed; 0 failed; 1 ignored; …".
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let number = |word: &str| {
            let before = result.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
            before.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
        };
        self.programs += 1;
        self.passed += number("passed");
        self.failed += number("failed");
        self.ignored += number("ignored");
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn results_are_summed_up() {
        let mut counts = Counts::default();
        counts.add("running 3 tests");
        counts.add("test result: ok. 17 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s");
        counts.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(counts, Counts { programs: 2, passed: 19, failed: 3, ignored: 1 });
    }
}
