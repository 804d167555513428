//! `cargo xtask cluster check`: the short form that `make test` runs. A cluster starts, Pilotage is installed from the chart,
//! deploys a gateway that serves, injects pods that use mutual TLS only, keeps to a quota, and passes a few tests of the
//! published suite. The end of the cluster leaves nothing behind.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::{self, ChartRelease, Cluster, Lifetime, MachineOptions, ask};
use crate::{conformance, stories};

const PATIENCE: Duration = Duration::from_secs(180);
/// One test of each kind of route and of the mesh.
const TESTS: &str = "^(HTTPRouteSimpleSameNamespace|HTTPRouteWeight|TLSRouteSimpleSameNamespace|GRPCExactMethodMatching|\
    TCPRouteParentRefPortAndSectionName|GatewayModifyListeners|MeshBasic|MeshTrafficSplit|\
    HTTPRouteHTTPSListenerDetectMisdirectedRequests|GatewayTLSBackendClientCertificate)$";

const DOCUMENTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  template:
    metadata: {labels: {app: cart}}
    spec: {containers: [{name: app, image: mesh/app, args: [serve], env: [{name: VERSION, value: v1}]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: shop}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec: {containers: [{name: app, image: mesh/app, args: [serve], env: [{name: VERSION, value: client}]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: plain}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec: {containers: [{name: app, image: mesh/app, args: [serve], env: [{name: VERSION, value: client}]}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: shop}
spec: {parentRefs: [{name: front}], rules: [{backendRefs: [{name: cart, port: 80}]}]}
"#;

/// Runs everything in a new cluster.
pub(crate) fn run(root: &Path) -> Result<()> {
    let start = Instant::now();
    let said = |what: &str| println!("{:5.1} s: {what}", start.elapsed().as_secs_f64());
    let options = MachineOptions::named(&format!("check-{}", std::process::id()));
    let cluster = Cluster::start(root, &options, Lifetime::Ours)?;
    said("cluster is ready");
    cluster::gateway_api(&cluster)?;
    ChartRelease::default().install(&cluster)?;
    said("Pilotage is installed");
    cluster.apply(DOCUMENTS)?;
    cluster.until("a request through the gateway", PATIENCE, || {
        let gateway = cluster.get(&["gateway", "front", "-n", "shop"])?;
        let address = gateway["status"]["addresses"][0]["value"].as_str().context("no address yet")?;
        answered(&cluster, "plain", &format!("http://{address}/"), true)
    })?;
    said("the managed gateway serves");
    cluster.until("a request in the mesh", PATIENCE, || answered(&cluster, "shop", "http://cart/", true))?;
    cluster.until("a refused request", PATIENCE, || answered(&cluster, "plain", "http://cart.shop/", false))?;
    said("injected pods talk with mutual TLS only");
    stories::quota(&cluster)?;
    said("a Gateway over the quota says so, the others serve, and it is deployed when the quota is raised");
    cluster.kubectl(&["delete", "namespace", "shop", "plain"])?;
    conformance::run(root, &["--cluster", &options.name, "--only", TESTS])?;
    said("the suite's tests pass");
    let traces = cluster.traces()?;
    drop(cluster);
    traces.require_none()?;
    said("nothing of the cluster is left");
    Ok(())
}

/// Whether all of a few requests from a client succeed, or none.
fn answered(cluster: &Cluster, namespace: &str, url: &str, expected: bool) -> Result<()> {
    let got = ask(cluster, "deployment/client", namespace, url, &["-total=5"])?;
    let failed = if expected { got.failures } else { got.requests - got.failures };
    if failed == 0 && got.requests > 0 { Ok(()) } else { bail!("{}", got.all) }
}
