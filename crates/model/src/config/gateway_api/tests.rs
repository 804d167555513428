//! Defaults that an API server would set.

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
fn null_spec_is_an_empty_spec() {
    assert_eq!(read::<GatewayClass>(&Value::Null).expect("an empty spec"), GatewayClass::default());
}

#[test]
fn certificate_references_default_to_secrets() {
    let spec = json!({"listeners": [{"name": "a", "port": 443, "tls": {"certificateRefs": [{"name": "c"}]}}]});
    let gateway: Gateway = read(&spec).expect("a good gateway");
    let tls = gateway.listeners[0].tls.as_ref().expect("tls");
    assert_eq!(tls.certificate_refs[0].kind, "Secret");
}

#[test]
fn missing_required_field_is_named() {
    let error = read::<ListenerSet>(&json!({"listeners": []})).expect_err("no parent");
    assert!(error.to_string().contains("parentRef"), "{error}");
}

#[test]
fn retry_budget_has_a_default() {
    let policy: BackendTrafficPolicy = read(&json!({"retryConstraint": {"budget": {"percent": 5}}})).expect("good");
    let constraint = policy.retry_constraint.expect("constraint");
    assert_eq!((constraint.budget.percent, &*constraint.budget.interval), (5, "10s"));
    assert_eq!(constraint.min_retry_rate.count, 10);
}
