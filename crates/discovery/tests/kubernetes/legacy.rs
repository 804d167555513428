//! Kinds of old Istio releases, applied with kubectl: they change what a real Envoy does. The server installs their
//! definitions itself.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use discovery::startup::Server;
use futures_util::future::join_all;
use model::config::Kind;
use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::certificates::Authority;
use testkit::client;
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::kubectl::Kubectl;
use testkit::kubernetes::ApiServer;
use testkit::sds::{SdsSecrets, SdsServer};
use testkit::{ports, wait};

use crate::cluster::is_left_out;
use crate::serving::serve_with;

const HOST: &str = "reviews.shop.svc.cluster.local";
const DEADLINE: Duration = Duration::from_secs(60);

/// A sidecar with certificates: it calls `reviews` and serves the application behind it.
struct LegacyShop {
    kubectl: Kubectl,
    server: Server,
    envoy: Envoy,
    /// Where the sidecar takes calls to `reviews`.
    outbound: SocketAddr,
    /// Where it accepts calls for its application.
    inbound: SocketAddr,
    v1: HttpBackend,
    _others: (HttpBackend, HttpBackend, SdsServer, ApiServer),
}

impl LegacyShop {
    async fn start() -> LegacyShop {
        let api_server = ApiServer::start().await;
        let kubectl = Kubectl::new(&api_server);
        let env = [("PILOTAGE_TRUST_PLAINTEXT".to_owned(), "true".to_owned())];
        let server = serve_with(api_server.kubeconfig(), None, &env, &["--registerCRDs=legacy"]).await;
        let (v1, v2, app) = tokio::join!(HttpBackend::start("v1"), HttpBackend::start("v2"), HttpBackend::start("app"));
        let [outbound, inbound] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let endpoint = |backend: &HttpBackend, version: &str| {
            format!("{{address: 127.0.0.1, ports: {{http: {}}}, labels: {{version: {version}}}}}", backend.port())
        };
        let text = SHOP
            .replace("$OUT", &outbound.port().to_string())
            .replace("$IN", &inbound.port().to_string())
            .replace("$APP", &app.port().to_string())
            .replace("$ENDPOINTS", &format!("[{}, {}]", endpoint(&v1, "v1"), endpoint(&v2, "v2")));
        kubectl.apply(&text).await;
        let authority = Authority::new();
        let own = authority.workload("spiffe://cluster.local/ns/shop/sa/page");
        let agent = SdsServer::start(SdsSecrets::of_workload(&own, &authority)).await;
        let ads = server.addresses.grpc.unwrap().port();
        let labels = json!({"app": "page"});
        let bootstrap = Bootstrap {
            sds_port: Some(agent.port()),
            ..Bootstrap::sidecar(ads, XdsTransport::Delta, "page", "shop", labels)
        };
        let mut envoy = Envoy::start(&bootstrap).await;
        envoy.ready().await;
        LegacyShop { kubectl, server, envoy, outbound, inbound, v1, _others: (v2, app, agent, api_server) }
    }

    async fn status(&self, address: SocketAddr, path: &str) -> Result<u16, String> {
        let reply = client::get(address, HOST, path).await?;
        Ok(reply.status.as_u16())
    }

    /// The share of each version in 200 calls.
    async fn calls(&self) -> Result<BTreeMap<String, usize>, String> {
        let mut versions = BTreeMap::new();
        for _ in 0..200 {
            let reply = client::get(self.outbound, HOST, "/").await?;
            *versions.entry(reply.backend().to_owned()).or_default() += 1;
        }
        Ok(versions)
    }

    async fn until_weights(&self, name: &str, is_so: impl Fn(usize) -> bool) -> usize {
        let mut share = 0;
        wait::until_within(DEADLINE, name, async || {
            let calls = self.calls().await?;
            share = calls.get("v2").copied().unwrap_or_default();
            if is_so(share) { Ok(()) } else { Err(format!("{calls:?}")) }
        })
        .await;
        share
    }
}

const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: office}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{name: http, number: $OUT, protocol: HTTP}]
  endpoints: $ENDPOINTS
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: page, namespace: shop}
spec:
  workloadSelector: {labels: {app: page}}
  ingress:
  - port: {number: $IN, name: http, protocol: HTTP}
    bind: 127.0.0.1
    captureMode: NONE
    defaultEndpoint: 127.0.0.1:$APP
  egress: [{hosts: ['*/*']}]
";

/// A RouteRule of another namespace, with a share of calls for v2.
fn route_rule(namespace: &str, name: &str, precedence: u32, share: u32) -> String {
    format!(
        "apiVersion: config.istio.io/v1alpha2\nkind: RouteRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  destination: {{name: reviews, namespace: shop}}\n  precedence: {precedence}\n  route:\n  \
         - {{labels: {{version: v1}}, weight: {}}}\n  - {{labels: {{version: v2}}, weight: {share}}}\n",
        100 - share
    )
}

const LIMITS: &str = "apiVersion: config.istio.io/v1alpha2
kind: DestinationPolicy
metadata: {name: reviews, namespace: shop}
spec:
  destination: {name: reviews, labels: {version: v1}}
  circuitBreaker: {simpleCb: {maxConnections: 1, httpMaxPendingRequests: 1}}
";

const STRICT: &str = "apiVersion: authentication.istio.io/v1alpha1
kind: Policy
metadata: {name: default, namespace: shop}
spec: {peers: [{mtls: {}}]}
";

const MIXER: &str = "apiVersion: config.istio.io/v1alpha2
kind: QuotaSpec
metadata: {name: requests, namespace: shop}
spec: {rules: [{quotas: [{quota: requests, charge: 1}]}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn legacy_kinds_applied_with_kubectl_change_requests() {
    if is_left_out(&["envoy", "kubectl"]) {
        return;
    }
    let shop = LegacyShop::start().await;
    weights(&shop).await;
    limits(&shop).await;
    strict(&shop).await;
    shop.kubectl.apply(MIXER).await;
    has_problem(&shop.server, "QuotaSpec shop/requests: has no effect: it is for Mixer").await;
    shop.envoy.admin().assert_settled().await;
    shop.server.stop(Duration::ZERO).await;
}

/// The rule with the highest precedence decides, whatever its namespace, and the others again when it is deleted.
async fn weights(shop: &LegacyShop) {
    shop.until_weights("both versions", |share| (60..140).contains(&share)).await;
    shop.kubectl.apply(&route_rule("shop", "low", 1, 0)).await;
    shop.until_weights("the rule of the shop", |share| share == 0).await;
    shop.kubectl.apply(&route_rule("office", "high", 9, 90)).await;
    let share = shop.until_weights("the rule of the office", |share| (155..200).contains(&share)).await;
    println!("weight 90 for v2: {share} of 200 calls");
    shop.kubectl.run(&["delete", "routerule", "high", "-n", "office"]).await;
    shop.until_weights("the rule of the shop again", |share| share == 0).await;
}

/// One connection and one waiting request: of calls at once some are rejected.
async fn limits(shop: &LegacyShop) {
    let at_once = async || {
        let calls = join_all((0..20).map(|_| shop.status(shop.outbound, "/"))).await;
        calls.into_iter().collect::<Result<Vec<u16>, String>>()
    };
    shop.v1.answer_after(Duration::from_millis(100));
    wait::until_within(DEADLINE, "20 calls without a limit", async || {
        match at_once().await?.iter().all(|s| *s == 200) {
            true => Ok(()),
            false => Err("some were rejected".to_owned()),
        }
    })
    .await;
    shop.kubectl.apply(LIMITS).await;
    wait::until_within(DEADLINE, "rejected calls", async || {
        let statuses = at_once().await?;
        let rejected = statuses.iter().filter(|status| **status == 503).count();
        if rejected > 10 { Ok(()) } else { Err(format!("{statuses:?}")) }
    })
    .await;
    shop.v1.answer_after(Duration::ZERO);
    let dump = shop.envoy.admin().get("/config_dump").await.unwrap();
    assert!(dump.contains("\"max_connections\": 1,"), "the limit is not in the configuration");
}

/// Calls in plain text are accepted until a Policy demands certificates.
async fn strict(shop: &LegacyShop) {
    wait::until_within(DEADLINE, "plain text", async || match shop.status(shop.inbound, "/").await? {
        200 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
    shop.kubectl.apply(STRICT).await;
    wait::until_within(DEADLINE, "no plain text", async || match shop.status(shop.inbound, "/").await {
        Err(_) => Ok(()),
        Ok(status) => Err(format!("answered with {status}")),
    })
    .await;
    let snapshot = &shop.server.pilot.world().now().snapshot;
    assert_eq!(snapshot.objects.of(Kind::AuthenticationPolicy).count(), 1);
    shop.kubectl.run(&["delete", "policies.authentication.istio.io", "default", "-n", "shop"]).await;
    wait::until_within(DEADLINE, "plain text again", async || match shop.status(shop.inbound, "/").await? {
        200 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
}

async fn has_problem(server: &Server, text: &str) {
    wait::until_within(DEADLINE, text, async || {
        let snapshot = server.pilot.world().now().snapshot.clone();
        let problems: Vec<String> = snapshot.problems.values().flatten().map(ToString::to_string).collect();
        if problems.iter().any(|problem| problem.contains(text)) { Ok(()) } else { Err(problems.join("\n")) }
    })
    .await;
}
