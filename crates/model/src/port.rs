//! Service ports and their protocols.

use crate::names::Str;

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    pub name: Str,
    pub number: u16,
    pub protocol: Protocol,
}

/// The application protocol of a port; it decides how the port is proxied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Tls,
    Udp,
    Http,
    HttpProxy,
    Http2,
    Https,
    Grpc,
    GrpcWeb,
    Mongo,
    Redis,
    MySql,
    /// Not declared or not known: the proxy detects HTTP by itself.
    Unknown,
}

impl Protocol {
    /// Parses upstream's spelling, ignoring case.
    pub fn parse(text: &str) -> Protocol {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "tls" => Protocol::Tls,
            "udp" => Protocol::Udp,
            "http" => Protocol::Http,
            "http_proxy" => Protocol::HttpProxy,
            "http2" => Protocol::Http2,
            "https" => Protocol::Https,
            "grpc" => Protocol::Grpc,
            "grpc-web" => Protocol::GrpcWeb,
            "mongo" => Protocol::Mongo,
            "redis" => Protocol::Redis,
            "mysql" => Protocol::MySql,
            _ => Protocol::Unknown,
        }
    }

    /// Upstream's spelling, as debug pages and messages show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Tls => "TLS",
            Protocol::Udp => "UDP",
            Protocol::Http => "HTTP",
            Protocol::HttpProxy => "HTTP_PROXY",
            Protocol::Http2 => "HTTP2",
            Protocol::Https => "HTTPS",
            Protocol::Grpc => "GRPC",
            Protocol::GrpcWeb => "GRPC-Web",
            Protocol::Mongo => "Mongo",
            Protocol::Redis => "Redis",
            Protocol::MySql => "MySQL",
            Protocol::Unknown => "UnsupportedProtocol",
        }
    }

    /// Plain-text HTTP of any version.
    pub fn is_http(self) -> bool {
        matches!(self, Protocol::Http | Protocol::HttpProxy | Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb)
    }

    /// HTTP that needs HTTP/2 upstream.
    pub fn is_http2(self) -> bool {
        matches!(self, Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb)
    }

    /// Proxied as a byte stream.
    pub fn is_tcp(self) -> bool {
        matches!(
            self,
            Protocol::Tcp | Protocol::Https | Protocol::Tls | Protocol::Mongo | Protocol::Redis | Protocol::MySql
        )
    }

    /// A byte stream that begins with a TLS handshake, so that the proxy can match SNI.
    pub fn is_tls(self) -> bool {
        matches!(self, Protocol::Tls | Protocol::Https)
    }

    /// Not declared: the proxy sniffs.
    pub fn is_unknown(self) -> bool {
        self == Protocol::Unknown
    }
}
