//! Rotation of a self-signed root: at any time all workloads can verify each other.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use trust::authority::{LeafLifetimes, SigningAuthority};
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::csr::{self, CertificateRequest};
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey};
use trust::rotation::{RootState, RotationPolicy, RotationStep};

const START: i64 = 1_800_000_000;
/// Lifetime of leaves; workloads renew them at half of it.
const LEAF: i64 = 1000;

fn policy() -> RotationPolicy {
    RotationPolicy {
        step: Duration::from_secs(LEAF as u64),
        begin_when_left: 0.2,
        root_lifetime: Duration::from_secs(100_000),
        key: KeyKind::P256,
        organization: "cluster.local".to_owned(),
    }
}

/// A workload's certificate and the roots that came with it.
struct Workload {
    leaf: Certificate,
    roots: RootBundle,
    renewed: i64,
}

impl Workload {
    fn renew(signer: &SigningAuthority, request: &CertificateRequest, now: i64) -> Workload {
        let names = [SubjectName::of_text("spiffe://cluster.local/ns/a/sa/b")];
        let issued = signer.issue(request, &names, LEAF, LeafLifetimes::default(), now, [1; 16]).unwrap();
        let roots = RootBundle::from_pem(issued.chain.last().unwrap()).unwrap();
        Workload { leaf: issued.certificate, roots, renewed: now }
    }

    fn trusts(&self, other: &Workload, now: i64) -> bool {
        let is_issuer = |root: &Certificate| other.leaf.is_signed_by(root) && root.is_valid_at(now);
        other.leaf.is_valid_at(now) && self.roots.roots().iter().any(is_issuer)
    }
}

fn request() -> CertificateRequest {
    let key = PrivateKey::generate(KeyKind::P256).unwrap();
    CertificateRequest::from_pem(&csr::request(&key, &[]).unwrap()).unwrap()
}

#[test]
fn three_steps_replace_a_root() {
    let policy = policy();
    let first = RootState::new(&policy, START, &[1; 16]).unwrap();
    // It is valid from two minutes before it was made, which counts as part of its life.
    assert_eq!(first.due(&policy, START + 79_900, false), None);
    assert_eq!(first.due(&policy, START + 80_000, false), Some(RotationStep::Announced), "20 % of its life are left");
    assert_eq!(first.due(&policy, START, true), Some(RotationStep::Announced), "on request");
    let announced = first.advance(&policy, START, &[2; 16]).unwrap();
    assert_eq!(announced.signer().certificate(), first.signer().certificate());
    assert_eq!(announced.signer().roots().roots().len(), 2);
    assert_eq!(announced.due(&policy, START + LEAF - 1, true), None, "workloads still learn the new root");
    assert_eq!(announced.due(&policy, START + LEAF, false), Some(RotationStep::Signing));
    let signing = announced.advance(&policy, START + LEAF, &[3; 16]).unwrap();
    assert_ne!(signing.signer().certificate(), first.signer().certificate());
    assert_eq!(signing.signer().roots(), announced.signer().roots());
    let alone = signing.advance(&policy, START + 2 * LEAF, &[4; 16]).unwrap();
    assert_eq!((alone.step(), alone.signer().roots().roots().len()), (RotationStep::Alone, 1));
    assert_eq!(alone.signer().certificate(), signing.signer().certificate());
    assert!(alone.signer().roots().is_step_from(signing.signer().roots()));
    assert!(!alone.signer().roots().is_step_from(first.signer().roots()));
}

#[test]
fn every_state_survives_storing() {
    let policy = policy();
    let mut state = RootState::new(&policy, START, &[1; 16]).unwrap();
    for n in 0..4 {
        let read = RootState::from_stored(&state.to_stored().unwrap()).unwrap();
        assert_eq!((read.step(), read.since()), (state.step(), state.since()));
        assert_eq!(read.signer().certificate(), state.signer().certificate());
        assert_eq!(read.signer().roots(), state.signer().roots());
        let (one, other) = (read.advance(&policy, START + n, &[9; 16]), state.advance(&policy, START + n, &[9; 16]));
        let (one, other) = (one.unwrap(), other.unwrap());
        if n != 0 {
            assert_eq!(one.signer().certificate(), other.signer().certificate());
        }
        state = other;
    }
    // A step whose content was lost.
    let mut stored = state.to_stored().unwrap();
    stored.step = RotationStep::Announced;
    stored.next = None;
    assert_ne!(RootState::from_stored(&stored).unwrap().step(), RotationStep::Announced);
}

#[test]
fn an_expired_root_is_replaced_without_waiting() {
    let policy = policy();
    let state = RootState::new(&policy, START, &[1; 16]).unwrap();
    let late = START + 200_000;
    let announced = state.advance(&policy, late, &[2; 16]).unwrap();
    assert_eq!(announced.due(&policy, late, false), Some(RotationStep::Signing));
}

#[test]
fn requested_rotation_of_an_rsa_root() {
    let policy = RotationPolicy { key: KeyKind::Rsa2048, ..policy() };
    let state = RootState::new(&policy, START, &[1; 16]).unwrap().advance(&policy, START, &[2; 16]).unwrap();
    assert_eq!(state.signer().key_kind(), KeyKind::Rsa2048);
    assert_eq!(state.warning(START + 60_000), Some(50));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Two workloads renew at random moments, at the latest at half of a leaf's life. The CA takes its steps when it
    /// happens to look. They always trust each other.
    #[test]
    fn workloads_trust_each_other_throughout(pauses in proptest::collection::vec(1i64..200, 60), early in 0usize..20) {
        let policy = policy();
        let request = request();
        let mut state = RootState::new(&policy, START, &[1; 16]).unwrap();
        let mut workloads = [(); 2].map(|()| Workload::renew(state.signer(), &request, START));
        let (mut now, mut steps) = (START, 0);
        for (n, pause) in pauses.iter().enumerate() {
            now += pause;
            if state.due(&policy, now, n >= early && steps == 0).is_some() {
                state = state.advance(&policy, now, &[n as u8; 16]).unwrap();
                steps += 1;
            }
            for (which, workload) in workloads.iter_mut().enumerate() {
                if now - workload.renewed >= LEAF / 2 || (n + which) % 7 == 0 {
                    *workload = Workload::renew(state.signer(), &request, now);
                }
            }
            prop_assert!(workloads[0].trusts(&workloads[1], now), "step {:?}", state.step());
            prop_assert!(workloads[1].trusts(&workloads[0], now), "step {:?}", state.step());
        }
        prop_assert!(steps >= 2);
    }
}
