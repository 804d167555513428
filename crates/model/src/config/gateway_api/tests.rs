//! What an API server would fill in is filled in.

use serde_json::{Value, json};

use super::{BackendTrafficPolicy, Gateway, GatewayClass, HttpRoute, ListenerSet, read};

fn route(spec: Value) -> HttpRoute {
    read(&spec).expect("a good route")
}

#[test]
fn a_route_without_rules_matches_every_path() {
    let route = route(json!({"parentRefs": [{"name": "front"}]}));
    assert_eq!(route.rules.len(), 1);
    assert_eq!((&*route.rules[0].matches[0].path.kind, &*route.rules[0].matches[0].path.value), ("PathPrefix", "/"));
    let parent = &route.parent_refs[0];
    assert_eq!((&*parent.group, &*parent.kind), ("gateway.networking.k8s.io", "Gateway"));
}

#[test]
fn an_empty_list_of_matches_stays_empty() {
    let route = route(json!({"rules": [{"matches": [], "backendRefs": [{"name": "a", "weight": null}]}]}));
    assert!(route.rules[0].matches.is_empty());
    assert_eq!((route.rules[0].backend_refs[0].weight, &*route.rules[0].backend_refs[0].kind), (1, "Service"));
}

#[test]
fn a_spec_of_null_is_an_empty_one() {
    assert_eq!(read(&Value::Null), Ok(GatewayClass::default()));
}

#[test]
fn a_listener_takes_certificates_from_secrets() {
    let spec = json!({"listeners": [{"name": "a", "port": 443, "tls": {"certificateRefs": [{"name": "c"}]}}]});
    let gateway: Gateway = read(&spec).expect("a good gateway");
    let tls = gateway.listeners[0].tls.as_ref().expect("tls");
    assert_eq!(tls.certificate_refs[0].kind, "Secret");
}

#[test]
fn what_must_be_there_is_missed_by_name() {
    let error = read::<ListenerSet>(&json!({"listeners": []})).expect_err("no parent");
    assert!(error.contains("parentRef"), "{error}");
}

#[test]
fn retries_have_a_budget_unless_it_is_written() {
    let policy: BackendTrafficPolicy = read(&json!({"retryConstraint": {"budget": {"percent": 5}}})).expect("good");
    let constraint = policy.retry_constraint.expect("constraint");
    assert_eq!((constraint.budget.percent, &*constraint.budget.interval), (5, "10s"));
    assert_eq!(constraint.min_retry_rate.count, 10);
}
