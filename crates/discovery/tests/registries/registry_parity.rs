//! The same mesh from files, Consul, Eureka and Kubernetes gives an Envoy the same configuration except for names, and
//! several registries work together.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use serde_json::{Value, json};
use testkit::backend::HttpBackend;
use testkit::consul::Consul;
use testkit::eureka::{Eureka, Instance};
use testkit::kubernetes::ApiServer;
use testkit::{ports, servers, wait};

use crate::fixture::MeshFixture;

const HOST: &str = "cart.shop.mesh";
/// Its name in Kubernetes.
const OWN_HOST: &str = "cart.shop.svc.cluster.local";

const RULES: &str = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec:
  host: cart.shop.mesh
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.shop.mesh]
  http:
  - match: [{headers: {x-version: {exact: v2}}}]
    route: [{destination: {host: cart.shop.mesh, subset: v2}}]
  - route: [{destination: {host: cart.shop.mesh, subset: v1}}]
";

/// Envoy's configuration without values that differ between runs, and without what a ServiceEntry cannot express: the
/// health of endpoints, the short name of a service, and further host names that only Kubernetes has.
async fn configuration(fixture: &MeshFixture) -> Value {
    let dump = wait::until("a warm Envoy", async || {
        let warming = fixture.envoy.admin().warming().await?;
        if warming.is_empty() {
            Ok(fixture.envoy.admin().json("/config_dump?include_eds").await?)
        } else {
            Err("warming".into())
        }
    })
    .await;
    let sections = dump["configs"].as_array().cloned().unwrap_or_default();
    let kept = |section: &Value| !section["@type"].as_str().unwrap_or_default().contains("Bootstrap");
    let all: Value = sections.into_iter().filter(kept).collect();
    let mut all: Value = serde_json::from_str(&all.to_string().replace(OWN_HOST, HOST)).unwrap();
    strip(&mut all);
    all
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["last_updated", "version_info", "health_status", "static_clusters", "static_endpoint_configs"] {
                map.remove(key);
            }
            if map.contains_key("host") && map.contains_key("namespace") {
                map.remove("name");
            }
            if let Some(Value::Array(domains)) = map.get_mut("domains") {
                domains.retain(|domain| domain.as_str().is_some_and(|d| d == "*" || d.starts_with(HOST)));
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

/// A non-loopback address of this machine: an API server rejects loopback addresses in slices.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: `connect` on UDP only selects the source address.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// Address of the second instance, which does not exist. Kubernetes identifies instances by address, and this machine may
/// have only one usable address.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2));

/// One service with two instances, registered in every registry.
struct Mesh {
    /// Port of the service; instances have other ports.
    port: u16,
    /// Name, address, port and version of each.
    instances: [(&'static str, IpAddr, u16, &'static str); 2],
    _backend: HttpBackend,
}

impl Mesh {
    async fn start() -> Mesh {
        let address = own_address().unwrap_or(Ipv4Addr::LOCALHOST.into());
        let backend = HttpBackend::start_at("v1", (address, 0).into()).await;
        let instances = [("cart-0", address, backend.port(), "v1"), ("cart-1", ELSEWHERE, 8080, "v2")];
        Mesh { port: ports::free(), instances, _backend: backend }
    }

    fn entry(&self) -> String {
        let port = self.port;
        let endpoint = |(_, address, own, version): &(&str, IpAddr, u16, &str)| {
            format!(
                "  - {{address: {address}, ports: {{http-{port}: {own}}}, locality: dc1, labels: {{version: {version}}}}}\n"
            )
        };
        let endpoints: String = self.instances.iter().map(endpoint).collect();
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
             hosts: [{HOST}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
             ports: [{{name: http-{port}, number: {port}, protocol: HTTP}}]\n  endpoints:\n{endpoints}---\n{RULES}"
        )
    }

    async fn register_in_consul(&self, consul: &Consul) {
        for (name, address, own, version) in &self.instances {
            let meta = json!({"version": version, "protocol": "http"});
            let service = json!({
                "ID": name, "Service": "cart", "Address": address, "Port": own, "Meta": meta,
            });
            consul.register("outside", &service, "passing").await;
        }
    }

    async fn register_in_eureka(&self, eureka: &Eureka) {
        for (name, address, own, version) in &self.instances {
            let metadata = json!({"version": version, "protocol": "http", "region": "dc1"});
            let (app, id, status) = ("cart".to_owned(), (*name).to_owned(), "UP".to_owned());
            let (address, port) = (address.to_string(), *own);
            eureka.register(&Instance { app, id, address, port, status, metadata }).await;
        }
        eureka.lists("cart-1").await;
    }

    async fn create_in_kubernetes(&self, server: &ApiServer) {
        let port = format!("http-{}", self.port);
        let create = async |collection: &str, object: Value| {
            server.create(collection, &object).await.unwrap_or_else(|e| panic!("{e}"))
        };
        create("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
        let service = json!({
            "metadata": {"name": "cart"},
            "spec": {"selector": {"part-of": "cart"}, "ports": [{"name": port, "port": self.port}]},
        });
        create("/api/v1/namespaces/shop/services", service).await;
        for (name, address, own, version) in &self.instances {
            let labels = json!({"part-of": "cart", "version": version, "istio-locality": "dc1"});
            let pod = json!({
                "metadata": {"name": name, "labels": labels},
                "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app"}]},
            });
            create("/api/v1/namespaces/shop/pods", pod).await;
            let ip = address.to_string();
            let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
            let path = format!("/api/v1/namespaces/shop/pods/{name}/status");
            server.patch(&path, &status).await.unwrap_or_else(|e| panic!("{e}"));
            let target = json!({"kind": "Pod", "name": name, "namespace": "shop"});
            let slice = json!({
                "addressType": "IPv4",
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "cart"}},
                "ports": [{"name": port, "port": own}],
                "endpoints": [{"addresses": [ip], "conditions": {"ready": true}, "targetRef": target}],
            });
            create("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", slice).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_consul_eureka_and_kubernetes_give_the_same_configuration() {
    if servers::without("consul") || servers::without("eureka.jar") {
        return;
    }
    let has_kubernetes = !servers::without("etcd") && !servers::without("kube-apiserver") && own_address().is_some();
    let api_server = async { if has_kubernetes { Some(ApiServer::start().await) } else { None } };
    let (consul, eureka, api_server) = tokio::join!(Consul::start(), Eureka::start(), api_server);
    let mesh = Mesh::start().await;
    mesh.register_in_consul(&consul).await;
    mesh.register_in_eureka(&eureka).await;
    let folder = tempfile::tempdir().unwrap();
    let described = |name: &str, text: String| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        vec![format!("--registryConfig={}", file.display())]
    };
    let (url, port) = (consul.url(), mesh.port);
    let of_consul = format!(
        "- consul: {{addresses: ['{url}'], namespace: shop, host: '{{service}}.shop.mesh', servicePort: {port}}}\n"
    );
    let of_eureka = format!(
        "- eureka: {{addresses: ['{}'], namespace: shop, host: '{{name}}.shop.mesh', interval: 500ms, servicePort: {port}}}\n",
        eureka.url()
    );
    let mut worlds = vec![
        ("files", HOST, Vec::new(), mesh.entry()),
        ("Consul", HOST, described("consul.yaml", format!("registries:\n{of_consul}")), RULES.to_owned()),
        ("Eureka", HOST, described("eureka.yaml", format!("registries:\n{of_eureka}")), RULES.to_owned()),
    ];
    match &api_server {
        Some(server) => {
            mesh.create_in_kubernetes(server).await;
            let kubeconfig = format!("--kubeconfig={}", server.kubeconfig().display());
            let args = vec!["--registries=Kubernetes".to_owned(), kubeconfig];
            worlds.push(("Kubernetes", OWN_HOST, args, RULES.replace(HOST, OWN_HOST)));
        }
        None => println!("without Kubernetes: no API server, or no address that one takes"),
    }

    let mut found = Vec::new();
    for (name, host, args, documents) in &worlds {
        let fixture = MeshFixture::start(args, documents).await;
        fixture.answered_by(host, port, &["v1"]).await;
        found.push((name, configuration(&fixture).await));
    }
    assert!(found[0].1.to_string().contains("outbound|"), "{}", found[0].1);
    for (name, other) in &found[1..] {
        let differences = testkit::difference::differences(&found[0].1, other);
        assert!(differences.is_empty(), "files and {name} differ:\n{differences:#?}");
    }
    println!("the same configuration from {} worlds", found.len());

    // Both registries: one host with endpoints of both, and a problem that says so.
    let both = described("both.yaml", format!("conflicts: {{order: [Eureka]}}\nregistries:\n{of_consul}{of_eureka}"));
    let fixture = MeshFixture::start(&both, RULES).await;
    fixture.answered_by(HOST, port, &["v1"]).await;
    let problems = testkit::client::get(fixture.discovery.http(), "discovery", "/debug/problems").await.unwrap();
    assert!(problems.body.contains("registries Eureka, Consul all have it"), "{}", problems.body);
}
