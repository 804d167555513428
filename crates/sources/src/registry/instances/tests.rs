//! What a table keeps and reports; the sources themselves are tested with real servers.

use model::service::Registry;

use super::mapping::MappingOptions;
use super::{InstanceTable, RegisteredInstance};
use crate::registry::diff::MassLossGuard;

fn table() -> InstanceTable {
    let options = MappingOptions {
        registry: Registry::Adapter { rank: 99, name: "Test" },
        host: "{service}.test".to_owned(),
        namespace: "default".to_owned(),
        service_port: None,
        protocol: String::new(),
        trust_domain: "cluster.local".to_owned(),
        cluster: "c1".into(),
    };
    InstanceTable::new(options, MassLossGuard::default())
}

fn instance(service: &str, address: &str) -> RegisteredInstance {
    let (service, address) = (service.into(), address.to_owned());
    RegisteredInstance { service, address, port: 80, ..RegisteredInstance::default() }
}

fn map(table: &mut InstanceTable) -> Vec<String> {
    for service in std::mem::take(&mut table.changed) {
        table.map_service(service);
    }
    let line = |(name, listing): (&model::names::Str, &super::ServiceListing)| {
        let addresses: Vec<&str> = listing.endpoints.iter().map(|endpoint| endpoint.address()).collect();
        format!("{name}: {}", addresses.join(" "))
    };
    table.listings.iter().map(line).collect()
}

#[test]
fn a_malformed_value_keeps_the_last_valid_one_and_is_reported() {
    let mut table = table();
    table.put("/web/1", Ok(vec![instance("web", "10.0.0.1")]));
    table.put("/web/1", Err("no JSON".to_owned()));
    table.put("/web/2", Err("no JSON".to_owned()));
    assert_eq!(map(&mut table), ["web: 10.0.0.1"]);
    let problems: Vec<String> = table.all_problems().iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("could not use the value of /web/1: no JSON; keeping its last valid value"));
    assert!(problems[1].contains("/web/2: no JSON; the key is ignored"), "{problems:?}");
    table.put("/web/1", Ok(vec![instance("web", "10.0.0.2")]));
    table.remove("/web/2");
    assert_eq!((map(&mut table), table.all_problems().len()), (vec!["web: 10.0.0.2".to_owned()], 0));
}

#[test]
fn keys_that_a_complete_read_does_not_find_are_removed() {
    let mut table = table();
    table.begin_read();
    table.put("/a", Ok(vec![instance("web", "10.0.0.1")]));
    table.put("/b", Ok(vec![instance("web", "10.0.0.2")]));
    table.end_read();
    table.begin_read();
    table.put("/b", Ok(vec![instance("other", "10.0.0.2")]));
    table.end_read();
    assert_eq!(map(&mut table), ["other: 10.0.0.2"]);
}

#[test]
fn keys_beyond_the_limit_are_ignored_and_counted() {
    let mut table = table();
    table.limit = 2;
    for number in 0..5 {
        table.put(&format!("/{number}"), Ok(vec![instance("web", &format!("10.0.0.{number}"))]));
    }
    assert_eq!(map(&mut table), ["web: 10.0.0.0 10.0.0.1"]);
    assert!(table.all_problems()[0].to_string().contains("more than 2 keys: 3 are ignored"));
}

#[test]
fn a_thousand_malformed_values_are_one_short_report() {
    let mut table = table();
    for number in 0..1000 {
        table.put(&format!("/{number}"), Err("no JSON".to_owned()));
    }
    let problems = table.all_problems();
    assert_eq!(problems.len(), 101);
    assert!(problems[100].to_string().contains("900 more keys"));
}

#[test]
fn names_that_are_no_host_names_and_ports_of_two_protocols_are_problems() {
    let mut table = table();
    table.put("/1", Ok(vec![instance("a b", "10.0.0.1")]));
    let http = RegisteredInstance { protocol: "http".to_owned(), ..instance("web", "10.0.0.1") };
    let grpc = RegisteredInstance { protocol: "tri".to_owned(), ..instance("web", "10.0.0.2") };
    table.put("/2", Ok(vec![http, grpc]));
    assert_eq!(map(&mut table), ["web: 10.0.0.1 10.0.0.2"]);
    let problems: Vec<String> = table.all_problems().iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("cannot be used as a host name"), "{problems:?}");
    assert!(problems[1].contains("port 80 is HTTP on one instance and GRPC on another; using HTTP"), "{problems:?}");
}
