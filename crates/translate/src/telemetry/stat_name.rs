//! Stat names by the patterns of mesh config (`outboundClusterStatName`, `inboundClusterStatName`).

use model::service::{Registry, Service};

/// Values of a pattern's variables.
#[derive(Clone, Copy, Debug)]
pub struct StatName<'a> {
    pub host: &'a str,
    /// Name and namespace of a Kubernetes Service; for other services the host is used.
    pub kubernetes: Option<(&'a str, &'a str)>,
    pub subset: &'a str,
    pub port: u16,
    pub port_name: &'a str,
    /// `None` keeps `%TARGET_PORT%` as it is.
    pub target_port: Option<u32>,
}

impl<'a> StatName<'a> {
    /// The values of one port of a service.
    pub fn outbound(service: &'a Service, subset: &'a str, port: u16, port_name: &'a str) -> StatName<'a> {
        let host = service.hostname.as_str();
        StatName { host, kubernetes: kubernetes_name(service), subset, port, port_name, target_port: Some(0) }
    }

    /// The pattern with its variables replaced.
    pub fn fill(&self, pattern: &str) -> String {
        let short = self.kubernetes.map_or_else(|| self.host.to_owned(), |(name, ns)| format!("{name}.{ns}"));
        let mut text = pattern
            .replace("%SERVICE%", &short)
            .replace("%SERVICE_NAME%", self.kubernetes.map_or(self.host, |(name, _)| name))
            .replace("%SERVICE_FQDN%", self.host)
            .replace("%SUBSET_NAME%", self.subset);
        if let Some(target) = self.target_port {
            text = text.replace("%TARGET_PORT%", &target.to_string());
        }
        text.replace("%SERVICE_PORT%", &self.port.to_string()).replace("%SERVICE_PORT_NAME%", self.port_name)
    }
}

/// Name and namespace of a Kubernetes service.
pub fn kubernetes_name(service: &Service) -> Option<(&str, &str)> {
    (service.registry == Registry::Kubernetes).then(|| (&*service.name, service.namespace.as_str()))
}

#[cfg(test)]
mod tests {
    use super::StatName;

    #[test]
    fn variables_are_replaced() {
        let mut name = StatName {
            host: "cart.shop.svc.cluster.local",
            kubernetes: None,
            subset: "v1",
            port: 80,
            port_name: "http",
            target_port: None,
        };
        assert_eq!(name.fill("%SERVICE%_%SUBSET_NAME%"), "cart.shop.svc.cluster.local_v1");
        assert_eq!(name.fill("%SERVICE_PORT%_%SERVICE_PORT_NAME%_%TARGET_PORT%"), "80_http_%TARGET_PORT%");
        name.kubernetes = Some(("cart", "shop"));
        assert_eq!(name.fill("%SERVICE%|%SERVICE_NAME%|%SERVICE_FQDN%"), "cart.shop|cart|cart.shop.svc.cluster.local");
    }
}
