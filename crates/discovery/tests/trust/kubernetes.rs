//! The CA with a real API server and the permissions of the manifest: root in a Secret, tokens of TokenRequest, ConfigMaps.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::ca_client::CaClient;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::tls::TlsClient;
use testkit::{client, ports, servers, wait};
use tonic::Code;
use trust::certificate::Certificate;

use crate::files::{Ca, revoked};
use crate::fixture::{BINARY, assert_refused};
use crate::streams::open;

pub(crate) const SECRET: &str = "/api/v1/namespaces/istio-system/secrets/istio-ca-secret";
/// How often streams are checked.
const RECHECK: Duration = Duration::from_secs(3);
pub(crate) const KEEPER: &str = "spiffe://cluster.local/ns/shop/sa/keeper";

/// A replica with the credentials of the manifest's ServiceAccount.
pub(crate) async fn replica(kubeconfig: &Path, name: &str) -> (DiscoveryProcess, SocketAddr) {
    replica_with(kubeconfig, name, &[], &[]).await
}

/// The same with further environment variables and arguments.
pub(crate) async fn replica_with(
    kubeconfig: &Path,
    name: &str,
    further: &[(&str, &str)],
    arguments: &[&str],
) -> (DiscoveryProcess, SocketAddr) {
    let secure = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let mut args = vec![
        "--registries=Kubernetes".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--secureGRPCAddr={secure}"),
    ];
    args.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let recheck = format!("{}s", RECHECK.as_secs());
    let env = [
        ("POD_NAME", name),
        ("POD_NAMESPACE", "istio-system"),
        ("PILOTAGE_IDENTITY_RECHECK", recheck.as_str()),
        ("ROOT_CA_DIR", "/nonexistent"),
    ];
    let env = env.iter().chain(further).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let options = DiscoveryOptions { args, env, ..DiscoveryOptions::default() };
    (DiscoveryProcess::start(BINARY, options).await, secure)
}

pub(crate) async fn token(api: &ApiServer, account: &str, audience: Option<&str>) -> String {
    token_with(api, account, audience.map_or(json!({}), |audience| json!({"audiences": [audience]}))).await
}

async fn token_with(api: &ApiServer, account: &str, spec: Value) -> String {
    let path = format!("/api/v1/namespaces/shop/serviceaccounts/{account}/token");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let made = api.create(&path, &request).await.unwrap();
    made["status"]["token"].as_str().unwrap().to_owned()
}

/// What the ConfigMaps of a namespace have: name and key.
#[derive(Clone, Copy)]
pub(crate) enum CertificateMap {
    Roots,
    RevocationLists,
}

impl CertificateMap {
    fn name_and_key(self) -> (&'static str, &'static str) {
        match self {
            CertificateMap::Roots => ("istio-ca-root-cert", "root-cert.pem"),
            CertificateMap::RevocationLists => ("istio-ca-crl", "ca-crl.pem"),
        }
    }

    fn path(self, namespace: &str) -> String {
        format!("/api/v1/namespaces/{namespace}/configmaps/{}", self.name_and_key().0)
    }

    /// Waits until the map of a namespace has this text, whatever its line ends.
    pub(crate) async fn until_written(self, api: &ApiServer, namespace: &str, text: &str) {
        let (name, key) = self.name_and_key();
        wait::until_within(Duration::from_secs(60), &format!("{name} in {namespace}"), async || {
            let map = api.get(&self.path(namespace)).await.map_err(|error| error.to_string())?;
            let is_written = map["data"][key].as_str().is_some_and(|found| found.lines().eq(text.lines()));
            if is_written { Ok(()) } else { Err(map.to_string()) }
        })
        .await;
    }
}

async fn create(api: &ApiServer, collection: &str, name: &str) {
    api.create(collection, &json!({"metadata": {"name": name}})).await.unwrap();
}

/// Starts an API server with the manifest's objects; `None` if programs are missing.
pub(crate) async fn cluster() -> Option<(ApiServer, std::path::PathBuf)> {
    if ["etcd", "kube-apiserver", "kubectl"].iter().any(|part| servers::without(part)) {
        return None;
    }
    let api = ApiServer::start().await;
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/manifest.yaml").display().to_string();
    Kubectl::new(&api).run(&["apply", "--server-side", "-f", &manifest]).await;
    create(&api, "/api/v1/namespaces", "shop").await;
    for account in ["keeper", "gone"] {
        create(&api, "/api/v1/namespaces/shop/serviceaccounts", account).await;
    }
    let account = api.account("istio-system", "istiod").await;
    Some((api, account))
}

pub(crate) async fn roots(api: &ApiServer) -> String {
    let secret: Value = wait::until_within(Duration::from_secs(60), "the Secret", async || {
        api.get(SECRET).await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(secret["type"], "istio.io/ca-root");
    let text = |name: &str| {
        let bytes = BASE64_STANDARD.decode(secret["data"][name].as_str().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!((text("cert-chain.pem"), text("key.pem")), (String::new(), String::new()));
    assert_eq!(text("ca-cert.pem"), text("root-cert.pem"));
    text("root-cert.pem")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_one_root_and_workloads_get_certificates_by_token() {
    let Some((mut api, account)) = cluster().await else { return };
    // Two replicas start at the same time: one makes the root, the other reads it.
    let ((mut first, one), (_second, other)) = tokio::join!(replica(&account, "one"), replica(&account, "two"));
    let roots = roots(&api).await;
    let good = token(&api, "keeper", Some("istio-ca")).await;
    let mut own = None;
    for address in [one, other] {
        let client = CaClient::new(address, &roots, None, Some(&good));
        let (certificate, reply) = wait::until_within(Duration::from_secs(60), "a certificate", async || {
            client.certificate(KEEPER, 0).await.map_err(|refusal| format!("{refusal:?}"))
        })
        .await;
        assert_eq!(Certificate::all_from_pem(&reply[0]).unwrap()[0].uris, [KEEPER]);
        assert_eq!(reply[1], roots, "both replicas have the same root");
        own = Some(certificate);
    }
    maps_are_restored(&api, CertificateMap::Roots, &roots).await;
    attacks_are_refused(&api, one, &roots, &good).await;
    deleted_accounts_and_pods_lose_their_streams(&api, &first, one, &roots).await;
    let refused = api.requests_by("istio-system", "istiod").into_iter().filter(|(_, is_refused)| *is_refused);
    assert_eq!(refused.map(|(what, _)| what).collect::<Vec<_>>(), [""; 0], "permissions are missing");

    // Without the API server a token that was not seen yet is refused, and a certificate is renewed.
    let unseen = token(&api, "keeper", Some("istio-ca")).await;
    api.stop();
    let client = CaClient::new(one, &roots, None, Some(&unseen));
    assert_refused("a token without an API server", client.certificate(KEEPER, 0).await, Code::Unauthenticated);
    CaClient::new(one, &roots, own.as_ref(), None).certificate(KEEPER, 0).await.unwrap();
    first.process().check_alive();
    assert!(!first.process().output().contains(good.split('.').nth(2).unwrap()), "a token was logged");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_replace_a_root_in_a_secret_once() {
    const TEN_DAYS: i64 = 864_000;
    let Some((api, account)) = cluster().await else { return };
    let step = [("PILOTAGE_ROOT_ROTATION_STEP", "4s")];
    let ((first, one), (second, other)) =
        tokio::join!(replica_with(&account, "one", &step, &[]), replica_with(&account, "two", &step, &[]));
    let (old, good) = (roots(&api).await, token(&api, "keeper", Some("istio-ca")).await);
    // The second replica records a long lifetime in the Secret before it issues the certificate.
    let client = CaClient::new(other, &old, None, Some(&good));
    let (_, long) = wait::until_within(Duration::from_secs(60), "a certificate", async || {
        client.certificate(KEEPER, TEN_DAYS).await.map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
    let leaf = &Certificate::all_from_pem(&long[0]).unwrap()[0];
    assert!(leaf.not_after - leaf.not_before > TEN_DAYS, "{} to {}", leaf.not_before, leaf.not_after);
    let recorded = api.get(SECRET).await.unwrap()["data"]["pilotage-longest-leaf"].clone();
    assert_eq!(recorded, BASE64_STANDARD.encode(TEN_DAYS.to_string()));

    let request = http::Request::post("/debug/trustz?rotate=true").header("host", "localhost").body(String::new());
    let reply = client::send(first.monitoring(), request.unwrap()).await.unwrap();
    assert_eq!(reply.json()["rotationRequested"], true);
    let before = &Certificate::all_from_pem(&old).unwrap()[0].serial;
    for server in [&first, &second] {
        wait::until_within(Duration::from_secs(60), "a new root alone", async || {
            let page = client::get(server.monitoring(), "discovery", "/debug/trustz").await?.json();
            let authority = &page["authority"];
            let is_new = authority["signing"]["serial"] != before.as_str();
            if is_new && authority["rotationStep"] == "alone" { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
    }
    let steps = [&first, &second].map(|server| server.output().matches("root rotation advanced").count());
    assert_eq!(steps.iter().sum::<usize>(), 3, "each step is taken once: {steps:?}");
    let new = roots(&api).await;
    assert_ne!(new, old);
    for address in [one, other] {
        let (_, reply) = CaClient::new(address, &new, None, Some(&good)).certificate(KEEPER, 0).await.unwrap();
        assert_eq!(reply[1], new);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_remote_cluster_are_reviewed_there() {
    let Some((api, account)) = cluster().await else { return };
    let east = ApiServer::start().await;
    create(&east, "/api/v1/namespaces", "shop").await;
    create(&east, "/api/v1/namespaces/shop/serviceaccounts", "far").await;
    let (_server, address) = replica(&account, "one").await;
    let roots = roots(&api).await;
    let (near, far) = (token(&api, "keeper", Some("istio-ca")).await, token(&east, "far", Some("istio-ca")).await);
    let certificate = async |token: &str, cluster: &str| {
        let mut client = CaClient::new(address, &roots, None, Some(token));
        client.headers.push(("clusterid".to_owned(), cluster.to_owned()));
        let (_, reply) = client.certificate("", 0).await?;
        Ok::<_, (i32, String)>(Certificate::all_from_pem(&reply[0]).unwrap()[0].uris.clone())
    };
    wait::until_within(Duration::from_secs(60), "a certificate", async || {
        certificate(&near, "Kubernetes").await.map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
    assert_refused("an unknown cluster", certificate(&far, "east").await, Code::Unauthenticated);
    let kubeconfig = std::fs::read(east.kubeconfig()).unwrap();
    let secret = json!({"metadata": {"name": "east", "labels": {"istio/multiCluster": "true"}},
        "data": {"east": BASE64_STANDARD.encode(kubeconfig)}});
    api.create("/api/v1/namespaces/istio-system/secrets", &secret).await.unwrap();
    let issued = wait::until_within(Duration::from_secs(60), "a certificate of the remote cluster", async || {
        certificate(&far, "east").await.map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
    assert_eq!(issued, ["spiffe://cluster.local/ns/shop/sa/far"]);
    // A token is good in its own cluster only.
    assert_refused("of the other cluster", certificate(&far, "Kubernetes").await, Code::Unauthenticated);
    assert_refused("of the own cluster", certificate(&near, "east").await, Code::Unauthenticated);
    api.delete("/api/v1/namespaces/istio-system/secrets/east").await.unwrap();
    wait::until_within(Duration::from_secs(60), "a refusal after the removal", async || {
        certificate(&far, "east").await.map_or(Ok(()), |names| Err(format!("{names:?}")))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_lists_are_in_every_namespace() {
    let Some((api, account)) = cluster().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    ca.write(folder.path(), &ca.root.pem());
    let key = std::fs::read_to_string(folder.path().join("ca-key.pem")).unwrap();
    let write = |serials: &[&str]| {
        let list = revoked(&key, serials);
        std::fs::write(folder.path().join("ca-crl.pem"), &list).unwrap();
        list
    };
    let first = write(&["01"]);
    let place = folder.path().display().to_string();
    let (_server, _) = replica_with(&account, "one", &[("ROOT_CA_DIR", &place)], &[]).await;
    maps_are_restored(&api, CertificateMap::RevocationLists, &first).await;
    let second = write(&["01", "02"]);
    for namespace in ["istio-system", "late"] {
        CertificateMap::RevocationLists.until_written(&api, namespace, &second).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_for_the_configured_audiences() {
    let Some((api, account)) = cluster().await else { return };
    let (_server, address) = replica_with(&account, "one", &[("TOKEN_AUDIENCES", "vault,mesh")], &[]).await;
    let roots = roots(&api).await;
    for (audience, is_accepted) in [("mesh", true), ("vault", true), ("istio-ca", false), ("other", false)] {
        let token = token(&api, "keeper", Some(audience)).await;
        let client = CaClient::new(address, &roots, None, Some(&token));
        if is_accepted {
            wait::until_within(Duration::from_secs(60), audience, async || {
                client.certificate(KEEPER, 0).await.map_err(|refusal| format!("{refusal:?}"))
            })
            .await;
        } else {
            assert_refused(audience, client.certificate(KEEPER, 0).await, Code::Unauthenticated);
        }
        let stream = TlsClient::trusting(&roots, None, &["h2"]).connect(address, "istiod.istio-system.svc").await;
        let end = open(stream.unwrap(), Some(&token), "shop").await.end(Duration::from_secs(2)).await;
        assert_eq!(end.1.is_none(), is_accepted, "{audience}: {end:?}");
    }
}

pub(crate) async fn maps_are_restored(api: &ApiServer, map: CertificateMap, text: &str) {
    create(api, "/api/v1/namespaces", "late").await;
    for namespace in ["default", "istio-system", "kube-system", "shop", "late"] {
        map.until_written(api, namespace, text).await;
    }
    let (_, key) = map.name_and_key();
    api.patch(&map.path("shop"), &json!({"data": {key: "another"}})).await.unwrap();
    api.delete(&map.path("late")).await.unwrap();
    for namespace in ["shop", "late"] {
        map.until_written(api, namespace, text).await;
    }
    assert!(api.get(&map.path("kube-public")).await.is_err());
}

async fn attacks_are_refused(api: &ApiServer, address: SocketAddr, roots: &str, good: &str) {
    let mut modified = good.to_owned();
    let last = modified.pop().unwrap();
    modified.insert(modified.len() - 5, if last == 'A' { 'B' } else { 'A' });
    let gone = token(api, "gone", Some("istio-ca")).await;
    api.delete("/api/v1/namespaces/shop/serviceaccounts/gone").await.unwrap();
    for (what, token) in [
        ("the API server's audience", token(api, "keeper", None).await),
        ("another audience", token(api, "keeper", Some("vault")).await),
        ("of an administrator", "let-me-in".to_owned()),
        ("modified", modified),
        ("of a deleted account", gone),
    ] {
        let client = CaClient::new(address, roots, None, Some(&token));
        assert_refused(what, client.certificate(KEEPER, 0).await, Code::Unauthenticated);
    }
    for (cluster, is_known) in [("Kubernetes", true), ("elsewhere", false)] {
        let mut client = CaClient::new(address, roots, None, Some(good));
        client.headers.push(("clusterid".to_owned(), cluster.to_owned()));
        assert_eq!(client.certificate(KEEPER, 0).await.is_ok(), is_known, "{cluster}");
    }
}

/// With an accepted token in the caches of both servers, a stream ends at its first check after the deletion.
async fn deleted_accounts_and_pods_lose_their_streams(
    api: &ApiServer,
    server: &DiscoveryProcess,
    address: SocketAddr,
    roots: &str,
) {
    create(api, "/api/v1/namespaces/shop/serviceaccounts", "short").await;
    let pods = "/api/v1/namespaces/shop/pods";
    let spec = json!({"serviceAccountName": "keeper", "automountServiceAccountToken": false,
        "containers": [{"name": "a", "image": "a"}]});
    let pod = api.create(pods, &json!({"metadata": {"name": "bound"}, "spec": spec})).await.unwrap();
    let bound = json!({"audiences": ["istio-ca"], "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "bound",
        "uid": pod["metadata"]["uid"]}});
    let tokens = [token(api, "short", Some("istio-ca")).await, token_with(api, "keeper", bound).await];
    let tls = TlsClient::trusting(roots, None, &["h2"]);
    let connect = async |token: &str| {
        let stream = tls.connect(address, "istiod.istio-system.svc").await.unwrap();
        let mut stream = open(stream, Some(token), "shop").await;
        assert_eq!(stream.end(Duration::from_millis(500)).await.1, None, "it is accepted");
        stream
    };
    let mut stays = connect(&tokens[0]).await;
    assert_eq!(stays.end(RECHECK * 3 / 2).await.1, None, "it is checked and stays");
    let deleted =
        ["/api/v1/namespaces/shop/serviceaccounts/short", "/api/v1/namespaces/shop/pods/bound?gracePeriodSeconds=0"];
    for (token, path) in tokens.iter().zip(deleted) {
        let mut stream = connect(token).await;
        let client = CaClient::new(address, roots, None, Some(token));
        client.certificate(KEEPER, 0).await.unwrap();
        api.delete(path).await.unwrap();
        let begun = Instant::now();
        assert_eq!(stream.end(Duration::from_secs(60)).await.1, Some(Code::Unauthenticated), "{path}");
        let took = begun.elapsed();
        eprintln!("{path} deleted: the stream was closed after {took:?}, with a check every {RECHECK:?}");
        // Twice, for a busy machine. Caches would add 10 s each.
        assert!(took < RECHECK * 2, "{path}: {took:?}");
        assert_refused(path, client.certificate(KEEPER, 0).await, Code::Unauthenticated);
    }
    assert_eq!(stays.end(Duration::from_secs(60)).await.1, Some(Code::Unauthenticated));
    let metrics = client::get(server.monitoring(), "discovery", "/metrics").await.unwrap().body;
    assert!(metrics.contains("pilotage_closed_streams{reason=\"refused\"} 3"), "they are counted");
}
