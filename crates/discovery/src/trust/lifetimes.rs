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

    use model::change::Change;
    use tokio::sync::mpsc;
    use trust::authority::SigningAuthority;
    use trust::key::{KeyKind, PrivateKey};

    use super::super::problems::TrustProblems;
    use super::super::{Trust, TrustState};
    use super::check;

    #[test]
    fn a_root_is_reported_at_50_80_and_95_percent() {
        let (sender, mut batches) = mpsc::channel(10);
        let trust = Trust::new(TrustProblems::new(sender));
        let key = PrivateKey::generate(KeyKind::P256).unwrap();
        let root = SigningAuthority::new_root("td", key, Duration::from_secs(1000), 0, &[1; 16]).unwrap();
        trust.publish(TrustState {
            authority: Arc::new(root),
            revoked: None,
            place: "test".to_owned(),
            is_plugged_in: false,
            step: Default::default(),
            since: 0,
        });
        let mut reported = |now| {
            check(&trust, now);
            let batch = batches.try_recv().ok()?;
            match &batch.changes[..] {
                [Change::Problems(problems)] => problems.first().map(|problem| problem.message.to_string()),
                other => panic!("{other:?}"),
            }
        };
        // It is valid from two minutes before it was made: half of it is over at 440.
        assert_eq!(reported(430), None);
        assert!(reported(450).unwrap().starts_with("50 % of the lifetime of the root certificate"));
        assert_eq!(reported(700), None, "once");
        assert!(reported(800).unwrap().starts_with("80 %"));
        let last = reported(2000).unwrap();
        assert!(last.starts_with("95 %") && last.ends_with("expires at 1970-01-01T00:16:40Z"), "{last}");
    }
}
