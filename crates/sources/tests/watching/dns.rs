//! The DNS registry with a DNS server of these tests.

use hickory_proto::rr::RecordType;
use model::change::SourceId;
use model::names::ServiceKey;
use sources::health::SourceState;
use sources::registry::adapter::SourcePlace;
use sources::registry::diff::MassLossGuard;
use sources::registry::dns::{DnsOptions, DnsRegistry};

use crate::follower::Follower;
use crate::name_server::{NameServer, address, cname, srv};

async fn follow(server: &NameServer, services: &str) -> Follower {
    let address = server.start().await;
    let text = format!("{{servers: ['{address}'], shortest: 50ms, services: [{services}]}}");
    let options: DnsOptions = serde_saphyr::from_str(&text).unwrap();
    let place = SourcePlace { id: SourceId("DNS".into()), cluster: "here".into(), guard: MassLossGuard::default() };
    Follower::synced(DnsRegistry::new(options, place)).await
}

/// Address, port and weight of every endpoint of a host.
fn endpoints(follower: &Follower, host: &str) -> Vec<(String, u32, u32)> {
    let key = ServiceKey { hostname: host.into(), namespace: "default".into() };
    let list = follower.endpoints.get(&key).into_iter().flatten();
    list.map(|e| (e.address().to_string(), e.port, e.weight)).collect()
}

fn expected(list: &[(&str, u32, u32)]) -> Vec<(String, u32, u32)> {
    list.iter().map(|(address, port, weight)| (address.to_string(), *port, *weight)).collect()
}

#[tokio::test]
async fn addresses_of_both_families_are_endpoints_and_follow_the_records() {
    let server = NameServer::default();
    server.set("db.example.", RecordType::A, vec![address("10.0.0.2"), address("10.0.0.1")]);
    server.set("db.example.", RecordType::AAAA, vec![address("fd00::1")]);
    let mut dns = follow(&server, "{host: db.mesh, name: db.example, port: 5432, protocol: TCP}").await;
    let all = [("10.0.0.1", 5432, 0), ("10.0.0.2", 5432, 0), ("fd00::1", 5432, 0)];
    assert_eq!(endpoints(&dns, "db.mesh"), expected(&all));
    server.set("db.example.", RecordType::A, vec![address("10.0.0.3")]);
    server.set("db.example.", RecordType::AAAA, vec![]);
    let changed = expected(&[("10.0.0.3", 5432, 0)]);
    dns.until("the new records", |dns| endpoints(dns, "db.mesh") == changed).await;
}

#[tokio::test]
async fn srv_records_have_ports_and_weights_and_the_lowest_priority_is_used() {
    let server = NameServer::default();
    let records = vec![srv(1, 3, 8081, "a.example."), srv(1, 0, 8082, "b.example."), srv(2, 1, 8083, "c.example.")];
    server.set("_http._tcp.web.example.", RecordType::SRV, records);
    for (name, ip) in [("a.example.", "10.0.0.1"), ("b.example.", "10.0.0.2"), ("c.example.", "10.0.0.3")] {
        server.set(name, RecordType::A, vec![address(ip)]);
    }
    server.edit(|zone| zone.truncates = true);
    let dns = follow(&server, "{host: web.mesh, srv: _http._tcp.web.example, port: 80, protocol: HTTP}").await;
    assert_eq!(endpoints(&dns, "web.mesh"), expected(&[("10.0.0.1", 8081, 3), ("10.0.0.2", 8082, 1)]));
    assert!(server.tcp_queries() >= 5, "truncated responses are retried over TCP");
    let service = dns.services.values().next().unwrap();
    assert_eq!((&*service.ports[0].name, service.ports[0].number), ("http-80", 80));
}

/// A resolver that follows the target of the SRV record as if it were an alias finds no SRV records there.
#[tokio::test]
async fn srv_records_behind_a_cname_are_found() {
    let server = NameServer::default();
    server.set("_http._tcp.web.example.", RecordType::CNAME, vec![cname("_http._tcp.real.example.")]);
    server.set("_http._tcp.real.example.", RecordType::SRV, vec![srv(1, 1, 8081, "a.example.")]);
    server.set("a.example.", RecordType::A, vec![address("10.0.0.1")]);
    let dns = follow(&server, "{host: web.mesh, srv: _http._tcp.web.example, port: 80}").await;
    assert_eq!(endpoints(&dns, "web.mesh"), expected(&[("10.0.0.1", 8081, 1)]));
}

#[tokio::test]
async fn a_failure_keeps_endpoints_and_an_empty_response_removes_them() {
    let server = NameServer::default();
    server.set("db.example.", RecordType::A, vec![address("10.0.0.1")]);
    let mut dns = follow(&server, "{host: db.mesh, name: db.example, port: 5432}").await;
    server.edit(|zone| zone.fails = true);
    dns.until("the failure", |dns| dns.has_problem(&["db.mesh", "keeping the last known endpoints"])).await;
    assert_eq!(endpoints(&dns, "db.mesh").len(), 1);
    assert!(matches!(dns.report().state, SourceState::Stale { .. }), "{:?}", dns.report());

    server.edit(|zone| {
        zone.fails = false;
        zone.records.clear();
    });
    dns.until("the removal", |dns| endpoints(dns, "db.mesh").is_empty()).await;
    assert_eq!(dns.services.len(), 1, "the service itself stays");
    assert!(dns.problems.is_empty(), "{:?}", dns.problems);
}
