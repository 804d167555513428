//! A DNS server of these tests: records of one zone over UDP and TCP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// What clients say that they can take over UDP.
const MOST_UDP: usize = 1232;

/// Records by name and type, and how the server answers at all.
#[derive(Default)]
pub(crate) struct Zone {
    pub(crate) records: BTreeMap<(String, RecordType), Vec<RData>>,
    pub(crate) fails: bool,
    /// Answers over UDP are cut, so that clients come again over TCP.
    pub(crate) cuts: bool,
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

    /// Serves at an address; port 0 is any.
    pub(crate) async fn start_at(&self, address: SocketAddr) -> SocketAddr {
        // A server that was here before may take a moment to go; and a free TCP port need not be a free UDP port.
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

    /// Ends it without a word.
    pub(crate) fn stop(&self) {
        self.tasks.lock().unwrap().abort_all();
    }

    pub(crate) fn set(&self, name: &str, kind: RecordType, data: Vec<RData>) {
        self.edit(|zone| _ = zone.records.insert((name.to_owned(), kind), data));
    }

    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Zone)) {
        edit(&mut self.zone.lock().unwrap());
    }

    pub(crate) fn asked_over_tcp(&self) -> usize {
        self.zone.lock().unwrap().over_tcp
    }
}

async fn over_udp(zone: Arc<Mutex<Zone>>, socket: UdpSocket) {
    let mut buffer = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let cuts = zone.lock().unwrap().cuts;
        let mut reply = answer(&zone, &buffer[..length], cuts);
        if reply.len() > MOST_UDP {
            reply = answer(&zone, &buffer[..length], true);
        }
        let _ = socket.send_to(&reply, from).await;
    }
}

async fn over_tcp(zone: Arc<Mutex<Zone>>, listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut query).await.unwrap();
        zone.lock().unwrap().over_tcp += 1;
        let answer = answer(&zone, &query, false);
        let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], &answer].concat()).await.unwrap();
    }
}

fn answer(zone: &Mutex<Zone>, query: &[u8], cut: bool) -> Vec<u8> {
    let query = Message::from_vec(query).unwrap();
    let question = query.queries[0].clone();
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.add_query(question.clone());
    let zone = zone.lock().unwrap();
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

pub(crate) fn address(text: &str) -> RData {
    match text.parse().unwrap() {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

pub(crate) fn srv(priority: u16, weight: u16, port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(target).unwrap()))
}
