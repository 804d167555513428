//! Host names, labels and endpoints of registries in the syntax of the mesh. Registries have looser rules; names that
//! do not fit are adapted or rejected here.

use std::collections::BTreeMap;

use model::endpoint::{Endpoint, Health, Locality, TlsMode};
use model::labels::Labels;
use model::names::{ClusterId, Hostname, Namespace};

use crate::registry::options_error::OptionsError;

const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

/// A host name from a template, in which `{name}` is replaced by the value of that name. Letters become lower case,
/// underscores hyphens, and empty labels are dropped. `None` where the result is not a valid DNS name.
pub fn hostname(template: &str, values: &[(&str, &str)]) -> Option<Hostname> {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    let text = text.to_ascii_lowercase().replace('_', "-");
    let parts: Vec<&str> = text.split('.').filter(|part| !part.is_empty()).collect();
    let text = parts.join(".");
    let fits = !parts.is_empty() && text.len() <= 253 && parts.iter().all(|part| is_dns_label(part));
    fits.then(|| Hostname::new(text))
}

/// Checks a template of host names: it must contain the placeholder of the first value, which distinguishes services.
pub fn check_host(template: &str, values: &[(&str, &str)]) -> Result<(), OptionsError> {
    let missing = values.first().filter(|(name, _)| !template.contains(&format!("{{{name}}}")));
    if let Some((name, _)) = missing {
        let (template, placeholder) = (template.to_owned(), (*name).to_owned());
        return Err(OptionsError::HostWithoutPlaceholder { template, placeholder });
    }
    let invalid = || OptionsError::Invalid { field: "host", value: template.to_owned(), expected: "a host name" };
    hostname(template, values).map(|_| ()).ok_or_else(invalid)
}

fn is_dns_label(part: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    part.len() <= 63 && part.chars().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// Labels in the syntax of Kubernetes. Other characters become hyphens; a label without a usable name is left out.
pub fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let fitting = |(key, value): (&str, &str)| {
        let (prefix, name) = key.rsplit_once('/').map_or(("", key), |(prefix, name)| (prefix, name));
        let name = label_text(name);
        let prefix = prefix.to_ascii_lowercase();
        let is_prefix = prefix.len() <= 253 && prefix.split('.').all(|part| !part.is_empty() && is_dns_label(part));
        let key = if is_prefix { format!("{prefix}/{name}") } else { name.clone() };
        (!name.is_empty()).then(|| (key, label_text(value)))
    };
    pairs.into_iter().filter_map(fitting).collect()
}

fn label_text(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let text: String = text.chars().map(plain).take(63).collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Labels with those of the locality and cluster, so that subsets and failover can select by them.
pub fn topology(mut labels: BTreeMap<String, String>, locality: &Locality, cluster: &ClusterId) -> Labels {
    let place = [
        ("topology.kubernetes.io/region", locality.region()),
        ("topology.kubernetes.io/zone", locality.zone()),
        ("topology.istio.io/subzone", locality.sub_zone()),
        ("topology.istio.io/cluster", cluster.as_str()),
    ];
    for (key, value) in place.into_iter().filter(|(_, value)| !value.is_empty()) {
        labels.insert(key.to_owned(), value.to_owned());
    }
    Labels::from(&labels)
}

/// Whether the endpoint accepts mesh TLS: by its label, else where it has a service account.
pub fn tls_mode(labels: &BTreeMap<String, String>, has_account: bool) -> TlsMode {
    match labels.get(TLS_MODE_LABEL).map(String::as_str) {
        Some("istio") => TlsMode::Istio,
        Some(_) => TlsMode::Disabled,
        None if has_account => TlsMode::Istio,
        None => TlsMode::Disabled,
    }
}

/// A healthy endpoint without port, locality and labels.
pub fn endpoint(address: &str, namespace: &Namespace, cluster: &ClusterId) -> Endpoint {
    Endpoint {
        cluster: cluster.clone(),
        namespace: namespace.clone(),
        health: Health::Healthy,
        ..Endpoint::at(address)
    }
}

/// Endpoints in an order independent of the registry's, without duplicates, sharing equal labels and localities.
pub fn in_order(mut endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    endpoints.sort_by(|a, b| {
        let key = |e: &Endpoint| (e.service_port_number, e.addresses.clone(), e.port, e.workload_name.clone());
        key(a).cmp(&key(b))
    });
    endpoints.dedup_by(|next, known| {
        if known.labels == next.labels {
            next.labels = known.labels.clone();
        }
        if known.locality == next.locality {
            next.locality = known.locality.clone();
        }
        if known.service_port == next.service_port {
            next.service_port = known.service_port.clone();
        }
        next == known
    });
    endpoints
}

#[cfg(test)]
mod tests {
    use super::{hostname, labels};

    #[test]
    fn host_names_are_valid_in_dns() {
        let name = |service| hostname("{service}.service.{dc}.consul", &[("service", service), ("dc", "")]);
        assert_eq!(name("Web_API").as_deref(), Some("web-api.service.consul"));
        assert_eq!(name("a.b").as_deref(), Some("a.b.service.consul"));
        for bad in ["-a", "a b", "ä", &"x".repeat(64), "a/b"] {
            assert_eq!(name(bad), None, "{bad}");
        }
        assert_eq!(hostname("", &[]), None);
    }

    #[test]
    fn labels_are_adapted_to_the_syntax_of_kubernetes() {
        let adapted = labels([("version", "v 1"), ("a b", "-x-"), ("Example.com/tier", "gold"), ("!", "x"), ("e", "")]);
        let expected = [("a-b", "x"), ("e", ""), ("example.com/tier", "gold"), ("version", "v-1")];
        assert_eq!(adapted.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), expected);
    }
}
