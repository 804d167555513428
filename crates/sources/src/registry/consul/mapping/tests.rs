//! Instances in Consul's JSON, and the services and endpoints that they are mapped to.

use model::endpoint::Endpoint;
use model::service::Resolution;
use serde_json::{Value, json};

use super::super::options::{ConsulOptions, Profile};
use super::listing;
use crate::registry::diff::ServiceListing;

fn listed(options: &ConsulOptions, instances: Value) -> ServiceListing {
    let (listing, problem) = listing("web", serde_json::from_value(instances).unwrap(), options, &"c1".into());
    assert_eq!(problem, None);
    listing.expect("a listing")
}

fn compat() -> ConsulOptions {
    ConsulOptions { profile: Profile::Compat, ..ConsulOptions::default() }
}

fn ports(listing: &ServiceListing) -> Vec<String> {
    listing.service.ports.iter().map(|p| format!("{} {} {}", p.name, p.number, p.protocol.as_str())).collect()
}

fn lines(listing: &ServiceListing) -> Vec<String> {
    let line = |e: &Endpoint| format!("{}@{}:{} {:?} {}", e.service_port, e.address(), e.port, e.health, e.weight);
    listing.endpoints.iter().map(line).collect()
}

fn instance(id: &str, port: u16, more: Value) -> Value {
    let mut service = json!({
        "ID": id, "Service": "web", "Tags": null, "Address": "", "Meta": null, "Port": port, "Kind": "",
        "Weights": {"Passing": 1, "Warning": 1},
    });
    let checks = more.get("Checks").cloned().unwrap_or(json!([{"CheckID": "serfHealth", "Status": "passing"}]));
    service.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "Node": {"Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1", "TaggedAddresses": null, "Meta": null},
        "Service": service,
        "Checks": checks,
    })
}

#[test]
fn old_mapping_names_ports_after_their_protocol_and_reads_pipe_tags() {
    let tags = json!({"Tags": ["version|v1", "k=v", "plain"], "Meta": {"protocol": "http", "x": "y"}});
    let seen = listed(&compat(), json!([instance("web-1", 8080, tags), instance("web-2", 9090, json!({}))]));
    assert_eq!(seen.service.hostname, "web.service.consul");
    assert_eq!(ports(&seen), ["http 8080 HTTP", "tcp 9090 TCP"]);
    let first = &seen.endpoints[0];
    assert_eq!(first.labels.get("version").map(|v| &**v), Some("v1"));
    assert_eq!((first.labels.get("k"), first.labels.get("x")), (None, None));
    assert_eq!(first.locality.to_string(), "dc1");
    assert_eq!(&*first.service_account, "spiffe://cluster.local/ns/default/sa/default");
}

#[test]
fn standard_mapping_reads_metadata_localities_and_weights() {
    let more = json!({
        "Tags": ["tier=gold"], "Meta": {"istio.protocol": "grpc", "service-account": "web", "namespace": "shop"},
        "Address": "10.9.9.9", "Weights": {"Passing": 7, "Warning": 2}, "Locality": {"Region": "eu", "Zone": "a"},
    });
    let seen = listed(&ConsulOptions::default(), json!([instance("web-1", 8080, more)]));
    assert_eq!(ports(&seen), ["grpc-8080 8080 GRPC"]);
    assert_eq!(lines(&seen), ["grpc-8080@10.9.9.9:8080 Healthy 7"]);
    let endpoint = &seen.endpoints[0];
    assert_eq!(endpoint.locality.to_string(), "eu/a");
    assert_eq!(&*endpoint.service_account, "spiffe://cluster.local/ns/shop/sa/web");
    let labels: Vec<String> = endpoint.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let expected = [
        "istio.protocol=grpc",
        "namespace=shop",
        "service-account=web",
        "tier=gold",
        "topology.istio.io/cluster=c1",
        "topology.kubernetes.io/region=eu",
        "topology.kubernetes.io/zone=a",
    ];
    assert_eq!(labels, expected);
}

#[test]
fn checks_of_node_and_instance_decide_with_maintenance_first() {
    let check = |id: &str, status: &str| json!({"CheckID": id, "Status": status});
    let with =
        |checks: Value| instance("web-1", 80, json!({"Checks": checks, "Weights": {"Passing": 5, "Warning": 2}}));
    for (checks, strict, lenient) in [
        (json!([]), "Healthy 5", "Healthy 5"),
        (json!([check("serfHealth", "passing"), check("web", "passing")]), "Healthy 5", "Healthy 5"),
        (json!([check("serfHealth", "passing"), check("web", "warning")]), "Unhealthy 0", "Healthy 2"),
        (json!([check("serfHealth", "critical"), check("web", "passing")]), "Unhealthy 0", "Unhealthy 0"),
        (json!([check("_service_maintenance:web-1", "critical")]), "Unhealthy 0", "Unhealthy 0"),
        (json!([check("_node_maintenance", "passing")]), "Unhealthy 0", "Unhealthy 0"),
    ] {
        for (warning_serves, expected) in [(false, strict), (true, lenient)] {
            let options = ConsulOptions { warning_serves, ..ConsulOptions::default() };
            let seen = listed(&options, json!([with(checks.clone())]));
            assert_eq!(lines(&seen), [format!("port-80@10.0.0.1:80 {expected}")], "{checks}");
        }
    }
}

#[test]
fn one_port_for_all_instances_keeps_their_own_as_targets() {
    let options = ConsulOptions { service_port: Some(80), protocol: "http".into(), ..ConsulOptions::default() };
    let seen = listed(&options, json!([instance("a", 20001, json!({})), instance("b", 20002, json!({}))]));
    assert_eq!(ports(&seen), ["http-80 80 HTTP"]);
    assert_eq!(lines(&seen), ["http-80@10.0.0.1:20001 Healthy 0", "http-80@10.0.0.1:20002 Healthy 0"]);
}

#[test]
fn named_ports_of_one_instance_are_ports_of_the_service() {
    let more = json!({"Ports": [{"Name": "http-web", "Port": 80}, {"Name": "admin", "Port": 81}]});
    let seen = listed(&ConsulOptions::default(), json!([instance("a", 0, more)]));
    assert_eq!(ports(&seen), ["http-web 80 HTTP", "admin 81 UnsupportedProtocol"]);
}

#[test]
fn tagged_addresses_and_names_are_used() {
    let more =
        json!({"TaggedAddresses": {"wan": {"Address": "web.example.com", "Port": 443}}, "Meta": {"external": "1"}});
    let options = ConsulOptions { tagged_address: "wan".into(), ..ConsulOptions::default() };
    let seen = listed(&options, json!([instance("a", 80, more)]));
    assert_eq!(lines(&seen), ["port-443@web.example.com:443 Healthy 0"]);
    assert_eq!((seen.service.resolution, seen.service.mesh_external), (Resolution::Dns, true));
}

#[test]
fn proxies_and_untagged_instances_are_left_out() {
    let proxy = instance("p", 80, json!({"Kind": "connect-proxy"}));
    let of = |options: &ConsulOptions| {
        listing("web", serde_json::from_value(json!([proxy.clone()])).unwrap(), options, &"".into()).0.is_some()
    };
    assert!(!of(&ConsulOptions::default()));
    assert!(of(&ConsulOptions { proxies: true, ..ConsulOptions::default() }));
    assert!(!of(&ConsulOptions { proxies: true, tag: "mesh".into(), ..ConsulOptions::default() }));
}

#[test]
fn contradictions_and_impossible_names_are_reported() {
    let http = instance("a", 80, json!({"Meta": {"protocol": "http"}}));
    let tcp = instance("b", 80, json!({"Meta": {"protocol": "tcp"}}));
    let instances = serde_json::from_value(json!([http, tcp])).unwrap();
    let (seen, problem) = listing("web", instances, &ConsulOptions::default(), &"".into());
    assert_eq!(ports(&seen.unwrap()), ["http-80 80 HTTP"]);
    assert!(problem.unwrap().message.contains("port 80 is HTTP on one instance and TCP on another"));
    let instances = serde_json::from_value(json!([instance("a", 80, json!({}))])).unwrap();
    let (seen, problem) = listing("no such host", instances, &ConsulOptions::default(), &"".into());
    assert!(seen.is_none() && problem.unwrap().message.contains("cannot be used as a host name"));
}

#[test]
fn instances_on_different_ports_share_the_lowest_by_protocol() {
    let http = |id, port| instance(id, port, json!({"Meta": {"protocol": "http"}}));
    let grpc = instance("web-3", 9090, json!({"Meta": {"protocol": "grpc"}}));
    let seen = listed(&ConsulOptions::default(), json!([http("web-1", 23456), http("web-2", 8080), grpc]));
    assert_eq!(ports(&seen), ["http-8080 8080 HTTP", "grpc-9090 9090 GRPC"]);
    let of = ["http-8080@10.0.0.1:23456", "http-8080@10.0.0.1:8080", "grpc-9090@10.0.0.1:9090"];
    let lines = lines(&seen);
    assert!(of.iter().all(|expected| lines.iter().any(|line| line.starts_with(expected))), "{lines:?}");
}
