//! The sources of the mesh under test: files, a real API server, a real Consul and a Copilot. Each has a few services whose
//! endpoints tests replace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::consul::Consul;
use crate::copilot::{Copilot, CopilotRoute};
use crate::faulty::FaultyProxy;
use crate::fleet::mesh::{metadata, namespace_object};
use crate::kubernetes::{ApiServer, CrdSpec};
use crate::servers;

/// Services of each source.
pub(super) const SERVICES: usize = 2;
/// Namespace of the services in the API server.
const NAMESPACE: &str = "ns0";
const KINDS: &[CrdSpec<'static>] = &[
    ("networking.istio.io", &["v1", "v1beta1", "v1alpha3"], "VirtualService", "virtualservices", true),
    ("networking.istio.io", &["v1", "v1beta1", "v1alpha3"], "Gateway", "gateways", true),
];
/// A service that only its namespace may see.
pub(super) const PRIVATE_HOST: &str = "private-4711.ns0.internal";
/// Namespace of the gateway's certificate, and its name.
pub(super) const GATEWAY: (&str, &str) = ("ns6", "gateway-certificate");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SourceKind {
    Files,
    Kubernetes,
    Consul,
    Copilot,
}

impl SourceKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            SourceKind::Files => "files",
            SourceKind::Kubernetes => "kubernetes",
            SourceKind::Consul => "consul",
            SourceKind::Copilot => "copilot",
        }
    }

    fn host(self, service: usize) -> String {
        match self {
            SourceKind::Files => format!("f{service}.files.svc.cluster.local"),
            SourceKind::Kubernetes => format!("k{service}.{NAMESPACE}.svc.cluster.local"),
            SourceKind::Consul => format!("c{service}.service.consul"),
            SourceKind::Copilot => format!("cf{service}.example.com"),
        }
    }

    /// The cluster that leads to a service.
    pub(super) fn cluster(self, service: usize) -> String {
        format!("outbound|80||{}", self.host(service))
    }
}

pub(super) struct MeshSources {
    folder: TempDir,
    pub(super) kubernetes: Option<KubernetesSource>,
    pub(super) consul: Option<Consul>,
    pub(super) copilot: Copilot,
}

pub(super) struct KubernetesSource {
    pub(super) server: ApiServer,
    pub(super) faulty: FaultyProxy,
    /// The key of the gateway's certificate, in PEM.
    pub(super) key: String,
}

impl KubernetesSource {
    /// Defines the kinds again.
    pub(super) async fn define(&self) {
        self.server.define_missing(KINDS).await;
    }
}

impl MeshSources {
    /// Starts the sources whose servers this machine has.
    pub(super) async fn start() -> MeshSources {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        fs::create_dir(folder.path().join("config")).unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let has_kubernetes = !servers::without("kube-apiserver") && !servers::without("etcd");
        let kubernetes = async { if has_kubernetes { Some(start_kubernetes().await) } else { None } };
        let consul = async { if servers::without("consul") { None } else { Some(Consul::start().await) } };
        let (kubernetes, consul, copilot) = tokio::join!(kubernetes, consul, Copilot::start());
        let sources = MeshSources { folder, kubernetes, consul, copilot };
        sources.write("static.yaml", &static_objects());
        sources
    }

    /// The sources that this machine has.
    pub(super) fn kinds(&self) -> Vec<SourceKind> {
        let optional = [
            self.kubernetes.is_some().then_some(SourceKind::Kubernetes),
            self.consul.is_some().then_some(SourceKind::Consul),
        ];
        [SourceKind::Files, SourceKind::Copilot].into_iter().chain(optional.into_iter().flatten()).collect()
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file of the watched folder atomically.
    pub(super) fn write(&self, name: &str, text: &str) {
        let part = self.folder.path().join(format!("part-{name}"));
        let moved = fs::write(&part, text).and_then(|()| fs::rename(&part, self.config().join(name)));
        moved.unwrap_or_else(|e| panic!("could not write {name}: {e}"));
    }

    pub(super) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.config().join(name));
    }

    /// The states through which a service gets from its endpoints to others: one, or several where a source cannot change
    /// them at once.
    pub(super) fn steps(kind: SourceKind, from: &BTreeSet<String>, to: &BTreeSet<String>) -> Vec<BTreeSet<String>> {
        if kind != SourceKind::Consul {
            return vec![to.clone()];
        }
        let mut now = from.clone();
        let mut steps = Vec::new();
        for address in to.difference(from) {
            now.insert(address.clone());
            steps.push(now.clone());
        }
        for address in from.difference(to) {
            now.remove(address);
            steps.push(now.clone());
        }
        steps
    }

    /// Makes one step: the service has these endpoints now instead of those.
    pub(super) async fn set(&self, kind: SourceKind, service: usize, from: &BTreeSet<String>, to: &BTreeSet<String>) {
        match kind {
            SourceKind::Files if to.is_empty() => self.remove(&format!("f{service}.yaml")),
            SourceKind::Files => self.write(&format!("f{service}.yaml"), &service_entry(service, to)),
            SourceKind::Kubernetes => {
                if let Some(kubernetes) = &self.kubernetes {
                    kubernetes.server.put(&[slice(service, to)]).await;
                }
            }
            SourceKind::Consul => {
                let Some(consul) = &self.consul else { return };
                for address in to.difference(from) {
                    consul.register("node", &instance(service, address), "passing").await;
                }
                for address in from.difference(to) {
                    consul.deregister("node", &format!("c{service}-{address}")).await;
                }
            }
            SourceKind::Copilot => {
                let host = kind.host(service);
                let backends = to.iter().map(|address| (address.clone(), 8080));
                let route = CopilotRoute::new(&host, &host, backends);
                self.copilot.edit(|state| {
                    state.routes.retain(|known| known.hostname != host);
                    if !to.is_empty() {
                        state.routes.push(route);
                    }
                });
            }
        }
    }

    /// Marks an instance in Consul as failing: its endpoint gets no requests any more.
    pub(super) async fn fail_instance(&self, service: usize, address: &str) {
        if let Some(consul) = &self.consul {
            consul.register("node", &instance(service, address), "critical").await;
        }
    }
}

async fn start_kubernetes() -> KubernetesSource {
    let server = ApiServer::start().await;
    server.define(KINDS).await;
    let own = Authority::new().host("shop.example.com");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": GATEWAY.1, "namespace": GATEWAY.0},
        "stringData": {"tls.crt": own.chain, "tls.key": own.key}});
    let namespaces = [0, 6].map(namespace_object);
    server.put(&namespaces).await;
    let created = server.create(&format!("/api/v1/namespaces/{}/secrets", GATEWAY.0), &secret).await;
    created.unwrap_or_else(|e| panic!("could not create the Secret: {e}"));
    server.put(&(0..SERVICES).map(service_object).collect::<Vec<_>>()).await;
    let faulty = server.faulty().await;
    KubernetesSource { server, faulty, key: own.key }
}

/// A service that only its namespace may see, and a gateway with a certificate.
fn static_objects() -> String {
    let (namespace, certificate) = GATEWAY;
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: private, namespace: ns0}}\nspec:\n  \
         hosts: [{PRIVATE_HOST}]\n  exportTo: [\".\"]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints: [{{address: 10.7.7.7}}]\n---\n\
         apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: {namespace}}}\nspec:\n  \
         selector: {{app: gateway}}\n  servers:\n  - port: {{name: https, number: 443, protocol: HTTPS}}\n    \
         hosts: [shop.example.com]\n    tls: {{mode: SIMPLE, credentialName: {certificate}}}\n"
    )
}

fn service_entry(service: usize, endpoints: &BTreeSet<String>) -> String {
    let endpoints: Vec<String> = endpoints.iter().map(|address| format!("{{address: {address}}}")).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: f{service}, namespace: files}}\n\
         spec:\n  hosts: [{}]\n  addresses: [10.97.0.{}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, targetPort: 8080, protocol: HTTP}}]\n  endpoints: [{}]\n",
        SourceKind::Files.host(service),
        service + 1,
        endpoints.join(", ")
    )
}

fn service_object(service: usize) -> (String, Value) {
    let (name, address) = (format!("k{service}"), format!("10.96.9.{}", service + 1));
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(Some(NAMESPACE), &name),
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "selector": {"app": name},
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None", "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]},
        "status": {"loadBalancer": {}}});
    (format!("services/specs/{NAMESPACE}/{name}"), object)
}

fn slice(service: usize, endpoints: &BTreeSet<String>) -> (String, Value) {
    let name = format!("k{service}-1");
    let endpoint = |address: &String| json!({"addresses": [address], "conditions": {"ready": true}});
    let mut object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": metadata(Some(NAMESPACE), &name),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()});
    object["metadata"]["labels"] = json!({"kubernetes.io/service-name": format!("k{service}")});
    (format!("endpointslices/{NAMESPACE}/{name}"), object)
}

fn instance(service: usize, address: &str) -> Value {
    json!({"ID": format!("c{service}-{address}"), "Service": format!("c{service}"), "Address": address, "Port": 80,
        "Meta": {"protocol": "http"}})
}
