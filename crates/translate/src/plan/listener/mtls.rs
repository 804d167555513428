//! Which connections an inbound port accepts, by mTLS mode and protocol, as conditions of filter chains.

use super::TransportProtocol;
use super::conflicts::TrafficMode;
use crate::security::mtls::MutualTls;

/// One kind of connection to an inbound port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptedConnection {
    pub(super) alpn: Alpn,
    pub(super) transport: TransportProtocol,
    /// Whether HTTP comes, or bytes.
    pub(super) http: bool,
    /// Whether the proxy terminates TLS.
    pub(super) terminates: bool,
}

/// What the client says, or what the HTTP inspector finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alpn {
    Any,
    /// HTTP of a sidecar.
    MeshHttp,
    /// Bytes of a sidecar.
    MeshBytes,
    /// Anything of a sidecar.
    Mesh,
    /// HTTP in plain text.
    PlainHttp,
}

impl Alpn {
    /// The values; plain text depends on whether HTTP/1.0 is served.
    pub(super) fn values(self) -> &'static [&'static str] {
        match self {
            Alpn::Any | Alpn::PlainHttp => &[],
            Alpn::MeshHttp => &["istio-http/1.0", "istio-http/1.1", "istio-h2"],
            Alpn::MeshBytes => &["istio-peer-exchange", "istio"],
            Alpn::Mesh => &["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"],
        }
    }
}

fn mtls(alpn: Alpn, http: bool) -> AcceptedConnection {
    AcceptedConnection { alpn, transport: TransportProtocol::Tls, http, terminates: true }
}

fn plain(alpn: Alpn, http: bool) -> AcceptedConnection {
    AcceptedConnection { alpn, transport: TransportProtocol::Raw, http, terminates: false }
}

/// TLS of the application's own, carried as bytes.
const OTHER_TLS: AcceptedConnection =
    AcceptedConnection { alpn: Alpn::Any, transport: TransportProtocol::Tls, http: false, terminates: false };

/// The kinds of connections that a port accepts.
pub(super) fn accepted(mtls_mode: MutualTls, mode: TrafficMode) -> Vec<AcceptedConnection> {
    const HTTP: bool = true;
    const BYTES: bool = false;
    match (mode, mtls_mode) {
        (TrafficMode::Http, MutualTls::Strict) => vec![mtls(Alpn::Any, HTTP)],
        (TrafficMode::Http, MutualTls::Permissive) => vec![mtls(Alpn::Mesh, HTTP), plain(Alpn::Any, HTTP)],
        (TrafficMode::Http, MutualTls::Disable) => vec![plain(Alpn::Any, HTTP)],
        (TrafficMode::Auto, MutualTls::Strict) => vec![mtls(Alpn::MeshHttp, HTTP), mtls(Alpn::Any, BYTES)],
        (TrafficMode::Auto, MutualTls::Permissive) => vec![
            mtls(Alpn::MeshHttp, HTTP),
            plain(Alpn::PlainHttp, HTTP),
            mtls(Alpn::MeshBytes, BYTES),
            plain(Alpn::Any, BYTES),
            OTHER_TLS,
        ],
        (TrafficMode::Auto, MutualTls::Disable) => vec![plain(Alpn::PlainHttp, HTTP), plain(Alpn::Any, BYTES)],
        (TrafficMode::Tcp, MutualTls::Strict) => vec![mtls(Alpn::Any, BYTES)],
        (TrafficMode::Tcp, MutualTls::Permissive) => vec![mtls(Alpn::Mesh, BYTES), OTHER_TLS, plain(Alpn::Any, BYTES)],
        (TrafficMode::Tcp, MutualTls::Disable) => vec![plain(Alpn::Any, BYTES)],
    }
}

/// A port whose TLS the proxy terminates by the Sidecar's own settings.
pub(super) fn terminated(mode: TrafficMode) -> Option<AcceptedConnection> {
    match mode {
        TrafficMode::Http => Some(mtls(Alpn::Any, true)),
        TrafficMode::Tcp => Some(mtls(Alpn::Any, false)),
        // Upstream has no chain for a protocol it would have to detect inside TLS.
        TrafficMode::Auto => None,
    }
}
