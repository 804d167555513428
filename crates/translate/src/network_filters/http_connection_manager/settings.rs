//! Settings shared by all connection managers on one side of a proxy, computed once per client.

use api::Duration;
use api::istio::mesh::v1alpha1::mesh_config::proxy_path_normalization::NormalizationType;
use api::istio::mesh::v1alpha1::proxy_config::proxy_headers::SetCurrentClientCertDetails;
use api::istio::mesh::v1alpha1::proxy_config::{ConnectionSettings, ProxyHeaders};
use api::istio::mesh::v1alpha1::{ForwardClientCertDetails, ProxyConfig};
use ipnet::IpNet;
use model::hashed::Hashed;
use model::names::Str;
use scope::View;

use crate::listener_side::ListenerSide;
use crate::telemetry::access_log::{AccessLog, LogScope, access_logs};
use crate::telemetry::tracing::{Tracing, tracing};

/// Connection manager settings that do not depend on the port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpSettings {
    pub server_header: ServerHeader,
    pub generate_request_id: bool,
    /// Sample traces by request id.
    pub sample_by_request_id: bool,
    pub forward_client_cert: Option<(ForwardClientCert, Option<CertDetails>)>,
    pub http1: Option<Http1>,
    pub append_x_forwarded_port: bool,
    pub path: PathNormalization,
    pub use_remote_address: bool,
    /// Number of trusted proxies in front of this one.
    pub trusted_hops: u32,
    pub idle_timeout: Option<Duration>,
    /// Limits that override the defaults.
    pub connection: Option<Hashed<ConnectionSettings>>,
    /// Internal address ranges, in order.
    pub internal_networks: Vec<IpNet>,
    pub proxy_100_continue: bool,
    pub access_log: Vec<AccessLog>,
    pub tracing: Option<Tracing>,
}

/// How the `server` response header is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerHeader {
    /// Overwritten with this name; empty means Envoy's default name.
    Overwrite(Str),
    PassThrough,
}

/// How the x-forwarded-client-cert header is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardClientCert {
    Sanitize,
    ForwardOnly,
    AppendForward,
    SanitizeSet,
    AlwaysForwardOnly,
}

/// Parts of the client certificate that are forwarded in x-forwarded-client-cert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CertDetails {
    pub subject: bool,
    pub cert: bool,
    pub chain: bool,
    pub dns: bool,
    pub uri: bool,
}

/// HTTP/1 options that are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Http1 {
    pub accept_http_10: bool,
    pub allow_absolute_url: bool,
    pub preserve_header_case: bool,
}

/// Path normalization before route matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathNormalization {
    None,
    Base,
    MergeSlashes,
    DecodeAndMergeSlashes,
}

/// Settings for requests from the workload.
pub(crate) fn outbound(view: &View, config: &ProxyConfig) -> HttpSettings {
    let mut settings = base(view, config, ListenerSide::SidecarOutbound);
    settings.use_remote_address = view.settings.knobs.sidecar_use_remote_address;
    settings.internal_networks = internal_networks(view, settings.use_remote_address);
    settings
}

/// Settings for the port where the workload uses the sidecar as an HTTP forward proxy.
pub(crate) fn http_proxy(view: &View, config: &ProxyConfig) -> HttpSettings {
    let mut settings = outbound(view, config);
    settings.http1 = Some(Http1 { allow_absolute_url: true, ..settings.http1.unwrap_or_default() });
    settings
}

/// Settings for requests to the workload.
pub(crate) fn inbound(view: &View, config: &ProxyConfig) -> HttpSettings {
    let headers = config.proxy_headers.clone().unwrap_or_default();
    let forward = forward_client_cert(headers.forwarded_client_cert()).unwrap_or(ForwardClientCert::AppendForward);
    let details = cert_details(headers.set_current_client_cert_details.as_ref());
    HttpSettings {
        forward_client_cert: Some((forward, Some(details))),
        ..base(view, config, ListenerSide::SidecarInbound)
    }
}

/// Settings for requests to a gateway. Clients are untrusted, so their x-forwarded-client-cert is overwritten.
pub(crate) fn gateway(view: &View, config: &ProxyConfig) -> HttpSettings {
    let topology = config.gateway_topology.as_ref();
    let configured = topology.and_then(|t| forward_client_cert(t.forward_client_cert_details()));
    let forward = configured.unwrap_or(ForwardClientCert::SanitizeSet);
    let details = CertDetails { subject: true, cert: true, chain: false, dns: true, uri: true };
    let mut settings = base(view, config, ListenerSide::Gateway);
    settings.http1 = Some(settings.http1.unwrap_or_default());
    // Envoy accepts details only in modes where it writes the header itself.
    let writes = matches!(forward, ForwardClientCert::AppendForward | ForwardClientCert::SanitizeSet);
    settings.forward_client_cert = Some((forward, writes.then_some(details)));
    settings.trusted_hops = topology.map_or(0, |t| t.num_trusted_proxies);
    settings.use_remote_address = true;
    settings.internal_networks = internal_networks(view, true);
    settings
}

fn base(view: &View, config: &ProxyConfig, side: ListenerSide) -> HttpSettings {
    let headers = config.proxy_headers.clone().unwrap_or_default();
    let tracing = tracing(view, config, side);
    HttpSettings {
        server_header: server_header(&headers, side),
        generate_request_id: !headers.request_id.is_some_and(|id| id.disabled.unwrap_or(false)),
        sample_by_request_id: tracing.as_ref().is_none_or(|t| t.sample_by_request_id),
        forward_client_cert: None,
        http1: http1(view, &headers),
        append_x_forwarded_port: headers.x_forwarded_port.is_some_and(|p| p.enabled.unwrap_or(false)),
        path: path_normalization(view),
        use_remote_address: false,
        trusted_hops: 0,
        idle_timeout: view.proxy.meta("IDLE_TIMEOUT").and_then(model::duration::parse),
        connection: connection_settings(view, config),
        internal_networks: internal_networks(view, false),
        proxy_100_continue: view.settings.knobs.continue_100_headers,
        access_log: access_logs(view, side, LogScope::Http),
        tracing,
    }
}

fn server_header(headers: &ProxyHeaders, side: ListenerSide) -> ServerHeader {
    // As upstream: outbound keeps Envoy's default name.
    let default = if side == ListenerSide::SidecarOutbound { "" } else { "istio-envoy" };
    match &headers.server {
        Some(server) if server.disabled.unwrap_or(false) => ServerHeader::PassThrough,
        Some(server) if !server.value.is_empty() => ServerHeader::Overwrite(server.value.as_str().into()),
        _ => ServerHeader::Overwrite(default.into()),
    }
}

fn http1(view: &View, headers: &ProxyHeaders) -> Option<Http1> {
    let accept_http_10 = view.settings.knobs.http10 || view.proxy.meta("HTTP10") == Some("1");
    let preserve_header_case = headers.preserve_http1_header_case.unwrap_or(false);
    let configured = Http1 { accept_http_10, preserve_header_case, allow_absolute_url: false };
    (configured != Http1::default()).then_some(configured)
}

fn path_normalization(view: &View) -> PathNormalization {
    match view.settings.path_normalization() {
        NormalizationType::None => PathNormalization::None,
        NormalizationType::Base | NormalizationType::Default => PathNormalization::Base,
        NormalizationType::MergeSlashes => PathNormalization::MergeSlashes,
        NormalizationType::DecodeAndMergeSlashes => PathNormalization::DecodeAndMergeSlashes,
    }
}

/// The proxy's connection settings, or the mesh's.
fn connection_settings(view: &View, config: &ProxyConfig) -> Option<Hashed<ConnectionSettings>> {
    let mesh = || view.settings.mesh.default_config.as_ref().and_then(|c| c.connection_settings);
    config.connection_settings.or_else(mesh).map(Hashed::from_message)
}

/// CIDR ranges of mesh networks, which count as internal. By default Envoy has no internal addresses and, with
/// use_remote_address, strips internal headers from all requests.
fn internal_networks(view: &View, use_remote_address: bool) -> Vec<IpNet> {
    use api::istio::mesh::v1alpha1::network::network_endpoints::Ne;
    if !view.settings.knobs.internal_networks && !use_remote_address {
        return Vec::new();
    }
    let endpoints = view.settings.networks.networks.values().flat_map(|network| &network.endpoints);
    let ranges = endpoints.filter_map(|endpoint| match endpoint.ne.as_ref()? {
        Ne::FromCidr(cidr) => parse_prefix(cidr),
        Ne::FromRegistry(_) => None,
    });
    let mut found: Vec<IpNet> = ranges.collect();
    found.sort_by_key(|net| (net.addr(), net.prefix_len()));
    found
}

fn parse_prefix(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(|ip: std::net::IpAddr| ip.into()))
}

fn forward_client_cert(configured: ForwardClientCertDetails) -> Option<ForwardClientCert> {
    match configured {
        ForwardClientCertDetails::Undefined => None,
        ForwardClientCertDetails::Sanitize => Some(ForwardClientCert::Sanitize),
        ForwardClientCertDetails::ForwardOnly => Some(ForwardClientCert::ForwardOnly),
        ForwardClientCertDetails::AppendForward => Some(ForwardClientCert::AppendForward),
        ForwardClientCertDetails::SanitizeSet => Some(ForwardClientCert::SanitizeSet),
        ForwardClientCertDetails::AlwaysForwardOnly => Some(ForwardClientCert::AlwaysForwardOnly),
    }
}

fn cert_details(configured: Option<&SetCurrentClientCertDetails>) -> CertDetails {
    let configured = configured.copied().unwrap_or_default();
    CertDetails {
        subject: configured.subject.unwrap_or(true),
        uri: configured.uri.unwrap_or(true),
        dns: configured.dns.unwrap_or(true),
        cert: configured.cert.unwrap_or(false),
        chain: configured.chain.unwrap_or(false),
    }
}
