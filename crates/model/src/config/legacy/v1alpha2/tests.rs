//! Small documents of each legacy kind: the converted objects and the problems.

use serde_json::{Value, json};

use crate::config::legacy::{self, LegacyMesh};
use crate::config::parse::{Parsed, documents};
use crate::config::print;
use crate::config::problem::Severity;
use crate::config::validate::validate;

fn config(kind: &str, spec: &str) -> Parsed {
    of("config.istio.io/v1alpha2", kind, spec)
}

fn of(api_version: &str, kind: &str, spec: &str) -> Parsed {
    let head = format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\n");
    converted(&format!("{head}spec: {spec}\n"))
}

/// The converted objects of a text, with the problems of parsing and validating it.
fn converted(text: &str) -> Parsed {
    let mut parsed = documents(text, "old.yaml");
    parsed.problems.extend(parsed.objects.iter().flat_map(validate).collect::<Vec<_>>());
    let conversions =
        parsed.objects.iter().filter_map(|object| Some((object, legacy::convert(object, LegacyMesh::default())?)));
    let objects = conversions.flat_map(|(object, conversion)| match conversion {
        Ok(conversion) => legacy::objects(&conversion, &object.meta).objects,
        Err(_) => Vec::new(),
    });
    Parsed { objects: objects.collect(), problems: parsed.problems }
}

/// Kind, name and spec of each object.
fn objects(parsed: &Parsed) -> Vec<(String, String, Value)> {
    let object = |json: Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = format!("{}/{}", text(&json["metadata"]["namespace"]), text(&json["metadata"]["name"]));
        (text(&json["kind"]), name, json["spec"].clone())
    };
    parsed.objects.iter().map(|o| object(print::to_json(o))).collect()
}

fn check(parsed: &Parsed, expected: &[(&str, &str, Value)]) {
    let expected: Vec<_> = expected.iter().map(|(k, n, s)| ((*k).to_owned(), (*n).to_owned(), s.clone())).collect();
    assert_eq!(objects(parsed), expected);
}

/// All problems but the printed equivalent.
fn complaints(parsed: &Parsed) -> Vec<String> {
    let shown = parsed.problems.iter().filter(|p| p.severity != Severity::Info);
    shown.map(|p| format!("{:?} {p}", p.severity)).collect()
}

#[test]
fn route_rule_becomes_a_route_and_subsets() {
    let parsed = config(
        "RouteRule",
        "{destination: {name: reviews}, precedence: 2,
          match: {source: {name: page, labels: {version: v1}}, request: {headers: {uri: {prefix: /a}, cookie: {regex: x}}}},
          route: [{labels: {version: v1}, weight: 90}, {labels: {version: v2}, weight: 10}],
          httpReqTimeout: {simpleTimeout: {timeout: 10s}}, httpReqRetries: {simpleRetry: {attempts: 3, perTryTimeout: 2s}},
          httpFault: {delay: {percent: 5, fixedDelay: 1s}}, mirror: {name: copy, namespace: test},
          corsPolicy: {allowOrigin: ['*', a.com]}, appendHeaders: {x: z}, websocketUpgrade: true}",
    );
    assert_eq!(complaints(&parsed), Vec::<String>::new());
    let route = json!({
        "match": [{"sourceLabels": {"version": "v1"}, "uri": {"prefix": "/a"}, "headers": {"cookie": {"regex": "x"}}}],
        "route": [
            {"destination": {"host": "reviews", "subset": "version-v1"}, "weight": 90},
            {"destination": {"host": "reviews", "subset": "version-v2"}, "weight": 10},
        ],
        "timeout": "10s",
        "retries": {"attempts": 3, "perTryTimeout": "2s"},
        "fault": {"delay": {"percentage": {"value": 5.0}, "fixedDelay": "1s"}},
        "mirror": {"host": "copy.test.svc.cluster.local"},
        "corsPolicy": {"allowOrigins": [{"regex": ".*"}, {"exact": "a.com"}]},
        "headers": {"request": {"add": {"x": "z"}}},
    });
    let subsets = json!([
        {"name": "version-v1", "labels": {"version": "v1"}},
        {"name": "version-v2", "labels": {"version": "v2"}},
    ]);
    check(
        &parsed,
        &[
            ("VirtualService", "shop/a", json!({"hosts": ["reviews"], "http": [route]})),
            ("DestinationRule", "shop/a-subsets", json!({"host": "reviews", "subsets": subsets})),
        ],
    );
}

#[test]
fn printed_equivalent_parses_to_the_same_objects() {
    let parsed =
        config("DestinationPolicy", "{destination: {name: r, labels: {on: 'yes'}}, loadBalancing: {name: RANDOM}}");
    let [problem] = &parsed.problems[..] else { panic!("{:?}", parsed.problems) };
    assert_eq!((problem.severity, problem.about.to_string().as_str()), (Severity::Info, "DestinationPolicy shop/a"));
    let (text, yaml) = problem.message.split_once('\n').expect("text and document");
    assert_eq!(text, "the kind is of an old Istio; pilotctl convert prints what to write instead:");
    let again = documents(yaml, "new.yaml");
    assert_eq!(again.problems, vec![]);
    assert_eq!(objects(&again), objects(&parsed));
    let rule = config("RouteRule", "{destination: {service: a.com}, route: [{labels: {version: v1}}]}");
    let (text, both) = rule.problems[0].message.split_once('\n').expect("text and documents");
    assert!(text.contains("belong in one VirtualService, highest precedence first"), "{text}");
    assert_eq!(objects(&documents(both, "new.yaml")), objects(&rule));
    assert!(yaml.starts_with("apiVersion: networking.istio.io/v1\nkind: DestinationRule\n"), "{yaml}");
}

#[test]
fn rule_for_some_callers_never_becomes_one_for_all() {
    let without_labels = "{destination: {name: r}, match: {source: {name: page}}}";
    let expected = "Error old.yaml:1: RouteRule shop/a: could not convert spec.match.source: callers are selected \
                    by labels in current kinds; without labels the rule would apply to all";
    let parsed = config("RouteRule", without_labels);
    assert_eq!(complaints(&parsed), [expected]);
    check(&parsed, &[]);
    for (kind, spec) in [
        ("RouteRule", "{destination: {name: r}, match: {tcp: {sourceSubnet: [10.0.0.0/8]}}}"),
        ("DestinationPolicy", "{destination: {name: r}, source: {name: page}}"),
    ] {
        let parsed = config(kind, spec);
        assert_eq!((parsed.objects.len(), complaints(&parsed).len()), (0, 1), "{spec}");
    }
}

#[test]
fn fields_that_cannot_be_read_are_named() {
    let complaint = |kind: &str, spec: &str| complaints(&config(kind, spec)).join("\n");
    let shown =
        complaint("RouteRule", "{destination: {name: r, x: 1}, httpFault: {abort: {grpcStatus: 'y'}}, l4Fault: {}}");
    for path in ["spec.destination.x", "spec.httpFault.abort.grpcStatus", "spec.l4Fault"] {
        assert!(shown.contains(&format!("Warning old.yaml:1: RouteRule shop/a: {path:?} has no effect")), "{shown}");
    }
    assert!(complaint("EgressRule", "{ports: 1}").contains("could not read spec.destination: it has no service name"));
    assert!(
        complaint("RouteRule", "{destination: {name: 7}}")
            .contains("could not read spec.destination.name: expected a string")
    );
    assert!(complaint("RouteRule", "7").contains("could not read the spec: expected an object"));
    let wrong_type = complaint("RouteRule", "{destination: {name: r}, route: [{weight: many}]}");
    assert!(wrong_type.contains("could not read spec.http[0].route[0].weight"), "{wrong_type}");
}

#[test]
fn egress_rule_becomes_a_service_entry() {
    let parsed = config("EgressRule", "{destination: {service: '*.foo.com'}, ports: [{port: 80, protocol: http}]}");
    // MESH_EXTERNAL and NONE are zero values, which are not printed.
    let ports = json!([{"number": 80, "name": "http-80", "protocol": "HTTP"}]);
    check(&parsed, &[("ServiceEntry", "shop/a", json!({"hosts": ["*.foo.com"], "ports": ports}))]);
    let parsed = config("EgressRule", "{destination: {service: 10.1.0.0/16}, ports: [{port: 9, protocol: tcp}]}");
    let spec = &objects(&parsed)[0].2;
    assert_eq!((&spec["hosts"], &spec["addresses"]), (&json!(["a.egress.internal"]), &json!(["10.1.0.0/16"])));
}

#[test]
fn destination_policy_becomes_a_destination_rule() {
    let parsed = config(
        "DestinationPolicy",
        "{destination: {name: r, labels: {version: v1}}, loadBalancing: {name: LEAST_CONN},
          circuitBreaker: {simpleCb: {maxConnections: 100, httpMaxRequests: 7, httpConsecutiveErrors: 3, sleepWindow: 15m}}}",
    );
    assert_eq!(complaints(&parsed), Vec::<String>::new());
    let policy = json!({
        "loadBalancer": {"simple": "LEAST_REQUEST"},
        "connectionPool": {"tcp": {"maxConnections": 100}, "http": {"http2MaxRequests": 7}},
        "outlierDetection": {"consecutive5xxErrors": 3, "baseEjectionTime": "900s"},
    });
    let subset = json!({"name": "version-v1", "labels": {"version": "v1"}, "trafficPolicy": policy});
    check(&parsed, &[("DestinationRule", "shop/a", json!({"host": "r", "subsets": [subset]}))]);
}

#[test]
fn ingress_rule_becomes_a_gateway_and_a_route() {
    let parsed = config(
        "IngressRule",
        "{destination: {name: r}, destinationServicePort: 9080,
          match: {request: {headers: {authority: {exact: a.com}, uri: {prefix: /x}}}}}",
    );
    let route = json!({
        "match": [{"uri": {"prefix": "/x"}}],
        "route": [{"destination": {"host": "r", "port": {"number": 9080}}}],
    });
    let server = json!({"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["a.com"]});
    check(
        &parsed,
        &[
            ("Gateway", "shop/a", json!({"selector": {"istio": "ingress"}, "servers": [server]})),
            ("VirtualService", "shop/a", json!({"hosts": ["a.com"], "gateways": ["a"], "http": [route]})),
        ],
    );
}

#[test]
fn policy_requires_certificates_and_tokens() {
    let version = "authentication.istio.io/v1alpha1";
    let parsed = of(
        version,
        "Policy",
        "{targets: [{name: cart, ports: [{number: 80}]}], peers: [{mtls: }], principalBinding: USE_ORIGIN,
          origins: [{jwt: {issuer: i, jwksUri: 'https://i/k', jwtHeaders: [x-token]}}]}",
    );
    let selector = json!({"matchLabels": {"app": "cart"}});
    let rule = json!({"issuer": "i", "jwksUri": "https://i/k", "fromHeaders": [{"name": "x-token"}]});
    let denied = json!({
        "from": [{"source": {"notRequestPrincipals": ["*"]}}],
        "to": [{"operation": {"ports": ["80"]}}],
    });
    check(
        &parsed,
        &[
            (
                "PeerAuthentication",
                "shop/a",
                json!({"selector": selector, "portLevelMtls": {"80": {"mode": "STRICT"}}}),
            ),
            ("RequestAuthentication", "shop/a", json!({"selector": selector, "jwtRules": [rule]})),
            ("AuthorizationPolicy", "shop/a", json!({"selector": selector, "action": "DENY", "rules": [denied]})),
        ],
    );
    let shown = complaints(&parsed);
    assert!(shown.len() == 1 && shown[0].contains("spec.targets[0].name names a service"), "{shown:?}");
}

#[test]
fn peers_decide_the_mode() {
    let mode = |kind: &str, spec: &str| {
        let parsed = of("authentication.istio.io/v1alpha1", kind, spec);
        objects(&parsed).into_iter().map(|(_, name, spec)| (name, spec["mtls"]["mode"].clone())).next()
    };
    let expected = |name: &str, mode: &str| Some((name.to_owned(), json!(mode)));
    assert_eq!(mode("Policy", "{peers: [{mtls: {}}]}"), expected("shop/a", "STRICT"));
    assert_eq!(mode("Policy", "{peers: [{mtls: {mode: PERMISSIVE}}]}"), expected("shop/a", "PERMISSIVE"));
    assert_eq!(mode("Policy", "{peers: [{mtls: {}}], peerIsOptional: true}"), expected("shop/a", "PERMISSIVE"));
    assert_eq!(mode("Policy", "{}"), expected("shop/a", "DISABLE"));
    assert_eq!(mode("MeshPolicy", "{peers: [{mtls: {}}]}"), expected("istio-system/a", "STRICT"));
    assert_eq!(mode("Policy", "{peers: [{mtls: {mode: strict}}]}"), None);
}

#[test]
fn mixers_kinds_have_no_effect() {
    for kind in ["HTTPAPISpec", "HTTPAPISpecBinding", "QuotaSpec", "QuotaSpecBinding", "rule", "handler"] {
        let parsed = config(kind, "{rules: []}");
        let expected =
            format!("Warning old.yaml:1: {kind} shop/a: has no effect: it is for Mixer, which Istio dropped in 1.8");
        assert_eq!((complaints(&parsed), parsed.objects.len()), (vec![expected], 0));
    }
}
