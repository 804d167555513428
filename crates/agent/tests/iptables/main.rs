//! Transparent capture in temporary network namespaces: a pod with pilot-agent, its Envoy and the rules of
//! istio-iptables, and the outside world with pilot-discovery and backends. Each namespace lives as long as its thread.
//!
//! A single test, because all processes are started inside the namespace of the outside world.

mod consul_services;
mod namespace;
mod pod;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use testkit::backend::HttpBackend;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, ports, programs, servers, wait};

use crate::consul_services::ConsulServices;

use crate::namespace::Namespace;
use crate::pod::Pod;

/// Address of the outside world on the link to the pod.
const WORLD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of the pod.
const POD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// A service address that no machine has: only Envoy can route it.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

/// The flags of a pod's init container, with DNS capture.
const FLAGS: &str = "-p 15001 -z 15006 -u 1337 -g 1337 -m REDIRECT -i * -b * -d 15090,15021,15020 --redirect-dns \
                     --capture-all-dns";

const HOST: &str = "cart.shop.svc.cluster.local";

fn documents(backends: &[(&str, &HttpBackend)], app: u16) -> String {
    let endpoint = |(version, backend): &(&str, &HttpBackend)| {
        let port = backend.port();
        format!("  - {{address: {WORLD}, ports: {{http: {port}}}, labels: {{version: {version}}}}}\n")
    };
    let endpoints: String = backends.iter().map(endpoint).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  hosts: [{HOST}]\n  addresses: [{SERVICE}]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints:\n{endpoints}---\n\
         apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  host: {HOST}\n  subsets:\n  - {{name: v1, labels: {{version: v1}}}}\n  \
         - {{name: v2, labels: {{version: v2}}}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: app, namespace: shop}}\n\
         spec:\n  hosts: [app.shop.svc.cluster.local]\n  addresses: [10.96.0.11]\n  location: MESH_INTERNAL\n  \
         resolution: STATIC\n  ports: [{{name: http, number: {app}, protocol: HTTP}}]\n  \
         endpoints: [{{address: {POD}}}]\n"
    )
}

fn route(subset: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: cart, namespace: shop}}\n\
         spec:\n  hosts: [{HOST}]\n  http:\n  - route: [{{destination: {{host: {HOST}, subset: {subset}}}}}]\n"
    )
}

#[test]
fn traffic_of_a_pod_goes_through_envoy() {
    if servers::without("envoy") || servers::without("iptables") {
        return;
    }
    Namespace::new("the world").enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(in_the_world());
    });
}

async fn in_the_world() {
    let pod = Pod::new();
    let listening = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let (v1, v2) = (HttpBackend::start_at("v1", listening).await, HttpBackend::start_at("v2", listening).await);
    let app = pod.app();
    let files = vec![
        ("mesh.yaml".to_owned(), documents(&[("v1", &v1), ("v2", &v2)], app)),
        ("route.yaml".to_owned(), route("v2")),
    ];
    let grpc = SocketAddr::from((WORLD, ports::free()));
    let mesh = "enableAutoMtls: false\n".to_owned();
    let consul = ConsulServices::start().await;
    let mut args = vec![format!("--grpcAddr={grpc}")];
    args.extend(consul.iter().map(ConsulServices::flag));
    let setup = DiscoveryOptions { files, mesh, args, ..DiscoveryOptions::default() };
    let binary = programs::binary("discovery", "pilot-discovery");
    let mut discovery = DiscoveryProcess::start(&binary.to_string_lossy(), setup).await;

    let uncaptured = pod.get((SERVICE, 80).into(), HOST).await;
    assert!(uncaptured.is_err(), "unexpected response without capture: {uncaptured:?}");
    pod.iptables(FLAGS);
    let saved = pod.saved_rules("iptables-save");
    assert!(saved.contains("-A OUTPUT -j ISTIO_OUTPUT"), "{saved}");
    pod.iptables(FLAGS);
    assert_eq!(pod.saved_rules("iptables-save"), saved, "a second run changes nothing");

    // As in a real pod, rules come first: conntrack would treat an older connection as inbound.
    pod.start_agent(grpc).await;
    outbound_follows_the_route(&pod, &discovery).await;
    inbound_goes_through_envoy(app).await;
    mesh_names_are_resolved(&pod).await;
    an_egress_rule_opens_the_way_out(&pod, &discovery).await;
    if let Some(consul) = &consul {
        consul.are_reached_by_name(&pod, &mut discovery).await;
    }

    pod.iptables(&format!("{FLAGS} --cleanup-only"));
    assert!(!pod.saved_rules("iptables-save").contains("ISTIO"));
    kernel_accepts_every_kind_of_rule(&pod);

    pod.iptables("-b * -i * -m TPROXY --redirect-dns --capture-all-dns --dual-stack");
    pod.iptables("--cleanup-only");
    for tool in ["iptables-save", "ip6tables-save"] {
        assert!(!pod.saved_rules(tool).contains("ISTIO"), "chains are removed whatever flags created them");
    }
}

async fn outbound_follows_the_route(pod: &Pod, discovery: &DiscoveryProcess) {
    let answered_by = async |name: &str| {
        wait::until(&format!("an answer of {name}"), async || {
            let reply = pod.get((SERVICE, 80).into(), HOST).await?;
            if reply.contains(&format!("x-backend: {name}")) { Ok(reply) } else { Err(reply) }
        })
        .await
    };
    let reply = answered_by("v2").await;
    assert!(reply.contains("server: envoy") || reply.contains("x-envoy-upstream-service-time"), "{reply}");
    discovery.write("route.yaml", &route("v1"));
    answered_by("v1").await;
    let fault = "  http:\n  - directResponse: {status: 418}\n";
    let document = route("v1");
    let (head, _) = document.split_once("  http:").expect("a route");
    discovery.write("route.yaml", &format!("{head}{fault}"));
    wait::until("the rule", async || match pod.get((SERVICE, 80).into(), HOST).await? {
        reply if reply.starts_with("HTTP/1.1 418") => Ok(()),
        reply => Err(reply),
    })
    .await;
}

/// A request from outside to the application's port goes through Envoy.
async fn inbound_goes_through_envoy(app: u16) {
    wait::until("an answer through Envoy", async || {
        let reply = client::get((POD, app).into(), "app.shop.svc.cluster.local", "/").await?;
        let passed = reply.backend() == "app" && !reply.header("x-envoy-upstream-service-time").is_empty();
        if passed { Ok(()) } else { Err(format!("{reply:?}")) }
    })
    .await;
}

/// Calls to hosts outside of the mesh are refused, except to those of an EgressRule.
async fn an_egress_rule_opens_the_way_out(pod: &Pod, discovery: &DiscoveryProcess) {
    let outside = HttpBackend::start_at("outside", (Ipv4Addr::UNSPECIFIED, 0).into()).await;
    let answered = async |host: &str| {
        let reply = pod.get((WORLD, outside.port()).into(), host).await;
        reply.is_ok_and(|reply| reply.contains("x-backend: outside"))
    };
    let until = async |host: &str, expected: bool| {
        wait::until(&format!("{host} answered: {expected}"), async || match answered(host).await == expected {
            true => Ok(()),
            false => Err("not yet".to_owned()),
        })
        .await;
    };
    until("pay.example.com", true).await;
    discovery.write(
        "closed.yaml",
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: shop}\n\
         spec: {egress: [{hosts: ['*/*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}\n",
    );
    until("pay.example.com", false).await;
    let rule = format!(
        "apiVersion: config.istio.io/v1alpha2\nkind: EgressRule\nmetadata: {{name: pay, namespace: shop}}\n\
         spec: {{destination: {{service: '*.example.com'}}, ports: [{{port: {}, protocol: http}}]}}\n",
        outside.port()
    );
    discovery.write("egress.yaml", &rule);
    until("pay.example.com", true).await;
    assert!(!answered("example.org").await, "a host that the rule does not name");
    discovery.remove("egress.yaml");
    until("pay.example.com", false).await;
    discovery.remove("closed.yaml");
    until("pay.example.com", true).await;
}

/// The agent answers a query to a server that does not exist.
async fn mesh_names_are_resolved(pod: &Pod) {
    wait::until("an answer of the agent", async || {
        match pod.resolve((WORLD, 53).into(), &format!("{HOST}.")).await? {
            found if found == [IpAddr::V4(SERVICE)] => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
}

fn kernel_accepts_every_kind_of_rule(pod: &Pod) {
    for flags in [
        "-b * -i * -m TPROXY -d 22",
        "-b 80,443 -m TPROXY -c eth9 --drop-invalid",
        "-b 80,443 -i 10.0.0.0/8,fd01::/16 -x 10.9.0.0/16 -o 9000 -q 90 -k tap0 --dual-stack",
        "-b * -i * --redirect-dns --capture-all-dns --dual-stack",
        "-b * -i * -m TPROXY --redirect-dns --capture-all-dns --dual-stack",
    ] {
        pod.iptables(flags);
        let tools =
            if flags.contains("dual-stack") { &["iptables-save", "ip6tables-save"][..] } else { &["iptables-save"] };
        for tool in tools {
            assert!(pod.saved_rules(tool).contains("ISTIO_OUTPUT"), "{flags}: {}", pod.saved_rules(tool));
        }
        // Reconciling replaces whatever was installed.
        pod.iptables(&format!("{flags} -d 7 --reconcile"));
        pod.iptables(&format!("{flags} -d 7 --cleanup-only"));
        for tool in tools {
            assert!(!pod.saved_rules(tool).contains("ISTIO"), "{flags}: {}", pod.saved_rules(tool));
            assert!(!pod.saved_rules(tool).contains("DROP\n"), "guardrails stayed: {}", pod.saved_rules(tool));
        }
    }
}
