//! gRPC applications without an Envoy: a real client and server with grpc-go's own xDS.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::certificates::Authority;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::process::Process;
use testkit::{ports, servers, wait};
use tokio::process::Command;

const SERVER: &str = env!("CARGO_BIN_EXE_pilot-discovery");
const PART: &str = "grpc-app";

/// Applications of one mesh.
struct Apps {
    folder: TempDir,
    server: DiscoveryProcess,
    running: Vec<Process>,
}

impl Apps {
    async fn start(files: Vec<(String, String)>) -> Apps {
        let server = DiscoveryProcess::start(SERVER, DiscoveryOptions { files, ..DiscoveryOptions::default() }).await;
        let folder = tempfile::tempdir().unwrap();
        let apps = Apps { folder, server, running: Vec::new() };
        apps.write_certificates();
        apps
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_certificates(&self) {
        let authority = Authority::new();
        let own = authority.workload("spiffe://cluster.local/ns/shop/sa/default");
        for (name, text) in [("cert.pem", &own.chain), ("key.pem", &own.key), ("root.pem", &authority.root())] {
            std::fs::write(self.path(name), text).unwrap();
        }
    }

    /// The bootstrap file of an application, as the agent writes it.
    fn bootstrap(&self, name: &str, address: &str) -> PathBuf {
        let file = json!({
            "xds_servers": [{
                "server_uri": self.server.grpc().to_string(),
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }],
            "node": {
                "id": format!("sidecar~{address}~{name}.shop~shop.svc.cluster.local"),
                "metadata": {"NAMESPACE": "shop", "GENERATOR": "grpc", "INSTANCE_IPS": address},
            },
            "certificate_providers": {"default": {"plugin_name": "file_watcher", "config": {
                "certificate_file": self.path("cert.pem"),
                "private_key_file": self.path("key.pem"),
                "ca_certificate_file": self.path("root.pem"),
                "refresh_interval": "900s",
            }}},
            "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
        });
        let path = self.path(&format!("{name}.json"));
        std::fs::write(&path, file.to_string()).unwrap();
        path
    }

    /// Starts a server that answers with its name.
    fn serve(&mut self, name: &str, port: u16, more: &[&str]) {
        let mut args = vec![format!("--listen=127.0.0.1:{port}"), format!("--name={name}")];
        args.extend(more.iter().map(|flag| (*flag).to_owned()));
        let env = vec![("GRPC_XDS_BOOTSTRAP".to_owned(), self.bootstrap(name, "127.0.0.1").display().to_string())];
        self.running.push(Process::start(PART, &servers::binary(PART), &args, &env));
    }

    /// Calls a target and returns how often each server answered.
    async fn call(&self, target: &str, count: usize) -> Value {
        let bootstrap = self.bootstrap("client", "10.9.9.9");
        called(&bootstrap, target, count).await
    }
}

async fn called(bootstrap: &Path, target: &str, count: usize) -> Value {
    let mut command = Command::new(servers::binary(PART));
    command.args([format!("--target={target}"), format!("--count={count}")]).env("GRPC_XDS_BOOTSTRAP", bootstrap);
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{target}: {e}: {text}"))
}

/// A ServiceEntry of a gRPC service with these endpoints: version and port.
fn entry(host: &str, endpoints: &[(&str, u16)]) -> String {
    let endpoint = |(version, port): &(&str, u16)| {
        format!(
            "  - {{address: 127.0.0.1, ports: {{grpc: {port}}}, labels: {{version: {version}}}, serviceAccount: default}}\n"
        )
    };
    let endpoints: String = endpoints.iter().map(endpoint).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         hosts: [{host}]\n  ports: [{{number: 80, name: grpc, protocol: GRPC}}]\n  location: MESH_INTERNAL\n  \
         resolution: STATIC\n  endpoints:\n{endpoints}---\n",
        name = host.split('.').next().unwrap_or_default(),
    )
}

const SPLIT: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.example]
  http:
  - route:
    - {destination: {host: web.shop.example, subset: v1}, weight: 90}
    - {destination: {host: web.shop.example, subset: v2}, weight: 10}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web.shop.example
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
";

const MUTUAL: &str = "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: echo, namespace: shop}
spec:
  host: echo.shop.example
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_client_follows_routes_and_endpoints() {
    if servers::without(PART) {
        return;
    }
    let [v1, v2] = [(); 2].map(|()| ports::free());
    let files = vec![
        ("entry.yaml".to_owned(), entry("web.shop.example", &[("v1", v1), ("v2", v2)])),
        ("split.yaml".to_owned(), SPLIT.to_owned()),
    ];
    let mut apps = Apps::start(files).await;
    apps.serve("v1", v1, &[]);
    apps.serve("v2", v2, &[]);
    let answers = apps.call("xds:///web.shop.example:80", 400).await;
    assert_eq!(answers["errors"], 0, "{answers}");
    let of = |name: &str| answers["backends"][name].as_u64().unwrap_or_default();
    // 40 of 400 are expected; six standard deviations are 36.
    assert!((4..=76).contains(&of("v2")) && of("v1") + of("v2") == 400, "{answers}");

    apps.server.write("entry.yaml", &entry("web.shop.example", &[("v1", v1)]));
    apps.server.remove("split.yaml");
    wait::until("calls without the removed endpoint", async || {
        let answers = apps.call("xds:///web.shop.example:80", 40).await;
        if answers["backends"] == json!({"v1": 40}) { Ok(()) } else { Err(answers.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_server_requires_mutual_tls() {
    if servers::without(PART) {
        return;
    }
    let port = ports::free();
    let files = vec![
        ("entry.yaml".to_owned(), entry("echo.shop.example", &[("v1", port)])),
        ("mutual.yaml".to_owned(), MUTUAL.to_owned()),
    ];
    let mut apps = Apps::start(files).await;
    apps.serve("echo", port, &["--xds"]);
    wait::until("a call with mutual TLS", async || {
        let answers = apps.call("xds:///echo.shop.example:80", 5).await;
        if answers["backends"] == json!({"echo": 5}) { Ok(()) } else { Err(answers.to_string()) }
    })
    .await;
    let plain = apps.call(&format!("dns:///127.0.0.1:{port}"), 1).await;
    assert_eq!((&plain["errors"], &plain["backends"]), (&json!(1), &json!({})), "{plain}");
}
