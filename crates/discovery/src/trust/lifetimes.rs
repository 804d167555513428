//! Warns when much of the lifetime of a root, the signing certificate or this server's certificate is over.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use trust::certificate::Certificate;
use trust::lifetime;

use super::problems::Topic;
use super::{Trust, unix_now};

const INTERVAL: Duration = Duration::from_secs(10);

/// Checks until cancelled.
pub(super) async fn watch(trust: Arc<Trust>, stop: CancellationToken) {
    let mut states = trust.subscribe();
    loop {
        check(&trust, unix_now());
        tokio::select! {
            () = stop.cancelled() => return,
            _ = states.changed() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

fn check(trust: &Trust, now: i64) {
    let Some(state) = trust.now() else { return };
    let authority = &state.authority;
    let root = authority.roots().roots().iter().min_by_key(|root| root.not_after);
    warn(trust, Topic::RootLifetime, "root certificate", root, now);
    let issuer = Some(authority.certificate()).filter(|certificate| !authority.roots().contains(certificate));
    warn(trust, Topic::IssuerLifetime, "signing certificate", issuer, now);
    let own = trust.own_certificate();
    // It is renewed at half of its life, so half is no reason to worry.
    let own = own.as_ref().filter(|own| lifetime::warning(own.not_before, own.not_after, now) > Some(50));
    warn(trust, Topic::OwnLifetime, "certificate of this server", own, now);
}

fn warn(trust: &Trust, topic: Topic, what: &str, certificate: Option<&Certificate>, now: i64) {
    let due = certificate.and_then(|found| Some((found, lifetime::warning(found.not_before, found.not_after, now)?)));
    let Some((certificate, percent)) = due else { return trust.problems.solved(topic) };
    let end = model::config::timestamp::format(certificate.not_after);
    let message =
        format!("{percent} % of the lifetime of the {what} {} is over; it expires at {end}", certificate.serial);
    match percent {
        95.. => trust.problems.error(topic, message),
        _ => trust.problems.warning(topic, message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use model::change::{Batch, Change};
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
    use tokio::sync::mpsc;
    use trust::authority::{AuthorityTexts, SigningAuthority};
    use trust::issue::SubjectName;
    use trust::key::{KeyKind, PrivateKey};

    use super::super::problems::TrustProblems;
    use super::super::{Trust, TrustState};
    use super::check;

    fn started(authority: SigningAuthority) -> (Arc<Trust>, mpsc::Receiver<Batch>) {
        let (sender, batches) = mpsc::channel(10);
        let trust = Trust::new(TrustProblems::new(sender));
        trust.publish(TrustState {
            authority: Arc::new(authority),
            revoked: None,
            place: "test".to_owned(),
            is_plugged_in: false,
            step: Default::default(),
            since: 0,
            step_end: None,
            leaf_limit: None,
        });
        (trust, batches)
    }

    /// Messages of the problems that a check publishes; `None` if nothing changed.
    fn reported(trust: &Trust, batches: &mut mpsc::Receiver<Batch>, now: i64) -> Option<Vec<String>> {
        check(trust, now);
        let batch = batches.try_recv().ok()?;
        match &batch.changes[..] {
            [Change::Problems(problems)] => Some(problems.iter().map(|p| p.message.to_string()).collect()),
            other => panic!("{other:?}"),
        }
    }

    fn root(seconds: u64) -> SigningAuthority {
        let key = PrivateKey::generate(KeyKind::P256).unwrap();
        SigningAuthority::new_root("td", key, Duration::from_secs(seconds), 0, &[1; 16]).unwrap()
    }

    #[test]
    fn a_root_is_reported_at_50_80_and_95_percent() {
        let (trust, mut batches) = started(root(1000));
        let mut reported = |now| reported(&trust, &mut batches, now).and_then(|messages| messages.first().cloned());
        // It is valid from two minutes before it was made: half of it is over at 440.
        assert_eq!(reported(430), None);
        assert!(reported(450).unwrap().starts_with("50 % of the lifetime of the root certificate"));
        assert_eq!(reported(700), None, "once");
        assert!(reported(800).unwrap().starts_with("80 %"));
        let last = reported(2000).unwrap();
        assert!(last.starts_with("95 %") && last.ends_with("expires at 1970-01-01T00:16:40Z"), "{last}");
    }

    /// A certificate that is valid from 1970 on for this many seconds.
    fn params(name: &str, seconds: u64) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(1970, 1, 1);
        params.not_after = params.not_before + Duration::from_secs(seconds);
        params
    }

    #[test]
    fn an_intermediate_is_reported_at_50_80_and_95_percent() {
        let root = CertifiedIssuer::self_signed(params("root", 1_000_000), KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params("intermediate", 1000).signed_by(&key, &root).unwrap().pem();
        let (key, roots) = (key.serialize_pem(), root.pem());
        let texts = AuthorityTexts { certificate: &certificate, key: &key, chain: &certificate, roots: &roots };
        let (trust, mut batches) = started(SigningAuthority::from_texts(texts, 0).unwrap());
        let mut reported = |now| reported(&trust, &mut batches, now);
        assert_eq!(reported(499), None);
        for (now, percent) in [(500, 50), (800, 80), (950, 95)] {
            let messages = reported(now).unwrap();
            let expected = format!("{percent} % of the lifetime of the signing certificate");
            assert!(messages.len() == 1 && messages[0].starts_with(&expected), "{messages:?}");
        }
    }

    /// It is renewed at half of its life, so only a renewal that fails is reported.
    #[test]
    fn the_own_certificate_is_reported_at_80_and_95_percent() {
        let authority = root(1_000_000);
        let names = [SubjectName::of_text("istiod.istio-system.svc")];
        // Backdated by two minutes, it has a life of 1000 seconds.
        let (issued, _) = authority.issue_with_key(&names, Duration::from_secs(880), 0, [2; 16]).unwrap();
        let (trust, mut batches) = started(authority);
        trust.own.send_replace(Some(issued.certificate));
        let mut reported = |now| reported(&trust, &mut batches, now);
        assert_eq!(reported(660), None);
        for (now, percent) in [(680, 80), (830, 95)] {
            let messages = reported(now).unwrap();
            let expected = format!("{percent} % of the lifetime of the certificate of this server");
            assert!(messages.len() == 1 && messages[0].starts_with(&expected), "{messages:?}");
        }
        trust.own.send_replace(None);
        assert_eq!(reported(840), Some(Vec::new()), "solved by a renewal");
    }
}
