//! Rules of RequestAuthentication and PeerAuthentication.

use api::istio::security::v1beta1::{JwtRule, PeerAuthentication, RequestAuthentication};
use serde_json::Value;

use super::report::{Report, Rule, Violation};
use super::{headers, names, selector};
use crate::jwks;

pub(super) fn request(policy: &RequestAuthentication, report: &mut Report) {
    selector::policy(policy.selector.as_ref(), policy.target_ref.as_ref(), &policy.target_refs, report);
    report.each("jwtRules", &policy.jwt_rules, jwt_rule);
}

fn jwt_rule(report: &mut Report, rule: &JwtRule) {
    let empty = |list: &[String]| list.iter().any(String::is_empty);
    report.error_if(empty(&rule.audiences), "audience must be non-empty string");
    let nameless = rule.issuer.is_empty() && rule.jwks_uri.is_empty();
    report.error_if(nameless, "issuer or jwksUri must be non-empty string");
    if !rule.jwks_uri.is_empty() {
        report.check(jwks_uri(&rule.jwks_uri));
    }
    if !rule.jwks.is_empty() {
        key_set(&rule.jwks, report);
    }
    let nameless = rule.from_headers.iter().any(|header| header.name.is_empty());
    report.error_if(nameless, "location header name must be non-empty string");
    report.error_if(empty(&rule.from_params), "location query must be non-empty string");
    report.error_if(empty(&rule.from_cookies), "cookie name must be non-empty string");
    for claim in &rule.output_claim_to_headers {
        match claim.claim.is_empty() || claim.header.is_empty() {
            true => report.error("outputClaimToHeaders header and claim value must be non-empty string"),
            false => report.check(headers::strict_name(&claim.header)),
        }
    }
    names::duration_if_given(rule.timeout.as_ref(), "timeout", report);
}

fn jwks_uri(uri: &str) -> Rule {
    let scheme = uri.split_once(':').map_or("", |(scheme, _)| scheme);
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(Violation::from(format!("URI scheme {scheme:?} is not supported")));
    }
    if uri.chars().any(|c| c.is_control() || c == ' ') {
        return Err(Violation::from(format!("parse {uri:?}: invalid character in URL")));
    }
    Ok(())
}

/// A key set, or a single key, which upstream accepts. Warns about keys that Envoy cannot use.
fn key_set(text: &str, report: &mut Report) {
    let keys = match serde_json::from_str::<Value>(text) {
        Err(error) => return report.error(format_args!("jwks parse error: {error}")),
        Ok(Value::Object(set)) => match set.get("keys") {
            Some(Value::Array(keys)) => keys.clone(),
            Some(_) => return report.error("jwks parse error: \"keys\" is not a list"),
            None => vec![Value::Object(set)],
        },
        Ok(_) => return report.error("jwks parse error: not an object"),
    };
    for (index, key) in keys.iter().enumerate() {
        let Some(kind) = key.get("kty").and_then(Value::as_str) else {
            return report.error(format_args!("jwks parse error: key {index} has no kty"));
        };
        report.warn_if(
            kind == "oct" || key.get("d").is_some(),
            format_args!(
                "jwks key at index {index} contains private key material; only public keys are used for verification"
            ),
        );
    }
    match jwks::check(text) {
        Ok(mistakes) => mistakes.iter().for_each(|mistake| report.warn(format_args!("jwks: Envoy ignores {mistake}"))),
        Err(error) => report.warn(format_args!("jwks: all tokens of this issuer are rejected: {error}")),
    }
}

pub(super) fn peer(policy: &PeerAuthentication, report: &mut Report) {
    let selects = policy.selector.as_ref().is_some_and(|selector| !selector.match_labels.is_empty());
    report.error_if(
        !selects && !policy.port_level_mtls.is_empty(),
        "mesh/namespace peer authentication cannot have port level mTLS",
    );
    let in_range = policy.port_level_mtls.keys().all(|port| names::port(*port).is_ok());
    report.error_if(!in_range, "port must be in range 1..65535");
    selector::workload(policy.selector.as_ref(), report);
}
