//! What all listeners of one client have in common, worked out once.

use api::Duration;
use model::names::Str;
use model::port::Protocol;
use model::proxy::ProxyKind;
use model::service::{Resolution, Service};
use model::settings::{Knobs, Milliseconds};
use model::shared::Part;
use scope::View;

use super::addresses;
use crate::class::Class;
use crate::dns_cache::{DnsCache, DnsFamily};
use crate::http_filters::{self, HttpFilter};
use crate::network_filters::http_connection_manager::{self as hcm, HttpSettings};
use crate::network_filters::{Connection, Ending};
use crate::security::policies::Policies;
use crate::telemetry::access_log::{AccessLog, Logged, access_logs};
use crate::telemetry::metrics::{Stats, stats};

pub(super) struct Basis<'a> {
    pub(super) view: &'a View,
    pub(super) policies: Policies,
    outbound_stats: Vec<Part<Stats>>,
    inbound_stats: Vec<Part<Stats>>,
    /// Addresses that mean "any", one per family the proxy has; never empty.
    pub(super) wildcards: Vec<Str>,
    /// Loopback addresses, likewise.
    pub(super) localhosts: Vec<Str>,
    pub(super) outbound_http: Part<HttpSettings>,
    pub(super) inbound_http: Part<HttpSettings>,
    pub(super) outbound_tcp_log: Part<Vec<AccessLog>>,
    pub(super) inbound_tcp_log: Part<Vec<AccessLog>>,
    pub(super) no_log: Part<Vec<AccessLog>>,
    /// Which side the listeners for outgoing calls stand on.
    pub(super) outbound_class: Class,
    /// From the node's metadata.
    pub(super) idle_timeout: Option<Duration>,
    pub(super) handshake_timeout: Option<Duration>,
}

impl<'a> Basis<'a> {
    pub(super) fn new(view: &'a View) -> Basis<'a> {
        let proxy_config = &*view.proxy_config;
        let outbound_class = match view.proxy.kind {
            ProxyKind::Router => Class::Gateway,
            _ => Class::SidecarOutbound,
        };
        let tcp_log = |class| Part::new(access_logs(view, class, Logged::Tcp));
        Basis {
            view,
            // Only a gateway's routes look at tokens.
            policies: Policies::new(view, outbound_class == Class::Gateway),
            outbound_stats: stats(view, outbound_class).into_iter().map(Part::new).collect(),
            inbound_stats: stats(view, Class::SidecarInbound).into_iter().map(Part::new).collect(),
            wildcards: addresses::wildcards(&view.proxy),
            localhosts: addresses::localhosts(&view.proxy),
            outbound_http: Part::new(hcm::outbound(view, proxy_config)),
            inbound_http: Part::new(hcm::inbound(view, proxy_config)),
            outbound_tcp_log: tcp_log(outbound_class),
            inbound_tcp_log: tcp_log(Class::SidecarInbound),
            no_log: Part::new(Vec::new()),
            outbound_class,
            idle_timeout: view.proxy.meta("IDLE_TIMEOUT").and_then(model::duration::parse),
            handshake_timeout: duration(view.settings.knobs.handshake_timeout),
        }
    }

    /// The cache of names, for a wildcard host that has no endpoints of its own.
    pub(super) fn dns_cache(&self, service: &Service) -> Option<DnsCache> {
        let resolved = service.hostname.is_wildcard() && service.resolution == Resolution::DynamicDns;
        let family = DnsFamily::of(&self.view.proxy, self.knobs().dual_stack);
        resolved.then(|| DnsCache::of_host(&service.hostname, family))
    }

    pub(super) fn knobs(&self) -> &'a Knobs {
        &self.view.settings.knobs
    }

    /// The wildcard of the proxy's first family.
    pub(super) fn wildcard(&self) -> &Str {
        &self.wildcards[0]
    }

    pub(super) fn connections_per_event(&self) -> Option<u32> {
        Some(self.knobs().connections_per_event).filter(|limit| *limit > 0)
    }

    pub(super) fn listener_log(&self, class: Class) -> Part<Vec<AccessLog>> {
        Part::new(access_logs(self.view, class, Logged::Listener))
    }

    fn stats(&self, class: Class) -> &[Part<Stats>] {
        if class == Class::SidecarInbound { &self.inbound_stats } else { &self.outbound_stats }
    }

    /// What network filters of one port are chosen by.
    pub(super) fn connection(&self, class: Class, port: u32, ending: Ending) -> Connection<'_> {
        Connection { view: self.view, class, policies: &self.policies, stats: self.stats(class), port, ending }
    }

    /// The HTTP filters for one port.
    pub(super) fn http_filters(&self, class: Class, port: u32, protocol: Protocol) -> Part<Vec<HttpFilter>> {
        self.http_filters_resolving(class, port, protocol, None)
    }

    /// The same for a wildcard host whose requests are resolved one by one.
    pub(super) fn http_filters_resolving(
        &self,
        class: Class,
        port: u32,
        protocol: Protocol,
        resolved_by: Option<&DnsCache>,
    ) -> Part<Vec<HttpFilter>> {
        use api::istio::mesh::v1alpha1::proxy_config::proxy_headers::MetadataExchangeMode;
        let headers = self.view.proxy_config.proxy_headers.as_ref();
        let hide_debug = headers.and_then(|h| h.envoy_debug_headers.as_ref()).and_then(|d| d.disabled);
        let metadata = headers.and_then(|h| h.metadata_exchange_headers.as_ref());
        Part::new(http_filters::wanted(&http_filters::Connection {
            view: self.view,
            class,
            policies: &self.policies,
            stats: self.stats(class),
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
    // Below a thousand, so the product fits.
    let nanos = (millis % 1000) as i32 * 1_000_000;
    (millis > 0).then_some(Duration { seconds, nanos })
}
