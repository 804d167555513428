//! A small DNS client: one question to one server at a time, over UDP and over TCP where the answer is cut.
//! It tells "there is none" from "could not find out", and how long either holds.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// What most networks carry in one piece.
const MOST_UDP: u16 = 1232;
/// Of a name without records, where the server does not say.
const NEGATIVE: Duration = Duration::from_secs(30);

/// Records of one name and type; none where the name has none.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) data: Vec<RData>,
    pub(super) valid_for: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct DnsResolver {
    servers: Vec<SocketAddr>,
    timeout: Duration,
}

impl DnsResolver {
    /// Asks these servers, or those of the system where there are none.
    pub(super) fn new(servers: &[SocketAddr], timeout: Duration) -> Result<DnsResolver, String> {
        let servers = if servers.is_empty() { of_system()? } else { servers.to_vec() };
        Ok(DnsResolver { servers, timeout })
    }

    /// The records of a name. An error where no server could tell.
    pub(super) async fn look_up(&self, name: &str, kind: RecordType) -> Result<Records, String> {
        let name = Name::from_ascii(format!("{}.", name.trim_end_matches('.'))).map_err(|e| format!("{name}: {e}"))?;
        let mut failures = Vec::new();
        for server in &self.servers {
            match tokio::time::timeout(self.timeout, ask(*server, &name, kind)).await {
                Ok(Ok(answer)) => match records(&answer, kind) {
                    Ok(records) => return Ok(records),
                    Err(reason) => failures.push(format!("{server}: {reason}")),
                },
                Ok(Err(error)) => failures.push(format!("{server}: {error}")),
                Err(_) => failures.push(format!("{server}: no answer within {:?}", self.timeout)),
            }
        }
        Err(format!("could not find {kind} records of {name}: {}", failures.join("; ")))
    }
}

fn of_system() -> Result<Vec<SocketAddr>, String> {
    let text =
        crate::disk::text("/etc/resolv.conf".as_ref()).map_err(|e| format!("could not read /etc/resolv.conf: {e}"))?;
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    let servers: Vec<SocketAddr> = text.lines().filter_map(address).map(|ip| SocketAddr::new(ip, 53)).collect();
    if servers.is_empty() { Err("there is no server in /etc/resolv.conf".to_owned()) } else { Ok(servers) }
}

async fn ask(server: SocketAddr, name: &Name, kind: RecordType) -> std::io::Result<Message> {
    // Every RandomState has keys of its own, which makes its hash of anything a random number.
    let [first, second, ..] = RandomState::new().hash_one(()).to_be_bytes();
    let mut query = Message::new(u16::from_be_bytes([first, second]), MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(MOST_UDP);
    query.set_edns(edns);
    let bytes = query.to_vec().map_err(std::io::Error::other)?;
    let answer = over_udp(server, &query, &bytes).await?;
    if answer.metadata.truncation { over_tcp(server, &query, &bytes).await } else { Ok(answer) }
}

async fn over_udp(server: SocketAddr, query: &Message, bytes: &[u8]) -> std::io::Result<Message> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything that does not answer this question may be forged or late.
        if let Some(answer) = matching(query, &buffer[..length]) {
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &Message, bytes: &[u8]) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    matching(query, &answer).ok_or_else(|| std::io::Error::other("the answer is to another question"))
}

fn matching(query: &Message, bytes: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let is_ours = answer.metadata.id == query.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && answer.queries.first().map(|q| (q.name().to_lowercase(), q.query_type()))
            == query.queries.first().map(|q| (q.name().to_lowercase(), q.query_type()));
    is_ours.then_some(answer)
}

/// Only a server that says so makes a name empty: any other failure leaves what was known.
fn records(answer: &Message, kind: RecordType) -> Result<Records, String> {
    let seconds = |ttl: u32| Duration::from_secs(u64::from(ttl));
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => {}
        other => return Err(format!("the server says {other}")),
    }
    let found: Vec<RData> =
        answer.answers.iter().map(|record| &record.data).filter(|data| data.record_type() == kind).cloned().collect();
    if !found.is_empty() {
        // A chain of names holds as long as its shortest link.
        let shortest = answer.answers.iter().map(|record| record.ttl).min().unwrap_or_default();
        return Ok(Records { data: found, valid_for: seconds(shortest) });
    }
    let negative = answer.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(seconds(soa.minimum.min(record.ttl))),
        _ => None,
    });
    Ok(Records { data: Vec::new(), valid_for: negative.unwrap_or(NEGATIVE) })
}
