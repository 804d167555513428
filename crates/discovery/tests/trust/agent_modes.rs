//! Where a real agent gets its credentials from: a certificate of an earlier provisioning, mounted files, another SDS server;
//! and where its keys go: into the format that is asked for, and nowhere else.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use testkit::certificates::{Authority, Certificate};
use testkit::process::Process;
use testkit::sds::{SdsSecrets, SdsServer};
use testkit::{client, ports, programs, servers, wait};

use crate::agent::written;
use crate::fixture::{FRONT, Mesh};

const PATIENCE: Duration = Duration::from_secs(60);
const EXTERNAL: &str = "spiffe://cluster.local/ns/shop/sa/external";
const IN_FILES: &str = "spiffe://cluster.local/ns/shop/sa/in-files";

/// An agent in its own folder.
struct ModeAgent {
    folder: TempDir,
    process: Process,
    admin: SocketAddr,
    status: SocketAddr,
}

/// A mesh in which the Envoy of an agent has a listener with mutual TLS, for which it needs a certificate.
async fn mesh() -> Mesh {
    mesh_with("").await
}

/// The same with further configuration.
async fn mesh_with(further: &str) -> Mesh {
    let port = ports::free();
    let mut config = format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: default, namespace: shop}}\n\
         spec: {{mtls: {{mode: STRICT}}}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: front, namespace: shop}}\n\
         spec:\n  ingress:\n  - port: {{number: {port}, name: http, protocol: HTTP}}\n    bind: 127.0.0.1\n    \
         captureMode: NONE\n    defaultEndpoint: 127.0.0.1:{port}\n  egress: [{{hosts: [\"./*\"]}}]\n---\n\
         apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: front, namespace: shop}}\n\
         spec:\n  hosts: [front.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: {port}, protocol: HTTP}}]\n  endpoints: [{{address: 127.0.0.1}}]\n"
    );
    config.push_str(further);
    let files = vec![("mesh.yaml".to_owned(), config)];
    let mesh = Mesh::start_with(tempfile::tempdir().unwrap(), &[("ISTIOD_CUSTOM_HOST", "127.0.0.1")], files).await;
    mesh.certified().await;
    mesh
}

/// A folder with the root of the mesh, and with a token unless the agent has another credential.
async fn folder(mesh: &Mesh, has_token: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "var/run/secrets/istio/root-cert.pem", &mesh.roots().await);
    if has_token {
        put(folder.path(), "var/run/secrets/tokens/istio-token", &mesh.token("front"));
    }
    folder
}

fn put(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Writes a certificate with the names of mounted certificates.
async fn mount(mesh: &Mesh, folder: &Path, certificate: &Certificate) {
    for (name, text) in
        [("key.pem", &certificate.key), ("root-cert.pem", &mesh.roots().await), ("cert-chain.pem", &certificate.chain)]
    {
        put(folder, name, text);
    }
}

fn start(mesh: &Mesh, folder: TempDir, further: &[(&str, &str)]) -> ModeAgent {
    let (admin, status) = (ports::free(), ports::free());
    let config = json!({"discoveryAddress": mesh.secure.to_string(), "binaryPath": servers::binary("envoy"),
        "configPath": folder.path().join("proxy"), "proxyAdminPort": admin, "concurrency": 1,
        "terminationDrainDuration": "0s"});
    let line = format!(
        "cd {} && exec {} proxy sidecar --ip 127.0.0.1 --id front.shop --domain shop.svc.cluster.local \
         --statusPort {status} --log_output_level default:debug --proxyLogLevel debug",
        folder.path().display(),
        programs::binary("agent", "pilot-agent").display(),
    );
    let (config, envoy_status) = (config.to_string(), ports::free().to_string());
    let own = [
        ("PROXY_CONFIG", config.as_str()),
        ("POD_NAMESPACE", "shop"),
        ("SERVICE_ACCOUNT", "front"),
        ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
        ("OUTPUT_CERTS", "certs"),
        ("ENVOY_STATUS_PORT", &envoy_status),
        ("ENVOY_PROMETHEUS_PORT", "0"),
        ("ISTIO_META_INTERCEPTION_MODE", "NONE"),
    ];
    let env: Vec<(String, String)> =
        own.iter().chain(further).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let process = Process::start("pilot-agent", Path::new("/bin/sh"), &["-c".to_owned(), line], &env);
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    ModeAgent { folder, process, admin: address(admin), status: address(status) }
}

impl ModeAgent {
    async fn until_certified(&mut self) {
        wait::until_within(PATIENCE, "a certificate", async || {
            self.process.check_alive();
            assert_eq!(written(self.folder.path())?.uris, [FRONT]);
            Ok(())
        })
        .await;
    }

    /// Waits until Envoy uses a certificate whose description has this text.
    async fn until_envoy_has(&mut self, text: &str) {
        wait::until_within(PATIENCE, text, async || {
            self.process.check_alive();
            let page = client::get(self.admin, "envoy", "/certs").await?.body;
            if page.contains(text) { Ok(()) } else { Err(page) }
        })
        .await;
    }
}

fn key(folder: &Path) -> Option<String> {
    fs::read_to_string(folder.join("certs/key.pem")).ok()
}

#[tokio::test]
async fn keys_have_the_format_that_is_asked_for() {
    let mesh = mesh().await;
    for (pkcs8, kind) in [("false", "EC PRIVATE KEY"), ("true", "PRIVATE KEY")] {
        let env = [("DISABLE_ENVOY", "true"), ("PKCS8_KEY", pkcs8)];
        let mut agent = start(&mesh, folder(&mesh, true).await, &env);
        agent.until_certified().await;
        let key = key(agent.folder.path()).unwrap();
        assert!(key.starts_with(&format!("-----BEGIN {kind}-----")), "PKCS8_KEY={pkcs8}");
    }
}

#[tokio::test]
async fn the_token_file_is_read_for_each_request() {
    let mesh = mesh().await;
    let env = [("DISABLE_ENVOY", "true"), ("SECRET_TTL", "4s")];
    let mut agent = start(&mesh, folder(&mesh, true).await, &env);
    agent.until_certified().await;
    // The file is replaced, as kubelet does it. The CA issues the identity of the token's account.
    put(agent.folder.path(), "var/run/secrets/tokens/next", &mesh.token("back"));
    let tokens = agent.folder.path().join("var/run/secrets/tokens");
    fs::rename(tokens.join("next"), tokens.join("istio-token")).unwrap();
    wait::until_within(PATIENCE, "a certificate by the new token", async || {
        agent.process.check_alive();
        let names = written(agent.folder.path())?.uris;
        if names == ["spiffe://cluster.local/ns/shop/sa/back"] { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_provisioned_certificate_is_exchanged_for_one_of_the_mesh() {
    let mesh = mesh().await;
    let own = mesh.serves_an_honest_caller().await;
    let folder = folder(&mesh, false).await;
    mount(&mesh, &folder.path().join("provisioned"), &own).await;
    let mut agent = start(&mesh, folder, &[("DISABLE_ENVOY", "true"), ("PROV_CERT", "./provisioned")]);
    agent.until_certified().await;
    assert_ne!(key(agent.folder.path()).unwrap(), own.key, "a new key");
}

#[tokio::test]
async fn mounted_certificates_are_used_and_followed_without_the_ca() {
    if servers::without("envoy") {
        return;
    }
    let mesh = mesh().await;
    let client = mesh.client().await;
    let [(first, one), (second, other)] =
        [client.certificate(FRONT, 0).await.unwrap(), client.certificate(FRONT, 0).await.unwrap()];
    let serial = |reply: &[String]| {
        // Envoy prints no leading zeros.
        let leaf = trust::certificate::Certificate::all_from_pem(&reply[0]).unwrap().remove(0);
        leaf.serial.trim_start_matches('0').to_owned()
    };
    let issued = mesh.metric("citadel_server_csr_count").await;
    assert!(issued >= 2.0, "{issued}");
    let folder = folder(&mesh, false).await;
    fs::remove_file(folder.path().join("var/run/secrets/istio/root-cert.pem")).unwrap();
    mount(&mesh, &folder.path().join("etc/certs"), &first).await;
    let mut agent = start(&mesh, folder, &[("FILE_MOUNTED_CERTS", "true")]);
    agent.until_envoy_has(&serial(&one)).await;
    assert!(mesh.page("/debug/connections").await.contains("front.shop"), "it authenticated by the files");
    mount(&mesh, &agent.folder.path().join("etc/certs"), &second).await;
    agent.until_envoy_has(&serial(&other)).await;
    assert_eq!(mesh.metric("citadel_server_csr_count").await, issued, "the CA was not asked");
    assert_eq!(key(agent.folder.path()), None);
}

#[tokio::test]
async fn secrets_of_another_sds_server_reach_envoy() {
    if servers::without("envoy") {
        return;
    }
    // Certificates in files, which configuration names.
    let (files, shop) = (tempfile::tempdir().unwrap(), Authority::new());
    let own = shop.workload(IN_FILES);
    for (name, text) in [("key.pem", &own.key), ("cert-chain.pem", &own.chain), ("root-cert.pem", &shop.root())] {
        put(files.path(), name, text);
    }
    let place = files.path().display();
    let mesh = mesh_with(&format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: files, namespace: shop}}\n\
         spec: {{hosts: [files.example], resolution: STATIC, ports: [{{name: tcp, number: 9, protocol: TCP}}], \
         endpoints: [{{address: 127.0.0.1}}]}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: files, namespace: shop}}\n\
         spec:\n  host: files.example\n  trafficPolicy:\n    tls: {{mode: MUTUAL, \
         clientCertificate: {place}/cert-chain.pem, privateKey: {place}/key.pem, \
         caCertificates: {place}/root-cert.pem}}\n"
    ))
    .await;
    let issued = mesh.metric("citadel_server_csr_count").await;
    let folder = folder(&mesh, true).await;
    let socket = folder.path().join("var/run/secrets/workload-spiffe-uds/socket");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    fs::create_dir_all(folder.path().join("var/run/secrets/credential-uds")).unwrap();
    let spire = Authority::new();
    let _server = SdsServer::start_on(&socket, SdsSecrets::of_workload(&spire.workload(EXTERNAL), &spire));
    let mut agent = start(&mesh, folder, &[("PILOTAGE_SECRET_FOLDERS", &place.to_string())]);
    agent.until_envoy_has(EXTERNAL).await;
    agent.until_envoy_has(IN_FILES).await;
    assert!(agent.folder.path().join("var/run/secrets/credential-uds/files-socket").exists());
    let output = agent.process.output();
    assert!(output.contains("another SDS server listens on the socket"), "{output}");
    let page = client::get(agent.admin, "envoy", "/certs").await.unwrap().body;
    assert!(!page.contains(FRONT), "Envoy has a certificate of the mesh: {page}");
    assert_eq!(mesh.metric("citadel_server_csr_count").await, issued, "the CA was asked for an unused certificate");
}

/// Everything that the agent, its Envoy and the server write, print and serve is searched for every key.
#[tokio::test]
async fn keys_of_the_agent_are_nowhere_but_in_its_own_file() {
    const RENEWALS: usize = 3;
    if servers::without("envoy") {
        return;
    }
    let mesh = mesh().await;
    let mut agent = start(&mesh, folder(&mesh, true).await, &[("SECRET_TTL", "4s")]);
    agent.until_envoy_has(FRONT).await;
    let (mut keys, mut texts) = (BTreeSet::new(), Vec::new());
    wait::until_within(PATIENCE, "renewed keys", async || {
        keys.extend(key(agent.folder.path()));
        if keys.len() > RENEWALS { Ok(()) } else { Err(format!("{} keys", keys.len())) }
    })
    .await;
    for page in ["/certs", "/config_dump?include_eds", "/stats", "/clusters", "/server_info", "/listeners", "/memory"] {
        texts.push((page.to_owned(), client::get(agent.admin, "envoy", page).await.unwrap().body));
    }
    for page in ["/stats/prometheus", "/healthz/ready", "/debug/ndsz", "/metrics"] {
        texts.push((page.to_owned(), client::get(agent.status, "agent", page).await.unwrap().body));
    }
    for page in ["/debug/connections", "/debug/config_dump?proxyID=front.shop", "/debug/trustz", "/metrics"] {
        texts.push((page.to_owned(), mesh.page(page).await));
    }
    keys.extend(key(agent.folder.path()));
    // Files of Envoy are removed when it ends.
    let folder = agent.folder.path().to_owned();
    read_all(&folder, &folder.join("certs"), &mut texts);
    agent.process.terminate().await;
    texts.push(("the agent's log".to_owned(), agent.process.output()));
    texts.push(("the server's log".to_owned(), mesh.server.output()));
    read_all(&folder, &folder.join("certs"), &mut texts);
    assert!(texts.iter().any(|(name, _)| name.contains("envoy-rev")), "the bootstrap is searched");
    for key in &keys {
        let body: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
        // Any line of it, and the text without line ends.
        let pieces = key.lines().filter(|line| !line.starts_with("-----") && line.len() > 30).chain([body.as_str()]);
        for piece in pieces {
            let found = texts.iter().find(|(_, text)| text.contains(piece));
            assert!(found.is_none(), "{} has a key", found.unwrap().0);
        }
    }
    println!("{} keys were searched for in {} texts", keys.len(), texts.len());
}

/// Adds the content of all files but those of a folder.
fn read_all(folder: &Path, but: &Path, texts: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path != but {
            read_all(&path, but, texts);
        } else if path.is_file() {
            let content = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
            texts.push((path.display().to_string(), content));
        }
    }
}
