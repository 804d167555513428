//! pilot-discovery with its configuration API: real kubectl writes, and a real Envoy follows.

mod access;
mod cases;
mod kills;
mod replicas;
mod stores;
mod watchers;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::{client, ports, servers, wait};

const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");

/// A server with the API on a port and on a socket, and its kubeconfig.
struct ApiMesh {
    discovery: DiscoveryProcess,
    folder: TempDir,
    address: String,
    kubeconfig: PathBuf,
}

impl ApiMesh {
    async fn start(more: &[String]) -> ApiMesh {
        let mesh = ApiMesh::start_without_kubeconfig(more).await;
        mesh.write_kubeconfig(&mesh.kubeconfig, &[]);
        mesh
    }

    async fn start_without_kubeconfig(more: &[String]) -> ApiMesh {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("127.0.0.1:{}", ports::free());
        let storage = folder.path().join("config.redb");
        let socket = folder.path().join("config.sock");
        let mut args = vec![
            format!("--configAPI={address},unix://{}", socket.display()),
            format!("--configStorage={}", storage.display()),
        ];
        args.extend_from_slice(more);
        let mesh = "enableAutoMtls: false\n".to_owned();
        let options = DiscoveryOptions { args, mesh, ..DiscoveryOptions::default() };
        let discovery = DiscoveryProcess::start(BINARY, options).await;
        let kubeconfig = folder.path().join("kubeconfig");
        ApiMesh { discovery, folder, address, kubeconfig }
    }

    /// Writes the kubeconfig that the program prints.
    fn write_kubeconfig(&self, path: &PathBuf, more: &[String]) {
        let storage = self.folder.path().join("config.redb");
        let mut command = Command::new(BINARY);
        command.args(["config-api", "kubeconfig"]).arg(format!("--server=https://{}", self.address));
        command.arg(format!("--configStorage={}", storage.display())).args(more);
        let printed = command.output().expect("pilot-discovery");
        assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        std::fs::write(path, printed.stdout).expect("a kubeconfig");
    }

    async fn output(&self, kubeconfig: &PathBuf, args: &[&str], input: &str) -> Output {
        let mut command = Command::new(servers::binary("kubectl"));
        command.arg("--kubeconfig").arg(kubeconfig).args(args).env_clear().env("HOME", self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let run = move || {
            let mut child = command.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.as_bytes())?;
            }
            child.wait_with_output()
        };
        tokio::task::spawn_blocking(run).await.expect("a thread").expect("kubectl")
    }

    async fn kubectl(&self, args: &[&str], input: &str) -> String {
        let output = self.output(&self.kubeconfig, args, input).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {error}", args.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn service(port: u16, backend: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: cart, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.7.7, ports: [{{name: http, port: {port}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: cart-1, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: {backend}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n"
    )
}

fn redirect(code: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  hosts: [cart.shop.svc.cluster.local]\n  http:\n  - directResponse: {{status: {code}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_follows_what_kubectl_writes_also_after_kill_9() {
    let mut mesh = ApiMesh::start(&[]).await;
    let (port, backend) = (ports::free(), HttpBackend::start("cart").await);
    mesh.kubectl(&["apply", "-f", "-"], &service(port, backend.port())).await;
    let grpc = mesh.discovery.grpc().port();
    let bootstrap = Bootstrap::sidecar(grpc, XdsTransport::Delta, "client", "callers", json!({"app": "client"}));
    let mut envoy = Envoy::start(&bootstrap).await;
    let address = envoy.listener(&format!("127.0.0.1_{port}")).await;
    let status = async |expected: u16| {
        wait::until("a status", async || {
            let reply = client::get(address, "cart.shop.svc.cluster.local", "/").await.map_err(|e| e.to_string())?;
            let found = reply.status.as_u16();
            if found == expected { Ok(()) } else { Err(format!("status {found}")) }
        })
        .await;
    };
    status(200).await;
    mesh.kubectl(&["apply", "--server-side", "-f", "-"], &redirect(418)).await;
    status(418).await;
    let patch = r#"[{"op":"replace","path":"/spec/http/0/directResponse/status","value":451}]"#;
    mesh.kubectl(&["patch", "vs", "cart", "-n", "shop", "--type=json", "-p", patch], "").await;
    status(451).await;
    mesh.discovery.restart().await;
    let code = ["get", "vs", "cart", "-n", "shop", "-o", "jsonpath={.spec.http[0].directResponse.status}"];
    assert_eq!(mesh.kubectl(&code, "").await, "451");
    mesh.kubectl(&["delete", "vs", "cart", "-n", "shop"], "").await;
    status(200).await;
    // A kind of Istio 0.8.
    mesh.kubectl(&["apply", "-f", "-"], REDIRECT).await;
    status(301).await;
    mesh.kubectl(&["delete", "routerules", "cart", "-n", "shop"], "").await;
    status(200).await;
}

const REDIRECT: &str = "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {name: cart, namespace: shop}\n\
                        spec: {destination: {name: cart}, redirect: {uri: /elsewhere}}\n";

#[tokio::test(flavor = "multi_thread")]
async fn users_do_what_their_roles_allow() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tokens, roles) = (folder.path().join("tokens.csv"), folder.path().join("roles.yaml"));
    std::fs::write(&tokens, "root-token,root,1,system:masters\nalice-token,alice\nbob-token,bob\n").expect("tokens");
    let text =
        "roles:\n- {user: alice, role: write, namespaces: [shop]}\n- {user: alice, role: read, namespaces: ['*']}\n";
    std::fs::write(&roles, text).expect("roles");
    let token_flag = format!("--configAPITokenFile={}", tokens.display());
    let flags = [token_flag.clone(), format!("--configAPIRolesFile={}", roles.display())];
    let mesh = ApiMesh::start_without_kubeconfig(&flags).await;
    let of = |user: &str| {
        let path = mesh.folder.path().join(user);
        mesh.write_kubeconfig(&path, &[token_flag.clone(), format!("--user={user}")]);
        path
    };
    let (root, alice, bob) = (of("root"), of("alice"), of("bob"));
    let done = mesh.output(&root, &["create", "namespace", "shop"], "").await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let done = mesh.output(&alice, &["apply", "-f", "-"], &redirect(418)).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let refusal = async |kubeconfig: &PathBuf, args: &[&str]| {
        let output = mesh.output(kubeconfig, args, "").await;
        assert!(!output.status.success(), "{args:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refusal(&alice, &["create", "configmap", "x", "-n", "default"]).await;
    assert!(error.contains("User \"alice\" cannot create resource \"configmaps\""), "{error}");
    let error = refusal(&alice, &["get", "secrets", "-n", "default"]).await;
    assert!(error.contains("forbidden"), "{error}");
    let error = refusal(&bob, &["get", "vs", "-n", "shop"]).await;
    assert!(error.contains("forbidden"), "{error}");
    let wrong = mesh.folder.path().join("wrong");
    let text = std::fs::read_to_string(&bob).expect("a kubeconfig").replace("bob-token", "no-token");
    std::fs::write(&wrong, text).expect("a kubeconfig");
    let error = refusal(&wrong, &["get", "vs", "-n", "shop"]).await;
    assert!(error.contains("must be logged in") || error.contains("Unauthorized"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_needs_no_credentials_and_is_private() {
    let mesh = ApiMesh::start(&[]).await;
    let socket = mesh.folder.path().join("config.sock");
    let mode = std::fs::metadata(&socket).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let key = mesh.folder.path().join("config.redb.d/ca-key.pem");
    assert_eq!(std::fs::metadata(key).expect("a key").permissions().mode() & 0o777, 0o600);
    let stream = tokio::net::UnixStream::connect(&socket).await.expect("a connection");
    let reply = socket_request(stream, "GET", "/api/v1/namespaces/default", "").await;
    assert!(reply.contains("\"name\":\"default\""), "{reply}");
    let stream = tokio::net::UnixStream::connect(&socket).await.expect("a connection");
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    let reply = socket_request(stream, "POST", "/api/v1/namespaces/default/configmaps", &body).await;
    assert!(reply.starts_with("HTTP/1.1 201"), "{reply}");
}

async fn socket_request(stream: tokio::net::UnixStream, method: &str, path: &str, body: &str) -> String {
    socket_request_as(stream, method, path, "application/json", body).await
}

/// A request with a body of this type.
async fn socket_request_as(
    mut stream: tokio::net::UnixStream,
    method: &str,
    path: &str,
    content_type: &str,
    body: &str,
) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {content_type}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("a reply");
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_users_are_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.csv");
    std::fs::write(&tokens, "old-token,root,1,system:masters\n").expect("tokens");
    let flag = format!("--configAPITokenFile={}", tokens.display());
    let mesh = ApiMesh::start_without_kubeconfig(std::slice::from_ref(&flag)).await;
    mesh.write_kubeconfig(&mesh.kubeconfig, std::slice::from_ref(&flag));
    mesh.kubectl(&["get", "namespaces"], "").await;
    std::fs::write(&tokens, "a line without a user\n").expect("tokens");
    wait::until("a report", async || {
        let output = mesh.discovery.output();
        let found = output.contains("could not use changed users of the configuration API");
        if found { Ok(()) } else { Err("no report".to_owned()) }
    })
    .await;
    mesh.kubectl(&["get", "namespaces"], "").await;
    std::fs::write(&tokens, "new-token,root,1,system:masters\n").expect("tokens");
    wait::until("the end of the old token", async || {
        let output = mesh.output(&mesh.kubeconfig, &["get", "namespaces"], "").await;
        if output.status.success() { Err("it is still valid".to_owned()) } else { Ok(()) }
    })
    .await;
    mesh.write_kubeconfig(&mesh.kubeconfig, &[flag]);
    mesh.kubectl(&["get", "namespaces"], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_and_routes_get_their_status() {
    let mesh = ApiMesh::start(&[]).await;
    let objects = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: default}\n\
         spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: cart, namespace: default}\n\
         spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: missing, port: 80}]}]}\n";
    mesh.kubectl(&["apply", "-f", "-"], objects).await;
    let accepted = ["wait", "--for=condition=Accepted", "gateways.gateway.networking.k8s.io/edge", "--timeout=30s"];
    mesh.kubectl(&accepted, "").await;
    let reason = [
        "get",
        "httproute",
        "cart",
        "-o",
        "jsonpath={.status.parents[0].conditions[?(@.type==\"ResolvedRefs\")].reason}",
    ];
    wait::until("the status of the route", async || {
        let found = mesh.kubectl(&reason, "").await;
        if found == "BackendNotFound" { Ok(()) } else { Err(found) }
    })
    .await;
    let holder = ["get", "lease", "-A", "-o", "jsonpath={.items[*].metadata.name}"];
    assert_eq!(mesh.kubectl(&holder, "").await, "istio-gateway-status-leader");
    let classes = mesh.kubectl(&["get", "gatewayclass", "-o", "name"], "").await;
    assert!(classes.contains("gatewayclass.gateway.networking.k8s.io/istio"), "{classes}");
}
