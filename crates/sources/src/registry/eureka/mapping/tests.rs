//! Instances in Eureka's JSON, and the services and endpoints that they are mapped to.

use model::service::Resolution;
use serde_json::{Value, json};

use super::super::options::{EurekaOptions, ServicePer};
use super::super::schema::EurekaInstance;
use super::listings;

fn instance(id: &str, more: Value) -> EurekaInstance {
    let mut all = json!({
        "instanceId": id, "hostName": format!("{id}.example.com"), "app": "SHOP_WEB", "ipAddr": "10.0.0.1",
        "status": "UP", "port": {"$": 8080, "@enabled": "true"}, "securePort": {"$": 8443, "@enabled": "false"},
        "vipAddress": "web:8080,www",
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

/// `host ports: endpoints` of every service.
fn shown(options: &EurekaOptions, instances: &[EurekaInstance]) -> Vec<String> {
    let (listed, problems) = listings(instances.iter(), options, &"c1".into());
    assert!(problems.is_empty(), "{problems:?}");
    let line = |listing: &crate::registry::diff::ServiceListing| {
        let ports: Vec<String> =
            listing.service.ports.iter().map(|p| format!("{} {}", p.name, p.protocol.as_str())).collect();
        let endpoints = listing.endpoints.iter().map(|e| format!("{}:{} {:?}", e.address(), e.port, e.health));
        format!("{} {}: {}", listing.service.hostname, ports.join(","), endpoints.collect::<Vec<_>>().join(", "))
    };
    listed.values().map(line).collect()
}

#[test]
fn a_service_is_an_app_or_a_virtual_address_or_a_host() {
    let one = [instance("a", json!({}))];
    let per = |service_per| EurekaOptions { service_per, ..EurekaOptions::default() };
    let rest = "port-8080 UnsupportedProtocol: 10.0.0.1:8080 Healthy";
    assert_eq!(shown(&per(ServicePer::App), &one), [format!("shop-web.eureka {rest}")]);
    assert_eq!(shown(&per(ServicePer::VipAddress), &one), [format!("web.eureka {rest}"), format!("www.eureka {rest}")]);
    assert_eq!(shown(&per(ServicePer::HostName), &one), [format!("a.example.com {rest}")]);
}

#[test]
fn both_ports_and_a_protocol_from_metadata() {
    let both = json!({"securePort": {"$": 8443, "@enabled": true}, "metadata": {"istio.protocol": "http"}});
    let expected = "shop-web.eureka http-8080 HTTP,https-8443 HTTPS: 10.0.0.1:8080 Healthy, 10.0.0.1:8443 Healthy";
    assert_eq!(shown(&EurekaOptions::default(), &[instance("a", both)]), [expected]);
}

#[test]
fn a_status_set_by_an_operator_overrides_that_of_the_instance() {
    for (status, overridden, health) in [
        ("UP", "UNKNOWN", "Healthy"),
        ("UP", "", "Healthy"),
        ("UP", "OUT_OF_SERVICE", "Unhealthy"),
        ("DOWN", "UNKNOWN", "Unhealthy"),
        ("STARTING", "", "Unhealthy"),
        ("DOWN", "UP", "Healthy"),
    ] {
        let one = [instance("a", json!({"status": status, "overriddenStatus": overridden}))];
        let lines = shown(&EurekaOptions::default(), &one);
        assert!(lines[0].ends_with(health), "{status} {overridden}: {lines:?}");
    }
}

#[test]
fn localities_come_from_metadata_then_from_amazon() {
    let amazon = json!({"name": "Amazon", "metadata": {"availability-zone": "eu-west-1a"}});
    let place = |more: Value| {
        let (listed, _) = listings([instance("a", more)].iter(), &EurekaOptions::default(), &"".into());
        listed.values().next().map(|l| l.endpoints[0].locality.to_string()).unwrap()
    };
    assert_eq!(place(json!({"dataCenterInfo": amazon})), "eu-west-1/eu-west-1a");
    assert_eq!(place(json!({"dataCenterInfo": amazon, "metadata": {"zone": "z", "region": "r"}})), "r/z");
    assert_eq!(place(json!({})), "");
}

#[test]
fn one_port_for_all_and_names_instead_of_addresses() {
    let options = EurekaOptions { service_port: Some(80), protocol: "http".into(), ..EurekaOptions::default() };
    let named = instance("b", json!({"ipAddr": ""}));
    let expected = "shop-web.eureka http-80 HTTP: 10.0.0.1:8080 Healthy, b.example.com:8080 Healthy";
    let both = [instance("a", json!({})), named];
    assert_eq!(shown(&options, &both), [expected]);
    let (listed, _) = listings(both.iter(), &options, &"".into());
    assert_eq!(listed.values().next().unwrap().service.resolution, Resolution::Dns);
}

#[test]
fn instances_on_different_ports_share_the_lowest() {
    let on = |id, port| instance(id, json!({"port": {"$": port, "@enabled": "true"}}));
    let expected = "shop-web.eureka port-8080 UnsupportedProtocol: 10.0.0.1:23456 Healthy, 10.0.0.1:8080 Healthy";
    let mut seen = shown(&EurekaOptions::default(), &[on("a", 23456), on("b", 8080)]);
    seen[0] = seen[0]
        .replace("10.0.0.1:8080 Healthy, 10.0.0.1:23456 Healthy", "10.0.0.1:23456 Healthy, 10.0.0.1:8080 Healthy");
    assert_eq!(seen, [expected]);
}
