//! The DNS proxy over its sockets: mesh names from the table, other names from another server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agent::dns::{ClientDomain, DnsOptions, DnsServer};
use agent::metrics::Metrics;
use api::nds::{NameInfo, NameTable};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

struct Fixture {
    address: SocketAddr,
    names: watch::Sender<Option<Arc<NameTable>>>,
    metrics: Arc<Metrics>,
    _stop: DropGuard,
}

async fn start(servers: Vec<SocketAddr>, parallel: bool) -> Fixture {
    let options = DnsOptions {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        client_domain: ClientDomain::new("shop", "shop.svc.cluster.local", Some("shop.svc.cluster.local")),
        servers,
        server_timeout: Duration::from_millis(500),
        parallel,
    };
    let (names, latest) = watch::channel(None);
    let metrics = Arc::new(Metrics::default());
    let server = DnsServer::bind(options, latest, Arc::clone(&metrics)).await.unwrap();
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    tokio::spawn(server.serve(stop.clone()));
    Fixture { address, names, metrics, _stop: stop.drop_guard() }
}

fn table() -> Option<Arc<NameTable>> {
    let info = NameInfo {
        ips: vec!["10.0.0.1".into()],
        registry: "Kubernetes".into(),
        shortname: "cart".into(),
        namespace: "shop".into(),
    };
    Some(Arc::new(NameTable { table: [("cart.shop.svc.cluster.local".to_owned(), info)].into() }))
}

fn query(name: &str) -> Message {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query
}

async fn over_udp(to: SocketAddr, query: &Message) -> Message {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&query.to_vec().unwrap(), to).await.unwrap();
    let mut buffer = [0; 4096];
    let length = timeout(Duration::from_secs(20), socket.recv(&mut buffer)).await.expect("an answer").unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn over_tcp(to: SocketAddr, query: &Message) -> Message {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let bytes = query.to_vec().unwrap();
    stream.write_all(&u16::try_from(bytes.len()).unwrap().to_be_bytes()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).await.unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).await.unwrap();
    Message::from_vec(&answer).unwrap()
}

fn summary(message: &Message) -> (ResponseCode, Vec<String>) {
    (message.metadata.response_code, message.answers.iter().map(|record| record.data.to_string()).collect())
}

/// A server that knows one name and returns NXDOMAIN for others; over UDP and TCP on one port.
async fn other_server() -> SocketAddr {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = tcp.local_addr().unwrap();
    let udp = UdpSocket::bind(address).await.unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, client)) = udp.recv_from(&mut buffer).await {
            let _ = udp.send_to(&reply(&buffer[..length]), client).await;
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let mut length = [0; 2];
            stream.read_exact(&mut length).await.unwrap();
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut query).await.unwrap();
            let answer = reply(&query);
            stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    address
}

fn reply(query: &[u8]) -> Vec<u8> {
    let mut message = Message::from_vec(query).unwrap().into_response();
    let name = message.queries[0].name().clone();
    if name.to_ascii() == "www.example.com." {
        message.add_answer(Record::from_rdata(name, 5, RData::A(A(Ipv4Addr::new(192, 0, 2, 7)))));
    } else {
        message.metadata.response_code = ResponseCode::NXDomain;
    }
    message.to_vec().unwrap()
}

#[tokio::test]
async fn mesh_names_come_from_the_table_and_others_are_forwarded() {
    let fixture = start(vec![other_server().await], false).await;
    assert_eq!(summary(&over_udp(fixture.address, &query("cart.")).await).0, ResponseCode::ServFail, "no table yet");
    fixture.names.send_replace(table());
    wait::until("the table", async || match summary(&over_udp(fixture.address, &query("cart.")).await) {
        (ResponseCode::NoError, addresses) if addresses == ["10.0.0.1"] => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    for name in ["cart.shop.svc.cluster.local.", "CART.shop."] {
        assert_eq!(summary(&over_tcp(fixture.address, &query(name)).await).1, ["10.0.0.1"], "{name}");
    }
    let known = (ResponseCode::NoError, vec!["192.0.2.7".to_owned()]);
    assert_eq!(summary(&over_udp(fixture.address, &query("www.example.com.")).await), known);
    assert_eq!(summary(&over_tcp(fixture.address, &query("www.example.com.")).await), known);
    let unknown = summary(&over_udp(fixture.address, &query("none.example.com.")).await);
    assert_eq!(unknown, (ResponseCode::NXDomain, vec![]));
    assert_eq!(fixture.metrics.dns_upstream_requests.get(), 3);
}

#[tokio::test]
async fn dead_server_costs_only_its_timeout() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let dead = silent.local_addr().unwrap();
    for (parallel, servers) in [(false, vec![dead, other_server().await]), (true, vec![dead, other_server().await])] {
        let fixture = start(servers, parallel).await;
        fixture.names.send_replace(table());
        wait::until("the other server's answer", async || {
            match summary(&over_udp(fixture.address, &query("www.example.com.")).await) {
                (ResponseCode::NoError, addresses) if addresses == ["192.0.2.7"] => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    let fixture = start(vec![dead], false).await;
    fixture.names.send_replace(table());
    assert_eq!(summary(&over_udp(fixture.address, &query("www.example.com.")).await).0, ResponseCode::ServFail);
    wait::until("the failure counted", async || match fixture.metrics.dns_upstream_failures.get() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    })
    .await;
}
