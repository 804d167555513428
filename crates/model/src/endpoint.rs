//! One address that serves a port of a service, reduced to the fields that reach a proxy.

use std::fmt;

use crate::labels::Labels;
use crate::names::{ClusterId, Namespace, NetworkId, Str};

/// An endpoint of one service port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// IP addresses (several for dual stack), or one DNS name, or one `unix://` path.
    pub addresses: Vec<Str>,
    pub port: u32,
    /// The service port it serves, by name and number.
    pub service_port: Str,
    pub service_port_number: u16,
    pub labels: Labels,
    pub locality: Locality,
    pub network: NetworkId,
    pub cluster: ClusterId,
    /// 0 if unset.
    pub weight: u32,
    /// SPIFFE identity, or empty.
    pub service_account: Str,
    pub tls: TlsMode,
    pub namespace: Namespace,
    pub workload_name: Str,
    pub health: Health,
    pub node_name: Str,
    /// `spec.hostname` and `spec.subdomain` of the pod, for its DNS name.
    pub host_name: Str,
    pub sub_domain: Str,
    /// Whether it is reachable only from its own cluster.
    pub cluster_local: bool,
}

impl Endpoint {
    /// An endpoint at this address; all other fields have their defaults.
    pub fn at(address: impl Into<Str>) -> Endpoint {
        Endpoint {
            addresses: vec![address.into()],
            port: 0,
            service_port: Str::default(),
            service_port_number: 0,
            labels: Labels::default(),
            locality: Locality::default(),
            network: NetworkId::default(),
            cluster: ClusterId::default(),
            weight: 0,
            service_account: Str::default(),
            tls: TlsMode::default(),
            namespace: Namespace::default(),
            workload_name: Str::default(),
            health: Health::default(),
            node_name: Str::default(),
            host_name: Str::default(),
            sub_domain: Str::default(),
            cluster_local: false,
        }
    }

    /// The first address; empty for an endpoint without any.
    pub fn address(&self) -> &str {
        self.addresses.first().map_or("", |a| a)
    }
}

/// Whether the endpoint accepts mesh TLS (label `security.istio.io/tlsMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TlsMode {
    #[default]
    Disabled,
    Istio,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Health {
    /// No health checks, as for endpoints listed in a config object.
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
    Draining,
    Terminating,
}

/// Region, zone and subzone; `None` is unknown.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Locality {
    pub region: Option<Str>,
    pub zone: Option<Str>,
    pub sub_zone: Option<Str>,
}

impl Locality {
    /// Parses `region/zone/subzone`; zone and subzone are optional.
    pub fn parse(text: &str) -> Locality {
        let mut parts = text.splitn(3, '/').map(|p| (!p.is_empty()).then(|| Str::from(p)));
        Locality { region: parts.next().flatten(), zone: parts.next().flatten(), sub_zone: parts.next().flatten() }
    }

    pub fn is_unknown(&self) -> bool {
        self.region.is_none() && self.zone.is_none() && self.sub_zone.is_none()
    }

    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or_default()
    }

    pub fn zone(&self) -> &str {
        self.zone.as_deref().unwrap_or_default()
    }

    pub fn sub_zone(&self) -> &str {
        self.sub_zone.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.region())?;
        if self.zone.is_some() || self.sub_zone.is_some() {
            write!(f, "/{}", self.zone())?;
        }
        if self.sub_zone.is_some() {
            write!(f, "/{}", self.sub_zone())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
