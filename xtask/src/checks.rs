//! `cargo xtask test`: everything that CI checks, step by step, with a table at the end. A failing step does not skip the
//! ones after it. Up to three failing tests are run once more on their own: tests share the machine with real servers, and
//! one that only fails under load is reported as flaky instead of hiding the result of all others. With `--no-rerun` each
//! failure fails the run. cargo-nextest is not used: it runs each test in its own process, and the tests of a binary share
//! an API server and a list of used ports.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::reference::{self, ReferenceMode};
use crate::{setup, tidy};

/// Tests start real servers; more at once run into their timeouts.
const MAX_TEST_THREADS: usize = 4;
/// With more failures than this the cause is not load.
const MAX_FLAKY: usize = 3;

/// What happens when a few tests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedTests {
    /// They are run once more, and the run passes if they do.
    Rerun,
    /// The run has failed.
    Final,
}

struct CheckStep {
    name: &'static str,
    passed: bool,
    took: Duration,
}

/// The results that `cargo test` prints for each test binary, added up.
#[derive(Debug, Default, PartialEq)]
struct TestCounts {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Names of the tests that failed.
    failures: BTreeSet<String>,
}

/// Runs every check; an error when one failed.
pub(crate) fn run(root: &Path, on_failure: FailedTests) -> Result<()> {
    let missing = setup::run(root, &[])?;
    let (mut counts, mut flaky) = (TestCounts::default(), BTreeSet::new());
    let steps = [
        step("fmt", || cargo(root, &["fmt", "--all", "--check"])),
        step("clippy", || {
            cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
        }),
        step("tidy", || tidy::run(root)),
        step("deny", || dependencies(root, &missing)),
        step("test", || tests(root, &missing, on_failure, &mut counts, &mut flaky)),
        step("reference", || reference::run(root, ReferenceMode::Check)),
    ];
    println!();
    for s in &steps {
        println!("{:10} {:8} {:6.1} s", s.name, if s.passed { "ok" } else { "FAILED" }, s.took.as_secs_f64());
    }
    for name in &flaky {
        println!("flaky: {name} failed, and passed on its own");
    }
    println!("tests: {} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.ignored);
    if !missing.is_empty() {
        println!("not obtained: {}; tests that need it were skipped", missing.join(", "));
    }
    if steps.iter().any(|s| !s.passed) {
        bail!("not all checks passed");
    }
    Ok(())
}

fn step(name: &'static str, check: impl FnOnce() -> Result<()>) -> CheckStep {
    println!("== {name}");
    let start = Instant::now();
    let result = check();
    if let Err(error) = &result {
        eprintln!("{name}: {error:#}");
    }
    CheckStep { name, passed: result.is_ok(), took: start.elapsed() }
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

/// Whether dependencies are what `deny.toml` allows; passes where the tool could not be obtained.
fn dependencies(root: &Path, missing: &[&str]) -> Result<()> {
    if missing.contains(&"cargo-deny") {
        return Ok(());
    }
    let mut deny = Command::new(setup::path("cargo-deny")?);
    deny.current_dir(root).args(["--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    match deny.status().context("could not run cargo-deny")?.success() {
        true => Ok(()),
        false => bail!("a dependency is not allowed by deny.toml"),
    }
}

fn tests(
    root: &Path,
    missing: &[&str],
    on_failure: FailedTests,
    counts: &mut TestCounts,
    flaky: &mut BTreeSet<String>,
) -> Result<()> {
    let has_passed = cargo_test(root, missing, &[], counts)?;
    if has_passed {
        return Ok(());
    }
    if !counts.may_rerun(on_failure) {
        bail!("cargo test failed: {:?}", counts.failures);
    }
    let failures = counts.failures.clone();
    println!("== test, once more: {failures:?}");
    let only: Vec<&str> = ["--exact"].into_iter().chain(failures.iter().map(String::as_str)).collect();
    let mut again = TestCounts::default();
    if !cargo_test(root, missing, &only, &mut again)? || again.passed < failures.len() {
        bail!("cargo test failed, and once more for {:?}", again.failures);
    }
    counts.passed += counts.failed;
    counts.failed = 0;
    flaky.extend(failures);
    Ok(())
}

/// Whether all tests passed. testkit skips tests that need a server named in `PILOTAGE_WITHOUT`; with any other missing
/// server they fail.
fn cargo_test(root: &Path, missing: &[&str], arguments: &[&str], counts: &mut TestCounts) -> Result<bool> {
    let mut child = cargo_command(root)
        .args(["test", "--workspace", "--locked", "--no-fail-fast", "--"])
        .args(arguments)
        .env("RUST_TEST_THREADS", test_threads())
        .env("PILOTAGE_WITHOUT", missing.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .context("could not run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        counts.add(&line);
    }
    Ok(child.wait()?.success())
}

fn test_threads() -> OsString {
    env::var_os("RUST_TEST_THREADS").unwrap_or_else(|| {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        cores.min(MAX_TEST_THREADS).to_string().into()
    })
}

impl TestCounts {
    /// Adds a line such as "test result: ok. 17 passed; 0 failed; 1 ignored; …" or "test a::b ... FAILED".
    fn add(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.insert(name.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let number = |word: &str| {
            let before = result.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
            before.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
        self.ignored += number("ignored");
    }

    /// Whether the failed tests are run once more: all are known by name, and they are few.
    fn may_rerun(&self, on_failure: FailedTests) -> bool {
        let is_few = self.failures.len() == self.failed && (1..=MAX_FLAKY).contains(&self.failed);
        on_failure == FailedTests::Rerun && is_few
    }
}

#[cfg(test)]
mod tests {
    use super::{FailedTests, TestCounts};

    #[test]
    fn results_are_summed_up() {
        let mut counts = TestCounts::default();
        counts.add("running 3 tests");
        counts.add("test tidy::long_lines ... ok");
        counts.add("test tidy::short_lines ... FAILED");
        counts.add("test result: ok. 17 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s");
        counts.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out");
        let failures = ["tidy::short_lines".to_owned()].into();
        assert_eq!(counts, TestCounts { passed: 19, failed: 3, ignored: 1, failures });
    }
    #[test]
    fn a_failure_is_final_without_a_rerun() {
        let failed = |count: usize| {
            let failures = (0..count).map(|number| format!("test_{number}")).collect();
            TestCounts { failed: count, failures, ..TestCounts::default() }
        };
        let reruns =
            |count| [FailedTests::Rerun, FailedTests::Final].map(|on_failure| failed(count).may_rerun(on_failure));
        assert_eq!(reruns(1), [true, false]);
        assert_eq!(reruns(3), [true, false]);
        assert_eq!(reruns(4), [false, false]);
        // A test binary that crashed names no test.
        assert!(!TestCounts { failed: 1, ..TestCounts::default() }.may_rerun(FailedTests::Rerun));
    }
}
