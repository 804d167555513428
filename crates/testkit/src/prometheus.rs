//! A real Prometheus that scrapes processes of a test, and promtool. `cargo xtask setup prometheus promtool` builds them.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;
use crate::{client, ports, servers, wait};

/// Start-up timeout on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of scrapes.
const INTERVAL: &str = "200ms";
/// What replaces Grafana's `$__rate_interval`. It has many scrapes even on a busy machine.
const RATE_INTERVAL: &str = "30s";

/// A process that is scraped.
#[derive(Clone, Debug)]
pub struct ScrapedProcess {
    pub address: SocketAddr,
    pub path: &'static str,
    /// Labels that service discovery would add.
    pub labels: Vec<(&'static str, &'static str)>,
}

pub struct Prometheus {
    address: SocketAddr,
    process: Process,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it and waits until it has scraped every target.
    pub async fn start(targets: &[ScrapedProcess]) -> Prometheus {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let job = |(number, target): (usize, &ScrapedProcess)| {
            let labels: serde_json::Map<String, Value> =
                target.labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            json!({"job_name": format!("job-{number}"), "metrics_path": target.path, "scrape_interval": INTERVAL,
                "static_configs": [{"targets": [target.address.to_string()], "labels": labels}]})
        };
        let jobs: Vec<Value> = targets.iter().enumerate().map(job).collect();
        let config = folder.path().join("prometheus.json");
        // JSON is YAML.
        let text = json!({"global": {"scrape_timeout": INTERVAL}, "scrape_configs": jobs}).to_string();
        fs::write(&config, text).unwrap_or_else(|e| panic!("could not write the configuration: {e}"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let args = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", folder.path().join("data").display()),
            format!("--web.listen-address={address}"),
            "--log.level=warn".to_owned(),
        ];
        let mut prometheus = Prometheus {
            address,
            process: Process::start("prometheus", &servers::binary("prometheus"), &args, &[]),
            _folder: folder,
        };
        wait::until_within(PATIENCE, "a scrape of every target", async || {
            prometheus.process.check_alive();
            let up = prometheus.try_query("sum(up)").await?;
            let count = up.first().map(Sample::value).unwrap_or_default();
            if count == targets.len() as f64 { Ok(()) } else { Err(format!("{count} of {} targets", targets.len())) }
        })
        .await;
        prometheus
    }

    /// The result of a query now; one sample for each series. `$__rate_interval` is replaced as Grafana does.
    pub async fn query(&self, query: &str) -> Vec<Sample> {
        self.try_query(query).await.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    async fn try_query(&self, query: &str) -> Result<Vec<Sample>, String> {
        let query = query.replace("$__rate_interval", RATE_INTERVAL);
        let form: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let reply = client::get(self.address, "prometheus", &format!("/api/v1/query?query={form}")).await?;
        if !reply.status.is_success() {
            return Err(reply.body);
        }
        let result = reply.json();
        let samples = result["data"]["result"].as_array().cloned().unwrap_or_default();
        Ok(samples.into_iter().map(Sample).collect())
    }

    /// Waits until a query has a result.
    pub async fn has_data(&self, query: &str) -> Vec<Sample> {
        wait::until(&format!("data of {query}"), async || match self.try_query(query).await? {
            samples if samples.is_empty() => Err("no data".to_owned()),
            samples => Ok(samples),
        })
        .await
    }
}

/// One series of a result.
#[derive(Clone, Debug)]
pub struct Sample(Value);

impl Sample {
    pub fn value(&self) -> f64 {
        self.0["value"][1].as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
    }

    pub fn label(&self, name: &str) -> &str {
        self.0["metric"][name].as_str().unwrap_or_default()
    }
}

/// Runs promtool. Returns whether it succeeded and what it printed.
pub fn promtool(args: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(servers::binary("promtool"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("could not start promtool: {e}"));
    let mut stdin = child.stdin.take().unwrap_or_else(|| panic!("promtool has no standard input"));
    let input = input.to_owned();
    // Written meanwhile, because promtool prints while it reads.
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap_or_else(|e| panic!("could not wait for promtool: {e}"));
    let _ = writer.join();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}
