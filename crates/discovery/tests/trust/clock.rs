//! Servers whose wall clock is wrong. Certificates are backdated, so a clock that is 90 seconds off does no harm.

use testkit::ca_client::CaClient;
use testkit::clock::skewed;
use trust::certificate::Certificate;

use crate::fixture::{FRONT, Mesh, now};

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
