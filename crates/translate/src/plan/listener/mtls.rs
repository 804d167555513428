//! Which connections an inbound port accepts, by mTLS mode and protocol, as filter chain matches.

use model::peer_policies::MutualTls;

use super::TransportProtocol;
use super::conflicts::TrafficMode;

/// One kind of connection to an inbound port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptedConnection {
    pub(super) alpn: Alpn,
    pub(super) transport: TransportProtocol,
    /// HTTP, or TCP.
    pub(super) http: bool,
    /// Whether the proxy terminates TLS.
    pub(super) terminates: bool,
}

/// ALPN of the client, or protocol detected by the HTTP inspector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alpn {
    Any,
    /// HTTP from a sidecar.
    MeshHttp,
    /// TCP from a sidecar.
    MeshBytes,
    /// Any traffic from a sidecar.
    Mesh,
    /// Plaintext HTTP.
    PlainHttp,
}

impl Alpn {
    /// The ALPN values. Empty for `PlainHttp`, whose values depend on settings.
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

/// TLS of the application, forwarded as TCP.
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

/// The connection accepted by a port with TLS settings of the Sidecar.
pub(super) fn terminated(mode: TrafficMode) -> Option<AcceptedConnection> {
    match mode {
        TrafficMode::Http => Some(mtls(Alpn::Any, true)),
        TrafficMode::Tcp => Some(mtls(Alpn::Any, false)),
        // Upstream has no chain for detection inside TLS.
        TrafficMode::Auto => None,
    }
}
