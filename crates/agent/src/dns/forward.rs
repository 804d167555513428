//! Queries that the mesh cannot answer, sent on as they are to the servers of resolv.conf.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use tracing::debug;

/// How a client asked; servers are asked the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsTransport {
    Udp,
    Tcp,
}

/// The servers, and how long one of them may take.
#[derive(Clone, Debug)]
pub(super) struct Forwarder {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) server_timeout: Duration,
    /// All servers are asked at once, not one after the other.
    pub(super) parallel: bool,
}

impl Forwarder {
    /// The first answer that comes; None when no server gives one.
    pub(super) async fn query(&self, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        if self.parallel { self.race(query, transport).await } else { self.one_by_one(query, transport).await }
    }

    async fn one_by_one(&self, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        // Starts with a random server, to spread the load.
        let first = fastrand::usize(..self.servers.len().max(1));
        for at in 0..self.servers.len() {
            let server = self.servers[(first + at) % self.servers.len()];
            if let Some(answer) = self.exchange(server, query, transport).await {
                return Some(answer);
            }
        }
        None
    }

    async fn race(&self, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        let mut asked = tokio::task::JoinSet::new();
        for server in self.servers.clone() {
            let (this, query) = (self.clone(), query.to_vec());
            asked.spawn(async move { this.exchange(server, &query, transport).await });
        }
        while let Some(answer) = asked.join_next().await {
            if let Ok(Some(answer)) = answer {
                return Some(answer);
            }
        }
        None
    }

    async fn exchange(&self, server: SocketAddr, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        let asked = async {
            match transport {
                DnsTransport::Udp => over_udp(server, query).await,
                DnsTransport::Tcp => over_tcp(server, query).await,
            }
        };
        match timeout(self.server_timeout, asked).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                debug!(%server, %error, "no answer from a DNS server");
                None
            }
            Err(_) => {
                debug!(%server, "no answer from a DNS server in time");
                None
            }
        }
    }
}

/// A socket of its own for each query: its port is random, so nobody can guess where to send a false answer.
async fn over_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if buffer[..length].get(..2) == query.get(..2) {
            return Ok(buffer[..length].to_vec());
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_framed(&mut stream, query).await?;
    read_framed(&mut stream).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// A message after its length, as DNS over TCP sends them.
pub(super) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::Error::other("a DNS message over 64 KiB"))?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}

/// The next message; None when the peer has no more.
pub(super) async fn read_framed(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 2];
    match stream.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message).await?;
    Ok(Some(message))
}
