//! `cargo xtask conformance`: the published suite of the Gateway API against Pilotage in a cluster. Gateways are deployed,
//! proxies injected and certificates issued by Pilotage itself. What is tested is what the GatewayClass claims. For comparison
//! istiod can be tested in the same way. `report.rs` writes the table of counts.

mod report;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::report::ConformanceRun;
use crate::cluster::{Cluster, ControlPlaneKind, Lifetime, MachineOptions};
use crate::setup;

const PROFILES: &str = "GATEWAY-HTTP,GATEWAY-TLS,GATEWAY-GRPC,GATEWAY-TCP,MESH-HTTP,MESH-GRPC";
/// Version of the suite in `tools/servers/gateway-api/go.mod`.
const SUITE: &str = "v1.6.0";
const CLASS: &str = "istio";
const READY: Duration = Duration::from_secs(60);

/// What to test; by default everything, with a report.
#[derive(Debug, Default)]
struct ConformanceOptions {
    /// One test alone.
    test: Option<String>,
    /// Tests whose names match a regular expression.
    only: Option<String>,
    /// Folder of the report, by default `docs/conformance`.
    report: Option<PathBuf>,
    /// Name of a running cluster to use.
    cluster: Option<String>,
    /// What to install into a new cluster.
    server: ControlPlaneKind,
    /// Profiles of the suite, separated by commas; by default all.
    profiles: Option<String>,
}

impl ConformanceOptions {
    /// Whether the result is the report of this project.
    fn is_whole(&self) -> bool {
        let is_all = self.test.is_none() && self.only.is_none() && self.profiles.is_none();
        is_all && self.server == ControlPlaneKind::Pilotage
    }

    /// A name for clusters and files; several runs with different servers do not meet.
    fn name(&self) -> &'static str {
        match self.server {
            ControlPlaneKind::Pilotage => "conformance",
            ControlPlaneKind::Istiod => "conformance-istiod",
        }
    }
}

/// Result of one test of the suite.
#[derive(Debug, PartialEq)]
struct TestResult {
    name: String,
    passed: bool,
    seconds: f64,
}

/// Runs the suite; an error when a test failed.
pub(crate) fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let options = parse(flags)?;
    let missing = setup::run(root, &["gateway-api-suite"])?;
    if !missing.is_empty() {
        bail!("could not obtain {}", missing.join(", "));
    }
    let cluster = match &options.cluster {
        Some(name) => Cluster::running(&MachineOptions::named(name).folder())?
            .with_context(|| format!("cluster {name} is not running"))?,
        None => {
            let started = Cluster::start(root, &MachineOptions::named(options.name()), Lifetime::Ours)?;
            options.server.install(&started)?;
            started
        }
    };
    let start = Instant::now();
    let results = suite(root, &cluster, &options)?;
    let failed: Vec<&TestResult> = results.iter().filter(|result| !result.passed).collect();
    for result in &results {
        println!("{} {} {:.1} s", if result.passed { "pass" } else { "FAIL" }, result.name, result.seconds);
    }
    let passed = results.len() - failed.len();
    if options.is_whole() && !results.is_empty() {
        let seconds = start.elapsed().as_secs_f64();
        report::write_table(
            root,
            &report_file(root, &options),
            &ConformanceRun { passed, failed: failed.len(), seconds },
        )?;
    }
    println!("conformance {SUITE}: {passed} of {} passed in {:.0} s", results.len(), start.elapsed().as_secs_f64());
    if results.is_empty() || !failed.is_empty() {
        bail!("{} of {} tests failed; the log is in target/conformance", failed.len(), results.len());
    }
    Ok(())
}

fn parse(flags: &[&str]) -> Result<ConformanceOptions> {
    let mut options = ConformanceOptions::default();
    let mut rest = flags.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().with_context(|| format!("{flag} needs a value"))?.to_string();
        match *flag {
            "--test" => options.test = Some(value),
            "--only" => options.only = Some(value),
            "--report" => options.report = Some(value.into()),
            "--cluster" => options.cluster = Some(value),
            "--server" => options.server = ControlPlaneKind::parse(&value)?,
            "--profiles" => options.profiles = Some(value),
            _ => bail!("unknown flag {flag}: --test, --only, --report, --cluster, --server or --profiles"),
        }
    }
    Ok(options)
}

/// Runs the suite in the cluster's network and returns the result of every test that was not skipped.
fn suite(root: &Path, cluster: &Cluster, options: &ConformanceOptions) -> Result<Vec<TestResult>> {
    let work = root.join("target/conformance");
    fs::create_dir_all(&work)?;
    // Several clusters may be tested at once.
    let log = work.join(format!("{}.log", cluster.name()));
    let is_whole = options.is_whole();
    let report = if is_whole { report_file(root, options) } else { log.with_extension("yaml") };
    if let Some(folder) = report.parent() {
        fs::create_dir_all(folder)?;
    }
    let features = match options.server {
        ControlPlaneKind::Pilotage => claimed(cluster)?,
        // It writes no list: both are asked for the same.
        ControlPlaneKind::Istiod => our_features(root)?,
    };
    let mut command = cluster.inside(&setup::path("gateway-api-suite")?)?;
    command.current_dir(&work).args(["-test.v", "-test.timeout=60m"]);
    command.arg(format!("-test.run=TestConformance/{}", options.only.as_deref().unwrap_or_default()));
    command.arg(format!("--gateway-class={CLASS}")).arg(format!("--supported-features={}", features.join(",")));
    let profiles = options.profiles.as_deref().unwrap_or(PROFILES);
    command.arg(format!("--conformance-profiles={profiles}")).arg("--allow-crds-mismatch");
    command.arg("--conformance-options-file").arg(root.join("tools/servers/gateway-api/options.yaml"));
    command.arg("--report-output").arg(&report).arg("--cleanup-base-resources=false");
    command.args(["--organization=pilotage", "--project=pilotage", "--url=https://pilotage.example"]);
    command.args(["--contact=pilotage", "--mode=default", "--namespace-labels=istio-injection=enabled"]);
    command.arg(concat!("--version=", env!("CARGO_PKG_VERSION")));
    if let Some(test) = &options.test {
        command.arg(format!("--run-test={test}"));
    }
    let file = File::create(&log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status().context("could not run the suite")?;
    let results = results(&fs::read_to_string(&log)?);
    if !status.success() && results.iter().all(|result| result.passed) {
        bail!("the suite ended with {status}; its log is {}", log.display());
    }
    if !is_whole && results.iter().all(|result| result.passed) {
        let _ = fs::remove_file(&log);
        let _ = fs::remove_file(&report);
    }
    Ok(results)
}

/// The report of a whole run.
fn report_file(root: &Path, options: &ConformanceOptions) -> PathBuf {
    let folder = options.report.clone().unwrap_or_else(|| root.join("docs/conformance"));
    folder.join(format!("gateway-api-{SUITE}.yaml"))
}

/// Features that the class claims, when it is accepted.
fn claimed(cluster: &Cluster) -> Result<Vec<String>> {
    cluster.until("the features of the GatewayClass", READY, || {
        let class = cluster.get(&["gatewayclass", CLASS])?;
        let features = class["status"]["supportedFeatures"].as_array().context("the class claims no feature")?;
        Ok(features.iter().filter_map(|feature| Some(feature["name"].as_str()?.to_owned())).collect())
    })
}

/// The features that Pilotage claims, from its table.
fn our_features(root: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string(root.join("crates/model/src/snapshot/gateway_api/features.rs"))?;
    let names = table.lines().filter_map(|line| line.strip_prefix("    \"")?.strip_suffix("\","));
    Ok(names.map(str::to_owned).collect())
}

/// Lines such as "    --- PASS: TestConformance/HTTPRouteRetry (3.02s)".
fn results(log: &str) -> Vec<TestResult> {
    let result = |line: &str| {
        let (word, rest) = line.strip_prefix("    --- ")?.split_once(": TestConformance/")?;
        let (name, time) = rest.split_once(' ')?;
        let seconds = time.trim_matches(['(', ')']).trim_end_matches('s').parse().ok()?;
        let passed = match word {
            "PASS" => true,
            "FAIL" => false,
            _ => return None,
        };
        Some(TestResult { name: name.to_owned(), passed, seconds })
    };
    log.lines().filter_map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::{TestResult, results};

    #[test]
    fn results_are_read_from_the_log() {
        let log = "=== RUN   TestConformance/A\n    --- PASS: TestConformance/A (1.50s)\n\
            \u{20}       --- PASS: TestConformance/A/part (0.10s)\n    --- SKIP: TestConformance/B (0.00s)\n\
            \u{20}   --- FAIL: TestConformance/C (2.00s)\nok\n";
        let of = |name: &str, passed, seconds| TestResult { name: name.to_owned(), passed, seconds };
        assert_eq!(results(log), [of("A", true, 1.5), of("C", false, 2.0)]);
    }
}
