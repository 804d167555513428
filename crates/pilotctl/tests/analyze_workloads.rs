//! `pilotctl analyze` on files with Services, Pods, EndpointSlices, Namespaces and Secrets: a mesh without mistakes, then one
//! mistake after the other, each with upstream's code and the line of the value.

use std::fs;
use std::process::Command;

/// A mesh without mistakes.
const MESH: &str = "apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.0.0.1, selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-1, namespace: shop, labels: {app: cart, version: v1, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: cart, containers: [{name: app}]}
status: {podIP: 10.1.0.1, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Service
metadata: {name: gateway, namespace: istio-system}
spec: {clusterIP: 10.0.0.2, selector: {istio: gateway}, ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gateway-1, namespace: istio-system, labels: {istio: gateway}}
spec: {serviceAccountName: gateway, containers: [{name: istio-proxy}]}
status: {podIP: 10.1.0.2, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: istio-system}
data: {tls.crt: bm8=, tls.key: bm8=}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: gateway}
  servers:
  - port: {number: 8080, name: http, protocol: HTTP}
    hosts: [cart.example]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example]
  gateways: [edge]
  http:
  - match: [{uri: {prefix: /}}]
    route: [{destination: {host: cart, subset: v1}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec:
  host: cart
  subsets:
  - {name: v1, labels: {version: v1}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  rules:
  - from:
    - source:
        principals: [cluster.local/ns/istio-system/sa/gateway]
    - source:
        namespaces: [shop, 'istio-*']
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  accessLogging: [{providers: [{name: envoy}]}]
";

/// Exit status and standard output.
fn analyze(text: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("mesh.yaml"), text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
    let output = command.arg("analyze").args(arguments).arg(folder.path()).output().expect("pilotctl runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The good text, the bad one, and what is found: code, phrase, and the line that begins the bad text if the place is known.
struct Mistake(&'static str, &'static str, &'static str, &'static str, Option<usize>);

const MISTAKES: &[Mistake] = &[
    Mistake(
        "  - {name: v1, labels: {version: v1}}",
        "  - {name: v1, labels: {version: v2}}",
        "IST0173",
        "The Subset v1",
        Some(0),
    ),
    Mistake(
        "  selector: {istio: gateway}\n  servers",
        "  selector: {istio: gatway}\n  servers",
        "IST0101",
        "Referenced selector not found: \"istio=gatway\"",
        Some(0),
    ),
    Mistake("  - port: {number: 8080,", "  - port: {number: 8081,", "IST0162", "(port 8081)", Some(0)),
    Mistake(
        "8080, name: http, protocol: HTTP}\n    hosts: [cart.example]",
        "8443, name: https, protocol: HTTPS}\n    hosts: [cart.example]\n    tls: {mode: SIMPLE, credentialName: edge}",
        "IST0101",
        "Referenced credentialName not found: \"edge\"",
        Some(2),
    ),
    Mistake(
        "matchLabels: {app: cart}}\n  rules",
        "matchLabels: {app: crat}}\n  rules",
        "IST0127",
        "labels: app=crat",
        Some(0),
    ),
    Mistake(
        "namespaces: [shop,",
        "namespaces: [shpo,",
        "IST0101",
        "Referenced namespace not found: \"shpo\"; did you mean \"shop\"?",
        Some(0),
    ),
    Mistake(
        "ns/istio-system/sa/gateway]",
        "ns/istio-sytem/sa/gateway]",
        "IST0101",
        "Referenced namespace not found: \"istio-sytem\"",
        Some(0),
    ),
    Mistake(
        "ns/istio-system/sa/gateway]",
        "ns/istio-system/sa/gatway]",
        "PIL0006",
        "did you mean \"gateway\"?",
        Some(0),
    ),
    Mistake(
        "matchLabels: {app: cart}}\n  accessLogging",
        "matchLabels: {app: crat}}\n  accessLogging",
        "IST0101",
        "Referenced selector not found: \"app=crat\"",
        Some(0),
    ),
    Mistake("[{providers: [{name: envoy}]}]", "[{}]", "IST0157", "empty providers", Some(0)),
    Mistake(
        "{uri: {prefix: /}}",
        "{headers: {'@request.auth.claims.group': {exact: admin}}}",
        "IST0149",
        "(shop/edge) pod (gateway-1)",
        Some(0),
    ),
    Mistake(
        "ports: [{name: http, port: 80, targetPort: 8080}]}\n---\napiVersion: v1\nkind: Pod",
        "ports: [{name: web, port: 80, targetPort: 8080}]}\n---\napiVersion: v1\nkind: Pod",
        "IST0118",
        "Port name web (port: 80, targetPort: 8080)",
        None,
    ),
    Mistake(
        "spec: {clusterIP: 10.0.0.1, selector: {app: cart}, ports: [{name: http",
        "spec: {type: ExternalName, externalName: cart.example, ports: [{name: tcp",
        "IST0150",
        "ExternalName",
        None,
    ),
    Mistake(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---",
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: more, namespace: shop}\nspec: {clusterIP: 10.0.0.3, selector: {app: cart}, ports: [{name: http, port: 81, targetPort: 8080}]}\n---",
        "IST0137",
        "deployment cart-1 is associated with multiple services [shop/cart shop/more] using targetPort \"8080\" but different ports: [80 81]",
        None,
    ),
    Mistake(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---",
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: more, namespace: shop}\nspec: {clusterIP: 10.0.0.3, selector: {app: cart}, ports: [{name: udp, port: 80, targetPort: 53, protocol: UDP}]}\n---",
        "IST0116",
        "using port 80 but different protocols: [shop/cart shop/more]",
        None,
    ),
    Mistake(
        "shop, labels: {istio-injection: enabled}}",
        "shop}",
        "IST0102",
        "(Namespace shop) The namespace is not enabled",
        None,
    ),
    Mistake(
        "{istio-injection: enabled}",
        "{istio-injection: enabled, istio.io/rev: canary}",
        "IST0123",
        "[istio-injection=enabled istio.io/rev=canary]",
        None,
    ),
    Mistake(", security.istio.io/tlsMode: istio", "", "IST0103", "The pod shop/cart-1 is missing", None),
];

#[test]
fn typical_mistakes_about_workloads_are_found() {
    let (status, text) = analyze(MESH, &[]);
    assert_eq!((status, text.as_str()), (Some(0), ""));
    for Mistake(good, bad, code, phrase, line) in MISTAKES {
        let at = MESH.find(good).unwrap_or_else(|| panic!("no {good:?}"));
        let (status, text) = analyze(&MESH.replacen(good, bad, 1), &["--failure-threshold", "info"]);
        let line = line.map(|line| format!("mesh.yaml:{}) ", MESH[..at].matches('\n').count() + 1 + line));
        let is_it = |found: &&str| {
            let has_line = line.as_ref().is_none_or(|line| found.contains(line));
            found.contains(&format!("[{code}]")) && found.contains(phrase) && has_line
        };
        let found = text.lines().filter(is_it).count();
        assert_eq!((status, found), (Some(79), 1), "{bad:?}: expected {code} {phrase:?} at {line:?}:\n{text}");
    }
}

#[test]
fn gateways_that_share_a_certificate_and_bad_secrets_are_found() {
    let server = "port: {number: 8443, name: https, protocol: HTTPS}";
    let gateway = |name: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
             selector: {{istio: gateway}}\n  servers:\n  - {server}\n    hosts: [{name}.example]\n    \
             tls: {{mode: SIMPLE, credentialName: edge}}\n"
        )
    };
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: edge, namespace: istio-system}\ntype: kubernetes.io/tls\n\
                  data: {tls.crt: bm8=, tls.key: bm8=}\n";
    let (status, text) = analyze(&format!("{MESH}{}{}{secret}", gateway("one"), gateway("two")), &[]);
    assert_eq!(status, Some(79), "{text}");
    assert_eq!(text.matches("[IST0138]").count(), 2, "{text}");
    assert_eq!(text.matches("[IST0161]").count(), 2, "{text}");
    assert!(text.contains("Gateway one in namespace istio-system is invalid"), "{text}");
}

#[test]
fn two_telemetries_for_one_workload_are_found() {
    let more = "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: more, namespace: shop}\nspec:\n  \
                selector: {matchLabels: {version: v1}}\n";
    let (status, text) = analyze(&format!("{MESH}{more}"), &[]);
    assert_eq!((status, text.matches("[IST0159]").count()), (Some(79), 2), "{text}");
}

#[test]
fn tcp_ports_without_an_address_are_found() {
    let entry = |host: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: db, namespace: shop}}\nspec:\n  \
             hosts: ['{host}']\n  resolution: NONE\n  ports:\n  - {{number: 443, name: tls, protocol: TLS}}\n  \
             - {{number: 5432, name: tcp, protocol: TCP}}\n"
        )
    };
    let (_, text) = analyze(&format!("{MESH}{}", entry("*.db.example")), &[]);
    // The last line. As with istioctl, the rules of the kind say the same.
    let place = format!("mesh.yaml:{}) ServiceEntry addresses are required", MESH.lines().count() + 10);
    assert!(text.contains("[IST0134]") && text.contains(&place), "{place}\n{text}");
    assert_eq!((text.matches("[IST0133]").count(), text.lines().count()), (1, 2), "{text}");
}

#[test]
fn endpoint_slices_of_files_are_joined_with_services() {
    // A Service without a selector has the endpoints of its slices: its subsets need no pod.
    let objects = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {clusterIP: 10.0.0.9, ports: \
                   [{name: tcp, port: 5432}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: db-1, \
                   namespace: shop, labels: {kubernetes.io/service-name: db}}\naddressType: IPv4\nports: [{name: tcp, port: 5432}]\n\
                   endpoints: [{addresses: [10.9.0.1]}]\n---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
                   metadata: {name: db, namespace: shop}\nspec: {host: db, subsets: [{name: v1, labels: {version: v1}}]}\n";
    let (status, text) = analyze(&format!("{MESH}{objects}"), &[]);
    assert_eq!((status, text.as_str()), (Some(0), ""));
}
