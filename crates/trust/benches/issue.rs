//! CPU time per certificate: parses and verifies a CSR and issues a leaf, as the CA does for each request.
//! Run with `cargo bench -p trust`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use trust::authority::{LeafLifetimes, SigningAuthority};
use trust::csr::{self, CertificateRequest};
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey, random_serial};

const NOW: i64 = 1_800_000_000;
const ROUNDS: u32 = 500;

fn main() {
    for (name, root, leaf) in [
        ("EC root, EC leaf", KeyKind::P256, KeyKind::P256),
        ("EC root, RSA leaf", KeyKind::P256, KeyKind::Rsa2048),
        ("RSA root, EC leaf", KeyKind::Rsa2048, KeyKind::P256),
        ("RSA root, RSA leaf", KeyKind::Rsa2048, KeyKind::Rsa2048),
    ] {
        println!("{name}: {:.0} us per certificate", measure(root, leaf).as_secs_f64() * 1e6);
    }
}

fn measure(root: KeyKind, leaf: KeyKind) -> Duration {
    let key = PrivateKey::generate(root).expect("the library makes keys");
    let life = Duration::from_secs(3650 * 24 * 3600);
    let ca = SigningAuthority::new_root("cluster.local", key, life, NOW, &[1; 16]).expect("the library signs");
    let names = [SubjectName::of_text("spiffe://cluster.local/ns/shop/sa/front")];
    let key = PrivateKey::generate(leaf).expect("the library makes keys");
    let request = csr::request(&key, &names).expect("the library signs");
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let request = CertificateRequest::from_pem(&request).expect("the request is good");
        let serial = random_serial().expect("the system has random bytes");
        let issued = ca.issue(&request, &names, 0, LeafLifetimes::default(), NOW, serial);
        black_box(issued.expect("the library signs"));
    }
    begun.elapsed() / ROUNDS
}
