//! Servers whose wall clock is wrong. Certificates are backdated, so a clock that is 90 seconds off does no harm.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::ca_client::CaClient;
use trust::certificate::Certificate;

use crate::fixture::{FRONT, Mesh, now};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trust/clock.c");

/// A library in the folder that moves the clock of a process. Building this project needs a C compiler too.
fn library(folder: &Path) -> PathBuf {
    let path = folder.join("clock.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(SOURCE).status();
    assert!(built.is_ok_and(|status| status.success()), "could not compile {SOURCE}");
    path
}

/// Environment that moves the clock of a process by some seconds.
pub(crate) fn skewed(folder: &Path, seconds: i64) -> Vec<(String, String)> {
    if seconds == 0 {
        return Vec::new();
    }
    let library = library(folder).display().to_string();
    vec![("LD_PRELOAD".to_owned(), library), ("SKEW_SECONDS".to_owned(), seconds.to_string())]
}

#[tokio::test]
async fn a_clock_90_s_off_does_no_harm() {
    for seconds in [-90, 90] {
        let folder = tempfile::tempdir().unwrap();
        let env = skewed(folder.path(), seconds);
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mesh = Mesh::start(&env).await;
        // The server's own certificate and the issued one are valid by our clock.
        let (own, reply) = mesh.client().await.certificate(FRONT, 600).await.unwrap();
        let leaf = &Certificate::all_from_pem(&reply[0]).unwrap()[0];
        let skew = leaf.not_after - 600 - now();
        assert!((seconds - 5..=seconds + 5).contains(&skew), "the clock was moved by {skew} s");
        assert!(leaf.not_before <= now() && now() < leaf.not_after, "{leaf:?}");
        let by_certificate = CaClient::new(mesh.secure, &mesh.roots().await, Some(&own), None);
        by_certificate.certificate(FRONT, 0).await.unwrap();
    }
}
