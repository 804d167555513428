//! A cluster as istioctl sees it: an API server, a node, a pod of the control plane and a pod with a real Envoy. The control
//! plane is ours or istiod.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use model::config::Kind;
use serde_json::{Value, json};
use testkit::certificates::Authority;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::istioctl::Istioctl;
use testkit::istiod::Istiod;
use testkit::kubelet::{Kubelet, NODE, PodProcess};
use testkit::kubernetes::ApiServer;
use testkit::sds::{SdsSecrets, SdsServer};
use testkit::{client, ports, servers, wait};

pub(crate) const SERVER: &str = env!("CARGO_BIN_EXE_pilot-discovery");
pub(crate) const CONTROL_PLANE: &str = "istiod-5c7f8d-x2x7k";
const WEB_ADDRESS: &str = "10.1.0.1";

/// What istiod needs to do the same as our server by default, and for an Envoy without Istio's filters.
const UPSTREAM: [(&str, &str); 4] = [
    ("PILOT_ENABLE_ALPN_FILTER", "false"),
    ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
    ("POD_NAME", CONTROL_PLANE),
    ("POD_NAMESPACE", "istio-system"),
];

/// The control plane that runs in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Ours,
    Istiod,
}

enum Server {
    Ours(DiscoveryProcess),
    Istiod(Istiod),
}

/// Ports of the workload's listeners and of its application: equal in both meshes, so that tables are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WebPorts {
    outbound: u16,
    inbound: u16,
    app: u16,
}

pub(crate) struct Mesh {
    pub(crate) istioctl: Istioctl,
    /// Each free port with a name for it.
    pub(crate) ports: Vec<(u16, &'static str)>,
    server: Server,
    _envoy: Envoy,
    pub(crate) api_server: ApiServer,
    _kubelet: Kubelet,
    _agent: SdsServer,
}

/// Whether a server that these tests need is not available on this machine.
pub(crate) fn is_left_out() -> bool {
    ["etcd", "kube-apiserver", "kubectl", "kubelet", "istioctl", "envoy"].iter().any(|part| servers::without(part))
}

impl WebPorts {
    pub(crate) fn free() -> WebPorts {
        let [outbound, inbound, app] = [(); 3].map(|()| ports::free());
        WebPorts { outbound, inbound, app }
    }

    fn named(self) -> [(u16, &'static str); 3] {
        [(self.outbound, "OUTBOUND"), (self.inbound, "INBOUND"), (self.app, "APP")]
    }
}

impl Server {
    async fn start(peer: Peer, api_server: &ApiServer, secure: SocketAddr, controlz: SocketAddr) -> Server {
        let owned = |env: &[(&str, &str)]| env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let mut args = vec![
            format!("--secureGRPCAddr={secure}"),
            "--ctrlz_address=127.0.0.1".to_owned(),
            format!("--ctrlz_port={}", controlz.port()),
        ];
        match peer {
            Peer::Ours => {
                args.push("--registries=Kubernetes".to_owned());
                args.push(format!("--kubeconfig={}", api_server.kubeconfig().display()));
                let env = owned(&UPSTREAM[2..]);
                let options = DiscoveryOptions { args, env, ..DiscoveryOptions::default() };
                Server::Ours(DiscoveryProcess::start(SERVER, options).await)
            }
            Peer::Istiod => {
                let [mesh, networks] = ["mesh.yaml", "networks.yaml"].map(|name| api_server.folder().join(name));
                fs::write(&mesh, "rootNamespace: istio-system\n").unwrap();
                fs::write(&networks, "networks: {}\n").unwrap();
                let env: Vec<(String, String)> = owned(&UPSTREAM);
                Server::Istiod(Istiod::start_with(api_server, (&mesh, &networks), &env, &args).await)
            }
        }
    }

    fn grpc(&self) -> SocketAddr {
        match self {
            Server::Ours(server) => server.grpc(),
            Server::Istiod(server) => server.grpc(),
        }
    }

    fn http(&self) -> SocketAddr {
        match self {
            Server::Ours(server) => server.http(),
            Server::Istiod(server) => server.http(),
        }
    }

    fn monitoring(&self) -> SocketAddr {
        match self {
            Server::Ours(server) => server.monitoring(),
            Server::Istiod(server) => server.monitoring(),
        }
    }
}

impl Mesh {
    pub(crate) async fn start(peer: Peer, web: WebPorts) -> Mesh {
        let api_server = ApiServer::start().await;
        let kinds = Kind::ALL.iter().filter(|kind| kind.group() != "networking.k8s.io");
        let kinds: Vec<_> =
            kinds.map(|k| (k.group(), k.versions(), k.as_str(), k.plural(), !k.is_cluster_wide())).collect();
        api_server.define(&kinds).await;
        let kubelet = Kubelet::start(&api_server).await;
        for (collection, object) in objects(web) {
            api_server.create(&collection, &object).await.unwrap_or_else(|e| panic!("{object}: {e}"));
        }
        let pods = [
            (CONTROL_PLANE, "istio-system", running("10.1.0.9", &["discovery"])),
            ("web", "shop", running(WEB_ADDRESS, &["app", "istio-proxy"])),
        ];
        for (pod, namespace, status) in pods {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/status");
            api_server.patch(&path, &status).await.unwrap();
        }
        let [secure, controlz] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())));
        let server = Server::start(peer, &api_server, secure, controlz).await;
        let authority = Authority::new();
        let own = authority.workload("spiffe://cluster.local/ns/shop/sa/default");
        let agent = SdsServer::start(SdsSecrets::of_workload(&own, &authority)).await;
        let mut bootstrap = Bootstrap {
            sds_port: Some(agent.port()),
            node_id: format!("sidecar~{WEB_ADDRESS}~web.shop~shop.svc.cluster.local"),
            ..Bootstrap::sidecar(server.grpc().port(), XdsTransport::Delta, "web", "shop", json!({"app": "web"}))
        };
        // Every agent sends it; istiod does not list a client without it.
        bootstrap.metadata["PROXY_CONFIG"] = json!({});
        let mut envoy = Envoy::start(&bootstrap).await;
        envoy.ready().await;
        run_pods(&kubelet, &server, &envoy, secure, controlz);
        let istioctl = Istioctl::new(&api_server);
        let ports = web.named().into_iter();
        let ports = ports.chain([(server.grpc().port(), "XDS"), (agent.port(), "SDS")]).collect();
        let mesh = Mesh { istioctl, ports, server, _envoy: envoy, api_server, _kubelet: kubelet, _agent: agent };
        mesh.in_sync().await;
        mesh
    }

    pub(crate) async fn restart(&mut self) {
        match &mut self.server {
            Server::Ours(server) => server.restart().await,
            Server::Istiod(server) => server.restart().await,
        }
        self.in_sync().await;
    }

    /// Waits until Envoy has accepted everything.
    async fn in_sync(&self) {
        let http = self.server.http();
        wait::until("a proxy in sync", async || {
            let page = client::get(http, "discovery", "/debug/syncz").await?.json();
            let synced = |name: &str| {
                let sent = &page[0][format!("{name}_sent")];
                sent.is_string() && *sent == page[0][format!("{name}_acked")]
            };
            let all = ["cluster", "listener", "route", "endpoint"].into_iter().all(synced);
            if all { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
    }
}

fn run_pods(kubelet: &Kubelet, server: &Server, envoy: &Envoy, secure: SocketAddr, controlz: SocketAddr) {
    let ports = [(8080, server.http()), (15010, server.grpc()), (15012, secure), (15014, server.monitoring())];
    let ports = ports.into_iter().chain([(9876, controlz)]).collect();
    // `bug-report` reads debug pages with this command, on the default port. That of istiod has no flag for the address.
    let command = format!("exec {SERVER} \"$@\" --address={}", server.monitoring());
    let command = ["sh", "-c", &command, "sh"].map(str::to_owned).to_vec();
    let commands = BTreeMap::from([("pilot-discovery".to_owned(), command)]);
    kubelet.run(&format!("istio-system/{CONTROL_PLANE}"), PodProcess { ports, commands });
    let ports = BTreeMap::from([(15000, envoy.admin().address())]);
    kubelet.run("shop/web", PodProcess { ports, commands: BTreeMap::new() });
}

fn objects(web: WebPorts) -> Vec<(String, Value)> {
    let WebPorts { outbound, inbound, app } = web;
    let core = |namespace: &str, plural: &str| format!("/api/v1/namespaces/{namespace}/{plural}");
    let istio = |plural: &str| format!("/apis/networking.istio.io/v1/namespaces/shop/{plural}");
    let mut all: Vec<(String, Value)> = ["istio-system", "shop"]
        .map(|name| ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": name}})))
        .to_vec();
    // No controller creates it here; istioctl asks for a token of it.
    all.push((core("istio-system", "serviceaccounts"), json!({"metadata": {"name": "default"}})));
    let mesh = json!({"mesh": "rootNamespace: istio-system\n", "meshNetworks": "networks: {}\n"});
    all.push((core("istio-system", "configmaps"), json!({"metadata": {"name": "istio"}, "data": mesh})));
    // `bug-report` reads pods by their owners.
    for (namespace, name) in [("istio-system", "istiod"), ("shop", "web")] {
        let (labels, container) = (json!({"app": name}), json!({"name": "any", "image": "any"}));
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        let collection = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets");
        all.push((collection, json!({"metadata": {"name": name}, "spec": spec})));
    }
    let labels = json!({"app": "istiod", "istio": "pilot", "istio.io/rev": "default"});
    all.push((core("istio-system", "pods"), pod(CONTROL_PLANE, "istiod", labels, &["discovery"])));
    let labels = json!({"app": "web", "service.istio.io/canonical-name": "web"});
    all.push((core("shop", "pods"), pod("web", "web", labels, &["app", "istio-proxy"])));
    // An egress listener has the services of its port.
    let port = json!({"name": "http", "port": outbound, "targetPort": 8080});
    let spec = json!({"selector": {"app": "web"}, "ports": [port]});
    all.push((core("shop", "services"), json!({"metadata": {"name": "web"}, "spec": spec})));
    all.push((
        "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices".to_owned(),
        json!({
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [WEB_ADDRESS], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": "web", "namespace": "shop"}}],
        }),
    ));
    let port = |number: u16| json!({"number": number, "protocol": "HTTP", "name": "http"});
    // Free ports, because several of these tests may run on one machine.
    let egress = json!({"port": port(outbound), "bind": "127.0.0.1", "captureMode": "NONE", "hosts": ["./*"]});
    let ingress = json!({"port": port(inbound), "bind": "127.0.0.1", "captureMode": "NONE",
        "defaultEndpoint": format!("127.0.0.1:{app}")});
    all.push((istio("sidecars"), object("Sidecar", "web", json!({"egress": [egress], "ingress": [ingress]}))));
    let route = json!({"route": [{"destination": {"host": "web", "subset": "v1"}}]});
    let rule = json!({"hosts": ["web"], "http": [route]});
    all.push((istio("virtualservices"), object("VirtualService", "web", rule)));
    let subsets = json!([{"name": "v1", "labels": {"app": "web"}}]);
    let rule = json!({"host": "web", "subsets": subsets});
    all.push((istio("destinationrules"), object("DestinationRule", "web", rule)));
    all
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn pod(name: &str, owner: &str, labels: Value, containers: &[&str]) -> Value {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let containers: Vec<Value> = containers
        .iter()
        .map(|name| json!({"name": name, "image": format!("example/{name}:1.0"), "ports": if *name == "app" { ports.clone() } else { json!([]) }}))
        .collect();
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": "1"});
    let metadata = json!({"name": name, "labels": labels, "ownerReferences": [owner]});
    json!({"metadata": metadata, "spec": {"nodeName": NODE, "containers": containers}})
}

fn running(address: &str, containers: &[&str]) -> Value {
    let since = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let container = |name: &&str| json!({"name": name, "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": since});
    json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}],
        "containerStatuses": containers.iter().map(container).collect::<Vec<_>>()}})
}
