//! Rotation of a self-signed root: at any time all workloads can verify each other.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use trust::authority::LeafLifetimes;
use trust::bundle::RootBundle;
use trust::certificate::Certificate;
use trust::csr::{self, CertificateRequest};
use trust::issue::SubjectName;
use trust::key::{KeyKind, PrivateKey};
use trust::rotation::{RootState, RotationPolicy, RotationStep, SLACK};

const START: i64 = 1_800_000_000;
/// Default lifetime of leaves.
const LEAF: i64 = 1000;
/// The longest that may be requested.
const LONG: i64 = 5 * LEAF;
/// The CA and the workloads act at least this often.
const MAX_PAUSE: i64 = 200;
/// Time of a step while there are leaves of the default lifetime only.
const STEP: i64 = LEAF + SLACK.as_secs() as i64;

fn policy() -> RotationPolicy {
    RotationPolicy {
        step: None,
        usual_leaf: Duration::from_secs(LEAF as u64),
        max_leaf: Duration::from_secs(LONG as u64),
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
}

impl Workload {
    /// A certificate with this lifetime, as far as the CA allows it. It records long ones first.
    fn renew(state: &mut RootState, request: &CertificateRequest, lifetime: i64, now: i64) -> Workload {
        if let Some(recorded) = state.with_longest_leaf(&policy(), lifetime) {
            *state = stored(&recorded);
        }
        let lifetime = lifetime.min(state.leaf_limit(&policy()));
        let names = [SubjectName::of_text("spiffe://cluster.local/ns/a/sa/b")];
        let issued = state.signer().issue(request, &names, lifetime, LeafLifetimes::default(), now, [1; 16]).unwrap();
        let roots = RootBundle::from_pem(issued.chain.last().unwrap()).unwrap();
        Workload { leaf: issued.certificate, roots }
    }

    fn trusts(&self, other: &Workload, now: i64) -> bool {
        let is_issuer = |root: &Certificate| other.leaf.is_signed_by(root) && root.is_valid_at(now);
        other.leaf.is_valid_at(now) && self.roots.roots().iter().any(is_issuer)
    }
}

/// The state as another replica reads it.
fn stored(state: &RootState) -> RootState {
    RootState::from_stored(&state.to_stored().unwrap()).unwrap()
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
    assert_eq!(announced.due(&policy, START + STEP - 1, true), None, "workloads still learn the new root");
    assert_eq!(announced.due(&policy, START + STEP, false), Some(RotationStep::Signing));
    let signing = announced.advance(&policy, START + STEP, &[3; 16]).unwrap();
    assert_ne!(signing.signer().certificate(), first.signer().certificate());
    assert_eq!(signing.signer().roots(), announced.signer().roots());
    let alone = signing.advance(&policy, START + 2 * STEP, &[4; 16]).unwrap();
    assert_eq!((alone.step(), alone.signer().roots().roots().len()), (RotationStep::Alone, 1));
    assert_eq!(alone.signer().certificate(), signing.signer().certificate());
    assert!(alone.signer().roots().is_step_from(signing.signer().roots()));
    assert!(!alone.signer().roots().is_step_from(first.signer().roots()));
}

#[test]
fn a_step_lasts_as_long_as_the_longest_leaf() {
    let policy = policy();
    let limits = |state: &RootState| (state.leaf_limit(&policy), state.step_end(&policy).map(|end| end - START));
    let slack = STEP - LEAF;
    let first = RootState::new(&policy, START, &[1; 16]).unwrap();
    assert_eq!(limits(&first), (LEAF, None));
    assert!(first.with_longest_leaf(&policy, LEAF).is_none(), "nothing to record");
    let long = stored(&first.with_longest_leaf(&policy, 3 * LEAF).unwrap());
    assert_eq!(limits(&long), (3 * LEAF, None));
    let announced = stored(&long.advance(&policy, START, &[2; 16]).unwrap());
    assert_eq!(limits(&announced), (LEAF, Some(3 * LEAF + slack)), "new leaves are not longer than usual");
    assert!(announced.with_longest_leaf(&policy, 4 * LEAF).is_none(), "the step does not grow");
    let signing = stored(&announced.advance(&policy, START, &[3; 16]).unwrap());
    assert_eq!(limits(&signing), (LEAF, Some(STEP)), "the long leaves have ended");
    let alone = stored(&signing.advance(&policy, START, &[4; 16]).unwrap());
    assert_eq!(limits(&alone), (LEAF, None));
    // A root of istiod, or of an earlier release.
    let mut unrecorded = first.to_stored().unwrap();
    unrecorded.longest_leaf = None;
    let unrecorded = RootState::from_stored(&unrecorded).unwrap();
    assert_eq!(limits(&unrecorded), (LONG, None));
    let announced = stored(&unrecorded.advance(&policy, START, &[2; 16]).unwrap());
    assert_eq!(limits(&announced), (LEAF, Some(LONG + slack)));
    // The time of a step as the operator sets it.
    let fixed = RotationPolicy { step: Some(Duration::from_secs(7)), ..policy.clone() };
    assert_eq!(announced.step_end(&fixed), Some(START + 7));
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

    /// Two workloads with certificates of any lifetime renew at random moments, some of them at the last. The CA takes its
    /// steps when it happens to look. They always trust each other.
    #[test]
    fn workloads_trust_each_other_throughout(
        pauses in proptest::collection::vec(1..MAX_PAUSE, 120),
        lifetimes in proptest::collection::vec(LEAF / 2..=LONG, 1..5),
        early in 0usize..20,
        renews_late in any::<[bool; 2]>(),
        is_recorded in any::<bool>(),
    ) {
        let policy = policy();
        let request = request();
        let mut state = RootState::new(&policy, START, &[1; 16]).unwrap();
        if !is_recorded {
            let mut stored = state.to_stored().unwrap();
            stored.longest_leaf = None;
            state = RootState::from_stored(&stored).unwrap();
        }
        let mut lifetimes = lifetimes.into_iter().cycle();
        let mut next = move || lifetimes.next().unwrap();
        let mut workloads = [(); 2].map(|()| Workload::renew(&mut state, &request, next(), START));
        let (mut now, mut steps) = (START, 0);
        for (n, pause) in pauses.iter().enumerate() {
            now += pause;
            if state.due(&policy, now, n >= early && steps == 0).is_some() {
                state = stored(&state.advance(&policy, now, &[n as u8; 16]).unwrap());
                steps += 1;
            }
            for (which, workload) in workloads.iter_mut().enumerate() {
                let is_last_moment = now + MAX_PAUSE >= workload.leaf.not_after;
                if is_last_moment || (!renews_late[which] && (n + which) % 7 == 0) {
                    *workload = Workload::renew(&mut state, &request, next(), now);
                }
            }
            prop_assert!(workloads[0].trusts(&workloads[1], now), "step {:?}", state.step());
            prop_assert!(workloads[1].trusts(&workloads[0], now), "step {:?}", state.step());
        }
        prop_assert!(steps >= 2, "{steps} steps in {} s", now - START);
    }
}
