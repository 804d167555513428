//! Services, labels, addresses, paths and weights of routes.

use std::collections::BTreeMap;

use model::names::{ClusterId, Str};
use model::problem::Problem;
use model::service::UNSPECIFIED;

use super::listings;
use crate::registry::cloudfoundry::CloudFoundryOptions;
use crate::registry::cloudfoundry::route_table::RouteTable;
use crate::registry::cloudfoundry::rules::rules;
use crate::registry::cloudfoundry::schema::{
    BackendSet, InternalRouteWithBackends, InternalRoutesResponse, RouteBackend, RouteWithBackends, RoutesResponse,
};
use crate::registry::diff::ServiceListing;

fn backends(list: &[(&str, u32)]) -> BackendSet {
    BackendSet {
        backends: list.iter().map(|(a, port)| RouteBackend { address: (*a).to_owned(), port: *port }).collect(),
    }
}

fn route(host: &str, path: &str, process: &str, weight: i32, list: &[(&str, u32)]) -> RouteWithBackends {
    RouteWithBackends {
        hostname: host.to_owned(),
        path: path.to_owned(),
        backends: Some(backends(list)),
        capi_process_guid: process.to_owned(),
        route_weight: weight,
    }
}

fn route_table(routes: Vec<RouteWithBackends>) -> RouteTable {
    RouteTable::new(RoutesResponse { routes, ..RoutesResponse::default() }, InternalRoutesResponse::default())
}

fn internal(host: &str, vip: &str, list: &[(&str, u32)]) -> RouteTable {
    let backends = Some(backends(list));
    let route = InternalRouteWithBackends { hostname: host.to_owned(), vip: vip.to_owned(), backends };
    RouteTable::new(RoutesResponse::default(), InternalRoutesResponse { internal_routes: vec![route] })
}

fn mapped(route_table: &RouteTable) -> (BTreeMap<Str, ServiceListing>, Vec<Problem>) {
    listings(route_table, &CloudFoundryOptions::default(), &ClusterId::from("c1"))
}

/// Specs of the rules by their names.
fn ruled(route_table: &RouteTable, gateways: &[&str]) -> BTreeMap<String, serde_json::Value> {
    let gateways = gateways.iter().map(|g| (*g).to_owned()).collect();
    let (rules, problems) = rules(route_table, &CloudFoundryOptions { gateways, ..CloudFoundryOptions::default() });
    assert_eq!(problems, []);
    rules.into_iter().map(|(key, object)| (key.to_string(), object.spec.to_json())).collect()
}

#[test]
fn a_route_is_an_http_service_with_endpoints_labelled_by_process() {
    let route_table = route_table(vec![
        route("Shop.example.com", "", "guid-a", 0, &[("10.0.0.2", 61002), ("10.0.0.1", 61001)]),
        route("shop.example.com", "/cart", "guid-b", 0, &[("10.0.0.3", 61003)]),
    ]);
    let (listed, problems) = mapped(&route_table);
    assert_eq!(problems, []);
    let ServiceListing { service, endpoints } = &listed["route shop.example.com"];
    assert_eq!((&*service.hostname, &*service.address), ("shop.example.com", UNSPECIFIED));
    let port = &service.ports[0];
    assert_eq!((&*port.name, port.number, port.protocol.as_str()), ("http", 8080, "HTTP"));
    let found: Vec<_> = endpoints.iter().map(|e| (e.address(), e.port, e.labels.get("cfapp").map(|v| &**v))).collect();
    let expected = [("10.0.0.1", 61001, "guid-a"), ("10.0.0.2", 61002, "guid-a"), ("10.0.0.3", 61003, "guid-b")];
    assert_eq!(found, expected.map(|(address, port, process)| (address, port, Some(process))));
}

#[test]
fn an_internal_route_is_a_tcp_service_at_its_address() {
    let (listed, problems) = mapped(&internal("cart.apps.internal", "127.128.0.7", &[("10.255.0.1", 8080)]));
    assert_eq!(problems, []);
    let ServiceListing { service, endpoints } = &listed["internal route cart.apps.internal"];
    assert_eq!((&*service.address, service.ports[0].protocol.as_str()), ("127.128.0.7", "TCP"));
    assert_eq!((endpoints[0].address(), endpoints[0].port), ("10.255.0.1", 8080));
    let (listed, problems) = mapped(&internal("cart.apps.internal", "nowhere", &[]));
    assert_eq!(&*listed["internal route cart.apps.internal"].service.address, UNSPECIFIED);
    assert!(problems[0].message.contains("nowhere"), "{problems:?}");
}

#[test]
fn routes_of_the_first_copilot_have_hosts_and_backends_alone() {
    let of_host = BTreeMap::from([("old.example.com".to_owned(), backends(&[("10.0.0.1", 61001)]))]);
    let routes = RoutesResponse { backends: of_host, routes: Vec::new() };
    let route_table = RouteTable::new(routes, InternalRoutesResponse::default());
    let (listed, problems) = mapped(&route_table);
    assert_eq!((listed["route old.example.com"].endpoints.len(), problems.len()), (1, 0));
    assert!(listed["route old.example.com"].endpoints[0].labels.is_empty());
    assert_eq!(ruled(&route_table, &[]).len(), 0);
    assert_eq!(ruled(&route_table, &["istio-system/edge"]).len(), 2, "a gateway needs rules");
}

#[test]
fn unusable_backends_and_routes_are_reported_and_the_rest_is_used() {
    let route_table = route_table(vec![
        route("a b.example.com", "", "guid-a", 0, &[("10.0.0.1", 61001)]),
        route(
            "web.example.com",
            "",
            "guid-b",
            0,
            &[("", 61001), ("10.0.0.1", 0), ("10.0.0.1", 70000), ("10.0.0.2", 1)],
        ),
    ]);
    let (listed, problems) = mapped(&route_table);
    assert_eq!(listed.keys().map(|name| &**name).collect::<Vec<_>>(), ["route web.example.com"]);
    assert_eq!(listed["route web.example.com"].endpoints.len(), 1);
    let about: Vec<String> = problems.iter().map(|p| p.about.to_string()).collect();
    assert_eq!(
        about,
        ["route a b.example.com", "route web.example.com", "route web.example.com", "route web.example.com"]
    );
}

#[test]
fn a_host_of_one_process_needs_no_rules() {
    let plain = route_table(vec![route("a.example.com", "", "guid-a", 100, &[("10.0.0.1", 61001)])]);
    assert_eq!(ruled(&plain, &[]).len(), 0);
    let alike = route_table(vec![route("a.example.com", "/", "x", 0, &[]), route("a.example.com", "", "y", 0, &[])]);
    assert_eq!(ruled(&alike, &[]).len(), 0, "without weights every instance counts the same");
}

#[test]
fn paths_and_weights_become_rules() {
    let route_table = route_table(vec![
        route("a.example.com", "", "guid-x", 75, &[("10.0.0.1", 61001)]),
        route("a.example.com", "", "guid-y", 25, &[("10.0.0.2", 61001)]),
        route("a.example.com", "/api", "guid-x", 100, &[("10.0.0.1", 61001)]),
        route("a.example.com", "/api/v2/", "guid-z", 0, &[("10.0.0.3", 61001), ("10.0.0.4", 61001)]),
        route("a.example.com", "/api/v2", "guid-y", 0, &[("10.0.0.2", 61001)]),
    ]);
    let ruled = ruled(&route_table, &["istio-system/edge"]);
    let to = |subset: &str, weight: Option<u32>| {
        let mut it =
            serde_json::json!({"destination": {"host": "a.example.com", "subset": subset, "port": {"number": 8080}}});
        if let Some(weight) = weight {
            it["weight"] = weight.into();
        }
        it
    };
    let at = |path: &str| serde_json::json!([{"uri": {"exact": path}}, {"uri": {"prefix": format!("{path}/")}}]);
    assert_eq!(
        ruled["VirtualService default/virtual-service-for-a.example.com"],
        serde_json::json!({
            "hosts": ["a.example.com"],
            "gateways": ["istio-system/edge", "mesh"],
            "http": [
                {"match": at("/api/v2"), "route": [to("guid-y", Some(1)), to("guid-z", Some(2))]},
                {"match": at("/api"), "route": [to("guid-x", None)]},
                {"route": [to("guid-x", Some(75)), to("guid-y", Some(25))]},
            ],
        })
    );
    let subsets =
        ["guid-x", "guid-y", "guid-z"].map(|name| serde_json::json!({"name": name, "labels": {"cfapp": name}}));
    assert_eq!(
        ruled["DestinationRule default/dest-rule-for-a.example.com"],
        serde_json::json!({"host": "a.example.com", "subsets": subsets})
    );
}

#[test]
fn a_process_without_a_valid_subset_name_is_reported() {
    let route_table = route_table(vec![route("a.example.com", "/x", "guid x", 0, &[("10.0.0.1", 61001)])]);
    let (rules, problems) = rules(&route_table, &CloudFoundryOptions::default());
    assert_eq!((rules.len(), problems.len()), (0, 1));
    assert!(problems[0].message.contains("could not map its paths"), "{problems:?}");
}
