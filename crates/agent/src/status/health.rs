//! The workload's health, for a workload without kubelet: Envoy's readiness and the probe of ProxyConfig are checked
//! periodically, and every change is published. The relay reports it to the control plane.

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::istio::networking::v1alpha3::readiness_probe::HealthCheckMethod;
use api::istio::networking::v1alpha3::{ExecHealthCheckConfig, HttpHealthCheckConfig, ReadinessProbe};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Empty;
use net::http::send;
use serde::{Deserialize, Serialize};
use tokio::net::lookup_host;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::info;

use super::readiness::ReadinessCheck;
use super::{fetch, probes};

/// Upstream's defaults.
const PERIOD: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the workload is healthy; the error text says why not.
pub type WorkloadHealth = Result<(), String>;
/// Publishes the health; `None` until the first result.
pub type HealthSender = watch::Sender<Option<WorkloadHealth>>;

/// The probe and its times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthPlan {
    pub method: ProbeMethod,
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    /// Results in a row that change the health.
    pub successes: u32,
    pub failures: u32,
}

/// How the application is probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeMethod {
    Http { host: String, port: u16, path: String, is_tls: bool, headers: Vec<(String, String)> },
    Tcp { host: String, port: u16 },
    Exec { command: Vec<String> },
    Grpc { port: u16, service: String },
}

impl HealthPlan {
    /// Reads the probe of ProxyConfig. `address` is the workload's own, which is probed unless the probe names another.
    pub fn read(probe: &ReadinessProbe, address: IpAddr) -> Result<HealthPlan> {
        let seconds = |value: i32, default: Duration| match u64::try_from(value) {
            Ok(0) | Err(_) => default,
            Ok(seconds) => Duration::from_secs(seconds),
        };
        let threshold = |value: i32| u32::try_from(value).unwrap_or(1).max(1);
        let method =
            probe.health_check_method.as_ref().context("could not use the readiness probe: it has no method")?;
        Ok(HealthPlan {
            method: ProbeMethod::read(method, address)?,
            initial_delay: seconds(probe.initial_delay_seconds, Duration::ZERO),
            period: seconds(probe.period_seconds, PERIOD),
            timeout: seconds(probe.timeout_seconds, TIMEOUT),
            successes: threshold(probe.success_threshold),
            failures: threshold(probe.failure_threshold),
        })
    }

    /// Probes until cancelled. `admin` is Envoy's admin port; `None` without an Envoy.
    pub async fn run(self, admin: Option<SocketAddr>, address: IpAddr, health: HealthSender) {
        let envoy = admin.map(|admin| ReadinessCheck::new(admin, Vec::new()));
        let mut streak = Streak::default();
        sleep(self.initial_delay).await;
        loop {
            let result = self.check(envoy.as_ref(), address).await.map_err(|error| format!("{error:#}"));
            if streak.counts(result.is_ok(), self.successes, self.failures) {
                health.send_if_modified(|current| {
                    // The text of a failure may change with every probe.
                    let is_new = current.as_ref().map(Result::is_ok) != Some(result.is_ok());
                    if is_new {
                        info!(healthy = result.is_ok(), reason = ?result.as_ref().err(), "health of the workload changed");
                        *current = Some(result.clone());
                    }
                    is_new
                });
            }
            sleep(self.period).await;
        }
    }

    async fn check(&self, envoy: Option<&ReadinessCheck>, address: IpAddr) -> Result<()> {
        if let Some(envoy) = envoy {
            envoy.check().await?;
        }
        let probed = timeout(self.timeout, self.method.probe(address)).await;
        probed.with_context(|| format!("no response of the application within {:?}", self.timeout))?
    }
}

/// Equal results in a row.
#[derive(Debug, Default)]
struct Streak {
    is_good: bool,
    length: u32,
}

impl Streak {
    /// Whether enough results in a row are like this one.
    fn counts(&mut self, is_good: bool, successes: u32, failures: u32) -> bool {
        self.length = if self.is_good == is_good { self.length.saturating_add(1) } else { 1 };
        self.is_good = is_good;
        self.length >= if is_good { successes } else { failures }
    }
}

impl ProbeMethod {
    fn read(method: &HealthCheckMethod, address: IpAddr) -> Result<ProbeMethod> {
        let number = |port: u32| {
            let port = u16::try_from(port).ok().filter(|port| *port != 0);
            port.context("could not use the readiness probe: its port is not 1 to 65535")
        };
        let host = |given: &str| if given.is_empty() { address.to_string() } else { given.to_owned() };
        Ok(match method {
            HealthCheckMethod::HttpGet(HttpHealthCheckConfig { path, port, host: given, scheme, http_headers }) => {
                ProbeMethod::Http {
                    host: host(given),
                    port: number(*port)?,
                    path: format!("/{}", path.trim_start_matches('/')),
                    is_tls: scheme.eq_ignore_ascii_case("https"),
                    headers: http_headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect(),
                }
            }
            HealthCheckMethod::TcpSocket(tcp) => ProbeMethod::Tcp { host: host(&tcp.host), port: number(tcp.port)? },
            HealthCheckMethod::Exec(ExecHealthCheckConfig { command }) if command.is_empty() => {
                bail!("could not use the readiness probe: it has no command")
            }
            HealthCheckMethod::Exec(exec) => ProbeMethod::Exec { command: exec.command.clone() },
            HealthCheckMethod::Grpc(grpc) => {
                ProbeMethod::Grpc { port: number(grpc.port)?, service: grpc.service.clone() }
            }
        })
    }

    async fn probe(&self, address: IpAddr) -> Result<()> {
        match self {
            ProbeMethod::Http { host, port, path, is_tls, headers } => http(host, *port, path, *is_tls, headers).await,
            ProbeMethod::Tcp { host, port } => connect(host, *port).await.map(drop),
            ProbeMethod::Exec { command } => exec(command).await,
            ProbeMethod::Grpc { port, service } => probes::grpc_health((address, *port).into(), service, None).await,
        }
    }
}

async fn connect(host: &str, port: u16) -> Result<(tokio::net::TcpStream, SocketAddr)> {
    let found = lookup_host((host, port)).await.with_context(|| format!("could not resolve {host}"))?.next();
    let to = found.with_context(|| format!("could not resolve {host}: it has no address"))?;
    Ok((fetch::connect(to, Some(probes::source(to.ip()))).await?, to))
}

async fn http(host: &str, port: u16, path: &str, is_tls: bool, headers: &[(String, String)]) -> Result<()> {
    let mut request = Request::get(path).body(Empty::<Bytes>::new()).context("could not build the probe request")?;
    request.headers_mut().insert(http::header::HOST, HeaderValue::from_str(&format!("{host}:{port}"))?);
    for (name, value) in headers {
        request.headers_mut().insert(HeaderName::try_from(name)?, HeaderValue::from_str(value)?);
    }
    let (stream, to) = connect(host, port).await?;
    let response = match is_tls {
        true => send(fetch::unverified_tls(stream, to.ip()).await?, request).await?,
        false => send(stream, request).await?,
    };
    match response.status() {
        status if status.is_success() || status.is_redirection() => Ok(()),
        status => bail!("the application responded with {status}"),
    }
}

async fn exec(command: &[String]) -> Result<()> {
    let [program, arguments @ ..] = command else { bail!("the probe has no command") };
    let mut started = Command::new(program);
    started.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let status = started.status().await.with_context(|| format!("could not run {program}"))?;
    if status.success() { Ok(()) } else { bail!("{program} ended with {status}") }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use api::istio::networking::v1alpha3::readiness_probe::HealthCheckMethod;
    use api::istio::networking::v1alpha3::{
        ExecHealthCheckConfig, HttpHealthCheckConfig, ReadinessProbe, TcpHealthCheckConfig,
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::{HealthPlan, ProbeMethod, Streak};

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn plan(method: Option<HealthCheckMethod>) -> Result<HealthPlan, String> {
        let probe = ReadinessProbe { period_seconds: 3, health_check_method: method, ..ReadinessProbe::default() };
        HealthPlan::read(&probe, LOCAL).map_err(|error| error.to_string())
    }

    #[test]
    fn probes_are_read_with_defaults() {
        let tcp = HealthCheckMethod::TcpSocket(TcpHealthCheckConfig { host: String::new(), port: 80 });
        let found = plan(Some(tcp)).unwrap();
        assert_eq!(found.method, ProbeMethod::Tcp { host: "127.0.0.1".to_owned(), port: 80 });
        let times = (found.initial_delay, found.period, found.timeout);
        assert_eq!(times, (Duration::ZERO, Duration::from_secs(3), Duration::from_secs(1)));
        assert_eq!((found.successes, found.failures), (1, 1));
        for (bad, reason) in [
            (None, "no method"),
            (Some(HealthCheckMethod::TcpSocket(TcpHealthCheckConfig { host: String::new(), port: 70_000 })), "port"),
            (Some(HealthCheckMethod::Exec(ExecHealthCheckConfig { command: Vec::new() })), "no command"),
        ] {
            assert!(plan(bad).unwrap_err().contains(reason));
        }
    }

    #[test]
    fn results_count_when_there_are_enough_in_a_row() {
        let mut streak = Streak::default();
        let results = [true, false, false, true, true, true].map(|good| streak.counts(good, 3, 2));
        assert_eq!(results, [false, false, true, false, false, true]);
    }

    #[tokio::test]
    async fn http_and_commands_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = u32::from(listener.local_addr().unwrap().port());
        let server = tokio::spawn(async move {
            for status in ["200 OK", "503 Busy"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /health"));
                let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        let get = HttpHealthCheckConfig { path: "health".to_owned(), port, ..HttpHealthCheckConfig::default() };
        let http = plan(Some(HealthCheckMethod::HttpGet(get))).unwrap();
        http.check(None, LOCAL).await.unwrap();
        assert!(http.check(None, LOCAL).await.unwrap_err().to_string().contains("503"));
        server.await.unwrap();
        assert!(http.check(None, LOCAL).await.is_err(), "nothing listens any longer");
        for (command, is_good) in [("true", true), ("false", false), ("/no/such/program", false)] {
            let exec = ExecHealthCheckConfig { command: vec![command.to_owned()] };
            let exec = plan(Some(HealthCheckMethod::Exec(exec))).unwrap();
            assert_eq!(exec.check(None, LOCAL).await.is_ok(), is_good, "{command}");
        }
    }

    #[tokio::test]
    async fn only_changes_are_published() {
        let exec = ExecHealthCheckConfig { command: vec!["false".to_owned()] };
        let plan = plan(Some(HealthCheckMethod::Exec(exec))).unwrap();
        let plan = HealthPlan { period: Duration::from_millis(5), ..plan };
        let sender = watch::Sender::new(None);
        let mut reader = sender.subscribe();
        let task = tokio::spawn(plan.run(None, LOCAL, sender));
        reader.changed().await.unwrap();
        assert!(reader.borrow_and_update().as_ref().unwrap().is_err());
        let again = tokio::time::timeout(Duration::from_millis(100), reader.changed()).await;
        assert!(again.is_err(), "the same result is not published again");
        task.abort();
    }
}
