//! Forwards queries to the servers in resolv.conf.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use tracing::debug;

/// Transport of the client's query; it is forwarded over the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsTransport {
    Udp,
    Tcp,
}

/// The servers and how they are queried.
#[derive(Clone, Debug)]
pub(super) struct Forwarder {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) server_timeout: Duration,
    /// Query all servers at once instead of one after another.
    pub(super) parallel: bool,
}

impl Forwarder {
    /// The first response; `None` if no server responds.
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
        let mut queries = tokio::task::JoinSet::new();
        for server in self.servers.clone() {
            let (this, query) = (self.clone(), query.to_vec());
            queries.spawn(async move { this.exchange(server, &query, transport).await });
        }
        while let Some(answer) = queries.join_next().await {
            if let Ok(Some(answer)) = answer {
                return Some(answer);
            }
        }
        None
    }

    async fn exchange(&self, server: SocketAddr, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        let exchange = async {
            match transport {
                DnsTransport::Udp => over_udp(server, query).await,
                DnsTransport::Tcp => over_tcp(server, query).await,
            }
        };
        match timeout(self.server_timeout, exchange).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                debug!(%server, %error, "could not query a DNS server");
                None
            }
            Err(_) => {
                debug!(%server, "DNS query timed out");
                None
            }
        }
    }
}

/// Each query has its own socket: a random source port makes spoofed responses harder.
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

/// Writes a message with its length prefix.
pub(super) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::Error::other("the DNS message is larger than 64 KiB"))?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}

/// Reads the next message; `None` at end of stream.
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
