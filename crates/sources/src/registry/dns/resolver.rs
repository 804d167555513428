//! A small DNS client: queries one server after the other, over UDP and over TCP where the response is truncated. It
//! distinguishes "no records" from "lookup failed" and returns how long either is valid.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// The advertised UDP payload size, which most networks carry without fragmentation.
const MAX_UDP_PAYLOAD: u16 = 1232;
/// Validity of an empty response without an SOA record.
const NEGATIVE_TTL: Duration = Duration::from_secs(30);
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Records of one name and type; empty where the name has none.
#[derive(Debug)]
pub(super) struct DnsRecords {
    pub(super) data: Vec<RData>,
    pub(super) valid_for: Duration,
}

/// Why a lookup failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error("could not read {RESOLV_CONF}: {0}")]
    ResolvConf(io::Error),
    #[error("{RESOLV_CONF} has no name server")]
    NoServer,
    #[error("{name:?} is not a DNS name: {error}")]
    Name { name: String, error: ProtoError },
    #[error("could not look up {kind} records of {name}: {failures}")]
    Servers { kind: RecordType, name: Name, failures: ServerFailures },
}

/// The failure of each server.
#[derive(Debug)]
pub(super) struct ServerFailures(Vec<(SocketAddr, ServerError)>);

#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("the server responded with {0}")]
    Code(ResponseCode),
}

impl fmt::Display for ServerFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (server, error)) in self.0.iter().enumerate() {
            write!(f, "{}{server}: {error}", if number > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct DnsResolver {
    servers: Vec<SocketAddr>,
    timeout: Duration,
}

impl DnsResolver {
    /// A client of these servers, or of those in resolv.conf where none is given.
    pub(super) fn new(servers: &[SocketAddr], timeout: Duration) -> Result<DnsResolver, LookupError> {
        let servers = if servers.is_empty() { system_servers()? } else { servers.to_vec() };
        Ok(DnsResolver { servers, timeout })
    }

    /// The records of a fully qualified name, from the first server that can be queried.
    pub(super) async fn look_up(&self, name: &str, kind: RecordType) -> Result<DnsRecords, LookupError> {
        let name = Name::from_ascii(format!("{}.", name.trim_end_matches('.')))
            .map_err(|error| LookupError::Name { name: name.to_owned(), error })?;
        let mut failures = Vec::new();
        for server in &self.servers {
            match self.query_server(*server, &name, kind).await {
                Ok(records) => return Ok(records),
                Err(error) => failures.push((*server, error)),
            }
        }
        Err(LookupError::Servers { kind, name, failures: ServerFailures(failures) })
    }

    async fn query_server(&self, server: SocketAddr, name: &Name, kind: RecordType) -> Result<DnsRecords, ServerError> {
        let response = tokio::time::timeout(self.timeout, query(server, name, kind)).await;
        records(&response.map_err(|_| ServerError::Timeout(self.timeout))??, kind)
    }
}

fn system_servers() -> Result<Vec<SocketAddr>, LookupError> {
    let text = crate::disk::text(RESOLV_CONF.as_ref()).map_err(LookupError::ResolvConf)?;
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    let servers: Vec<SocketAddr> = text.lines().filter_map(address).map(|ip| SocketAddr::new(ip, 53)).collect();
    if servers.is_empty() { Err(LookupError::NoServer) } else { Ok(servers) }
}

async fn query(server: SocketAddr, name: &Name, kind: RecordType) -> io::Result<Message> {
    let mut query = Message::new(fastrand::u16(..), MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP_PAYLOAD);
    query.set_edns(edns);
    let bytes = query.to_vec().map_err(io::Error::other)?;
    let response = over_udp(server, &query, &bytes).await?;
    if response.metadata.truncation { over_tcp(server, &query, &bytes).await } else { Ok(response) }
}

async fn over_udp(server: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let local: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Other packets may be forged or late responses.
        if let Some(response) = matching(query, &buffer[..length]) {
            return Ok(response);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    let mut response = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut response).await?;
    matching(query, &response).ok_or_else(|| io::Error::other("the response does not match the query"))
}

/// The message, where it is the response to the query.
fn matching(query: &Message, bytes: &[u8]) -> Option<Message> {
    let response = Message::from_vec(bytes).ok()?;
    let is_match = response.metadata.id == query.metadata.id
        && response.metadata.message_type == MessageType::Response
        && response.queries.first().map(|q| (q.name().to_lowercase(), q.query_type()))
            == query.queries.first().map(|q| (q.name().to_lowercase(), q.query_type()));
    is_match.then_some(response)
}

/// The records of a response. Only NOERROR and NXDOMAIN can mean "no records".
fn records(response: &Message, kind: RecordType) -> Result<DnsRecords, ServerError> {
    let seconds = |ttl: u32| Duration::from_secs(u64::from(ttl));
    match response.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => {}
        other => return Err(ServerError::Code(other)),
    }
    let data: Vec<RData> =
        response.answers.iter().map(|record| &record.data).filter(|data| data.record_type() == kind).cloned().collect();
    if !data.is_empty() {
        // A CNAME chain is valid as long as its shortest TTL.
        let shortest = response.answers.iter().map(|record| record.ttl).min().unwrap_or_default();
        return Ok(DnsRecords { data, valid_for: seconds(shortest) });
    }
    let negative = response.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(seconds(soa.minimum.min(record.ttl))),
        _ => None,
    });
    Ok(DnsRecords { data, valid_for: negative.unwrap_or(NEGATIVE_TTL) })
}
