//! Published weaknesses that came from the configuration a control plane sends to Envoy. Each test has the id of the
//! weakness and looks at rendered resources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::envoy::config::core::v3::node::UserAgentVersionType;
use api::envoy::config::core::v3::{BuildVersion, Node};
use api::envoy::r#type::v3::SemanticVersion;
use api::{Struct, TypeUrl, Value as ProtoValue, value};
use discovery::offline::Offline;
use inject::{ChartValues, GatewayInputs, InjectorConfig, MeshInputs, gateway_objects};
use model::change::{Change, Credential};
use model::config::Object;
use model::config::mesh::default_mesh;
use model::config::parse::documents;
use model::names::{CredentialKey, CredentialKind};
use model::settings::Settings;
use model::snapshot::gateway_api::managed::{GatewayParameters, GatewayPort, ManagedGateway};
use proptest::prelude::{ProptestConfig, proptest};
use prost_reflect::DynamicMessage;
use regex::Regex;
use serde_json::Value;
use testkit::certificates::Authority;

fn node(kind: &str, namespace: &str, app: &str) -> Node {
    let text = |text: &str| ProtoValue { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let labels = value::Kind::StructValue(Struct { fields: [("app".to_owned(), text(app))].into() });
    let metadata =
        [("NAMESPACE".to_owned(), text(namespace)), ("LABELS".to_owned(), ProtoValue { kind: Some(labels) })];
    let id = format!("{kind}~10.0.0.1~{app}.{namespace}~{namespace}.svc.cluster.local");
    Node { id, metadata: Some(Struct { fields: metadata.into() }), ..Node::default() }
}

fn objects(text: &str) -> Vec<Object> {
    let parsed = documents(text, "test.yaml");
    assert_eq!(parsed.problems, []);
    parsed.objects
}

/// Resources as JSON.
fn rendered(mesh: &Offline, node: &Node, kind: &TypeUrl, names: &[&str]) -> Vec<Value> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let found = mesh.resources(node, kind, &names).unwrap();
    let name = kind.as_str().rsplit('/').next().unwrap();
    let message = api::reflect::envoy().get_message_by_name(name).unwrap();
    let json = |bytes: &[u8]| {
        let decoded = DynamicMessage::decode(message.clone(), bytes).unwrap();
        serde_json::to_value(decoded).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    found.iter().map(|resource| json(&resource.body.joined())).collect()
}

/// Calls a function with every object of a value and the key under which it is.
fn visit<'a>(value: &'a Value, key: &'a str, see: &mut impl FnMut(&'a str, &'a Value)) {
    see(key, value);
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| visit(value, key, see)),
        Value::Array(items) => items.iter().for_each(|item| visit(item, key, see)),
        _ => {}
    }
}

const EDGES: &str = "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.example], tls: {mode: SIMPLE, credentialName: cert}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: bank}
spec:
  selector: {app: edge}
  servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.example], tls: {mode: SIMPLE, credentialName: cert}}]
";

/// A cache of keys by their name alone gave a proxy the key of another namespace.
#[test]
fn cve_2021_34824_each_namespace_has_its_own_key() {
    let mut changes: Vec<Change> = objects(EDGES).into_iter().map(Change::Applied).collect();
    let pairs = ["shop", "bank"].map(|namespace| (namespace, Authority::new().host("a.example")));
    for (namespace, pair) in &pairs {
        let entries = [("tls.crt", pair.chain.as_bytes()), ("tls.key", pair.key.as_bytes())];
        let key = CredentialKey { kind: CredentialKind::Secret, namespace: (*namespace).into(), name: "cert".into() };
        changes.push(Change::Credential(key, Some(Arc::new(Credential::of(entries)))));
    }
    // One mesh with one cache; every order of the first requests.
    for order in [[0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1]] {
        let mesh = Offline::from_changes(Settings::default(), changes.clone());
        for at in order {
            let (namespace, pair) = &pairs[at];
            let node = node("router", namespace, "edge");
            for name in ["kubernetes://cert".to_owned(), format!("kubernetes://{namespace}/cert")] {
                let secret = mesh.resources(&node, &TypeUrl::SECRET, std::slice::from_ref(&name)).unwrap();
                let bytes = secret[0].body.joined();
                let has = |pem: &str| bytes.windows(pem.len()).any(|part| part == pem.as_bytes());
                assert!(has(&pair.key), "{namespace} {name}");
                assert!(!has(&pairs[1 - at].1.key), "{namespace} {name}");
            }
            let other = format!("kubernetes://{}/cert", pairs[1 - at].0);
            assert_eq!(mesh.resources(&node, &TypeUrl::SECRET, &[other]).unwrap().len(), 0);
        }
    }
}

const PASSTHROUGH: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: open, namespace: shop}
spec:
  hosts: [open.shop.svc.cluster.local]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.2}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: hidden, namespace: shop}
spec:
  hosts: [hidden.shop.svc.cluster.local]
  exportTo: [.]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.3}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: shop}
spec:
  hosts: [other.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.4}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: east-west, namespace: istio-system}
spec:
  selector: {app: east-west}
  servers: [{port: {number: 15443, name: tls, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}}]
";

/// A gateway in AUTO_PASSTHROUGH mode let callers reach every service.
#[test]
fn cve_2021_31921_auto_passthrough_reaches_exported_hosts_only() {
    let mesh = Offline::new(Settings::default(), objects(PASSTHROUGH));
    let listeners = rendered(&mesh, &node("router", "istio-system", "east-west"), &TypeUrl::LISTENER, &[]);
    let mut names = Vec::new();
    listeners.iter().for_each(|listener| {
        visit(listener, "", &mut |key, value| {
            if key == "serverNames" && value.is_string() {
                names.push(value.as_str().unwrap().to_owned());
            }
        });
    });
    assert_eq!(names, ["outbound_.80_._.open.shop.svc.cluster.local"]);
}

const STORE: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: store, namespace: shop}
spec:
  hosts: [store.shop.svc.cluster.local]
  location: MESH_INTERNAL
  ports: [{number: 9000, name: tcp, protocol: TCP}, {number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  workloadSelector: {labels: {app: store}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: store, namespace: shop}
spec: {address: 10.0.0.1, labels: {app: store}, serviceAccount: store}
";

/// Policies had no effect on ports without HTTP.
#[test]
fn cve_2019_12243_policies_apply_to_tcp() {
    let policy = "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: denied, namespace: shop}
spec: {action: DENY, rules: [{from: [{source: {namespaces: [bank]}}]}]}
";
    let mesh = Offline::new(Settings::default(), objects(&format!("{STORE}{policy}")));
    let listeners = rendered(&mesh, &node("sidecar", "shop", "store"), &TypeUrl::LISTENER, &[]);
    let inbound = listeners.iter().find(|listener| listener["name"] == "virtualInbound").unwrap();
    let mut chains = 0;
    for chain in inbound["filterChains"].as_array().unwrap() {
        let names: Vec<&str> = chain["filters"].as_array().unwrap().iter().filter_map(|f| f["name"].as_str()).collect();
        if names.contains(&"envoy.filters.network.tcp_proxy") && chain["name"] != "virtualInbound-blackhole" {
            assert!(names.contains(&"envoy.filters.network.rbac"), "{}: {names:?}", chain["name"]);
            chains += 1;
        }
    }
    assert!(chains >= 2, "{inbound}");
}

/// An internal header of a caller outside of the mesh was believed.
#[test]
fn cve_2020_8843_gateways_remove_internal_headers() {
    let text = EDGES.replace("HTTPS", "HTTP").replace(", tls: {mode: SIMPLE, credentialName: cert}", "");
    let mesh = Offline::new(Settings::default(), objects(&text));
    let listeners = rendered(&mesh, &node("router", "shop", "edge"), &TypeUrl::LISTENER, &[]);
    let mut managers = 0;
    listeners.iter().for_each(|listener| {
        visit(listener, "", &mut |_, value| {
            if value.get("httpFilters").is_some() {
                // Envoy then removes x-envoy-* headers of external callers and replaces forwarded certificates.
                assert_eq!(value["useRemoteAddress"], true, "{value}");
                assert_eq!(value["forwardClientCertDetails"], "SANITIZE_SET", "{value}");
                managers += 1;
            }
        });
    });
    assert!(managers > 0);
}

/// Sources of the whole workspace, without tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let (mut folders, mut found) = (vec![root], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match path.is_dir() {
                true if !["tests", "benches", "examples", "corpus"].contains(&&*name) => folders.push(path),
                false if name.ends_with(".rs") && name != "tests.rs" => {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
                    found.push((path, product));
                }
                _ => {}
            }
        }
    }
    found
}

/// A key that is part of a program is known to everyone.
#[test]
fn cve_2020_1764_no_key_is_built_in() {
    let sources = sources();
    assert!(sources.len() > 500);
    let block = Regex::new(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s*(\\n)?[A-Za-z0-9+/]{40}").unwrap();
    let private = Regex::new(r#""d"\s*:\s*"[A-Za-z0-9_-]{20}"#).unwrap();
    for (path, text) in sources {
        assert!(!block.is_match(&text) && !private.is_match(&text), "{} has a key", path.display());
    }
}

/// Every configuration of some topics of the recorded cases, rendered for a sidecar and a gateway.
fn recorded(mut see: impl FnMut(&TypeUrl, &Value)) {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut count = 0;
    for topic in ["destination", "gateway", "routing", "security"] {
        for entry in std::fs::read_dir(cases.join(topic)).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path().join("config.yaml")) else { continue };
            let mesh = Offline::new(Settings::default(), documents(&text, "config.yaml").objects);
            for node in [node("sidecar", "default", "cart"), node("router", "istio-system", "ingressgateway")] {
                for kind in [TypeUrl::CLUSTER, TypeUrl::LISTENER, TypeUrl::ROUTE] {
                    rendered(&mesh, &node, &kind, &[]).iter().for_each(|resource| see(&kind, resource));
                }
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count} cases");
}

/// Options of Envoy that were weak: expressions of a recursive engine, a timeout of listener filters that never ends, and
/// server names from hosts of any length.
#[test]
fn cve_2019_14993_2019_18817_2024_32475_weak_options_are_not_used() {
    let (mut expressions, mut timeouts, mut server_names) = (0, 0, 0);
    recorded(|kind, resource| {
        visit(resource, "", &mut |key, value| {
            // Matchers of Envoy's current API are RE2; older fields were plain texts.
            if key.to_lowercase().contains("regex") && value.is_string() && key != "regex" {
                panic!("a plain expression: {key}");
            }
            expressions += usize::from(key == "regex");
            if value.get("continueOnListenerFiltersTimeout") == Some(&Value::Bool(true)) {
                assert!(value["listenerFiltersTimeout"].is_string(), "{}", value["name"]);
                timeouts += 1;
            }
        });
        if *kind == TypeUrl::CLUSTER {
            visit(resource, "", &mut |key, value| {
                if key == "autoSni" && *value == Value::Bool(true) {
                    let has_tls =
                        resource.get("transportSocket").is_some() || resource.get("transportSocketMatches").is_some();
                    assert!(has_tls, "{}: a server name without TLS", resource["name"]);
                    server_names += 1;
                }
            });
        }
    });
    assert!(expressions > 10 && timeouts > 0, "{expressions} {timeouts} {server_names}");
}

/// Whether a StringMatcher matches a text.
fn is_match(matcher: &Value, text: &str) -> bool {
    let of = |key: &str| matcher.get(key).and_then(Value::as_str);
    let regex = matcher.pointer("/safeRegex/regex").and_then(Value::as_str);
    of("exact").is_some_and(|exact| exact == text)
        || of("prefix").is_some_and(|prefix| text.starts_with(prefix))
        || of("suffix").is_some_and(|suffix| text.ends_with(suffix))
        || regex.is_some_and(|regex| Regex::new(&format!("^(?:{regex})$")).unwrap().is_match(text))
}

/// Whether a policy for a source denies an identity on the TCP port of the store, by its rendered matchers.
fn denies(source: &str, identity: &str) -> bool {
    let policy = format!(
        "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: denied, namespace: shop}}
spec: {{action: DENY, rules: [{{from: [{{source: {{{source}}}}}]}}]}}
"
    );
    let mesh = Offline::new(Settings::default(), objects(&format!("{STORE}{policy}")));
    let listeners = rendered(&mesh, &node("sidecar", "shop", "store"), &TypeUrl::LISTENER, &["virtualInbound"]);
    let (mut found, mut is_denied) = (0, false);
    visit(&listeners[0], "", &mut |key, value| {
        if key == "principalName" || key == "stringMatch" {
            found += 1;
            is_denied |= is_match(value, identity);
        }
    });
    assert!(found > 0, "{source}");
    is_denied
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Dots of names were left as they are in regular expressions, so that `a.b` also meant `axb`.
    #[test]
    fn cve_2026_39350_a_policy_for_one_name_matches_no_other(
        one in "[a-z]([a-z.-]{0,3}[a-z])?",
        other in "[a-z]([a-z.-]{0,3}[a-z])?",
    ) {
        // The nearest miss: the same name with another letter for each dot.
        for other in [other.clone(), one.replace('.', "x"), format!("{one}x"), format!("x{one}")] {
            let identity = |namespace: &str, account: &str| format!("spiffe://cluster.local/ns/{namespace}/sa/{account}");
            let is_same = one == other;
            assert!(denies(&format!("namespaces: ['{one}']"), &identity(&one, "a")));
            assert_eq!(denies(&format!("namespaces: ['{one}']"), &identity(&other, "a")), is_same);
            assert_eq!(denies(&format!("serviceAccounts: ['bank/{one}']"), &identity("bank", &other)), is_same);
            assert_eq!(denies(&format!("principals: ['cluster.local/ns/bank/sa/{one}']"), &identity("bank", &other)), is_same);
        }
    }
}

/// Authors of Gateways could have pods of their own content created.
#[test]
fn cve_2022_21701_texts_of_a_gateway_add_no_field_to_its_pod() {
    let made = |text: &str, address: Option<&str>| {
        let gateway = ManagedGateway {
            namespace: "shop".into(),
            name: "front".into(),
            class: "istio".into(),
            deployment: "front-istio".into(),
            account: "front-istio".into(),
            account_is_given: false,
            labels: [("team".into(), text.into())].into(),
            annotations: [("note".into(), text.into()), (text.into(), "a".into())].into(),
            service_type: "LoadBalancer".into(),
            address: address.map(Into::into),
            ports: vec![GatewayPort { name: "web".to_owned(), number: 80, app_protocol: "http".to_owned() }],
            parameters: GatewayParameters::None,
            takes_over: false,
        };
        let (config, mesh, environment) = (InjectorConfig::default(), default_mesh(), BTreeMap::new());
        let values = ChartValues::parse("{global: {hub: example.com, tag: '1', proxy: {image: proxyv2}}}").unwrap();
        let (config, values, mesh, environment) = (&config, &values, &mesh, &environment);
        let shared = MeshInputs { config, values, mesh, revision: "default", compliance_policy: "", environment };
        let (cluster, controller) = ("east", "istio.io/gateway-controller");
        let inputs =
            GatewayInputs { shared, proxy_configs: &[], cluster, controller, class_defaults: None, parameters: None };
        gateway_objects(&gateway, &inputs).unwrap()
    };
    let hostile =
        "x\nspec: {hostNetwork: true, containers: [{name: evil, image: evil}]}\n{{ .Values }}\n---\nkind: Pod";
    let (plain, hostile) = (made("plain", None), made(hostile, Some(hostile)));
    let kinds = |objects: &[Value]| objects.iter().map(|object| object["kind"].clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&hostile), kinds(&plain), "no further object");
    let pod = |objects: &[Value]| {
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        deployment["spec"]["template"]["spec"].clone()
    };
    assert_eq!(pod(&hostile), pod(&plain));
    assert!(pod(&plain)["containers"].is_array() && pod(&plain)["hostNetwork"].is_null());
}

/// Rules about hosts were rendered in a form that older proxies read differently.
#[test]
fn cve_2022_21679_rules_about_hosts_are_the_same_for_all_proxies() {
    let policy = "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: denied, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {hosts: [admin.example, '*.bank.example', 'a.example:8080'], notHosts: ['b.*']}}]}]}
";
    let mesh = Offline::new(Settings::default(), objects(&format!("{STORE}{policy}")));
    let rules = |minor: u32| {
        let version = SemanticVersion { major_number: 1, minor_number: minor, patch: 0 };
        let build = BuildVersion { version: Some(version), metadata: None };
        let user_agent_version_type = Some(UserAgentVersionType::UserAgentBuildVersion(build));
        let node = Node { user_agent_version_type, ..node("sidecar", "shop", "store") };
        let listeners = rendered(&mesh, &node, &TypeUrl::LISTENER, &["virtualInbound"]);
        let mut found = Vec::new();
        visit(&listeners[0], "", &mut |key, value| {
            if key == "policies" {
                found.push(value.clone());
            }
        });
        found
    };
    let newest = rules(40);
    assert!(newest.iter().any(|policy| policy.to_string().contains("admin")), "{newest:?}");
    for minor in [30, 34, 36, 38] {
        assert_eq!(rules(minor), newest, "Envoy 1.{minor}");
    }
}

/// A VirtualService can capture a host of another namespace, but only for the namespaces it is exported to.
#[test]
fn istio_security_2026_002_a_captured_host_is_limited_by_exports() {
    let capture = |exported: &str| {
        format!(
            "---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: capture, namespace: evil}}
spec: {{hosts: [store.shop.svc.cluster.local], exportTo: [{exported}], http: [{{route: [{{destination: {{host: evil.evil.svc.cluster.local}}}}]}}]}}
"
        )
    };
    let captured = |exported: &str, client: &str| {
        let mesh = Offline::new(Settings::default(), objects(&format!("{STORE}{}", capture(exported))));
        let routes = rendered(&mesh, &node("sidecar", client, "caller"), &TypeUrl::ROUTE, &["80"]);
        routes.iter().any(|route| route.to_string().contains("evil.evil"))
    };
    assert!(captured("'*'", "shop"), "as in upstream");
    assert!(!captured("'.'", "shop"));
    assert!(captured("'.'", "evil"));
}
