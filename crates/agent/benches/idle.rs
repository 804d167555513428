//! Memory of an idle agent, as in Pilot 0.8 and with everything on that needs trust, and the time until Envoy is ready.
//! `cargo bench -p agent --bench idle`; `PILOTAGE_AGENT` names another binary to measure.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::certificates::Authority;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::process::Process;
use testkit::{client, ports, programs, servers, wait};
use trust::key::{KeyKind, PrivateKey};
use trust::token;

const STARTS: usize = 5;
/// Long enough for memory used at start to be released.
const REST: Duration = Duration::from_secs(3);

/// The group that the workload registers with.
const GROUP: &str = "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: front, namespace: shop}\n\
                     spec: {metadata: {labels: {app: front}}, template: {serviceAccount: front}}\n";

#[tokio::main]
async fn main() {
    if servers::without("envoy") {
        return;
    }
    let binary = programs::binary("discovery", "pilot-discovery");
    let discovery = DiscoveryProcess::start(&binary.to_string_lossy(), DiscoveryOptions::default()).await;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let (mut agent, took) = started(plain(discovery.grpc())).await;
        times.push(took);
        if times.len() == STARTS {
            tokio::time::sleep(REST).await;
            println!("idle agent: {}", memory(&agent));
        }
        agent.terminate().await;
    }
    times.sort();
    println!("ready after {} ms (minimum), {} ms (median)", times[0].as_millis(), times[STARTS / 2].as_millis());
    with_everything(&binary).await;
}

/// How an agent is started.
struct AgentStart {
    folder: PathBuf,
    line: String,
    env: Vec<(String, String)>,
    status: u16,
}

/// An agent with Pilot 0.8 flags.
fn plain(discovery: SocketAddr) -> AgentStart {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let status = ports::free();
    let line = format!(
        "proxy sidecar --ip 127.0.0.1 --id a-1.shop --domain shop.svc.cluster.local --serviceCluster a \
         --discoveryAddress {discovery} --configPath {} --binaryPath {} --proxyAdminPort {} --statusPort {status} \
         --concurrency 1 --controlPlaneAuthPolicy NONE",
        folder.display(),
        servers::binary("envoy").display(),
        ports::free(),
    );
    let env = [
        ("ENVOY_STATUS_PORT", "0"),
        ("ENVOY_PROMETHEUS_PORT", "0"),
        ("ISTIO_META_INTERCEPTION_MODE", "NONE"),
        ("PROXY_CONFIG", "terminationDrainDuration: 0s"),
    ];
    AgentStart { folder, line, env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(), status }
}

/// The same agent with certificates of the CA over TLS, renewed every few seconds, the trust bundle, DNS, merged metrics,
/// metrics of requests, and a registered workload with a probe.
async fn with_everything(binary: &Path) {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let issuer = PrivateKey::generate(KeyKind::P256).expect("a key");
    let keys = folder.join("keys.json");
    fs::write(&keys, token::key_set(&issuer, "bench").expect("a key set")).expect("a file");
    let rule = json!({"issuer": "https://issuer.test", "audiences": ["istio-ca"],
        "jwks_uri": format!("file://{}", keys.display())});
    let secure = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
    let variable = |(name, value): (&str, String)| (name.to_owned(), value);
    let options = DiscoveryOptions {
        env: [
            ("ROOT_CA_DIR", "/nonexistent".to_owned()),
            ("JWT_RULE", rule.to_string()),
            ("ISTIOD_CUSTOM_HOST", "127.0.0.1".to_owned()),
            ("ISTIO_MULTIROOT_MESH", "true".to_owned()),
        ]
        .map(variable)
        .to_vec(),
        // A further root, so that the trust bundle is more than the roots that come with the certificates.
        mesh: json!({"caCertificates": [{"pem": Authority::new().root()}]}).to_string(),
        files: vec![("group.yaml".to_owned(), GROUP.to_owned())],
        args: vec![format!("--secureGRPCAddr={secure}"), format!("--caDir={}", folder.join("ca").display())],
        ..DiscoveryOptions::default()
    };
    let discovery = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
    let backend = HttpBackend::start("application").await;
    let root = folder.join("ca/root-cert.pem");
    let root = wait::until("the root", async || fs::read_to_string(&root).map_err(|error| error.to_string())).await;
    let expires = std::time::SystemTime::now() + Duration::from_secs(3600);
    let expires = expires.duration_since(std::time::UNIX_EPOCH).expect("a time after 1970").as_secs();
    let claims = json!({"iss": "https://issuer.test", "aud": ["istio-ca"], "exp": expires,
        "sub": "system:serviceaccount:shop:front"});
    let token = token::sign(&issuer, "bench", &claims).expect("a token");
    let mut agent = plain(secure);
    for (name, text) in [("tokens/istio-token", token), ("istio/root-cert.pem", root)] {
        let path = agent.folder.join("var/run/secrets").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    agent.line = agent.line.replace(" --controlPlaneAuthPolicy NONE", " --requestMetrics");
    let config = format!(
        "terminationDrainDuration: 0s\nproxyMetadata: {{ISTIO_META_DNS_CAPTURE: 'true'}}\n\
         readinessProbe: {{periodSeconds: 1, httpGet: {{host: 127.0.0.1, port: {}, path: /}}}}",
        backend.port()
    );
    agent.env.extend(
        [
            ("PROXY_CONFIG", config.as_str()),
            ("PROXY_CONFIG_XDS_AGENT", "true"),
            ("ISTIO_META_AUTO_REGISTER_GROUP", "front"),
            ("DNS_PROXY_ADDR", &format!("127.0.0.1:{}", ports::free())),
            ("POD_NAMESPACE", "shop"),
            ("SERVICE_ACCOUNT", "front"),
            ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
            ("SECRET_TTL", "6s"),
            ("OUTPUT_CERTS", "certs"),
            ("ISTIO_PROMETHEUS_ANNOTATIONS", "{\"scrape\":\"true\",\"path\":\"/metrics\",\"port\":\"9\"}"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let (certificate, roots) = (agent.folder.join("certs/cert-chain.pem"), agent.folder.join("certs/root-cert.pem"));
    let (mut process, _) = started(agent).await;
    wait::until("all parts of the agent", async || all_parts_work(&discovery, &backend, &roots).await).await;
    assert!(certificate.exists(), "it has a certificate of the CA");
    let first = fs::read_to_string(&certificate).expect("a certificate");
    tokio::time::sleep(REST * 5).await;
    assert_ne!(fs::read_to_string(&certificate).expect("a certificate"), first, "it was renewed");
    println!(
        "idle agent with the CA, the trust bundle, DNS, metrics of requests, registration and a probe: {}",
        memory(&process)
    );
    process.terminate().await;
}

/// Whether the trust bundle has arrived, and the workload is registered and probed.
async fn all_parts_work(discovery: &DiscoveryProcess, backend: &HttpBackend, roots: &Path) -> Result<(), String> {
    let roots = fs::read_to_string(roots).map_err(|error| error.to_string())?;
    let count = roots.matches("BEGIN CERTIFICATE").count();
    let page = client::get(discovery.monitoring(), "discovery", "/debug/configz").await?.body;
    let is_registered = page.contains("\"WorkloadEntry\"");
    match count == 2 && is_registered && backend.requests() > 0 {
        true => Ok(()),
        false => Err(format!("{count} roots, {} probes, objects {page}", backend.requests())),
    }
}

/// Starts an agent and measures the time until Envoy is ready.
async fn started(start: AgentStart) -> (Process, Duration) {
    let binary = env::var("PILOTAGE_AGENT").unwrap_or_else(|_| env!("CARGO_BIN_EXE_pilot-agent").to_owned());
    let line = format!("cd {} && exec {binary} {}", start.folder.display(), start.line);
    let began = Instant::now();
    let mut process = Process::start("pilot-agent", Path::new("/bin/sh"), &["-c", &line], &start.env);
    wait::until("a ready envoy", async || {
        process.check_alive();
        let reply = client::get((Ipv4Addr::LOCALHOST, start.status).into(), "agent", "/healthz/ready").await?;
        if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
    })
    .await;
    (process, began.elapsed())
}

/// Resident memory of the process: total, anonymous and file-backed.
fn memory(process: &Process) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let names = ["VmRSS", "RssAnon", "RssFile", "Threads"];
    let lines = status.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}
