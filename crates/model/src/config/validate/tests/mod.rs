//! Validation rules, each with the smallest object that violates it: kind, spec, and expected findings.
//! An empty third column means no findings.

mod networking;
mod security;
mod virtual_service;

use crate::config::problem::Severity;
use crate::config::{Kind, parse};

/// The findings of an object, one per line.
fn findings(kind: Kind, name: &str, annotation: &str, spec: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: {}/{}\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop, annotations: {{{annotation}}}}}\nspec: {spec}\n",
        kind.group(),
        kind.versions()[0],
    );
    let parsed = parse::documents(&text, "f");
    assert_eq!(parsed.problems, [], "{kind} {spec}");
    let mark = |severity| if severity == Severity::Error { "error" } else { "warning" };
    super::validate(&parsed.objects[0]).iter().map(|p| format!("{}: {}", mark(p.severity), p.message)).collect()
}

fn check(kind: Kind, table: &[(&str, &str)]) {
    for (spec, expected) in table {
        let found = findings(kind, "a", "", spec);
        match *expected {
            "" => assert_eq!(found, Vec::<String>::new(), "{kind} {spec}"),
            text => assert!(found.iter().any(|line| line.contains(text)), "{kind} {spec}: {found:#?}"),
        }
    }
}

#[test]
fn telemetry_proxy_config_and_extensions() {
    check(
        Kind::Telemetry,
        &[
            ("{accessLogging: [{providers: [{name: envoy}]}]}", ""),
            ("{accessLogging: [{providers: [{}]}]}", "error: accessLogging[0]: providers.name may not be empty"),
            ("{tracing: [{}, {}]}", "warning: multiple tracing is not currently supported"),
            ("{tracing: [{randomSamplingPercentage: 101}]}", "randomSamplingPercentage must be in range [0.0, 100.0]"),
            ("{tracing: [{customTags: {a: {literal: {}}}}]}", "literal tag value may not be empty"),
            (
                "{metrics: [{overrides: [{tagOverrides: {a: {operation: UPSERT}}}]}]}",
                "tagOverrides.value must be set when operation is UPSERT",
            ),
        ],
    );
    check(
        Kind::ProxyConfig,
        &[("{concurrency: 2}", ""), ("{concurrency: -1}", "concurrency must be greater than or equal to 0")],
    );
    check(
        Kind::WasmPlugin,
        &[
            ("{url: 'oci://r/i:v1'}", ""),
            ("{url: r/i:v1}", ""),
            ("{}", "error: url field needs to be set"),
            ("{url: 'ftp://a'}", "url contains unsupported scheme: ftp"),
            ("{url: a, sha256: x}", "sha256 field must be 64 characters long"),
            ("{url: a, vmConfig: {env: [{name: a}, {name: a}]}}", "duplicate env"),
            ("{url: a, match: [{ports: [{number: 70000}]}]}", "error: match[0].ports[0]: port is out of range: 70000"),
        ],
    );
    check(
        Kind::TrafficExtension,
        &[
            ("{lua: {inlineCode: x}}", ""),
            ("{}", "exactly one of wasm or lua must be set"),
            ("{lua: {}}", "lua.inlineCode cannot be empty"),
            ("{wasm: {}}", "error: wasm: url field needs to be set"),
        ],
    );
}

#[test]
fn annotations_that_decide() {
    let policy = |annotation: &str, spec: &str| findings(Kind::AuthorizationPolicy, "a", annotation, spec);
    assert_eq!(policy("istio.io/dry-run: 'true'", "{}"), Vec::<String>::new());
    assert_eq!(
        policy("istio.io/dry-run: maybe", "{}"),
        ["error: shop/a has annotation istio.io/dry-run with invalid value (maybe)"]
    );
    let entry = findings(Kind::WorkloadEntry, "a", "istio.io/dry-run: 'true'", "{address: 10.0.0.1}");
    assert_eq!(entry, ["error: shop/a has unsupported annotation istio.io/dry-run, please remove the annotation"]);
    let internal = findings(Kind::WorkloadEntry, "a", "internal.istio.io/parents: x", "{address: 10.0.0.1}");
    assert_eq!(internal, ["error: \"internal.istio.io/parents\" annotation found, this may not be set by users"]);
}

#[test]
fn findings_are_bounded_but_errors_are_kept() {
    let hosts = vec!["'*x.com'"; 500].join(", ");
    let found =
        findings(Kind::ServiceEntry, "a", "", &format!("{{hosts: [{hosts}], addresses: [bad], resolution: STATIC}}"));
    assert!(found.len() <= 51, "{}", found.len());
    assert!(found.iter().any(|line| line.starts_with("error: ")));
}
