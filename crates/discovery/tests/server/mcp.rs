//! The source of the Mesh Configuration Protocol: one server reads the objects of another, in both variants.

use testkit::wait;

use crate::started::{SHOP, Started, folder};

/// Objects of kinds that have a collection, and a RouteRule, which is sent as what it becomes.
const OLD: &str = "\
apiVersion: authentication.istio.io/v1alpha1
kind: Policy
metadata: {name: default, namespace: shop}
spec: {peers: [{mtls: }]}
---
apiVersion: authentication.istio.io/v1alpha1
kind: MeshPolicy
metadata: {name: default}
spec: {peers: [{mtls: {mode: PERMISSIVE}}]}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ClusterRbacConfig
metadata: {name: default}
spec: {mode: ON_WITH_INCLUSION, inclusion: {namespaces: [shop]}}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRole
metadata: {name: reader, namespace: shop}
spec: {rules: [{services: ['*'], methods: [GET]}]}
---
apiVersion: config.istio.io/v1alpha2
kind: QuotaSpec
metadata: {name: requests, namespace: shop}
spec: {rules: [{quotas: [{quota: requests, charge: 1}]}]}
---
apiVersion: config.istio.io/v1alpha2
kind: RouteRule
metadata: {name: web, namespace: shop}
spec: {destination: {service: web.shop.example}, httpReqTimeout: {simpleTimeout: {timeout: 7s}}}
";

/// A server with the shop, old objects and the services of a registry.
async fn source() -> Started {
    let folder = folder();
    std::fs::write(folder.path().join("config/shop.yaml"), SHOP).unwrap();
    std::fs::write(folder.path().join("config/old.yaml"), OLD).unwrap();
    let mut server = Started::with(folder, &["--registries=Mock"], &[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]);
    server.ready().await;
    server
}

/// A server without files that reads the objects of another one.
async fn sink(source: &mut Started, query: &str) -> Started {
    let address = format!("--mcpServerAddrs=mcp://{}{query}", source.port("grpc").await);
    let mut server = Started::on(folder(), &["--registries=", &address]);
    server.ready().await;
    server
}

/// `Kind namespace/name` of each object.
async fn names(server: &mut Started) -> Vec<String> {
    let objects = server.get("/debug/configz").await.json();
    let text = |object: &serde_json::Value, pointer: &str| {
        object.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    let name = |object: &serde_json::Value| {
        format!("{} {}/{}", text(object, "/kind"), text(object, "/metadata/namespace"), text(object, "/metadata/name"))
    };
    let mut names: Vec<String> = objects.as_array().unwrap().iter().map(name).collect();
    names.sort();
    names.dedup();
    names
}

async fn until_names(server: &mut Started, expected: &[&str]) {
    wait::until("the objects of the other server", async || {
        let found = names(server).await;
        let missing: Vec<&&str> = expected.iter().filter(|name| !found.iter().any(|known| known == **name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not in {found:?}")) }
    })
    .await;
}

#[tokio::test]
async fn one_server_reads_the_objects_of_another() {
    for query in ["", "?incremental=true"] {
        let mut source = source().await;
        let mut sink = sink(&mut source, query).await;
        until_names(
            &mut sink,
            &[
                "ClusterRbacConfig /default",
                "MeshPolicy /default",
                "Policy shop/default",
                "QuotaSpec shop/requests",
                "ServiceEntry default/synthetic-hello.default.svc.cluster.local",
                "ServiceEntry shop/pay",
                "ServiceEntry shop/web",
                "ServiceRole shop/reader",
                "VirtualService shop/web.routerule",
            ],
        )
        .await;
        // The policies were sent, and not what they became too.
        let found = names(&mut sink).await;
        let made: Vec<&String> = found.iter().filter(|name| name.starts_with("PeerAuthentication")).collect();
        assert!(made.is_empty(), "{made:?}");

        std::fs::remove_file(source.path("config/shop.yaml")).unwrap();
        wait::until("the removal", async || {
            let found = sink.get("/debug/configz").await.body;
            if found.contains("pay.example") { Err("it is still there".to_owned()) } else { Ok(()) }
        })
        .await;
        until_names(&mut sink, &["Policy shop/default", "VirtualService shop/web.routerule"]).await;
    }
}

#[tokio::test]
async fn without_a_certificate_objects_are_denied() {
    let mut source = Started::new(&["--registries="]);
    source.ready().await;
    let address = format!("--mcpServerAddrs=mcp://{}", source.port("grpc").await);
    let mut sink = Started::on(folder(), &["--registries=", &address]);
    wait::until("the reason on the page of sources", async || {
        let page = sink.get("/debug/sources").await.body;
        let reason = "configuration is served only to clients with a certificate of the mesh";
        if page.contains(reason) { Ok(()) } else { Err(page) }
    })
    .await;
}
