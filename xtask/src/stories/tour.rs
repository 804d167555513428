//! The tour: what users of Istio do in their first week, each step checked by requests, while other requests go on.

use std::time::Instant;

use anyhow::{Result, bail};

use super::StoryRow;
use super::shop::{PATIENCE, from_mesh, from_outside, front, rolled_out};
use crate::cluster::{Cluster, Load, LoadCounts};

/// A step: what is applied, and a check of what requests then see. What it applied is removed after it.
struct TourStep {
    name: &'static str,
    documents: &'static str,
    check: fn(&Cluster) -> Result<String>,
}

const STEPS: &[TourStep] = &[
    TourStep { name: "mutual TLS, STRICT", documents: "", check: mutual_tls },
    TourStep { name: "canary by VirtualService", documents: CANARY, check: canary },
    TourStep { name: "canary by HTTPRoute", documents: CANARY_ROUTE, check: canary },
    TourStep { name: "fault", documents: FAULT, check: fault },
    TourStep { name: "retry", documents: RETRY, check: retry },
    TourStep { name: "timeout", documents: TIMEOUT, check: timeout },
    TourStep { name: "mirror", documents: MIRROR, check: mirror },
    TourStep { name: "egress by ServiceEntry", documents: EGRESS, check: egress },
    TourStep { name: "ingress by Gateway API", documents: "", check: ingress },
    TourStep { name: "ingress by Gateway", documents: EDGE, check: edge },
    TourStep { name: "AuthorizationPolicy", documents: DENY, check: deny },
    TourStep { name: "RequestAuthentication", documents: TOKENS, check: tokens },
];

/// Requests of the load: steps change how these paths are routed, retried, limited and mirrored, but not their success.
const LOAD: &str = "-url=http://cart/,http://cart/canary,http://cart/mirror,http://cart/delay/10ms,http://cart/flaky/1,http://cart/other";
/// Routes of the tour match a path.
const CANARY: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tour, namespace: shop}
spec:
  hosts: [cart]
  http:
  - match: [{uri: {prefix: /canary}}]
    route:
    - {destination: {host: cart, subset: v1}, weight: 80}
    - {destination: {host: cart, subset: v2}, weight: 20}
  - route: [{destination: {host: cart}}]
"#;
const CANARY_ROUTE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: cart-v1, namespace: shop}
spec: {selector: {app: cart, version: v1}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart-v2, namespace: shop}
spec: {selector: {app: cart, version: v2}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: tour, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: cart, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /canary}}]
    backendRefs: [{name: cart-v1, port: 80, weight: 80}, {name: cart-v2, port: 80, weight: 20}]
  - backendRefs: [{name: cart, port: 80}]
"#;
const FAULT: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tour, namespace: shop}
spec:
  hosts: [cart]
  http:
  - match: [{uri: {prefix: /fault}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: cart}}]
  - route: [{destination: {host: cart}}]
"#;
const RETRY: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tour, namespace: shop}
spec:
  hosts: [cart]
  http:
  - match: [{uri: {prefix: /flaky}}]
    retries: {attempts: 10, retryOn: 5xx, perTryTimeout: 2s}
    route: [{destination: {host: cart, subset: v2}}]
  - route: [{destination: {host: cart}}]
"#;
const TIMEOUT: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tour, namespace: shop}
spec:
  hosts: [cart]
  http:
  - match: [{uri: {prefix: /delay}}]
    timeout: 0.3s
    route: [{destination: {host: cart}}]
  - route: [{destination: {host: cart}}]
"#;
const MIRROR: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: shadow, namespace: shop}
spec:
  selector: {matchLabels: {app: shadow}}
  template:
    metadata: {labels: {app: shadow}}
    spec: {containers: [{name: app, image: mesh/app, args: [serve], env: [{name: VERSION, value: shadow}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: shadow, namespace: shop}
spec: {selector: {app: shadow}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tour, namespace: shop}
spec:
  hosts: [cart]
  http:
  - match: [{uri: {prefix: /mirror}}]
    mirror: {host: shadow}
    route: [{destination: {host: cart}}]
  - route: [{destination: {host: cart}}]
"#;
const EGRESS: &str = r#"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: ["*/*"]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bank, namespace: shop}
spec:
  hosts: [bank.example.com]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP}]
"#;
/// A gateway that the user deploys; injection fills its container.
const EDGE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: shop}
spec: {type: LoadBalancer, selector: {istio: edge}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: edge, namespace: shop}
spec:
  selector: {matchLabels: {istio: edge}}
  template:
    metadata:
      labels: {istio: edge, sidecar.istio.io/inject: "true"}
      annotations: {inject.istio.io/templates: gateway}
    spec: {containers: [{name: istio-proxy, image: auto}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [edge.example]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: [edge.example]
  gateways: [edge]
  http: [{route: [{destination: {host: cart}}]}]
"#;
const DENY: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tour, namespace: shop}
spec:
  action: DENY
  selector: {matchLabels: {app: cart}}
  rules: [{from: [{source: {notPrincipals: ["cluster.local/ns/shop/sa/front-istio"]}}], to: [{operation: {paths: ["/secret*"]}}]}]
"#;
const TOKENS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: issuer, namespace: plain}
spec:
  selector: {matchLabels: {app: issuer}}
  template:
    metadata: {labels: {app: issuer}}
    spec: {containers: [{name: app, image: mesh/app, args: [issuer]}]}
---
apiVersion: v1
kind: Service
metadata: {name: issuer, namespace: plain}
spec: {selector: {app: issuer}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tour, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  jwtRules: [{issuer: tour, jwksUri: "http://issuer.plain.svc.cluster.local/keys"}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tour, namespace: shop}
spec:
  action: DENY
  selector: {matchLabels: {app: cart}}
  rules: [{from: [{source: {notRequestPrincipals: ["tour/*"]}}], to: [{operation: {paths: ["/account*"]}}]}]
"#;

/// Takes every step while a client sends requests that must succeed before, during and after it.
pub(super) fn run(cluster: &Cluster) -> Result<Vec<StoryRow>> {
    let load = Load::start(cluster, "shop", "load-tour", &[LOAD, "-rate=50"])?;
    let mut rows = Vec::new();
    for step in STEPS {
        let before = load.send(1)?;
        if !step.documents.is_empty() {
            cluster.apply(step.documents)?;
        }
        let start = Instant::now();
        let note = cluster.until(step.name, PATIENCE, || (step.check)(cluster))?;
        let took = start.elapsed();
        if !step.documents.is_empty() {
            cluster.kubectl_with(&["delete", "--wait=false", "-f", "-"], step.documents)?;
        }
        let after = load.send(1)?;
        rows.push(StoryRow {
            step: step.name.to_owned(),
            requests: after.requests - before.requests,
            failures: after.failures - before.failures,
            gap_ms: after.gap.as_millis(),
            note: format!("{note}; seen after {:.1} s", took.as_secs_f64()),
        });
    }
    let all = load.finish()?;
    if all.failures > 0 {
        bail!("{} of {} requests failed: {}; {rows:?}", all.failures, all.requests, all.latest);
    }
    Ok(rows)
}

fn require(is: bool, counts: &LoadCounts) -> Result<()> {
    if is { Ok(()) } else { bail!("{}", counts.all) }
}

fn mutual_tls(cluster: &Cluster) -> Result<String> {
    let inside = from_mesh(cluster, "http://cart/", &[])?;
    require(inside.failures == 0, &inside)?;
    let plain = from_outside(cluster, "http://cart.shop/", &["-total=5"])?;
    require(plain.failures == plain.requests, &plain)?;
    Ok("mesh 200, plain text refused".to_owned())
}

fn canary(cluster: &Cluster) -> Result<String> {
    let got = from_mesh(cluster, "http://cart/canary", &["-total=300"])?;
    let (old, new) = (got.of("versions", "v1"), got.of("versions", "v2"));
    // 60 of 300 are expected; further off than 5 standard deviations is not chance.
    require(got.failures == 0 && (25..=95).contains(&new), &got)?;
    Ok(format!("80/20 gave {old}/{new}"))
}

fn fault(cluster: &Cluster) -> Result<String> {
    let got = from_mesh(cluster, "http://cart/fault", &["-expect=418"])?;
    require(got.failures == 0, &got)?;
    Ok("418 to all".to_owned())
}

fn retry(cluster: &Cluster) -> Result<String> {
    let got = from_mesh(cluster, "http://cart/flaky/3", &["-total=30"])?;
    require(got.failures == 0, &got)?;
    Ok("two of three attempts fail, 30 of 30 requests succeed".to_owned())
}

fn timeout(cluster: &Cluster) -> Result<String> {
    let got = from_mesh(cluster, "http://cart/delay/2s", &["-expect=504"])?;
    require(got.failures == 0, &got)?;
    Ok(format!("504 to all, slowest {} ms", got.all["slowest_ms"]))
}

fn mirror(cluster: &Cluster) -> Result<String> {
    rolled_out(cluster, "shop", "shadow")?;
    let count = || Ok::<u64, anyhow::Error>(from_mesh(cluster, "http://shadow/count", &["-total=1"])?.served());
    let before = count()?;
    let got = from_mesh(cluster, "http://cart/mirror", &["-total=50"])?;
    require(got.failures == 0 && got.of("versions", "shadow") == 0, &got)?;
    // A mirrored request is not waited for.
    cluster.until("mirrored requests", PATIENCE / 10, || match count()? - before {
        50.. => Ok("50 of 50 mirrored".to_owned()),
        fewer => bail!("{fewer} of 50 requests were mirrored"),
    })
}

fn egress(cluster: &Cluster) -> Result<String> {
    let got = from_mesh(cluster, "http://bank.example.com/", &[])?;
    require(got.failures == 0 && got.of("versions", "bank") == got.requests, &got)?;
    let other = from_mesh(cluster, "http://10.255.0.1/", &["-total=3", "-timeout=2s"])?;
    require(other.of("codes", "200") == 0, &other)?;
    Ok("declared host 200, undeclared address refused".to_owned())
}

fn ingress(cluster: &Cluster) -> Result<String> {
    let got = from_outside(cluster, &front(cluster)?, &["-fresh"])?;
    require(got.failures == 0, &got)?;
    Ok(format!("{} pods answered", got.pods()))
}

fn edge(cluster: &Cluster) -> Result<String> {
    let service = cluster.get(&["service", "edge", "-n", "shop"])?;
    let address = service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().unwrap_or_default();
    let url = format!("http://{address}/");
    let got = from_outside(cluster, &url, &["-fresh", "-header=Host: edge.example"])?;
    require(got.failures == 0, &got)?;
    let other = from_outside(cluster, &url, &["-total=3", "-header=Host: other.example", "-expect=404"])?;
    require(other.failures == 0, &other)?;
    Ok(format!("{} pods answered, other hosts 404", got.pods()))
}

fn deny(cluster: &Cluster) -> Result<String> {
    let denied = from_mesh(cluster, "http://cart/secret", &["-expect=403"])?;
    require(denied.failures == 0, &denied)?;
    let allowed = from_outside(cluster, &format!("{}secret", front(cluster)?), &[])?;
    require(allowed.failures == 0, &allowed)?;
    Ok("client 403, gateway 200".to_owned())
}

fn tokens(cluster: &Cluster) -> Result<String> {
    rolled_out(cluster, "plain", "issuer")?;
    let denied = from_mesh(cluster, "http://cart/account", &["-expect=403", "-total=5"])?;
    require(denied.failures == 0, &denied)?;
    let bad =
        from_mesh(cluster, "http://cart/account", &["-expect=401", "-total=5", "-header=authorization: Bearer a.b.c"])?;
    require(bad.failures == 0, &bad)?;
    let token = cluster.kubectl(&[
        "get",
        "--raw",
        "/api/v1/namespaces/plain/services/http:issuer:80/proxy/token?iss=tour&sub=user",
    ])?;
    let header = format!("-header=authorization: Bearer {}", token.trim());
    let good = from_mesh(cluster, "http://cart/account", &["-total=5", &header])?;
    require(good.failures == 0, &good)?;
    Ok("no token 403, bad token 401, good token 200".to_owned())
}
