//! A real API server with a real etcd, without controllers: tests create EndpointSlices and statuses themselves.
//! Uses loopback only.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{Method, Request};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::certificates::Authority;
use crate::error::ReplyError;
use crate::faulty::FaultyProxy;
use crate::process::{self, Process};
use crate::tls::TlsClient;
use crate::{client, ports, servers, wait};

const TOKEN: &str = "let-me-in";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Parallel connections to etcd.
const LANES: usize = 8;
/// Start-up timeout on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// One API server.
pub struct ApiServer {
    process: Option<Process>,
    args: Vec<String>,
    address: SocketAddr,
    tls: TlsClient,
    kubeconfig: PathBuf,
    folder: TempDir,
    /// Address of etcd.
    store: SocketAddr,
    etcd: Process,
}

/// A custom kind: group, versions (the first is stored), kind, plural, and whether it is namespaced.
pub type CrdSpec<'a> = (&'a str, &'a [&'a str], &'a str, &'a str, bool);

impl ApiServer {
    /// Starts etcd and an API server and waits until it is ready. Its own Service is hidden from the mesh.
    pub async fn start() -> ApiServer {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let store_address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let store = format!("http://{store_address}");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let etcd = [
            format!("--data-dir={}", path("data")),
            format!("--listen-client-urls={store}"),
            format!("--advertise-client-urls={store}"),
            format!("--listen-peer-urls=http://127.0.0.1:{}", ports::free()),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=error".to_owned(),
        ];
        let etcd = Process::start("etcd", &servers::binary("etcd"), &etcd, &[]);
        let authority = Authority::new();
        let own = authority.workload("spiffe://test/api-server");
        put(folder.path(), "server.crt", &own.chain);
        put(folder.path(), "server.key", &own.key);
        put(folder.path(), "tokens", &format!("{TOKEN},admin,1,\"system:masters\"\n"));
        put(folder.path(), "audit.json", &audited());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let kubeconfig = put(folder.path(), "kubeconfig", &kubeconfig(address, &authority));
        let args = vec![
            format!("--etcd-servers={store}"),
            "--service-account-issuer=https://test.example".to_owned(),
            format!("--service-account-key-file={}", path("server.crt")),
            format!("--service-account-signing-key-file={}", path("server.key")),
            "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            format!("--audit-policy-file={}", path("audit.json")),
            format!("--audit-log-path={}", path("audit.log")),
            format!("--token-auth-file={}", path("tokens")),
            format!("--tls-cert-file={}", path("server.crt")),
            format!("--tls-private-key-file={}", path("server.key")),
            format!("--secure-port={}", address.port()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", path("certs")),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--profiling=false".to_owned(),
        ];
        let tls = TlsClient::new(&authority, None, &["http/1.1"]);
        let mut server =
            ApiServer { process: None, args, address, tls, kubeconfig, folder, store: store_address, etcd };
        server.resume().await;
        let hidden = json!({"metadata": {"annotations": {"networking.istio.io/exportTo": "~"}}});
        wait::until("the Service of the API server", async || {
            Ok(server.patch("/api/v1/namespaces/default/services/kubernetes", &hidden).await?)
        })
        .await;
        server
    }

    /// Kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Kubeconfig of a ServiceAccount, with a token like its pods have.
    pub async fn account(&self, namespace: &str, name: &str) -> PathBuf {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let made = self.create(&path, &request).await.unwrap_or_else(|e| panic!("no token: {e}"));
        let token = made["status"]["token"].as_str().unwrap_or_else(|| panic!("no token in {made}"));
        let own = fs::read_to_string(&self.kubeconfig).unwrap_or_else(|e| panic!("could not read the kubeconfig: {e}"));
        put(self.folder.path(), &format!("{namespace}-{name}"), &own.replace(TOKEN, token))
    }

    /// Requests of one ServiceAccount so far: verb and path, and whether it was forbidden.
    pub fn requests_by(&self, namespace: &str, name: &str) -> Vec<(String, bool)> {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let log = fs::read_to_string(self.folder.path().join("audit.log")).unwrap_or_default();
        // The last line may be incomplete.
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let requests = events.filter(|event| event["user"]["username"] == user.as_str()).map(|event| {
            let (verb, path) = (event["verb"].as_str(), event["requestURI"].as_str());
            let path = path.unwrap_or_default().split('?').next().unwrap_or_default();
            (format!("{} {path}", verb.unwrap_or_default()), event["responseStatus"]["code"] == 403)
        });
        requests.collect()
    }

    /// Kills the API server; etcd keeps running.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Stops etcd without ending it: the API server answers nothing that needs its store.
    pub fn pause_store(&self) {
        process::signal(self.etcd.id(), "STOP");
    }

    /// Lets etcd go on.
    pub fn resume_store(&self) {
        process::signal(self.etcd.id(), "CONT");
    }

    /// Restarts the API server at the same address.
    pub async fn resume(&mut self) {
        self.process = Some(Process::start("kube-apiserver", &servers::binary("kube-apiserver"), &self.args, &[]));
        self.ready().await;
    }

    /// Starts another API server with the same etcd.
    pub async fn second(&self) -> SecondApiServer {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let mut args = self.args.clone();
        args.retain(|a| !a.starts_with("--secure-port="));
        args.push(format!("--secure-port={}", address.port()));
        let process = Process::start("kube-apiserver", &servers::binary("kube-apiserver"), &args, &[]);
        let second = SecondApiServer { address, tls: self.tls.clone(), _process: process };
        wait::until_within(PATIENCE, "a second API server", async || {
            Ok(send(&second.tls, second.address, Method::GET, "/readyz", "", String::new()).await.map(drop)?)
        })
        .await;
        second
    }

    /// A proxy for this server that fails on demand.
    pub async fn faulty(&self) -> FaultyProxy {
        FaultyProxy::start(self.address, self.tls.clone(), TOKEN).await
    }

    /// Compacts etcd, so that watches cannot resume. Returns the compacted revision.
    pub async fn compact(&self) -> u64 {
        let any = ask_store(self.store, "/v3/kv/range", json!({"key": BASE64_STANDARD.encode("any")})).await;
        let revision = any["header"]["revision"].as_str().and_then(|text| text.parse().ok());
        let revision = revision.unwrap_or_else(|| panic!("no revision in {any}"));
        ask_store(self.store, "/v3/kv/compaction", json!({"revision": revision, "physical": true})).await;
        revision
    }

    /// Writes objects to etcd directly, hundreds per second. Keys are relative to `/registry/`; objects must have all
    /// fields that the API server would fill in. Each is a separate transaction, because a resumed watch skips all objects
    /// of a revision that it has seen.
    pub async fn put(&self, objects: &[(String, Value)]) {
        let mut lanes = JoinSet::new();
        for lane in 0..LANES {
            let put = |(key, object): &(String, Value)| {
                let value = BASE64_STANDARD.encode(object.to_string());
                json!({"key": BASE64_STANDARD.encode(format!("/registry/{key}")), "value": value})
            };
            let puts: Vec<Value> = objects.iter().skip(lane).step_by(LANES).map(put).collect();
            let store = self.store;
            lanes.spawn(async move {
                for put in puts {
                    ask_store(store, "/v3/kv/put", put).await;
                }
            });
        }
        while let Some(done) = lanes.join_next().await {
            done.unwrap_or_else(|e| panic!("could not fill the store: {e}"));
        }
    }

    /// Defines kinds again, some of which may exist.
    pub async fn define_missing(&self, kinds: &[CrdSpec<'_>]) {
        let list = self.get(DEFINITIONS).await.unwrap_or_else(|e| panic!("could not list definitions: {e}"));
        let exists = |kind: &CrdSpec<'_>| {
            let name = format!("{}.{}", kind.3, kind.0);
            list["items"].as_array().is_some_and(|items| items.iter().any(|item| item["metadata"]["name"] == name))
        };
        let missing: Vec<CrdSpec<'_>> = kinds.iter().filter(|kind| !exists(kind)).copied().collect();
        self.define(&missing).await;
    }

    /// Defines kinds with open schemas and waits until they are served.
    pub async fn define(&self, kinds: &[CrdSpec<'_>]) {
        for kind in kinds {
            self.create(DEFINITIONS, &definition(kind)).await.unwrap_or_else(|e| panic!("could not define: {e}"));
        }
        wait::until_within(PATIENCE, "the definitions", async || {
            let list = self.get(DEFINITIONS).await?;
            let is_set = |crd: &Value| {
                let conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
                conditions.into_iter().any(|c| c["type"] == "Established" && c["status"] == "True")
            };
            let all = list["items"].as_array().is_some_and(|items| items.iter().all(is_set));
            if all { Ok(()) } else { Err("some are not established".to_owned()) }
        })
        .await;
    }

    pub async fn get(&self, path: &str) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::GET, path, "", String::new()).await
    }

    pub async fn create(&self, collection: &str, object: &Value) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::POST, collection, "application/json", object.to_string()).await
    }

    /// Merges into an object.
    pub async fn patch(&self, path: &str, part: &Value) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::PATCH, path, "application/merge-patch+json", part.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::DELETE, path, "", String::new()).await
    }

    async fn ready(&mut self) {
        wait::until_within(PATIENCE, "a ready API server", async || {
            if let Some(process) = &mut self.process {
                process.check_alive();
            }
            Ok(send(&self.tls, self.address, Method::GET, "/readyz", "", String::new()).await.map(drop)?)
        })
        .await;
    }

    /// Resident memory of the server and of its etcd, in KiB.
    pub fn memory_kib(&self) -> [u64; 2] {
        let of_server = self.process.as_ref().and_then(Process::memory_kib);
        [of_server, self.etcd.memory_kib()].map(Option::unwrap_or_default)
    }

    /// A folder for files that live as long as the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// A second API server; stopped on drop.
pub struct SecondApiServer {
    address: SocketAddr,
    tls: TlsClient,
    _process: Process,
}

impl SecondApiServer {
    pub async fn patch(&self, path: &str, part: &Value) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::PATCH, path, "application/merge-patch+json", part.to_string()).await
    }

    pub async fn create(&self, collection: &str, object: &Value) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::POST, collection, "application/json", object.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Result<Value, ReplyError> {
        send(&self.tls, self.address, Method::DELETE, path, "", String::new()).await
    }
}

async fn ask_store(store: SocketAddr, path: &str, question: Value) -> Value {
    let request = Request::post(path).header("host", "store").body(question.to_string());
    let request = request.unwrap_or_else(|e| panic!("no request: {e}"));
    let reply = client::send(store, request).await.unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(reply.status.is_success(), "{path}: {}", reply.body);
    reply.json()
}

async fn send(
    tls: &TlsClient,
    address: SocketAddr,
    method: Method,
    path: &str,
    content: &str,
    body: String,
) -> Result<Value, ReplyError> {
    let stream = tls.connect(address, "").await?;
    let mut request = Request::builder().method(method.clone()).uri(path).header("host", "127.0.0.1");
    request = request.header("authorization", format!("Bearer {TOKEN}"));
    if !content.is_empty() {
        request = request.header("content-type", content);
    }
    let request = request.body(body)?;
    let reply = client::send_over(stream, request).await.map_err(ReplyError::no_response(address))?;
    if !reply.status.is_success() {
        return Err(ReplyError::Status { request: format!("{method} {path}"), status: reply.status, body: reply.body });
    }
    Ok(reply.json())
}

/// Audit policy: log requests of ServiceAccounts.
fn audited() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
    })
    .to_string()
}

fn definition((group, versions, kind, plural, namespaced): &CrdSpec<'_>) -> Value {
    let version = |(index, name): (usize, &&str)| {
        json!({"name": name, "served": true, "storage": index == 0, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test",
                // istiod reads no kind of the Gateway API from an older bundle.
                "gateway.networking.k8s.io/bundle-version": "v1.6.0"}},
        "spec": {
            "group": group,
            "scope": if *namespaced { "Namespaced" } else { "Cluster" },
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": versions.iter().enumerate().map(version).collect::<Vec<_>>(),
        },
    })
}

fn kubeconfig(address: SocketAddr, authority: &Authority) -> String {
    let root = BASE64_STANDARD.encode(authority.root());
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("https://{address}"), "certificate-authority-data": root}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

fn put(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap_or_else(|e| panic!("could not write {name}: {e}"));
    path
}
