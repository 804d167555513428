//! A DNS server for tests: records of one zone over UDP and TCP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// The UDP payload size that the client advertises.
const MOST_UDP: usize = 1232;

/// Records by name and type, and faults of the server.
#[derive(Default)]
pub(crate) struct Zone {
    pub(crate) records: BTreeMap<(String, RecordType), Vec<RData>>,
    pub(crate) fails: bool,
    /// Responses over UDP are truncated, so that clients retry over TCP.
    pub(crate) truncates: bool,
    pub(crate) over_tcp: usize,
}

#[derive(Clone, Default)]
pub(crate) struct NameServer {
    zone: Arc<Mutex<Zone>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl NameServer {
    pub(crate) async fn start(&self) -> SocketAddr {
        self.start_at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Serves at an address; port 0 for a free one.
    pub(crate) async fn start_at(&self, address: SocketAddr) -> SocketAddr {
        // A stopped server may still have the port, and a free TCP port need not be a free UDP port.
        let (tcp, udp) = testkit::wait::until("a free port", async || {
            let tcp = TcpListener::bind(address).await.map_err(|error| error.to_string())?;
            let udp = UdpSocket::bind(tcp.local_addr().unwrap()).await.map_err(|error| error.to_string())?;
            Ok((tcp, udp))
        })
        .await;
        let address = tcp.local_addr().unwrap();
        let mut tasks = self.tasks.lock().unwrap();
        tasks.spawn(over_udp(self.zone.clone(), udp));
        tasks.spawn(over_tcp(self.zone.clone(), tcp));
        address
    }

    /// Kills it.
    pub(crate) fn stop(&self) {
        self.tasks.lock().unwrap().abort_all();
    }

    pub(crate) fn set(&self, name: &str, kind: RecordType, data: Vec<RData>) {
        self.edit(|zone| _ = zone.records.insert((name.to_owned(), kind), data));
    }

    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Zone)) {
        edit(&mut self.zone.lock().unwrap());
    }

    pub(crate) fn tcp_queries(&self) -> usize {
        self.zone.lock().unwrap().over_tcp
    }
}

async fn over_udp(zone: Arc<Mutex<Zone>>, socket: UdpSocket) {
    let mut buffer = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let truncates = zone.lock().unwrap().truncates;
        let mut reply = respond(&zone, &buffer[..length], truncates);
        if reply.len() > MOST_UDP {
            reply = respond(&zone, &buffer[..length], true);
        }
        let _ = socket.send_to(&reply, from).await;
    }
}

async fn over_tcp(zone: Arc<Mutex<Zone>>, listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut query).await.unwrap();
        zone.lock().unwrap().over_tcp += 1;
        let response = respond(&zone, &query, false);
        let length = u16::try_from(response.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], &response].concat()).await.unwrap();
    }
}

fn respond(zone: &Mutex<Zone>, query: &[u8], truncate: bool) -> Vec<u8> {
    let query = Message::from_vec(query).unwrap();
    let question = query.queries[0].clone();
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.add_query(question.clone());
    let zone = zone.lock().unwrap();
    if zone.fails {
        response.metadata.response_code = ResponseCode::ServFail;
    } else if truncate {
        response.metadata.truncation = true;
    } else {
        zone.answer(question.name(), question.query_type(), &mut response);
    }
    response.to_vec().unwrap()
}

impl Zone {
    /// Adds the records of a name, after the CNAME record that leads to them.
    fn answer(&self, name: &Name, kind: RecordType, response: &mut Message) {
        let key = name.to_lowercase().to_ascii();
        if !self.records.keys().any(|(known, _)| *known == key) {
            response.metadata.response_code = ResponseCode::NXDomain;
        }
        let records = |kind| self.records.get(&(key.clone(), kind)).into_iter().flatten();
        for data in records(RecordType::CNAME).chain(records(kind)) {
            response.add_answer(Record::from_rdata(name.clone(), 1, data.clone()));
            if let RData::CNAME(CNAME(target)) = data {
                self.answer(target, kind, response);
            }
        }
    }
}

pub(crate) fn address(text: &str) -> RData {
    match text.parse().unwrap() {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

pub(crate) fn srv(priority: u16, weight: u16, port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(target).unwrap()))
}

pub(crate) fn cname(target: &str) -> RData {
    RData::CNAME(CNAME(Name::from_ascii(target).unwrap()))
}
