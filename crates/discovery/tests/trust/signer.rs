//! Certificates of a signer of the cluster: a real API server, with the signer played by the test.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use serde_json::{Value, json};
use testkit::ca_client::{CaClient, Refusal};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::{ports, servers, wait};
use tonic::Code;
use trust::authority::{LeafLifetimes, SigningAuthority};
use trust::certificate::Certificate;
use trust::csr::{self, CertificateRequest};
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey, random_serial};
use trust::wire::{IstioCertificateRequest, Metadata};

use crate::fixture::{BINARY, assert_refused, now};
use crate::kubernetes::{cluster, roots, token};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const KEEPER: &str = "spiffe://cluster.local/ns/shop/sa/keeper";
const OTHER: &str = "spiffe://cluster.local/ns/shop/sa/gone";

/// Issues certificates for approved requests. An evil one names another workload.
struct Signer {
    api: Arc<ApiServer>,
    ca: SigningAuthority,
    is_evil: Arc<AtomicBool>,
    /// Its chains end before the root, like those of Kubernetes' own signers.
    is_without_root: bool,
}

impl Signer {
    fn new(api: &Arc<ApiServer>, is_without_root: bool) -> Signer {
        let key = PrivateKey::generate(KeyKind::P256).unwrap();
        let life = Duration::from_secs(24 * 3600);
        let ca = SigningAuthority::new_root("signer", key, life, now(), &random_serial().unwrap()).unwrap();
        Signer { api: Arc::clone(api), ca, is_evil: Arc::default(), is_without_root }
    }

    async fn run(self) {
        loop {
            let all = self.api.get(REQUESTS).await.unwrap_or_default();
            for object in all["items"].as_array().into_iter().flatten() {
                let is_approved = object["status"]["conditions"][0]["type"] == "Approved";
                if is_approved && object["status"]["certificate"].is_null() {
                    // The server may have deleted it meanwhile.
                    let _ = self.issue(object).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn issue(&self, object: &Value) -> Result<(), String> {
        let request = BASE64_STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
        let request = CertificateRequest::from_pem(std::str::from_utf8(&request).unwrap()).unwrap();
        assert_eq!(object["spec"]["usages"].as_array().unwrap().len(), 4);
        let name = if self.is_evil.load(Ordering::Relaxed) { OTHER } else { KEEPER };
        let seconds = object["spec"]["expirationSeconds"].as_i64().unwrap();
        let names = [SubjectName::of_text(name)];
        let serial = random_serial().unwrap();
        let issued = self.ca.issue(&request, &names, seconds, LeafLifetimes::default(), now(), serial).unwrap();
        let path = format!("{REQUESTS}/{}/status", object["metadata"]["name"].as_str().unwrap());
        let chain = if self.is_without_root { issued.chain[0].clone() } else { issued.chain.concat() };
        let status = json!({"status": {"certificate": BASE64_STANDARD.encode(chain)}});
        self.api.patch(&path, &status).await.map(drop).map_err(|error| error.to_string())
    }
}

/// Grants the permissions that the chart asks for with `certificateSigner`.
async fn grant(api: &ApiServer) {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart");
    let mut helm = Command::new(servers::binary("helm"));
    helm.args(["template", "pilotage", "--namespace=istio-system", "--set=certificateSigner=test.example/*"])
        .arg(chart);
    let output = helm.args(["--show-only=templates/rights.yaml"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rights.yaml");
    std::fs::write(&file, output.stdout).unwrap();
    Kubectl::new(api).run(&["apply", "--server-side", "--force-conflicts", "-f", &file.display().to_string()]).await;
}

async fn start(kubeconfig: &Path, domain: &str) -> (DiscoveryProcess, std::net::SocketAddr) {
    let secure = std::net::SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let args = vec![
        "--registries=Kubernetes".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--secureGRPCAddr={secure}"),
    ];
    let env = [
        ("POD_NAMESPACE", "istio-system"),
        ("ROOT_CA_DIR", "/nonexistent"),
        ("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API"),
        ("K8S_SIGNER", "test.example/mesh"),
        ("CERT_SIGNER_DOMAIN", domain),
    ];
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    (DiscoveryProcess::start(BINARY, DiscoveryOptions { args, env, ..DiscoveryOptions::default() }).await, secure)
}

/// Requests a certificate with these names from a named signer.
async fn request(client: &CaClient, names: &[&str], signer: Option<&str>) -> Result<Vec<String>, Refusal> {
    let names: Vec<SubjectName> = names.iter().map(|name| SubjectName::of_text(name)).collect();
    let key = PrivateKey::generate(KeyKind::P256).unwrap();
    let message = IstioCertificateRequest {
        csr: csr::request(&key, &names).unwrap(),
        validity_duration: 3600,
        metadata: signer.map(|signer| Metadata::of("CertSigner", signer)),
    };
    client.call(&message.encode_to_vec()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signer_of_the_cluster_issues_certificates() {
    if servers::without("helm") {
        return;
    }
    let Some((api, account)) = cluster().await else { return };
    grant(&api).await;
    let api = Arc::new(api);
    let signer = Signer::new(&api, false);
    let (root, is_evil) = (signer.ca.certificate().to_pem(), Arc::clone(&signer.is_evil));
    let signer = tokio::spawn(signer.run());
    let (_server, address) = start(&account, "test.example").await;
    let good = token(&api, "keeper", Some("istio-ca")).await;
    let client = CaClient::new(address, &roots(&api).await, None, Some(&good));

    let reply = wait::until_within(Duration::from_secs(60), "a certificate", async || {
        request(&client, &[KEEPER], None).await.map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
    let leaf = &Certificate::all_from_pem(&reply[0]).unwrap()[0];
    assert_eq!((reply.len(), &reply[1], &*leaf.uris), (2, &root, &[KEEPER.to_owned()][..]));
    assert!((3000..=3700).contains(&(leaf.not_after - now())), "the lifetime is passed on");
    request(&client, &[KEEPER], Some("mesh")).await.unwrap();
    renews_with_a_certificate_of_the_signer(&client, address, &roots(&api).await).await;
    // What the signer would copy is checked before.
    for (what, names) in
        [("another name", &[OTHER][..]), ("two names", &[KEEPER, OTHER]), ("a host", &["a.example"]), ("none", &[])]
    {
        assert_refused(what, request(&client, names, None).await, Code::InvalidArgument);
    }
    assert_refused("a path", request(&client, &[KEEPER], Some("../mesh")).await, Code::Internal);
    // And what the signer returns is checked afterwards.
    is_evil.store(true, Ordering::Relaxed);
    assert_refused("a foreign certificate", request(&client, &[KEEPER], None).await, Code::Internal);
    signer.abort();
    assert_refused("a signer that is away", request(&client, &[KEEPER], None).await, Code::Internal);
    let left = api.get(REQUESTS).await.unwrap();
    assert_eq!(left["items"].as_array().unwrap().len(), 0, "no request is left: {left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_of_the_cluster_are_those_of_its_own_signers() {
    if servers::without("helm") {
        return;
    }
    let Some((api, account)) = cluster().await else { return };
    grant(&api).await;
    let api = Arc::new(api);
    let signer = Signer::new(&api, true);
    let root = signer.ca.certificate().to_pem();
    // The roots of the cluster are in the kubeconfig, as in `ca.crt` of a pod.
    let mut kubeconfig: Value = serde_json::from_slice(&std::fs::read(&account).unwrap()).unwrap();
    let authority = &mut kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"];
    let own = String::from_utf8(BASE64_STANDARD.decode(authority.as_str().unwrap()).unwrap()).unwrap();
    *authority = BASE64_STANDARD.encode(format!("{}\n{root}", own.trim_end())).into();
    let folder = tempfile::tempdir().unwrap();
    let with_root = folder.path().join("kubeconfig");
    std::fs::write(&with_root, kubeconfig.to_string()).unwrap();
    let signer = tokio::spawn(signer.run());
    let good = token(&api, "keeper", Some("istio-ca")).await;
    let asked = async |kubeconfig: &Path, domain: &str| {
        let (server, address) = start(kubeconfig, domain).await;
        let client = CaClient::new(address, &roots(&api).await, None, Some(&good));
        let reply = wait::until_within(Duration::from_secs(60), "a reply of the CA", async || {
            match request(&client, &[KEEPER], None).await {
                Err((code, message)) if !message.contains("no%20roots") => Err(format!("{code}: {message}")),
                decided => Ok(decided),
            }
        })
        .await;
        drop(server);
        reply
    };
    let reply = asked(&with_root, "").await.unwrap();
    assert_eq!(reply.len(), 2);
    assert!(reply[1].ends_with(&root) && reply[1].len() > root.len(), "all roots of the cluster: {}", reply[1]);
    assert_refused("roots of a foreign cluster", asked(&account, "").await, Code::Internal);
    assert_refused("roots of the cluster for a domain", asked(&with_root, "test.example").await, Code::Internal);
    signer.abort();
}

/// A workload needs its token only once, as with the own CA.
async fn renews_with_a_certificate_of_the_signer(client: &CaClient, address: std::net::SocketAddr, roots: &str) {
    let (certificate, _) = client.certificate(KEEPER, 0).await.unwrap();
    let own = CaClient::new(address, roots, Some(&certificate), None);
    wait::until_within(Duration::from_secs(60), "a certificate without a token", async || {
        request(&own, &[KEEPER], None).await.map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
    assert_refused("of another workload", request(&own, &[OTHER], None).await, Code::InvalidArgument);
}
