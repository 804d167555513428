//! Asks a real Envoy where a request goes. The private Envoy has the proxy's route configuration; all its clusters lead to
//! another of its listeners, which answers, so nothing else is contacted. It listens on Unix sockets in a temporary folder.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use api::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use api::envoy::config::route::v3::route::Action;
use api::envoy::config::route::v3::route_action::ClusterSpecifier;
use api::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::explanation::{Explanation, RequestOutcome};
use crate::request::Request;

/// Envoy answers within milliseconds; a machine under load takes seconds to start it.
const START: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);
/// Names the cluster in responses.
const CLUSTER_HEADER: &str = "x-explain-cluster";

/// Why Envoy could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum EnvoyError {
    #[error("could not write the configuration of the private Envoy: {0}")]
    Folder(#[source] io::Error),
    #[error("could not start {program}: {cause}")]
    Start { program: String, cause: io::Error },
    #[error("the private Envoy ended: {0}")]
    Ended(String),
    #[error("the private Envoy did not listen within {0:?}")]
    NotReady(Duration),
    #[error("could not ask the private Envoy: {0}")]
    Exchange(#[source] io::Error),
    #[error("the private Envoy did not answer within {0:?}")]
    NoAnswer(Duration),
    #[error("could not read the answer of the private Envoy")]
    Answer,
    #[error("could not convert the route configuration: {0}")]
    Convert(#[from] serde_json::Error),
}

/// A running Envoy; it ends when this is dropped.
pub struct PrivateEnvoy {
    folder: TempDir,
    process: Child,
}

/// How Envoy answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    pub status: u32,
    pub cluster: Option<String>,
    pub location: Option<String>,
}

impl PrivateEnvoy {
    /// Starts an Envoy with this route configuration.
    pub async fn start(program: &Path, table: &RouteConfiguration) -> Result<PrivateEnvoy, EnvoyError> {
        PrivateEnvoy::with_filters(program, table, &[]).await
    }

    /// Starts an Envoy with this route configuration and these HTTP filters, as JSON, before its router.
    pub async fn with_filters(
        program: &Path,
        table: &RouteConfiguration,
        filters: &[Value],
    ) -> Result<PrivateEnvoy, EnvoyError> {
        let folder = tempfile::tempdir().map_err(EnvoyError::Folder)?;
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, bootstrap(table, filters, folder.path())?.to_string()).map_err(EnvoyError::Folder)?;
        let process = Command::new(program)
            .arg("--config-path")
            .arg(&file)
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|cause| EnvoyError::Start { program: program.display().to_string(), cause })?;
        let mut envoy = PrivateEnvoy { folder, process };
        envoy.wait().await?;
        Ok(envoy)
    }

    async fn wait(&mut self) -> Result<(), EnvoyError> {
        let begun = Instant::now();
        while begun.elapsed() < START {
            if self.connect().await.is_ok() {
                return Ok(());
            }
            if let Ok(Some(_)) = self.process.try_wait() {
                let mut text = String::new();
                if let Some(stderr) = &mut self.process.stderr {
                    let _ = stderr.read_to_string(&mut text).await;
                }
                return Err(EnvoyError::Ended(text.trim().to_owned()));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Err(EnvoyError::NotReady(START))
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(socket(self.folder.path(), "entry")).await
    }

    /// Sends the request and returns how Envoy answered.
    pub async fn ask(&self, request: &Request) -> Result<Observed, EnvoyError> {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(message(request).as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok(answer)
        };
        let answer = timeout(ANSWER, exchange).await.map_err(|_| EnvoyError::NoAnswer(ANSWER))?;
        observed(&answer.map_err(EnvoyError::Exchange)?).ok_or(EnvoyError::Answer)
    }
}

impl Observed {
    /// Why an explanation does not agree with this; `None` if it does.
    pub fn disagreement(&self, explanation: &Explanation) -> Option<String> {
        let Observed { status, cluster, location } = self;
        let agrees = match &explanation.outcome {
            RequestOutcome::Forwarded(clusters) => {
                *status == 200 && clusters.iter().any(|step| Some(&step.name) == cluster.as_ref())
            }
            RequestOutcome::Redirected { status: wanted, location: to } => {
                status == wanted && location.as_ref() == Some(to)
            }
            RequestOutcome::Answered { status: wanted, .. } => status == wanted && cluster.is_none(),
            RequestOutcome::NotServed(_) => *status >= 400 && cluster.is_none(),
        };
        (!agrees).then(|| {
            let to = cluster.as_ref().or(location.as_ref()).map_or(String::new(), |to| format!(" from {to}"));
            format!("Envoy answered with status {status}{to}")
        })
    }
}

fn socket(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(name)
}

/// The request as HTTP/1.1 text.
fn message(request: &Request) -> String {
    let Request { method, path, authority, scheme, headers, .. } = request;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {authority}\r\nx-forwarded-proto: {scheme}\r\nconnection: close\r\n\
         content-length: 0\r\n{headers}\r\n"
    )
}

fn observed(answer: &[u8]) -> Option<Observed> {
    let text = String::from_utf8_lossy(answer);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut observed = Observed { status, ..Observed::default() };
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        match name {
            CLUSTER_HEADER if value != "-" => observed.cluster = Some(value.to_owned()),
            "location" => observed.location = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(observed)
}

fn bootstrap(table: &RouteConfiguration, filters: &[Value], folder: &Path) -> Result<Value, EnvoyError> {
    let backend = json!({"pipe": {"path": socket(folder, "backend")}});
    let cluster = |name: &String| {
        let endpoint = json!({"endpoint": {"address": backend}});
        let assignment = json!({"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]});
        json!({"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": assignment})
    };
    let answer = json!({"name": "backend", "virtual_hosts": [{"name": "all", "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]});
    let entry = json!({"pipe": {"path": socket(folder, "entry")}});
    let entry = listener("entry", &entry, routes_json(&reduced(table))?, filters);
    let listeners = json!([entry, listener("backend", &backend, answer, &[])]);
    let clusters: Vec<Value> = clusters(table).iter().map(cluster).collect();
    Ok(json!({"static_resources": {"listeners": listeners, "clusters": clusters}}))
}

fn listener(name: &str, address: &Value, routes: Value, filters: &[Value]) -> Value {
    let of = "type.googleapis.com/envoy.extensions.filters";
    let router = json!({"name": "router", "typed_config": {"@type": format!("{of}.http.router.v3.Router")}});
    let manager = json!({
        "@type": format!("{of}.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": name,
        "route_config": routes,
        "http_filters": filters.iter().cloned().chain([router]).collect::<Vec<_>>(),
        "upgrade_configs": [{"upgrade_type": "CONNECT"}],
    });
    json!({"name": name, "address": address, "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]})
}

fn routes_json(table: &RouteConfiguration) -> Result<Value, serde_json::Error> {
    let descriptor = api::reflect::envoy().get_message_by_name("envoy.config.route.v3.RouteConfiguration");
    let message = descriptor.and_then(|of| DynamicMessage::decode(of, &*table.encode_to_vec()).ok());
    serde_json::to_value(&message)
}

/// The table with what decides the way only, and a response header that names the cluster.
fn reduced(table: &RouteConfiguration) -> RouteConfiguration {
    let header = HeaderValueOption {
        header: Some(HeaderValue {
            key: CLUSTER_HEADER.to_owned(),
            value: "%UPSTREAM_CLUSTER_RAW%".to_owned(),
            ..HeaderValue::default()
        }),
        ..HeaderValueOption::default()
    };
    RouteConfiguration {
        name: table.name.clone(),
        ignore_port_in_host_matching: table.ignore_port_in_host_matching,
        response_headers_to_add: vec![header],
        max_direct_response_body_size_bytes: table.max_direct_response_body_size_bytes,
        virtual_hosts: table.virtual_hosts.iter().map(reduced_host).collect(),
        ..RouteConfiguration::default()
    }
}

fn reduced_host(host: &VirtualHost) -> VirtualHost {
    let mut routes = host.routes.clone();
    for route in &mut routes {
        route.typed_per_filter_config.clear();
        route.response_headers_to_add.clear();
        route.response_headers_to_remove.clear();
        let Some(Action::Route(action)) = &mut route.action else { continue };
        action.request_mirror_policies.clear();
        action.internal_redirect_policy = None;
        action.retry_policy = None;
        action.metadata_match = None;
        if let Some(ClusterSpecifier::WeightedClusters(weighted)) = &mut action.cluster_specifier {
            for cluster in &mut weighted.clusters {
                cluster.typed_per_filter_config.clear();
                cluster.metadata_match = None;
            }
        }
    }
    let (name, domains, require_tls) = (host.name.clone(), host.domains.clone(), host.require_tls);
    VirtualHost { name, domains, require_tls, routes, ..VirtualHost::default() }
}

/// Names of all clusters that routes send to.
fn clusters(table: &RouteConfiguration) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for route in table.virtual_hosts.iter().flat_map(|host| &host.routes) {
        let Some(Action::Route(action)) = &route.action else { continue };
        match &action.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => _ = names.insert(name.clone()),
            Some(ClusterSpecifier::WeightedClusters(weighted)) => {
                names.extend(weighted.clusters.iter().map(|cluster| cluster.name.clone()));
            }
            _ => {}
        }
    }
    names
}
