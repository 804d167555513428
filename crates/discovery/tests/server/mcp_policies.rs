//! Policies and roles of another server, over MCP v1alpha1: what they do to the requests of a real Envoy.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::certificates::Authority;
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::sds::{SdsSecrets, SdsServer};
use testkit::{client, ports, servers, wait};

use crate::started::{Started, folder};

/// A sidecar's port, for the application at another one.
const WEB: &str = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - port: {number: $IN, name: http, protocol: HTTP}
    bind: 127.0.0.1
    captureMode: NONE
    defaultEndpoint: 127.0.0.1:$APP
  egress: [{hosts: ['*/*']}]
";
const ROLES: &str = "apiVersion: rbac.istio.io/v1alpha1
kind: ClusterRbacConfig
metadata: {name: default}
spec: {mode: ON_WITH_INCLUSION, inclusion: {namespaces: [shop]}}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRole
metadata: {name: reader, namespace: shop}
spec: {rules: [{services: ['*'], methods: [GET]}]}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRoleBinding
metadata: {name: readers, namespace: shop}
spec: {subjects: [{user: '*'}], roleRef: {kind: ServiceRole, name: reader}}
";
const STRICT: &str = "apiVersion: authentication.istio.io/v1alpha1
kind: Policy
metadata: {name: default, namespace: shop}
spec: {peers: [{mtls: {}}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn they_decide_requests() {
    if servers::without("envoy") {
        return;
    }
    let app = HttpBackend::start("app").await;
    let inbound = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
    let web = WEB.replace("$IN", &inbound.port().to_string()).replace("$APP", &app.port().to_string());
    let files = folder();
    std::fs::write(files.path().join("config/web.yaml"), web).unwrap();
    let mut source = Started::with(files, &["--registries="], &[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]);
    source.ready().await;
    let address = format!("--mcpServerAddrs=mcp://{}", source.port("grpc").await);
    let mut sink = Started::on(folder(), &["--registries=", &address]);
    sink.ready().await;
    let ads = sink.port("grpc").await.port();
    let authority = Authority::new();
    let own = authority.workload("spiffe://cluster.local/ns/shop/sa/web");
    let agent = SdsServer::start(SdsSecrets::of_workload(&own, &authority)).await;
    let bootstrap = Bootstrap {
        sds_port: Some(agent.port()),
        ..Bootstrap::sidecar(ads, XdsTransport::Delta, "web", "shop", json!({"app": "web"}))
    };
    let mut envoy = Envoy::start(&bootstrap).await;
    envoy.ready().await;

    let status = async |method: &str| -> Result<u16, String> {
        let request = http::Request::builder().method(method).uri("/").header("host", "web.shop");
        let request = request.body(String::new()).map_err(|e| e.to_string())?;
        Ok(client::send(inbound, request).await?.status.as_u16())
    };
    let answers = async |get: u16, post: u16| {
        wait::until(&format!("GET {get}, POST {post}"), async || {
            let found = (status("GET").await?, status("POST").await?);
            if found == (get, post) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    };
    answers(200, 200).await;
    std::fs::write(source.path("config/roles.yaml"), ROLES).unwrap();
    answers(200, 403).await;
    std::fs::write(source.path("config/strict.yaml"), STRICT).unwrap();
    // Plain text is not accepted any more.
    wait::until("refused calls", async || match status("GET").await {
        Err(_) => Ok(()),
        Ok(status) => Err(format!("answered with {status}")),
    })
    .await;
    std::fs::remove_file(source.path("config/strict.yaml")).unwrap();
    answers(200, 403).await;
    std::fs::remove_file(source.path("config/roles.yaml")).unwrap();
    answers(200, 200).await;
}
