//! Typical mistakes in every kind of today, made in each field of a good object: a misspelt name, a value of another type, a
//! negative number, an unknown word. Each is reported with its code in the line of the field. Wrong encodings and line ends
//! are tested at the end.

use model::config::Kind;
use model::config::check::checked;
use model::problem::{Problem, Severity};

/// A good object of each kind, with one field in each line.
const GOOD: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: a
  namespace: shop
spec:
  hosts:
  - cart
  gateways:
  - mesh
  http:
  - name: all
    match:
    - uri:
        prefix: /a
      method:
        exact: GET
    timeout: 5s
    retries:
      attempts: 3
      perTryTimeout: 2s
    fault:
      abort:
        httpStatus: 503
        percentage:
          value: 5
    route:
    - destination:
        host: cart
        subset: v1
        port:
          number: 80
      weight: 90
    - destination:
        host: cart
      weight: 10
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata:
  name: a
  namespace: shop
spec:
  host: cart
  trafficPolicy:
    loadBalancer:
      simple: ROUND_ROBIN
    connectionPool:
      tcp:
        maxConnections: 10
        connectTimeout: 1s
      http:
        http1MaxPendingRequests: 5
        h2UpgradePolicy: UPGRADE
    outlierDetection:
      consecutive5xxErrors: 7
      interval: 5m
    tls:
      mode: ISTIO_MUTUAL
  subsets:
  - name: v1
    labels:
      version: v1
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata:
  name: a
  namespace: shop
spec:
  selector:
    app: edge
  servers:
  - port:
      number: 443
      name: https
      protocol: HTTPS
    hosts:
    - cart.example
    tls:
      mode: SIMPLE
      credentialName: cert
      minProtocolVersion: TLSV1_2
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: a
  namespace: shop
spec:
  hosts:
  - cart.example
  addresses:
  - 10.0.0.1
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - number: 80
    name: http
    protocol: HTTP
    targetPort: 8080
  endpoints:
  - address: 10.1.0.1
    weight: 5
    locality: eu/west
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata:
  name: a
  namespace: shop
spec:
  address: 10.1.0.1
  labels:
    app: cart
  serviceAccount: cart
  network: east
  weight: 3
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata:
  name: a
  namespace: shop
spec:
  template:
    serviceAccount: cart
    network: east
  probe:
    periodSeconds: 5
    httpGet:
      path: /ready
      port: 8080
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata:
  name: a
  namespace: shop
spec:
  workloadSelector:
    labels:
      app: cart
  ingress:
  - port:
      number: 8080
      protocol: HTTP
      name: http
    defaultEndpoint: 127.0.0.1:9080
  egress:
  - hosts:
    - ./cart.example
  outboundTrafficPolicy:
    mode: REGISTRY_ONLY
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata:
  name: a
  namespace: shop
spec:
  priority: 5
  configPatches:
  - applyTo: CLUSTER
    match:
      context: SIDECAR_OUTBOUND
      cluster:
        service: cart
    patch:
      operation: MERGE
      value:
        connect_timeout: 1s
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata:
  name: a
  namespace: shop
spec:
  concurrency: 2
  image:
    imageType: debug
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata:
  name: a
  namespace: shop
spec:
  selector:
    matchLabels:
      app: cart
  mtls:
    mode: STRICT
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata:
  name: a
  namespace: shop
spec:
  jwtRules:
  - issuer: https://issuer.example
    jwksUri: https://issuer.example/keys
    audiences:
    - cart
    forwardOriginalToken: true
    timeout: 5s
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata:
  name: a
  namespace: shop
spec:
  action: ALLOW
  rules:
  - from:
    - source:
        namespaces:
        - bank
    to:
    - operation:
        methods:
        - GET
    when:
    - key: request.headers[x-user]
      values:
      - ann
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata:
  name: a
  namespace: shop
spec:
  accessLogging:
  - disabled: true
    providers:
    - name: envoy
  tracing:
  - randomSamplingPercentage: 5
    disableSpanReporting: false
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata:
  name: a
  namespace: shop
spec:
  url: oci://registry.example/filter:1
  phase: AUTHN
  priority: 5
  failStrategy: FAIL_OPEN
  imagePullPolicy: Always
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: a
spec:
  controllerName: istio.io/gateway-controller
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: a
  namespace: shop
spec:
  gatewayClassName: istio
  listeners:
  - name: http
    port: 80
    protocol: HTTP
    hostname: cart.example
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata:
  name: a
  namespace: shop
spec:
  parentRef:
    name: a
  listeners:
  - name: http
    port: 80
    protocol: HTTP
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: a
  namespace: shop
spec:
  parentRefs:
  - name: a
  hostnames:
  - cart.example
  rules:
  - matches:
    - path:
        type: PathPrefix
        value: /a
    backendRefs:
    - name: cart
      port: 80
      weight: 5
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata:
  name: a
  namespace: shop
spec:
  parentRefs:
  - name: a
  rules:
  - backendRefs:
    - name: cart
      port: 80
---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata:
  name: a
  namespace: shop
spec:
  parentRefs:
  - name: a
  rules:
  - backendRefs:
    - name: cart
      port: 80
---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TLSRoute
metadata:
  name: a
  namespace: shop
spec:
  parentRefs:
  - name: a
  hostnames:
  - cart.example
  rules:
  - backendRefs:
    - name: cart
      port: 80
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata:
  name: a
  namespace: shop
spec:
  from:
  - group: gateway.networking.k8s.io
    kind: HTTPRoute
    namespace: bank
  to:
  - group: ''
    kind: Service
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: a
  namespace: shop
spec:
  ingressClassName: istio
  rules:
  - host: cart.example
    http:
      paths:
      - path: /a
        pathType: Prefix
        backend:
          service:
            name: cart
            port:
              number: 80
"#;

/// Fields below which names are free: labels, and messages of any type.
const FREE: &[&str] = &["labels", "matchLabels", "selector", "value"];
/// Numbers that may be negative; a weight of a route is checked by API servers only.
const SIGNED: &[(Kind, &str)] =
    &[(Kind::EnvoyFilter, "priority"), (Kind::WasmPlugin, "priority"), (Kind::HttpRoute, "weight")];

/// A line `KEY: VALUE` of a spec.
#[derive(Debug)]
struct FieldLine<'a> {
    /// Counted from 0.
    at: usize,
    /// Where the key begins.
    column: usize,
    key: &'a str,
    value: &'a str,
    is_free: bool,
}

/// One mistake: what it is, the document with it, and where.
struct Mistake {
    what: String,
    text: String,
    line: u32,
    /// The line of the field two levels up: a violated rule is reported for the part of the object that it is about.
    part: u32,
}

impl Mistake {
    fn is_reported_by(&self, problem: &Problem) -> bool {
        let line = line_of(problem);
        match problem.code.as_str() {
            "PIL0104" => line == self.line && problem.message.contains("did you mean"),
            "PIL0105" => line == self.line && !self.what.ends_with("misspelt"),
            "PIL0106" => (self.part..=self.line).contains(&line) && self.what.ends_with("negative"),
            _ => false,
        }
    }
}

fn field_lines(document: &str) -> Vec<FieldLine<'_>> {
    let (mut found, mut free): (Vec<FieldLine<'_>>, Option<usize>) = (Vec::new(), None);
    let first = document.lines().position(|line| line == "spec:").expect("a spec");
    for (at, line) in document.lines().enumerate().skip(first + 1) {
        let content = line.trim_start_matches([' ', '-']);
        let column = line.len() - content.len();
        let Some((key, value)) = content.split_once(':').filter(|(key, _)| !key.contains(['/', '.', '['])) else {
            continue;
        };
        free = free.filter(|outer| column > *outer);
        found.push(FieldLine { at, column, key, value: value.trim(), is_free: free.is_some() });
        if free.is_none() && FREE.contains(&key) && value.is_empty() {
            free = Some(column);
        }
    }
    found
}

/// The document with another text from the column of a field on, and without the lines below the field.
fn replaced(document: &str, field: &FieldLine<'_>, text: &str) -> String {
    let mut lines = document.lines();
    let before: Vec<&str> = lines.by_ref().take(field.at).collect();
    let own = lines.next().expect("the line of the field");
    let is_below = |line: &&str| {
        let indent = line.len() - line.trim_start().len();
        indent > field.column || indent == field.column && line.trim_start().starts_with("- ")
    };
    let after: Vec<&str> = lines.skip_while(is_below).collect();
    let own = format!("{}{text}", &own[..field.column]);
    before.into_iter().chain([own.as_str()]).chain(after).map(|line| format!("{line}\n")).collect()
}

/// The document with a misspelt key.
fn misspelt(document: &str, field: &FieldLine<'_>) -> Option<String> {
    let swapped: String = match field.key.chars().collect::<Vec<_>>()[..] {
        [a, b, c, ref rest @ ..] if a != b => [b, a, c].iter().chain(rest).collect(),
        _ => return None,
    };
    let line = |(at, line): (usize, &str)| match at == field.at {
        true => format!("{}{swapped}{}\n", &line[..field.column], &line[field.column + field.key.len()..]),
        false => format!("{line}\n"),
    };
    Some(document.lines().enumerate().map(line).collect())
}

/// The number of the line that has the field around this one.
fn around(document: &str, field: &FieldLine<'_>) -> FieldLine<'static> {
    let before: Vec<(usize, usize)> = document
        .lines()
        .take(field.at)
        .enumerate()
        .map(|(at, line)| (at, line.len() - line.trim_start_matches([' ', '-']).len()))
        .collect();
    let (at, column) = before.into_iter().rev().find(|(_, column)| *column < field.column).unwrap_or_default();
    FieldLine { at, column, key: "", value: "", is_free: false }
}

fn mistakes(kind: Kind, document: &str) -> Vec<Mistake> {
    let mut found = Vec::new();
    for field in field_lines(document).iter().filter(|field| !field.is_free) {
        let number = |field: &FieldLine<'_>| u32::try_from(field.at + 1).expect("a short document");
        let part = number(&around(document, &around(document, field)));
        let mut add = |what: &str, text: String| {
            found.push(Mistake { what: format!("{kind}, {}: {what}", field.key), text, line: number(field), part });
        };
        // Kinds of the Gateway API have fields of later versions, so unknown ones are no mistakes.
        if let Some(text) = misspelt(document, field).filter(|_| kind.message().is_some()) {
            add("misspelt", text);
        }
        let other = if field.value.is_empty() { "seven" } else { "{seven: [7]}" };
        if field.key != "value" || !field.value.is_empty() {
            add("of another type", replaced(document, field, &format!("{}: {other}", field.key)));
        }
        if field.value.parse::<u32>().is_ok() {
            add("not a number", replaced(document, field, &format!("{}: many", field.key)));
            if !SIGNED.contains(&(kind, field.key)) {
                add("negative", replaced(document, field, &format!("{}: -1", field.key)));
            }
        }
        let is_word = field.value.len() > 3 && field.value.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        if is_word && !["name", "protocol", "exact"].contains(&field.key) {
            add("an unknown word", replaced(document, field, &format!("{}: NONSENSE", field.key)));
        }
    }
    found
}

fn line_of(problem: &Problem) -> u32 {
    problem.location.as_ref().map_or(0, |location| location.line)
}

#[test]
fn each_field_of_each_kind_is_reported_by_its_line() {
    let (mut kinds, mut tried, mut missed) = (Vec::new(), 0, Vec::new());
    for document in GOOD.trim_start().split("---\n") {
        let good = checked(document, "f", "shop");
        assert!(good.problems.is_empty() && good.objects.len() == 1, "{document}\n{:?}", good.problems);
        let kind = good.objects[0].spec.kind();
        kinds.push(kind);
        for mistake in mistakes(kind, document) {
            tried += 1;
            let problems = checked(&mistake.text, "f", "shop").problems;
            if !problems.iter().any(|problem| mistake.is_reported_by(problem)) {
                let found: Vec<String> = problems.iter().map(|problem| format!("{} {problem}", problem.code)).collect();
                missed.push(format!("{} (line {}): {found:?}", mistake.what, mistake.line));
            }
        }
    }
    println!("{tried} mistakes in {} kinds", kinds.len());
    assert!(missed.is_empty(), "{} of {tried} are not reported:\n{}", missed.len(), missed.join("\n"));
    assert!(tried > 300, "{tried}");
    let absent: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !kind.is_legacy() && !kinds.contains(kind)).collect();
    assert_eq!(absent, LEFT_OUT.iter().collect::<Vec<_>>());
}

/// Kinds without an object above.
const LEFT_OUT: &[Kind] =
    &[Kind::TrafficExtension, Kind::BackendTlsPolicy, Kind::BackendTrafficPolicy, Kind::IngressClass];

#[test]
fn missing_fields_are_reported() {
    let mut missed = Vec::new();
    for (kind, spec, expected) in [
        ("VirtualService", "{hosts: [a]}", "http, tcp or tls"),
        ("VirtualService", "{hosts: [a], http: [{route: [{weight: 5}]}]}", "destination"),
        ("DestinationRule", "{subsets: [{name: v1}]}", "empty domain name"),
        ("DestinationRule", "{host: a, subsets: [{labels: {a: b}}]}", "subset"),
        ("Gateway", "{selector: {a: b}}", "server"),
        ("ServiceEntry", "{ports: [{number: 80, name: http, protocol: HTTP}]}", "at least one host"),
        ("WorkloadEntry", "{labels: {a: b}}", "address"),
        ("Sidecar", "{egress: [{port: {number: 80, protocol: HTTP, name: a}}]}", "host"),
    ] {
        let text = format!(
            "apiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: a, namespace: b}}\nspec: {spec}\n"
        );
        let problems = checked(&text, "f", "").problems;
        let is_it = |problem: &&Problem| problem.severity == Severity::Error && problem.message.contains(expected);
        match problems.iter().find(is_it) {
            Some(found) => assert_eq!((found.code.as_str(), line_of(found)), ("PIL0106", 4), "{found:?}"),
            None => missed.push(format!("{kind} {spec}: no {expected:?} in {problems:?}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
