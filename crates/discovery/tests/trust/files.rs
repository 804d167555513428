//! A plugged-in CA: both layouts, replaced while the server runs, and files that do not verify.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use testkit::ca_client::CaClient;
use testkit::process::Process;
use testkit::wait;
use trust::certificate::Certificate;

use crate::fixture::{BINARY, FRONT, Mesh};

/// A root and an intermediate under it.
pub(crate) struct Ca {
    pub(crate) root: CertifiedIssuer<'static, KeyPair>,
}

impl Ca {
    pub(crate) fn new() -> Ca {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "root");
        Ca { root: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    /// Certificate and key of a new intermediate.
    fn intermediate(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (intermediate_params().signed_by(&key, &self.root).unwrap().pem(), key.serialize_pem())
    }

    /// Writes upstream's four files with a new intermediate, and returns its certificate.
    pub(crate) fn write(&self, folder: &Path, roots: &str) -> String {
        let (certificate, key) = self.intermediate();
        fs::create_dir_all(folder).unwrap();
        for (name, text) in [
            ("ca-cert.pem", &*certificate),
            ("ca-key.pem", &key),
            ("cert-chain.pem", &certificate),
            ("root-cert.pem", roots),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        certificate
    }
}

fn intermediate_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, "intermediate");
    // All roots have one name: without the identifier of its key, Envoy tries only the first of them.
    params.use_authority_key_identifier_extension = true;
    params
}

/// The chain that a caller gets.
async fn chain(mesh: &Mesh, roots: &str) -> Result<Vec<String>, String> {
    let client = CaClient::new(mesh.secure, roots, None, Some(&mesh.token("front")));
    client.certificate(FRONT, 0).await.map(|(_, reply)| reply).map_err(|refusal| format!("{refusal:?}"))
}

async fn until_signed_by(mesh: &Mesh, roots: &str, intermediate: &str) -> Vec<String> {
    wait::until("a certificate of the new intermediate", async || {
        let reply = chain(mesh, roots).await?;
        if reply[1].trim() == intermediate.trim() { Ok(reply) } else { Err("of the old one".to_owned()) }
    })
    .await
}

#[tokio::test]
async fn both_layouts_are_read() {
    let ca = Ca::new();
    let folder = tempfile::tempdir().unwrap();
    let intermediate = ca.write(&folder.path().join("cacerts"), &ca.root.pem());
    let mesh = Mesh::start_in(folder, &[]).await;
    let reply = until_signed_by(&mesh, &ca.root.pem(), &intermediate).await;
    assert_eq!((reply.len(), &reply[2]), (3, &ca.root.pem().replace("\r\n", "\n")));
    assert!(!mesh.path("ca").exists(), "no self-signed root was made");

    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = ca.intermediate();
    fs::create_dir(folder.path().join("cacerts")).unwrap();
    for (name, text) in [("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &ca.root.pem())] {
        fs::write(folder.path().join("cacerts").join(name), text).unwrap();
    }
    let mesh = Mesh::start_in(folder, &[]).await;
    let reply = until_signed_by(&mesh, &ca.root.pem(), &certificate).await;
    assert_eq!(reply.len(), 4, "leaf, intermediate, root and the bundle");
}

#[tokio::test]
async fn a_root_is_replaced_in_three_steps_and_clients_follow() {
    let (old, new) = (Ca::new(), Ca::new());
    let folder = tempfile::tempdir().unwrap();
    let cacerts = folder.path().join("cacerts");
    let first = old.write(&cacerts, &old.root.pem());
    let mesh = Mesh::start_in(folder, &[]).await;
    until_signed_by(&mesh, &old.root.pem(), &first).await;
    // Both are trusted, the new one signs.
    let both = old.root.pem() + &new.root.pem();
    let second = old.write(&cacerts, &both);
    until_signed_by(&mesh, &both, &second).await;
    let third = new.write(&cacerts, &both);
    let reply = until_signed_by(&mesh, &both, &third).await;
    assert_eq!(reply[2].matches("BEGIN CERTIFICATE").count(), 2);
    // A certificate under the new root authenticates at once: the pool of the TLS port follows.
    let client = CaClient::new(mesh.secure, &both, None, Some(&mesh.token("front")));
    let (own, _) = client.certificate(FRONT, 0).await.unwrap();
    let by_certificate = CaClient::new(mesh.secure, &both, Some(&own), None);
    by_certificate.certificate(FRONT, 0).await.unwrap();
    let fourth = new.write(&cacerts, &new.root.pem());
    until_signed_by(&mesh, &new.root.pem(), &fourth).await;
    CaClient::new(mesh.secure, &new.root.pem(), Some(&own), None).certificate(FRONT, 0).await.unwrap();
}

/// A revocation list with these serial numbers, in hexadecimal digits, signed with a key in the name of the intermediate.
pub(crate) fn revoked(key: &str, serials: &[&str]) -> String {
    let issuer = rcgen::Issuer::new(intermediate_params(), KeyPair::from_pem(key).unwrap());
    let byte = |hex: &str| u8::from_str_radix(hex, 16).unwrap();
    let bytes = |hex: &str| (0..hex.len()).step_by(2).map(|at| byte(&hex[at..at + 2])).collect::<Vec<u8>>();
    let entry = |serial: &&str| RevokedCertParams {
        serial_number: SerialNumber::from(bytes(serial)),
        revocation_time: date_time_ymd(2024, 1, 2),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2044, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer).unwrap().pem().unwrap()
}

#[tokio::test]
async fn a_revoked_certificate_opens_no_connection() {
    let ca = Ca::new();
    let folder = tempfile::tempdir().unwrap();
    let cacerts = folder.path().join("cacerts");
    let first = ca.write(&cacerts, &ca.root.pem());
    let (mesh, root) = (Mesh::start_in(folder, &[]).await, ca.root.pem());
    until_signed_by(&mesh, &root, &first).await;
    let client = CaClient::new(mesh.secure, &root, None, Some(&mesh.token("front")));
    let (stolen, reply) = client.certificate(FRONT, 0).await.unwrap();
    let (good, _) = client.certificate(FRONT, 0).await.unwrap();
    let by = |own| CaClient::new(mesh.secure, &root, Some(own), None);
    by(&stolen).certificate(FRONT, 0).await.unwrap();
    let serial = &Certificate::all_from_pem(&reply[0]).unwrap()[0].serial;
    let key = fs::read_to_string(cacerts.join("ca-key.pem")).unwrap();
    fs::write(cacerts.join("ca-crl.pem"), revoked(&key, &[serial])).unwrap();
    wait::until("a refused certificate", async || match by(&stolen).certificate(FRONT, 0).await {
        Err((-1, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    by(&good).certificate(FRONT, 0).await.unwrap();
    // A list that another key signed is reported, and the last good one stays in use.
    let foreign = KeyPair::generate().unwrap().serialize_pem();
    fs::write(cacerts.join("ca-crl.pem"), revoked(&foreign, &[])).unwrap();
    wait::until("a problem", async || {
        let problems = mesh.page("/debug/problems").await;
        if problems.contains("ca-crl.pem: revocation list 1 is not signed") { Ok(()) } else { Err(problems) }
    })
    .await;
    assert_eq!(by(&stolen).certificate(FRONT, 0).await.unwrap_err().0, -1);
    by(&good).certificate(FRONT, 0).await.unwrap();
}

#[tokio::test]
async fn files_that_do_not_verify_leave_the_last_good_ca() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let folder = tempfile::tempdir().unwrap();
    let cacerts = folder.path().join("cacerts");
    let good = ca.write(&cacerts, &ca.root.pem());
    let mesh = Mesh::start_in(folder, &[]).await;
    let root = ca.root.pem();
    until_signed_by(&mesh, &root, &good).await;
    let restore = || {
        for name in ["ca-cert.pem", "cert-chain.pem"] {
            fs::write(cacerts.join(name), &good).unwrap();
        }
    };
    let reported = async |text: &str| {
        wait::until(text, async || {
            let problems = mesh.page("/debug/problems").await;
            if problems.contains(text) && problems.contains("last good") { Ok(()) } else { Err(problems) }
        })
        .await;
        assert_eq!(chain(&mesh, &root).await.unwrap()[1], good, "{text}");
    };
    let key = fs::read_to_string(cacerts.join("ca-key.pem")).unwrap();
    fs::write(cacerts.join("ca-key.pem"), foreign.intermediate().1).unwrap();
    reported("the signing key does not match").await;
    fs::write(cacerts.join("ca-key.pem"), &key[..key.len() / 2]).unwrap();
    reported("could not read the signing key").await;
    fs::remove_file(cacerts.join("ca-key.pem")).unwrap();
    reported("incomplete signing CA bundle").await;
    fs::write(cacerts.join("ca-key.pem"), &key).unwrap();
    wait::until("no problem", async || {
        let problems = mesh.page("/debug/problems").await;
        if problems.contains("last good") { Err(problems) } else { Ok(()) }
    })
    .await;
    foreign.write(&cacerts, &foreign.root.pem());
    reported("nothing in common").await;
    fs::write(cacerts.join("root-cert.pem"), &root).unwrap();
    reported("does not lead to a root").await;
    restore();
    fs::write(cacerts.join("ca-key.pem"), &key).unwrap();
    // A folder and a file that cannot be read, whatever the permissions of the server: a link to itself, and a folder.
    fs::rename(&cacerts, mesh.path("aside")).unwrap();
    symlink(&cacerts, &cacerts).unwrap();
    reported("cacerts/tls.crt: Too many levels of symbolic links").await;
    fs::remove_file(&cacerts).unwrap();
    reported("cacerts are gone").await;
    fs::rename(mesh.path("aside"), &cacerts).unwrap();
    fs::remove_file(cacerts.join("root-cert.pem")).unwrap();
    fs::create_dir(cacerts.join("root-cert.pem")).unwrap();
    reported("cacerts/root-cert.pem").await;
    fs::remove_dir(cacerts.join("root-cert.pem")).unwrap();
    fs::write(cacerts.join("root-cert.pem"), &root).unwrap();
    // A swap of links, as kubelet does it.
    let next = mesh.path("next");
    let swapped = ca.write(&next, &root);
    fs::rename(&cacerts, mesh.path("before")).unwrap();
    symlink(&next, &cacerts).unwrap();
    until_signed_by(&mesh, &root, &swapped).await;
}

#[tokio::test]
async fn old_certificates_of_a_plugged_in_ca_are_reported_and_logged() {
    const DAY: u64 = 24 * 3600;
    let today = u64::try_from(crate::fixture::now()).unwrap() / DAY * DAY;
    let aged = |mut params: CertificateParams, percent: u64| {
        params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(today - percent * DAY);
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(today + (100 - percent) * DAY);
        params
    };
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "root");
    let root = CertifiedIssuer::self_signed(aged(params, 60), KeyPair::generate().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cacerts = folder.path().join("cacerts");
    fs::create_dir(&cacerts).unwrap();
    fs::write(cacerts.join("root-cert.pem"), root.pem()).unwrap();
    let write = |percent: u64| {
        let key = KeyPair::generate().unwrap();
        let certificate = aged(intermediate_params(), percent).signed_by(&key, &root).unwrap().pem();
        for (name, text) in
            [("ca-key.pem", key.serialize_pem()), ("ca-cert.pem", certificate.clone()), ("cert-chain.pem", certificate)]
        {
            fs::write(cacerts.join(name), text).unwrap();
        }
    };
    write(55);
    let mesh = Mesh::start_in(folder, &[]).await;
    for (percent, reported) in [(55, 50), (85, 80), (97, 95)] {
        write(percent);
        let expected = format!("{reported} % of the lifetime of the signing certificate");
        wait::until_within(Duration::from_secs(60), &expected, async || {
            let (page, log) = (mesh.page("/debug/problems").await, mesh.server.output());
            let is_there = |text: &str| text.contains(&expected) && text.contains("50 % of the lifetime of the root");
            if is_there(&page) && is_there(&log) { Ok(()) } else { Err(format!("{page}\n{log}")) }
        })
        .await;
    }
    // A young one solves it.
    write(10);
    wait::until_within(Duration::from_secs(60), "no problem", async || {
        let page = mesh.page("/debug/problems").await;
        if page.contains("signing certificate") { Err(page) } else { Ok(()) }
    })
    .await;
}

/// Starts a server that must not start with this folder, and waits for the reason.
async fn is_refused_at_start(folder: &Path, reason: &str) {
    let args = [
        "discovery",
        "--registries=",
        "--configDir=.",
        "--secureGRPCAddr=127.0.0.1:0",
        "--grpcAddr=127.0.0.1:0",
        "--httpAddr=",
        "--monitoringAddr=",
        "--httpsAddr=",
    ];
    let env = [("ROOT_CA_DIR".to_owned(), folder.display().to_string())];
    let process = Process::start("pilot-discovery", Path::new(BINARY), &args, &env);
    wait::until("the refusal", async || {
        let output = process.output();
        if output.contains(reason) { Ok(()) } else { Err(output) }
    })
    .await;
}

#[tokio::test]
async fn an_incomplete_bundle_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("root-cert.pem"), Ca::new().root.pem()).unwrap();
    is_refused_at_start(folder.path(), "incomplete signing CA bundle detected").await;
}

/// Another root in its place would be foreign to the mesh.
#[tokio::test]
async fn an_unreadable_folder_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let cacerts = folder.path().join("cacerts");
    symlink(&cacerts, &cacerts).unwrap();
    is_refused_at_start(&cacerts, "cacerts/tls.crt: Too many levels of symbolic links").await;
}
