//! One small mesh with every mistake, and one with none.

use super::analyze;
use crate::change::{Batch, Change, SourceId};
use crate::config::parse::documents;
use crate::config::validate::validate;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

fn check(text: &str, expected: &[&str]) {
    let found = findings(text, Settings::default());
    assert_eq!(found, expected, "{found:#?}");
}

fn findings(text: &str, settings: Settings) -> Vec<String> {
    let parsed = documents(text, "f.yaml");
    let mut problems = parsed.problems;
    problems.extend(parsed.objects.iter().flat_map(validate));
    let mut changes: Vec<Change> = parsed.objects.into_iter().map(Change::Applied).collect();
    changes.push(Change::Problems(problems));
    let batch = Batch { source: SourceId("files".into()), changes };
    let found = analyze(&Snapshot::empty(settings).apply(vec![batch]).0);
    found.iter().map(ToString::to_string).collect()
}

const CART: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: more, protocol: HTTP}]}
---
";

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n---\n"
    )
}

#[test]
fn mesh_without_mistakes_has_no_findings() {
    let gateway = object(
        "Gateway",
        "edge",
        "{selector: {a: b}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['./*.example']}]}",
    );
    let rule = object("DestinationRule", "cart", "{host: cart, subsets: [{name: v1}]}");
    let route = object(
        "VirtualService",
        "cart",
        "{hosts: [cart.example], gateways: [edge], http: [{route: [{destination: {host: cart, subset: v1, port: {number: 80}}}]}]}",
    );
    check(&format!("{CART}{gateway}{rule}{route}"), &[]);
}

#[test]
fn missing_references_are_found() {
    let route = object(
        "VirtualService",
        "cart",
        "{hosts: [cart], gateways: [edge, mesh], http: [{mirror: {host: mirror, port: {number: 80}}, route: [{destination: {host: cart}, weight: 0}, \
         {destination: {host: cart, subset: v9, port: {number: 82}}, weight: 50}, {destination: {host: missing.example}, weight: 50}]}]}",
    );
    let origin = "(VirtualService shop/cart f.yaml:7)";
    check(
        &format!("{CART}{route}"),
        &[
            &format!("Error [IST0101] {origin} Referenced gateway not found: \"edge\""),
            &format!("Error [IST0101] {origin} Referenced host not found: \"missing.example\""),
            &format!("Error [IST0101] {origin} Referenced host+subset in destinationrule not found: \"cart+v9\""),
            &format!("Error [IST0101] {origin} Referenced host:port not found: \"cart:82\""),
            &format!("Error [IST0101] {origin} Referenced mirror host not found: \"mirror\""),
            &format!(
                "Error [IST0112] {origin} This VirtualService routes to a service \"cart\" that exposes multiple ports [80 81]. Specifying a port in the destination is required to disambiguate."
            ),
        ],
    );
}

#[test]
fn conflicting_objects_are_found() {
    let route = |name| {
        object(
            "VirtualService",
            name,
            "{hosts: [cart], http: [{route: [{destination: {host: cart, port: {number: 80}}}]}]}",
        )
    };
    let sidecar = |name| object("Sidecar", name, "{egress: [{hosts: ['*/*']}]}");
    let hosts = "The VirtualServices shop/a,shop/b associated with mesh gateway define the same host */cart.shop.svc.cluster.local which can lead to undefined behavior. This can be fixed by merging the conflicting VirtualServices into a single resource.";
    let whole =
        "The Sidecars [c d] in namespace \"shop\" have no workload selector, which can lead to undefined behavior.";
    check(
        &format!("{CART}{}{}{}{}", route("a"), route("b"), sidecar("c"), sidecar("d")),
        &[
            &format!("Error [IST0109] (VirtualService shop/a f.yaml:7) {hosts}"),
            &format!("Error [IST0109] (VirtualService shop/b f.yaml:12) {hosts}"),
            &format!("Error [IST0111] (Sidecar shop/c f.yaml:17) {whole}"),
            &format!("Error [IST0111] (Sidecar shop/d f.yaml:22) {whole}"),
        ],
    );
}

#[test]
fn schema_errors_and_unverified_servers_are_found() {
    let text = object("DestinationRule", "away", "{host: away.example, trafficPolicy: {tls: {mode: SIMPLE}}}")
        + &object("Gateway", "bad", "{servers: []}");
    check(
        &text,
        &[
            "Error [IST0106] (Gateway shop/bad f.yaml:6) Schema validation error: gateway must have at least one server",
            "Warning [IST0128] (DestinationRule shop/away f.yaml:1) DestinationRule away in namespace shop has TLS mode set to SIMPLE but no caCertificates are set to validate server identity for host: away.example",
            "Warning [IST0174] (DestinationRule shop/away f.yaml:1) The host away.example defined in the DestinationRule does not match any services in the mesh.",
        ],
    );
}

/// A VirtualService of namespace `other` for these hosts.
fn route_of_other(hosts: &str, more: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: taker, namespace: other}}\n\
         spec: {{hosts: [{hosts}]{more}, http: [{{route: [{{destination: {{host: cart.shop.svc.cluster.local, port: \
         {{number: 80}}}}}}]}}]}}\n---\n"
    )
}

#[test]
fn hole_15_routes_for_hosts_of_other_namespaces_are_reported() {
    let host = "cart.shop.svc.cluster.local";
    let message = |host: &str, owners: &str| {
        format!(
            "Warning [PIL0001] (VirtualService other/taker f.yaml:7) VirtualService other/taker takes calls to host {host}, \
             which belongs to namespace {owners}, from clients of other namespaces. Set its exportTo to \".\", or let a \
             VirtualService of the owner delegate to it."
        )
    };
    let exported = |more: &str| format!("{CART}{}", route_of_other(host, more));
    for more in ["", ", exportTo: ['*']", ", exportTo: ['.', shop]", ", gateways: [mesh]"] {
        check(&exported(more), &[&message(host, "shop")]);
    }
    let wildcard = "'*.shop.svc.cluster.local'";
    check(&format!("{CART}{}", route_of_other(wildcard, "")), &[&message(wildcard.trim_matches('\''), "shop")]);
    // Private VirtualServices, delegates, and hosts of no namespace or of the own one.
    for more in [", exportTo: ['.']", ", exportTo: [other]"] {
        check(&exported(more), &[]);
    }
    check(&format!("{CART}{}", route_of_other("", "")), &[]);
    check(&format!("{CART}{}", route_of_other("away.example", "")), &[]);
    let own = CART.replace("{name: cart, namespace: shop}", "{name: own, namespace: other}");
    check(&format!("{CART}{own}{}", route_of_other(host, "")), &[]);
    let root = route_of_other(host, "").replace("namespace: other", "namespace: istio-system");
    check(&format!("{CART}{root}"), &[]);
}

fn policy(action: &str, operation: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{action: {action}, rules: [{{to: [{{operation: {operation}}}]}}]}}\n"
    )
}

#[test]
fn hole_14_policies_that_other_spellings_pass_by_are_reported() {
    use api::istio::mesh::v1alpha1::mesh_config::ProxyPathNormalization;
    let codes = |text: &str, settings: &Settings| -> Vec<String> {
        let code = |line: String| line.split(['[', ']']).nth(1).unwrap().to_owned();
        // Some of them have validation findings too.
        findings(text, settings.clone()).into_iter().map(code).filter(|code| code.starts_with("PIL")).collect()
    };
    let default = Settings::default();
    for (action, operation, expected) in [
        ("DENY", "{paths: [/admin, /admin/*]}", &["PIL0002"][..]),
        ("DENY", "{paths: ['*/end']}", &["PIL0002"]),
        ("DENY", "{hosts: [admin.example]}", &["PIL0003"]),
        ("DENY", "{hosts: ['*.example'], paths: [/x]}", &["PIL0002", "PIL0003"]),
        ("ALLOW", "{notPaths: [/admin], notHosts: [a.example]}", &["PIL0002", "PIL0003"]),
        // Other spellings are denied too, or the spelling does not matter.
        ("ALLOW", "{paths: [/open], hosts: [a.example]}", &[]),
        ("DENY", "{notPaths: [/open], notHosts: [a.example]}", &[]),
        ("DENY", "{paths: ['*', '/*']}", &[]),
        ("DENY", "{hosts: [a.example, 'a.example:*', 'b.example*', 'c.example:80']}", &[]),
        ("AUDIT", "{paths: [/admin]}", &[]),
    ] {
        assert_eq!(codes(&policy(action, operation), &default), expected, "{action} {operation}");
    }
    let text = policy("DENY", "{paths: [/admin], hosts: [a.example]}");
    let mut strict = default.clone();
    strict.knobs.strict_authorization = true;
    assert!(codes(&text, &strict).is_empty());
    let mut decoding = default.clone();
    let mut mesh = (*default.mesh).clone();
    mesh.path_normalization = Some(ProxyPathNormalization { normalization: 4 });
    decoding.mesh = crate::hashed::Hashed::from_message(mesh);
    assert_eq!(codes(&text, &decoding), ["PIL0003"]);
}

/// A gateway on ports 80 and 443 whose service leads to 8080 and 8443, and a policy for these labels.
fn gateway_policy(labels: &str, rule: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: edge, namespace: shop}}\nspec: \
         {{hosts: [edge.shop.svc.cluster.local], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP, \
         targetPort: 8080}}, {{number: 443, name: https, protocol: HTTPS, targetPort: 8443}}], endpoints: [{{address: \
         10.0.0.1, labels: {{istio: edge}}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: shop}}\nspec: {{selector: \
         {{istio: edge}}, servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: ['./a.example']}}, {{port: \
         {{number: 443, name: https, protocol: HTTPS}}, hosts: ['./a.example'], tls: {{mode: PASSTHROUGH}}}}, {{port: \
         {{number: 9000, name: more, protocol: HTTP}}, hosts: ['./a.example']}}]}}\n---\n\
         apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{{labels}}}}}, action: DENY, rules: [{rule}]}}\n"
    )
}

#[test]
fn istio_security_2021_002_policies_about_ports_without_a_listener_are_reported() {
    let message = |port: u32| {
        format!(
            "Warning [PIL0004] (AuthorizationPolicy shop/p f.yaml:11) AuthorizationPolicy shop/p is about port {port}, on \
             which no gateway that it selects listens: shop/edge listens on [8080 8443 9000]. The port of a rule is that \
             of the listener, which is the target port of the gateway's service."
        )
    };
    let port = |port: u32| format!("{{to: [{{operation: {{ports: ['{port}']}}}}]}}");
    check(&gateway_policy("istio: edge", &port(443)), &[&message(443)]);
    check(&gateway_policy("istio: edge", "{to: [{operation: {notPorts: ['80']}}]}"), &[&message(80)]);
    check(&gateway_policy("istio: edge", "{when: [{key: destination.port, values: ['443']}]}"), &[&message(443)]);
    // Ports of listeners, policies of other workloads, and without ports.
    for named in [8080, 8443, 9000] {
        check(&gateway_policy("istio: edge", &port(named)), &[]);
    }
    check(&gateway_policy("app: cart", &port(443)), &[]);
    check(&gateway_policy("istio: edge", "{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}"), &[]);
    let untranslated = gateway_policy("istio: edge", &port(443)).replace(
        "metadata: {name: edge, namespace: shop}\nspec: {hosts",
        "metadata: {name: edge, namespace: shop, labels: {experimental.istio.io/disable-gateway-port-translation: 'true'}}\n\
         spec: {hosts",
    );
    check(&untranslated, &[]);
}

fn peer(namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: modes, namespace: {namespace}}}\n\
         spec: {spec}\n---\n"
    )
}

fn identity_policy(action: &str, rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: cart}}}}, action: {action}, rules: [{rule}]}}\n"
    )
}

#[test]
fn istio_security_2021_004_denied_identities_in_plain_text_are_reported() {
    let denied = |peers: &str, action: &str, rule: &str| -> Vec<String> {
        let found = findings(&format!("{peers}{}", identity_policy(action, rule)), Settings::default());
        found.into_iter().filter(|line| line.contains("[PIL0005]")).collect()
    };
    let by_namespace = "{from: [{source: {namespaces: [evil]}}]}";
    let strict = peer("shop", "{mtls: {mode: STRICT}}");
    assert_eq!(
        denied("", "DENY", by_namespace),
        [
            "Warning [PIL0005] (AuthorizationPolicy shop/p f.yaml:1) AuthorizationPolicy shop/p denies by namespaces, which \
          callers in plain text do not have, and namespace shop accepts plain text (mutual TLS is PERMISSIVE): the rule \
          does not match such callers. Set mutual TLS to STRICT with a PeerAuthentication, or allow the permitted callers \
          by name instead."
        ]
    );
    for (action, rule, is_bypassed) in [
        ("DENY", "{from: [{source: {principals: ['*/evil']}}]}", true),
        ("DENY", "{when: [{key: source.principal, values: ['*/evil']}]}", true),
        ("ALLOW", "{from: [{source: {notNamespaces: [evil]}}]}", true),
        ("ALLOW", "{when: [{key: source.namespace, notValues: [evil]}]}", true),
        // Callers without an identity are denied, and other fields do not need one.
        ("ALLOW", by_namespace, false),
        ("DENY", "{from: [{source: {notPrincipals: ['*/good']}}]}", false),
        ("DENY", "{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}", false),
        ("AUDIT", by_namespace, false),
    ] {
        assert_eq!(!denied("", action, rule).is_empty(), is_bypassed, "{action} {rule}");
        assert!(denied(&strict, action, rule).is_empty(), "{action} {rule}: STRICT has no plain text");
    }
    for (peers, mode) in [
        (peer("istio-system", "{mtls: {mode: STRICT}}"), None),
        (peer("istio-system", "{mtls: {mode: STRICT}}") + &peer("shop", "{mtls: {mode: DISABLE}}"), Some("DISABLE")),
        (peer("shop", "{selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}}"), None),
        (peer("shop", "{selector: {matchLabels: {app: other}}, mtls: {mode: STRICT}}"), Some("PERMISSIVE")),
        (
            peer(
                "shop",
                "{selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}, portLevelMtls: {81: {mode: DISABLE}}}",
            ),
            Some("DISABLE"),
        ),
    ] {
        let found = denied(&peers, "DENY", by_namespace);
        let expected = mode.map(|mode| format!("mutual TLS is {mode}"));
        assert_eq!(found.len(), usize::from(mode.is_some()), "{peers}");
        assert!(expected.is_none_or(|expected| found[0].contains(&expected)), "{found:?}");
    }
    // Only the ports of the rule count.
    let of_port = |port: u32| {
        format!("{{from: [{{source: {{namespaces: [evil]}}}}], to: [{{operation: {{ports: ['{port}']}}}}]}}")
    };
    let open = peer(
        "shop",
        "{selector: {matchLabels: {app: cart}}, mtls: {mode: STRICT}, portLevelMtls: {81: {mode: DISABLE}}}",
    );
    assert!(denied(&open, "DENY", &of_port(80)).is_empty());
    assert_eq!(denied(&open, "DENY", &of_port(81)).len(), 1);
}

/// What all pairs of these would be worth: gigabytes of text, and minutes of comparisons.
#[test]
fn hole_04_thousands_of_conflicting_objects_are_analyzed_within_limits() {
    const OBJECTS: usize = 1500;
    let gateway = |number: usize| {
        object(
            "Gateway",
            &format!("g{number}"),
            "{selector: {a: b}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*.example'], \
             tls: {mode: SIMPLE, credentialName: wildcard}}]}",
        )
    };
    let route = |number: usize| {
        object(
            "VirtualService",
            &format!("v{number}"),
            "{hosts: [cart], http: [{route: [{destination: {host: cart, port: {number: 80}}}]}]}",
        )
    };
    let text: String = (0..OBJECTS).map(|number| gateway(number) + &route(number)).collect();
    let found = findings(&format!("{CART}{text}"), Settings::default());
    let with = |code: &str| found.iter().filter(|finding| finding.contains(&format!("[{code}]"))).count();
    assert_eq!(["IST0109", "IST0138", "IST0145"].map(with), [1000; 3], "{:#?}", &found[..3]);
    assert_eq!(found.iter().filter(|finding| finding.contains("the others are not listed")).count(), 3);
    let bytes: usize = found.iter().map(String::len).sum();
    assert!(bytes < 10 << 20, "{bytes} bytes");
}

#[test]
fn unreachable_rules_have_upstreams_codes() {
    let route = "route: [{destination: {host: cart, port: {number: 80}}}]";
    let rules = format!(
        "{{hosts: [cart], http: [{{match: [{{uri: {{prefix: /a}}}}], {route}}}, {{match: [{{uri: {{prefix: /a}}}}, {{uri: {{prefix: /b}}}}], \
         {route}}}, {{match: [{{uri: {{prefix: /b}}}}], {route}}}, {{{route}}}, {{{route}}}]}}"
    );
    let origin = "(VirtualService shop/cart f.yaml:7)";
    let overlap = "is not used (duplicate/overlapping match in rule";
    check(
        &format!("{CART}{}", object("VirtualService", "cart", &rules)),
        &[
            &format!("Warning [IST0130] {origin} VirtualService rule #2 not used (all matches used by prior rules)."),
            &format!(
                "Warning [IST0130] {origin} VirtualService rule #4 not used (only the last rule can have no matches)."
            ),
            &format!("Info [IST0131] {origin} VirtualService rule #1 match #0 {overlap} #0)."),
            &format!("Info [IST0131] {origin} VirtualService rule #2 match #0 {overlap} #1)."),
        ],
    );
}
