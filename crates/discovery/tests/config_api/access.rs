//! Who may call the TLS port: client certificates, and requests without credentials.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use testkit::client::{self, Reply};
use testkit::tls::TlsClient;

use super::{ApiMesh, redirect};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA")
}

/// Writes certificate and key of a user, and returns kubectl's flags for them.
fn credentials(folder: &Path, issuer: &Issuer, user: &str, group: &str, is_expired: bool) -> Vec<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    params.distinguished_name.push(DnType::OrganizationName, group);
    if is_expired {
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
    }
    let key = KeyPair::generate().expect("a key");
    let signed = params.signed_by(&key, issuer).expect("a certificate");
    let name = format!("{user}-{group}-{is_expired}");
    let [certificate, private] = ["crt", "key"].map(|suffix| folder.join(format!("{name}.{suffix}")));
    std::fs::write(&certificate, signed.pem()).expect("a file");
    std::fs::write(&private, key.serialize_pem()).expect("a file");
    vec![format!("--client-certificate={}", certificate.display()), format!("--client-key={}", private.display())]
}

/// A server that verifies clients with a CA, and an empty kubeconfig.
struct CertificateMesh {
    mesh: ApiMesh,
    empty: PathBuf,
}

impl CertificateMesh {
    async fn run(&self, credentials: &[String], args: &[&str], input: &str) -> Output {
        let ca = self.mesh.folder.path().join("config.redb.d/ca.pem");
        let server = format!("--server=https://{}", self.mesh.address);
        let ca = format!("--certificate-authority={}", ca.display());
        let mut line: Vec<&str> = vec![&server, &ca];
        line.extend(credentials.iter().map(String::as_str));
        line.extend(args);
        self.mesh.output(&self.empty, &line, input).await
    }

    async fn refusal(&self, credentials: &[String], args: &[&str]) -> String {
        let output = self.run(credentials, args, "").await;
        assert!(!output.status.success(), "{args:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_name_users_and_groups() {
    let folder = tempfile::tempdir().expect("a folder");
    let (known, foreign) = (authority(), authority());
    let (ca, roles) = (folder.path().join("clients.pem"), folder.path().join("roles.yaml"));
    std::fs::write(&ca, known.pem()).expect("a CA");
    std::fs::write(&roles, "roles:\n- {user: alice, role: write, namespaces: [shop]}\n").expect("roles");
    let flags =
        [format!("--configAPIClientCAFile={}", ca.display()), format!("--configAPIRolesFile={}", roles.display())];
    let mesh = ApiMesh::start_without_kubeconfig(&flags).await;
    let empty = mesh.folder.path().join("empty");
    std::fs::write(&empty, "apiVersion: v1\nkind: Config\n").expect("a file");
    let mesh = CertificateMesh { mesh, empty };

    let of = |issuer: &Issuer, user: &str, group: &str| credentials(folder.path(), issuer, user, group, false);
    let (root, alice) = (of(&known, "root", "system:masters"), of(&known, "alice", "staff"));
    let done = mesh.run(&root, &["create", "namespace", "shop"], "").await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let done = mesh.run(&alice, &["apply", "--validate=false", "-f", "-"], &redirect(418)).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let error = mesh.refusal(&alice, &["create", "configmap", "x", "-n", "default"]).await;
    assert!(error.contains("User \"alice\" cannot create resource \"configmaps\""), "{error}");
    let error = mesh.refusal(&of(&known, "mallory", "staff"), &["get", "vs", "-n", "shop"]).await;
    assert!(error.contains("forbidden"), "{error}");

    // Certificates that do not verify end the connection; none is a caller without a name.
    let false_root = of(&foreign, "root", "system:masters");
    let expired = credentials(folder.path(), &known, "root", "system:masters", true);
    for wrong in [false_root, expired] {
        let error = mesh.refusal(&wrong, &["get", "namespaces"]).await;
        assert!(!error.contains("forbidden") && !error.contains("NotFound"), "{error}");
    }
    // kubectl would ask for a user.
    let reply = anonymous(&mesh.mesh, "/api/v1/namespaces").await;
    assert_eq!(reply.status.as_u16(), 401, "{}", reply.body);
}

/// The answer to a request without credentials, over TLS.
async fn anonymous(mesh: &ApiMesh, path: &str) -> Reply {
    let ca = std::fs::read_to_string(mesh.folder.path().join("config.redb.d/ca.pem")).expect("the CA");
    let address: SocketAddr = mesh.address.parse().expect("an address");
    let tls = TlsClient::trusting(&ca, None, &["http/1.1"]);
    tls.get(address, "", "127.0.0.1", path).await.expect("a reply")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_credentials_get_nothing() {
    let mesh = ApiMesh::start_without_kubeconfig(&[]).await;
    for (path, expected) in [
        ("/api/v1/namespaces", 401),
        ("/api/v1/namespaces/default/secrets", 401),
        ("/apis", 401),
        ("/openapi/v3", 401),
        ("/version", 401),
        ("/healthz", 200),
        ("/livez", 200),
        ("/readyz", 200),
    ] {
        let reply = anonymous(&mesh, path).await;
        assert_eq!(reply.status.as_u16(), expected, "{path}: {}", reply.body);
        assert!(expected == 200 || reply.json()["reason"] == "Unauthorized", "{path}: {}", reply.body);
    }
    // Plain text is not answered.
    let address: SocketAddr = mesh.address.parse().expect("an address");
    let plain = client::get(address, "127.0.0.1", "/healthz").await;
    assert!(plain.is_err(), "{plain:?}");
}
