//! What all listeners of one client share, computed once.

use api::Duration;
use model::hashed::Hashed;
use model::names::Str;
use model::port::Protocol;
use model::proxy::ProxyKind;
use model::service::{Resolution, Service};
use model::settings::{Knobs, Milliseconds};
use scope::View;

use super::addresses;
use crate::dns_cache::{DnsCache, DnsFamily};
use crate::http_filters::{self, HttpFilter};
use crate::listener_side::ListenerSide;
use crate::network_filters::http_connection_manager::{self as hcm, HttpSettings};
use crate::network_filters::{ChainEnd, NetworkFilterInput};
use crate::security::policies::WorkloadPolicies;
use crate::telemetry::access_log::{AccessLog, LogScope, access_logs};
use crate::telemetry::metrics::{StatsFilter, stats};

pub(super) struct ListenerContext<'a> {
    pub(super) view: &'a View,
    pub(super) policies: WorkloadPolicies,
    outbound_stats: Vec<Hashed<StatsFilter>>,
    inbound_stats: Vec<Hashed<StatsFilter>>,
    /// Wildcard addresses, one per IP family of the proxy; never empty.
    pub(super) wildcards: Vec<Str>,
    /// Loopback addresses, one per IP family; never empty.
    pub(super) localhosts: Vec<Str>,
    pub(super) outbound_http: Hashed<HttpSettings>,
    pub(super) inbound_http: Hashed<HttpSettings>,
    pub(super) outbound_tcp_log: Hashed<Vec<AccessLog>>,
    pub(super) inbound_tcp_log: Hashed<Vec<AccessLog>>,
    pub(super) no_log: Hashed<Vec<AccessLog>>,
    /// The side of listeners that are not inbound.
    pub(super) outbound_side: ListenerSide,
    /// From the node's metadata.
    pub(super) idle_timeout: Option<Duration>,
    pub(super) handshake_timeout: Option<Duration>,
}

impl<'a> ListenerContext<'a> {
    pub(super) fn new(view: &'a View) -> ListenerContext<'a> {
        let proxy_config = &*view.proxy_config;
        let outbound_side = match *view.proxy.kind {
            ProxyKind::Router => ListenerSide::Gateway,
            _ => ListenerSide::SidecarOutbound,
        };
        let tcp_log = |side| Hashed::new(access_logs(view, side, LogScope::Tcp));
        ListenerContext {
            view,
            // Only a gateway's routes match JWT claims.
            policies: WorkloadPolicies::new(view, outbound_side == ListenerSide::Gateway),
            outbound_stats: stats(view, outbound_side).into_iter().map(Hashed::new).collect(),
            inbound_stats: stats(view, ListenerSide::SidecarInbound).into_iter().map(Hashed::new).collect(),
            wildcards: addresses::wildcards(&view.proxy),
            localhosts: addresses::localhosts(&view.proxy),
            outbound_http: Hashed::new(hcm::outbound(view, proxy_config)),
            inbound_http: Hashed::new(hcm::inbound(view, proxy_config)),
            outbound_tcp_log: tcp_log(outbound_side),
            inbound_tcp_log: tcp_log(ListenerSide::SidecarInbound),
            no_log: Hashed::new(Vec::new()),
            outbound_side,
            idle_timeout: view.proxy.meta("IDLE_TIMEOUT").and_then(model::duration::parse),
            handshake_timeout: duration(view.settings.knobs.handshake_timeout),
        }
    }

    /// The DNS cache of a wildcard host that is resolved per request.
    pub(super) fn dns_cache(&self, service: &Service) -> Option<DnsCache> {
        let resolved = service.hostname.is_wildcard() && service.resolution == Resolution::DynamicDns;
        let family = DnsFamily::of(&self.view.proxy, self.knobs().dual_stack);
        resolved.then(|| DnsCache::of_host(&service.hostname, family))
    }

    pub(super) fn knobs(&self) -> &'a Knobs {
        &self.view.settings.knobs
    }

    /// The wildcard address of the proxy's first IP family.
    pub(super) fn wildcard(&self) -> &Str {
        &self.wildcards[0]
    }

    pub(super) fn connections_per_event(&self) -> Option<u32> {
        Some(self.knobs().connections_per_event).filter(|limit| *limit > 0)
    }

    pub(super) fn listener_log(&self, side: ListenerSide) -> Hashed<Vec<AccessLog>> {
        Hashed::new(access_logs(self.view, side, LogScope::Listener))
    }

    fn stats(&self, side: ListenerSide) -> &[Hashed<StatsFilter>] {
        if side == ListenerSide::SidecarInbound { &self.inbound_stats } else { &self.outbound_stats }
    }

    /// The input of the network filters of one port.
    pub(super) fn filter_input(&self, side: ListenerSide, port: u32, end: ChainEnd) -> NetworkFilterInput<'_> {
        NetworkFilterInput { view: self.view, side, policies: &self.policies, stats: self.stats(side), port, end }
    }

    /// Application protocols set by the HTTP inspector. HTTP/1.0 is forwarded as TCP unless enabled, because the
    /// connection manager would reject it.
    pub(super) fn plaintext_alpn(&self) -> Vec<Str> {
        let versions: &[&str] =
            if self.knobs().http10 { &["http/1.0", "http/1.1", "h2c"] } else { &["http/1.1", "h2c"] };
        versions.iter().map(|v| (*v).into()).collect()
    }

    /// The HTTP filters for one port.
    pub(super) fn http_filters(&self, side: ListenerSide, port: u32, protocol: Protocol) -> Hashed<Vec<HttpFilter>> {
        self.http_filters_resolving(side, port, protocol, None)
    }

    /// The same, for a wildcard host that is resolved per request.
    pub(super) fn http_filters_resolving(
        &self,
        side: ListenerSide,
        port: u32,
        protocol: Protocol,
        resolved_by: Option<&DnsCache>,
    ) -> Hashed<Vec<HttpFilter>> {
        use api::istio::mesh::v1alpha1::proxy_config::proxy_headers::MetadataExchangeMode;
        let headers = self.view.proxy_config.proxy_headers.as_ref();
        let hide_debug = headers.and_then(|h| h.envoy_debug_headers.as_ref()).and_then(|d| d.disabled);
        let metadata = headers.and_then(|h| h.metadata_exchange_headers.as_ref());
        Hashed::new(http_filters::chain(&http_filters::HttpFilterInput {
            view: self.view,
            side,
            policies: &self.policies,
            stats: self.stats(side),
            port,
            protocol,
            resolved_by,
            suppress_debug_headers: hide_debug.unwrap_or(false),
            hide_metadata: metadata.is_some_and(|m| m.mode() == MetadataExchangeMode::InMesh),
        }))
    }
}

/// `None` for no limit.
fn duration(limit: Milliseconds) -> Option<Duration> {
    let Milliseconds(millis) = limit;
    let seconds = i64::try_from(millis / 1000).ok()?;
    // Less than 1000, so the product fits.
    let nanos = (millis % 1000) as i32 * 1_000_000;
    (millis > 0).then_some(Duration { seconds, nanos })
}
