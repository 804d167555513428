//! Configuration that its author should not have written. All of it belongs to the namespace `evil` and to its hosts, so no
//! service of others may change.

use std::fmt::Write as _;

/// Duplicate hosts, and hosts that differ in case only.
pub(super) fn duplicates() -> String {
    let service = |name: &str, host: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: evil}}\n\
             spec:\n  hosts: [{host}]\n  http: [{{route: [{{destination: {{host: nowhere.evil}}}}]}}]\n---\n"
        )
    };
    ["twice.evil", "twice.evil", "TWICE.evil", "*.evil", "*.EVIL"]
        .iter()
        .enumerate()
        .map(|(number, host)| service(&format!("v{number}"), &format!("'{host}'")))
        .collect()
}

/// Null weights, empty routes, missing subsets, wrong ports and unknown gateways.
pub(super) fn broken_routes() -> String {
    let specs = [
        "{hosts: [a.evil], http: [{route: [{destination: {host: a.evil}, weight: null}]}]}",
        "{hosts: [b.evil], http: [{}]}",
        "{hosts: [c.evil], http: [{route: [{destination: {host: c.evil, subset: missing}}]}]}",
        "{hosts: [d.evil], http: [{route: [{destination: {host: d.evil, port: {number: 99999}}}]}]}",
        "{hosts: [e.evil], gateways: [evil/unknown], http: [{route: [{destination: {host: e.evil}}]}]}",
        "{hosts: [f.evil], http: [{route: [{destination: {host: f.evil}, weight: 120}]}]}",
        "{hosts: [], http: null}",
    ];
    let object = |(number, spec): (usize, &&str)| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: broken{number}, namespace: evil}}\n\
             spec: {spec}\n---\n"
        )
    };
    specs.iter().enumerate().map(object).collect()
}

/// Patches for all clusters and listeners that cannot be applied, and a large script for the namespace.
pub(super) fn bad_patches() -> String {
    let script = "-- a comment of a script\\n".repeat(20_000);
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: wrong-type, namespace: istio-system}}\n\
         spec:\n  configPatches:\n  - applyTo: CLUSTER\n    patch: {{operation: MERGE, value: {{connect_timeout: [not, a, duration]}}}}\n  \
         - applyTo: HTTP_FILTER\n    match: {{listener: {{filterChain: {{filter: {{name: envoy.filters.network.http_connection_manager}}}}}}}}\n    \
         patch: {{operation: INSERT_BEFORE, value: {{name: wrong, typed_config: {{'@type': type.googleapis.com/no.such.Type, a: 1}}}}}}\n---\n\
         apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: long-script, namespace: evil}}\n\
         spec:\n  configPatches:\n  - applyTo: HTTP_FILTER\n    match: {{listener: {{filterChain: {{filter: {{name: envoy.filters.network.http_connection_manager}}}}}}}}\n    \
         patch: {{operation: INSERT_BEFORE, value: {{name: lua, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, \
         default_source_code: {{inline_string: \"{script}\"}}}}}}}}\n"
    )
}

/// Expressions that Envoy would refuse to compile or that cost much.
pub(super) fn regex_bombs() -> String {
    let bombs = ["((a{1,100}){1,100}){1,100}", "(a*)*b", "[", "(?P<x>a", "a{1000000}"];
    let mut text = String::from(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bombs, namespace: evil}\nspec:\n  \
         hosts: [bombs.evil]\n  http:\n",
    );
    for bomb in bombs {
        let _ = writeln!(
            text,
            "  - match: [{{uri: {{regex: '{bomb}'}}}}]\n    route: [{{destination: {{host: bombs.evil}}}}]"
        );
    }
    text
}

/// Documents that are no documents: an alias bomb, deep nesting, duplicate keys, control characters.
pub(super) fn yaml_bombs() -> Vec<(&'static str, Vec<u8>)> {
    let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        let _ = writeln!(aliases, "a{level}: &a{level} [{}]", [before.as_str(); 9].join(", "));
    }
    vec![
        ("bomb-aliases.yaml", aliases.into_bytes()),
        ("bomb-depth.yaml", "[".repeat(100_000).into_bytes()),
        ("bomb-keys.yaml", b"apiVersion: a\napiVersion: b\nkind: X\nkind: Y\n".to_vec()),
        ("bomb-bytes.yaml", b"\x00\xff\xfe\xe2\x80\xae kind: \x1b[31m".to_vec()),
        ("bomb-string.yaml", format!("kind: {}\n", "x".repeat(1 << 20)).into_bytes()),
    ]
}
