//! The proxy's identity: type, addresses, name and domain, which form the node id `type~ip~id~domain`. Defaults depend
//! on the registry, as in Pilot 0.8. `metadata` builds the rest of the node.

pub mod addresses;
pub mod downward_api;
pub mod metadata;

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::args::{IdentityFlags, ProxyType};
use crate::environment::Environment;

/// Namespace of a proxy without POD_NAMESPACE.
const NAMESPACE: &str = "default";

/// The identity that the control plane sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyIdentity {
    pub kind: NodeType,
    /// Never empty. The first address is part of the node id.
    pub ips: Vec<IpAddr>,
    pub id: String,
    pub domain: String,
    /// Empty if unknown.
    pub namespace: String,
}

/// The first part of the node id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeType {
    Sidecar,
    Router,
    Waypoint,
}

impl NodeType {
    pub fn as_str(self) -> &'static str {
        match self {
            NodeType::Sidecar => "sidecar",
            NodeType::Router => "router",
            NodeType::Waypoint => "waypoint",
        }
    }
}

impl ProxyIdentity {
    /// The node id: `type~ip~id~domain`.
    pub fn node_id(&self) -> String {
        let ip = self.ips.first().map_or_else(String::new, IpAddr::to_string);
        format!("{}~{ip}~{}~{}", self.kind.as_str(), self.id, self.domain)
    }

    pub fn is_ipv6_only(&self) -> bool {
        self.ips.iter().all(IpAddr::is_ipv6)
    }
}

/// The registry that determines the defaults of id and domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistryKind {
    Kubernetes,
    Consul,
    Other,
}

impl RegistryKind {
    fn read(name: &str) -> Result<RegistryKind> {
        match name.to_ascii_lowercase().as_str() {
            "kubernetes" => Ok(RegistryKind::Kubernetes),
            "consul" => Ok(RegistryKind::Consul),
            "eureka" | "cloudfoundry" | "mock" | "config" | "other" => Ok(RegistryKind::Other),
            _ => bail!(
                "could not parse --serviceregistry {name:?}: expected one of Kubernetes, Consul, Eureka, \
                 CloudFoundry, Mock, Config, Other"
            ),
        }
    }
}

/// The identity from flags, environment and the addresses of this machine.
pub fn proxy_identity(
    kind: ProxyType,
    flags: &IdentityFlags,
    environment: &Environment,
    own: &[IpAddr],
) -> Result<ProxyIdentity> {
    let registry = RegistryKind::read(&flags.registry)?;
    let ips = ips(registry, flags, environment, own)?;
    let ip = ips.first().map_or_else(String::new, IpAddr::to_string);
    let id = match registry {
        _ if !flags.id.is_empty() => flags.id.clone(),
        RegistryKind::Kubernetes => {
            let name = environment.get("POD_NAME").map_or_else(machine_name, str::to_owned);
            format!("{name}.{}", environment.get("POD_NAMESPACE").unwrap_or(NAMESPACE))
        }
        RegistryKind::Consul => format!("{ip}.service.consul"),
        RegistryKind::Other => ip,
    };
    // Without POD_NAMESPACE the control plane takes the namespace from the id.
    let namespace = match (registry, environment.get("POD_NAMESPACE")) {
        (_, Some(namespace)) => namespace.to_owned(),
        (RegistryKind::Kubernetes, None) => id.split_once('.').map_or_else(String::new, |(_, rest)| rest.to_owned()),
        _ => String::new(),
    };
    let domain = match registry {
        _ if !flags.domain.is_empty() => flags.domain.clone(),
        RegistryKind::Kubernetes => format!("{namespace}.svc.cluster.local"),
        RegistryKind::Consul => "service.consul".to_owned(),
        RegistryKind::Other => String::new(),
    };
    let kind = match kind {
        ProxyType::Sidecar => NodeType::Sidecar,
        // Pilot 0.8's ingress proxy is a gateway.
        ProxyType::Router | ProxyType::Ingress => NodeType::Router,
        ProxyType::Waypoint => NodeType::Waypoint,
    };
    Ok(ProxyIdentity { kind, ips, id, domain, namespace })
}

/// The name of this machine without its domain, for a proxy outside Kubernetes.
fn machine_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    text.trim().split('.').next().filter(|name| !name.is_empty()).unwrap_or("proxy").to_owned()
}

/// `--ip` alone, else `$INSTANCE_IP` followed by the addresses of this machine. Only Kubernetes has several addresses.
fn ips(
    registry: RegistryKind,
    flags: &IdentityFlags,
    environment: &Environment,
    own: &[IpAddr],
) -> Result<Vec<IpAddr>> {
    let read = |text: &str, from: &str| text.parse().with_context(|| format!("could not parse {from} {text:?}"));
    if !flags.ip.is_empty() {
        return Ok(vec![read(&flags.ip, "--ip")?]);
    }
    let mut ips: Vec<IpAddr> = Vec::new();
    if let Some(text) = environment.get("INSTANCE_IP") {
        ips.push(read(text, "$INSTANCE_IP")?);
    }
    for ip in own {
        if !ips.contains(ip) {
            ips.push(*ip);
        }
    }
    if ips.is_empty() {
        ips.push(Ipv4Addr::LOCALHOST.into());
    }
    if registry != RegistryKind::Kubernetes {
        ips.truncate(1);
    }
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use super::{IdentityFlags, ProxyType, proxy_identity};
    use crate::environment::Environment;

    fn check(registry: &str, flags: &[(&str, &str)], env: &[(&str, &str)], own: &[&str], expected: &str) {
        let mut identity = IdentityFlags { registry: registry.to_owned(), ..IdentityFlags::default() };
        for (name, value) in flags {
            match *name {
                "ip" => identity.ip = (*value).to_owned(),
                "id" => identity.id = (*value).to_owned(),
                _ => identity.domain = (*value).to_owned(),
            }
        }
        let env: Environment = env.iter().copied().collect();
        let own: Vec<_> = own.iter().map(|ip| ip.parse().unwrap()).collect();
        let identity = proxy_identity(ProxyType::Sidecar, &identity, &env, &own).map(|found| found.node_id());
        assert_eq!(identity.unwrap_or_else(|e| e.to_string()), expected, "{registry} {flags:?}");
    }

    #[test]
    fn kubernetes_id_is_the_pod_name() {
        let pod = [("POD_NAME", "a-1"), ("POD_NAMESPACE", "shop"), ("INSTANCE_IP", "10.0.0.1")];
        check("Kubernetes", &[], &pod, &["10.0.0.2"], "sidecar~10.0.0.1~a-1.shop~shop.svc.cluster.local");
        check("Kubernetes", &[], &pod[..2], &["10.0.0.2"], "sidecar~10.0.0.2~a-1.shop~shop.svc.cluster.local");
        check("Kubernetes", &[], &pod[..2], &[], "sidecar~127.0.0.1~a-1.shop~shop.svc.cluster.local");
        let unnamed = format!("sidecar~10.0.0.2~{}.default~default.svc.cluster.local", super::machine_name());
        check("Kubernetes", &[], &[], &["10.0.0.2"], &unnamed);
        check("Kubernetes", &[("id", "b.cart")], &[], &[], "sidecar~127.0.0.1~b.cart~cart.svc.cluster.local");
    }

    #[test]
    fn other_registries_use_the_address_as_id() {
        check("Consul", &[], &[], &["10.0.0.2"], "sidecar~10.0.0.2~10.0.0.2.service.consul~service.consul");
        check("Consul", &[], &[], &[], "sidecar~127.0.0.1~127.0.0.1.service.consul~service.consul");
        check("Other", &[], &[], &["10.0.0.2", "10.0.0.3"], "sidecar~10.0.0.2~10.0.0.2~");
        check("Eureka", &[], &[("INSTANCE_IP", "10.0.0.9")], &["10.0.0.2"], "sidecar~10.0.0.9~10.0.0.9~");
    }

    #[test]
    fn flags_override_the_environment() {
        let flags = [("ip", "1.2.3.4"), ("id", "a-1.shop"), ("domain", "shop.svc.cluster.local")];
        let env = [("POD_NAME", "x"), ("POD_NAMESPACE", "y"), ("INSTANCE_IP", "10.0.0.1")];
        check("Kubernetes", &flags, &env, &["10.0.0.2"], "sidecar~1.2.3.4~a-1.shop~shop.svc.cluster.local");
    }

    #[test]
    fn errors_name_the_flag() {
        check("Kubernetes", &[("ip", "10.0.0.x")], &[], &[], "could not parse --ip \"10.0.0.x\"");
        let known = "Kubernetes, Consul, Eureka, CloudFoundry, Mock, Config, Other";
        check("Etcd", &[], &[], &[], &format!("could not parse --serviceregistry \"Etcd\": expected one of {known}"));
    }

    #[test]
    fn dual_stack_machine_has_all_addresses() {
        let own = ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let identity = IdentityFlags { registry: "Kubernetes".to_owned(), ..IdentityFlags::default() };
        let env: Environment = [("INSTANCE_IP", "fd00::1")].into_iter().collect();
        let identity = proxy_identity(ProxyType::Ingress, &identity, &env, &own).unwrap();
        assert_eq!(identity.ips.len(), 3);
        assert!(identity.node_id().starts_with("router~fd00::1~") && !identity.is_ipv6_only());
    }
}
