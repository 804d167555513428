//! The DNS registry against a small server of this test's own.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use model::change::SourceId;
use model::names::ServiceKey;
use sources::health::State;
use sources::registry::config::{Adapter, Config};
use sources::registry::dns::Dns;
use sources::registry::ledger::Protection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::follower::Follower;

/// Records by name and type, and how the server answers at all.
#[derive(Default)]
struct Zone {
    records: BTreeMap<(String, RecordType), Vec<RData>>,
    fails: bool,
    /// Answers over UDP are cut, so that clients come again over TCP.
    cuts: bool,
    over_tcp: usize,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Zone>>);

impl Server {
    async fn start(&self) -> SocketAddr {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let server = self.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                let cuts = server.0.lock().unwrap().cuts;
                let _ = udp.send_to(&server.answer(&buffer[..length], cuts), from).await;
            }
        });
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut query).await.unwrap();
                server.0.lock().unwrap().over_tcp += 1;
                let answer = server.answer(&query, false);
                let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                stream.write_all(&[&length[..], &answer].concat()).await.unwrap();
            }
        });
        address
    }

    fn answer(&self, query: &[u8], cut: bool) -> Vec<u8> {
        let query = Message::from_vec(query).unwrap();
        let question = query.queries[0].clone();
        let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
        answer.add_query(question.clone());
        let zone = self.0.lock().unwrap();
        let name = question.name().to_lowercase().to_ascii();
        let known = zone.records.keys().any(|(known, _)| *known == name);
        if zone.fails {
            answer.metadata.response_code = ResponseCode::ServFail;
        } else if cut {
            answer.metadata.truncation = true;
        } else if !known {
            answer.metadata.response_code = ResponseCode::NXDomain;
        }
        if !zone.fails && !cut {
            let found = zone.records.get(&(name, question.query_type())).into_iter().flatten();
            answer.add_answers(found.map(|data| Record::from_rdata(question.name().clone(), 1, data.clone())));
        }
        answer.to_vec().unwrap()
    }

    fn set(&self, name: &str, kind: RecordType, data: Vec<RData>) {
        self.0.lock().unwrap().records.insert((name.to_owned(), kind), data);
    }

    fn edit(&self, edit: impl FnOnce(&mut Zone)) {
        edit(&mut self.0.lock().unwrap());
    }
}

fn address(text: &str) -> RData {
    match text.parse().unwrap() {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

fn srv(priority: u16, weight: u16, port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(target).unwrap()))
}

async fn follow(server: &Server, services: &str) -> Follower {
    let address = server.start().await;
    let text = format!("registries:\n- dns: {{servers: ['{address}'], shortest: 50ms, services: [{services}]}}\n");
    let Adapter::Dns(options) = Config::parse(&text).unwrap().registries[0].adapter().unwrap() else {
        panic!("{text}")
    };
    Follower::synced(Dns::new(SourceId("DNS".into()), options, "here".into(), Protection::default())).await
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
    let server = Server::default();
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
async fn service_records_tell_ports_and_weights_and_the_first_priority_counts() {
    let server = Server::default();
    let records = vec![srv(1, 3, 8081, "a.example."), srv(1, 0, 8082, "b.example."), srv(2, 1, 8083, "c.example.")];
    server.set("_http._tcp.web.example.", RecordType::SRV, records);
    for (name, ip) in [("a.example.", "10.0.0.1"), ("b.example.", "10.0.0.2"), ("c.example.", "10.0.0.3")] {
        server.set(name, RecordType::A, vec![address(ip)]);
    }
    server.edit(|zone| zone.cuts = true);
    let dns = follow(&server, "{host: web.mesh, srv: _http._tcp.web.example, port: 80, protocol: HTTP}").await;
    assert_eq!(endpoints(&dns, "web.mesh"), expected(&[("10.0.0.1", 8081, 3), ("10.0.0.2", 8082, 1)]));
    assert!(server.0.lock().unwrap().over_tcp >= 5, "cut answers are asked for over TCP");
    let service = dns.services.values().next().unwrap();
    assert_eq!((&*service.ports[0].name, service.ports[0].number), ("http-80", 80));
}

#[tokio::test]
async fn a_server_that_cannot_tell_takes_nothing_away_and_one_that_says_none_does() {
    let server = Server::default();
    server.set("db.example.", RecordType::A, vec![address("10.0.0.1")]);
    let mut dns = follow(&server, "{host: db.mesh, name: db.example, port: 5432}").await;
    server.edit(|zone| zone.fails = true);
    dns.until("the failure", |dns| dns.has_problem(&["db.mesh", "keeping the last answer"])).await;
    assert_eq!(endpoints(&dns, "db.mesh").len(), 1);
    assert!(matches!(dns.report().state, State::Stale { .. }), "{:?}", dns.report());

    server.edit(|zone| {
        zone.fails = false;
        zone.records.clear();
    });
    dns.until("the removal", |dns| endpoints(dns, "db.mesh").is_empty()).await;
    assert_eq!(dns.services.len(), 1, "the service itself stays");
    assert!(dns.problems.is_empty(), "{:?}", dns.problems);
}
