//! A mesh under load: a client and two replicas of a server, each a real Envoy under a real agent, that speak mutual TLS
//! with certificates of a CA that is not the server of their configuration.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use testkit::backend::HttpBackend;
use testkit::discovery::DiscoveryProcess;
use testkit::process::{Process, alive_with, signal};
use testkit::{client, ports, programs, servers, wait};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::fixture::Mesh;

const HOST: &str = "cart.shop.svc.cluster.local";
/// Addresses of the client's sidecar and of the two servers'.
const ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 11), Ipv4Addr::new(127, 0, 0, 12), Ipv4Addr::new(127, 0, 0, 13)];
/// Requests of one connection; the load has ten connections.
const RATE: u64 = 50;
const CONNECTIONS: usize = 10;

/// Ports of the mesh: the client's outbound listener, and the inbound listener of the servers.
#[derive(Clone, Copy)]
pub(crate) struct MeshPorts {
    outbound: u16,
    inbound: u16,
}

impl MeshPorts {
    pub(crate) fn free() -> MeshPorts {
        MeshPorts { outbound: ports::free(), inbound: ports::free() }
    }

    /// The service with its endpoints. A connection ends after 20 requests, so that there are handshakes all the time.
    pub(crate) fn service(self, endpoints: &[usize]) -> String {
        let endpoints = endpoints.iter().map(|index| {
            format!(
                "  - {{address: {}, serviceAccount: cart, labels: {{security.istio.io/tlsMode: istio}}}}\n",
                ADDRESSES[*index]
            )
        });
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\n\
             spec:\n  hosts: [{HOST}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
             ports: [{{name: http, number: {}, targetPort: {}, protocol: HTTP}}]\n  endpoints:\n{}\
             ---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: cart, namespace: shop}}\n\
             spec:\n  host: {HOST}\n  trafficPolicy: {{connectionPool: {{http: {{maxRequestsPerConnection: 20}}}}}}\n",
            self.outbound,
            self.inbound,
            endpoints.collect::<String>()
        )
    }

    /// Mutual TLS is mandatory. Each sidecar listens on its own address.
    pub(crate) fn sidecars(self, backends: [&HttpBackend; 2]) -> String {
        let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                      metadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n";
        let head = |name: &str| {
            format!(
                "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}, namespace: shop}}\n\
                 spec:\n  workloadSelector: {{labels: {{app: {name}}}}}\n"
            )
        };
        let front = format!(
            "{}  egress:\n  - port: {{number: {}, name: http, protocol: HTTP}}\n    bind: {}\n    captureMode: NONE\n    \
             hosts: [\"./*\"]\n",
            head("front-0"),
            self.outbound,
            ADDRESSES[0]
        );
        let cart = |index: usize| {
            format!(
                "{}  ingress:\n  - port: {{number: {}, name: http, protocol: HTTP}}\n    bind: {}\n    \
                 captureMode: NONE\n    defaultEndpoint: {}\n  egress: [{{hosts: [\"./*\"]}}]\n",
                head(&format!("cart-{index}")),
                self.inbound,
                ADDRESSES[index],
                backends[index - 1].address()
            )
        };
        [strict.to_owned(), front, cart(1), cart(2)].concat()
    }

    /// Where the client's requests go.
    pub(crate) fn entrance(self) -> SocketAddr {
        (ADDRESSES[0], self.outbound).into()
    }
}

/// Lifetime of leaves and the share of it that is left at renewal.
#[derive(Clone, Copy)]
pub(crate) struct Renewal {
    pub(crate) lifetime: i64,
    pub(crate) ratio: f64,
}

/// An agent with its Envoy.
pub(crate) struct Sidecar {
    process: Process,
    folder: PathBuf,
    admin: SocketAddr,
}

impl Sidecar {
    pub(crate) async fn start(mesh: &Mesh, ca: SocketAddr, index: usize, root: &str, renewal: Renewal) -> Sidecar {
        Sidecar::start_with(mesh, ca, index, root, renewal, &[]).await
    }

    /// The same with further environment variables.
    pub(crate) async fn start_with(
        mesh: &Mesh,
        ca: SocketAddr,
        index: usize,
        root: &str,
        renewal: Renewal,
        further: &[(&str, &str)],
    ) -> Sidecar {
        let account = if index == 0 { "front" } else { "cart" };
        let name = format!("{account}-{index}");
        let folder = mesh.path(&name);
        for (file, text) in [("tokens/istio-token", &*mesh.token(account)), ("istio/root-cert.pem", root)] {
            let path = folder.join("var/run/secrets").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let line = format!(
            "cd {} && exec {} proxy sidecar --ip {} --id {name}.shop --domain shop.svc.cluster.local \
             --discoveryAddress {} --configPath {} --binaryPath {} --proxyAdminPort {} --statusPort 0 --concurrency 1",
            folder.display(),
            programs::binary("agent", "pilot-agent").display(),
            ADDRESSES[index],
            mesh.secure,
            folder.join("proxy").display(),
            servers::binary("envoy").display(),
            admin.port(),
        );
        let (ca, labels) = (ca.to_string(), format!("{{\"app\": \"{name}\"}}"));
        let (lifetime, ratio) = (format!("{}s", renewal.lifetime), renewal.ratio.to_string());
        let env = [
            ("CA_ADDR", &*ca),
            ("ISTIO_METAJSON_LABELS", &labels),
            ("POD_NAMESPACE", "shop"),
            ("SERVICE_ACCOUNT", account),
            ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
            ("SECRET_TTL", &lifetime),
            ("SECRET_GRACE_PERIOD_RATIO", &ratio),
            ("OUTPUT_CERTS", "certs"),
            ("ISTIO_META_INTERCEPTION_MODE", "NONE"),
            ("ENVOY_STATUS_PORT", "0"),
            ("ENVOY_PROMETHEUS_PORT", "0"),
            ("PROXY_CONFIG", "proxyStatsMatcher: {inclusionRegexps: [\".*\"]}"),
        ];
        let env = env.iter().chain(further).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env: Vec<(String, String)> = env.collect();
        let process = Process::start(&name, Path::new("/bin/sh"), &["-c".to_owned(), line], &env);
        Sidecar { process, folder, admin }
    }

    pub(crate) async fn page(&self, path: &str) -> Result<String, String> {
        Ok(client::get(self.admin, "admin", path).await?.body)
    }

    /// The agent's log.
    pub(crate) fn log(&mut self) -> String {
        self.process.check_alive();
        self.process.output()
    }

    /// A file that the agent wrote.
    pub(crate) fn written(&self, name: &str) -> Result<String, String> {
        fs::read_to_string(self.folder.join("certs").join(name)).map_err(|error| error.to_string())
    }

    /// Serial numbers of the certificates that Envoy uses now: leaves and roots.
    pub(crate) async fn serials(&self) -> Result<(Vec<String>, Vec<String>), String> {
        let page: Value = serde_json::from_str(&self.page("/certs").await?).map_err(|error| error.to_string())?;
        let of = |list: &str| {
            let all = page["certificates"].as_array().into_iter().flatten();
            let all = all.flat_map(|entry| entry[list].as_array().into_iter().flatten());
            all.filter_map(|found| Some(found["serial_number"].as_str()?.to_owned())).collect::<Vec<_>>()
        };
        Ok((of("cert_chain"), of("ca_cert")))
    }

    /// TLS handshakes, and those that failed, of Envoy's listeners and clusters.
    pub(crate) async fn handshakes(&self) -> (u64, Vec<String>) {
        let stats = wait::until("statistics", async || self.page("/stats?filter=ssl").await).await;
        let sum = |name: &str| {
            let all = stats.lines().filter_map(|line| line.split_once(": "));
            all.filter(|(found, _)| found.ends_with(name)).filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
        };
        let is_failure = |line: &&str| {
            let (name, count) = line.split_once(": ").unwrap_or_default();
            (name.contains(".ssl.fail_verify") || name.ends_with(".ssl.connection_error")) && count != "0"
        };
        (sum(".ssl.handshake"), stats.lines().filter(is_failure).map(str::to_owned).collect())
    }

    /// Kills Envoy; the agent starts the next one. Returns when that one uses certificates.
    pub(crate) async fn restart_envoy(&self) {
        let path = self.folder.join("proxy").display().to_string();
        let old = alive_with(&path);
        old.iter().for_each(|id| signal(*id, "KILL"));
        wait::until("the next Envoy", async || match alive_with(&path)[..] {
            [one] if !old.contains(&one) && !self.serials().await?.0.is_empty() => Ok(()),
            ref others => Err(format!("{others:?}")),
        })
        .await;
    }

    /// Requests that Envoy's inbound connections are processing now.
    pub(crate) async fn inbound_connections(&self, ports: MeshPorts) -> Result<u64, String> {
        let stats = self.page("/stats?filter=downstream_cx_active").await?;
        let marker = format!("_{}.downstream_cx_active: ", ports.inbound);
        let count = stats.lines().find_map(|line| line.split_once(&*marker)?.1.parse().ok());
        count.ok_or_else(|| format!("no statistics of the listener: {stats}"))
    }
}

/// The two servers of the mesh: configuration, and certificates.
pub(crate) struct ControlPlane {
    pub(crate) mesh: Mesh,
    pub(crate) ca: DiscoveryProcess,
}

/// Requests at a fixed rate on connections that are kept open.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    begun: Instant,
    tasks: Vec<JoinHandle<Vec<String>>>,
}

/// What became of the requests.
pub(crate) struct LoadResult {
    pub(crate) sent: u64,
    pub(crate) time: Duration,
    pub(crate) failures: Vec<String>,
}

impl Load {
    pub(crate) fn start(entrance: SocketAddr) -> Load {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..CONNECTIONS).map(|_| tokio::spawn(send(entrance, Arc::clone(&stop), Arc::clone(&sent))));
        Load { tasks: tasks.collect(), stop, sent, begun: Instant::now() }
    }

    pub(crate) fn time(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) async fn end(self) -> LoadResult {
        self.stop.store(true, Ordering::Relaxed);
        let time = self.begun.elapsed();
        let mut failures = Vec::new();
        for task in self.tasks {
            failures.extend(task.await.unwrap());
        }
        LoadResult { sent: self.sent.load(Ordering::Relaxed), time, failures }
    }
}

/// Sends requests until stopped; returns the failures with their time.
async fn send(entrance: SocketAddr, stop: Arc<AtomicBool>, sent: Arc<AtomicU64>) -> Vec<String> {
    let (begun, mut failures) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / RATE));
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        sent.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = request(entrance, &mut connection).await {
            failures.push(format!("after {:?}: {error}", begun.elapsed()));
            connection = None;
        }
    }
    failures
}

type Sender = http1::SendRequest<Empty<Bytes>>;

async fn request(entrance: SocketAddr, connection: &mut Option<Sender>) -> Result<(), String> {
    let mut sender = match connection.take() {
        Some(sender) => sender,
        None => {
            let stream = TcpStream::connect(entrance).await.map_err(|error| error.to_string())?;
            let (sender, task) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
            tokio::spawn(task);
            sender
        }
    };
    let request = Request::get("/").header("host", format!("{HOST}:{}", entrance.port())).body(Empty::new());
    sender.ready().await.map_err(|error| error.to_string())?;
    let reply = sender.send_request(request.map_err(|error| error.to_string())?).await;
    let reply = reply.map_err(|error| error.to_string())?;
    let (status, closes) = (reply.status(), reply.headers().get("connection").is_some_and(|value| value == "close"));
    let body = reply.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    if !closes {
        *connection = Some(sender);
    }
    if status.is_success() { Ok(()) } else { Err(format!("{status} {}", String::from_utf8_lossy(&body))) }
}
