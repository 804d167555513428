//! Which patches of an EnvoyFilter are valid, and which proxies they match.

use super::{ApplyTo, EnvoyFilter, Operation, Patch, PatchSet};
use crate::config::parse::documents;
use crate::config::{Config, Spec};
use crate::proxy::Proxy;
use crate::settings::Knobs;
use api::envoy::config::core::v3::Node;
use api::{Struct, Value, value};

fn filter(patches: &str) -> Config<EnvoyFilter> {
    let text = format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: f, namespace: shop}}\nspec:\n  configPatches: [{patches}]\n"
    );
    let object = documents(&text, "config.yaml").objects.remove(0);
    match &object.spec {
        Spec::EnvoyFilter(spec) => Config { meta: object.meta.clone(), spec: spec.clone() },
        other => panic!("not a filter: {other:?}"),
    }
}

fn proxy(metadata: &[(&str, &str)]) -> Proxy {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let fields = metadata.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect();
    let node = Node {
        id: "sidecar~10.0.0.1~cart.shop~shop.svc.cluster.local".into(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    };
    Proxy::from_node(&node).unwrap()
}

fn patches(patches: &str, metadata: &[(&str, &str)]) -> Vec<Patch> {
    let set = PatchSet::new(filter(patches), None, &Knobs::default());
    set.for_proxy(&proxy(metadata)).map(|patch| Patch::clone(patch)).collect()
}

#[test]
fn invalid_patch_leaves_its_siblings() {
    let bad = "{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: [1]}}}";
    let untyped = "{applyTo: HTTP_FILTER, patch: {operation: ADD, value: {typed_config: {'@type': no.such.Type}}}}";
    let empty = "{applyTo: CLUSTER, patch: {operation: ADD}}";
    let good = "{applyTo: CLUSTER, patch: {operation: MERGE, value: {name: x, no_such_field: 1}}}";
    let found = patches(&[bad, untyped, empty, good].join(","), &[]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].value.as_ref().map(|value| &*value.bytes), Some(&b"\x0a\x01x"[..]));
}

#[test]
fn insert_without_order_is_add() {
    let found = patches(
        "{applyTo: CLUSTER, patch: {operation: INSERT_FIRST, value: {name: x}}}, \
         {applyTo: HTTP_ROUTE, patch: {operation: INSERT_FIRST, value: {name: x}}}",
        &[],
    );
    let kinds: Vec<_> = found.iter().map(|patch| (patch.apply_to, patch.operation)).collect();
    assert_eq!(kinds, [(ApplyTo::Cluster, Operation::Add), (ApplyTo::HttpRoute, Operation::InsertFirst)]);
}

#[test]
fn patches_match_proxies_by_version_and_metadata() {
    let of = |matching: &str, metadata: &[(&str, &str)]| {
        let patch = format!(
            "{{applyTo: CLUSTER, match: {{proxy: {matching}}}, patch: {{operation: ADD, value: {{name: x}}}}}}"
        );
        patches(&patch, metadata).len()
    };
    let version = r"{proxyVersion: '^1\.2[89].*'}";
    assert_eq!(of(version, &[("ISTIO_VERSION", "1.29.3")]), 1);
    assert_eq!(of(version, &[("ISTIO_VERSION", "1.31.0")]), 0);
    assert_eq!(of(version, &[]), 0);
    assert_eq!(of("{proxyVersion: '('}", &[("ISTIO_VERSION", "1.31.0")]), 0);
    assert_eq!(of("{metadata: {TEAM: a}}", &[("TEAM", "a")]), 1);
    assert_eq!(of("{metadata: {TEAM: a}}", &[("TEAM", "b")]), 0);
    assert_eq!(of("{metadata: {TEAM: a}}", &[]), 0);
}

#[test]
fn unchanged_filter_is_not_parsed_again() {
    let patch = "{applyTo: CLUSTER, patch: {operation: ADD, value: {name: x}}}";
    let before = PatchSet::new(filter(patch), None, &Knobs::default());
    let after = PatchSet::new(filter(patch), Some(&before), &Knobs::default());
    assert!(std::sync::Arc::ptr_eq(&before.patches, &after.patches));
}

#[test]
fn hole_04_a_patch_with_a_huge_value_is_left_out_and_named() {
    let knobs = Knobs { patch_bytes: 10, ..Knobs::default() };
    let patch = |name: &str| format!("{{applyTo: CLUSTER, patch: {{operation: ADD, value: {{name: {name}}}}}}}");
    let set = PatchSet::new(filter(&[patch("x"), patch("too-long-for-ten"), patch("z")].join(",")), None, &knobs);
    assert_eq!(set.for_proxy(&proxy(&[])).count(), 2);
    let problems: Vec<String> = set.problems(&knobs).map(|problem| problem.to_string()).collect();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("EnvoyFilter shop/f: configPatches[1] is not applied"), "{problems:?}");
    let again = PatchSet::new(set.config.clone(), Some(&set), &knobs);
    assert_eq!(again.problems(&knobs).count(), 1, "an unchanged filter has the same problem");
}
