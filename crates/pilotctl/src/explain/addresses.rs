//! Addresses of a host, from the list of services: the name as given, or completed with the proxy's namespace. A host that
//! neither a service nor a route has is reported with the name that resembles it.

use std::net::IpAddr;

use explain::{Explanation, Request};
use model::suggest;
use serde_json::Value;

/// Addresses of the service that a proxy of this namespace means by a host name.
pub(super) fn of(services: &Value, host: &str, namespace: &str) -> Vec<IpAddr> {
    let services = services.as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |service: &Value| service["hostname"].as_str().unwrap_or_default().to_owned();
    let is_meant = |service: &&Value| {
        let full = name(service);
        let rest = full.strip_prefix(host).unwrap_or("-");
        // `cart`, `cart.shop` and `cart.shop.svc` are short for `cart.shop.svc.cluster.local`.
        rest.is_empty()
            || rest.starts_with(&format!(".{namespace}.svc."))
            || rest.starts_with(".svc.")
            || rest.starts_with('.') && host.ends_with(".svc")
    };
    let exact = services.iter().find(|service| name(service) == host);
    let Some(service) = exact.or_else(|| services.iter().find(is_meant)) else { return Vec::new() };
    let address = |value: &Value| value.as_str().and_then(|text| text.parse::<IpAddr>().ok());
    let vips = service["clusterVIPs"]["Addresses"].as_object().into_iter().flat_map(|map| map.values());
    let vips = vips.flat_map(|list| list.as_array().into_iter().flatten()).filter_map(address);
    let mut found: Vec<IpAddr> = address(&service["defaultAddress"]).into_iter().chain(vips).collect();
    found.retain(|address| !address.is_unspecified());
    found.dedup();
    found
}

/// That no service or route has the host, if it has the form of a mesh's name or resembles one. Names outside the mesh,
/// which a proxy may pass through, are not reported.
pub(super) fn unknown(services: &Value, request: &Request, explanation: &Explanation) -> Option<String> {
    let host = request.host();
    let names: Vec<&str> =
        services.as_array().into_iter().flatten().filter_map(|service| service["hostname"].as_str()).collect();
    if explanation.has_named_host() || !request.addresses.is_empty() || names.contains(&host) {
        return None;
    }
    suggest::missing_host(host, &names)
}

#[cfg(test)]
mod tests {
    use explain::{ProxyConfig, Request, explain};
    use serde_json::json;

    use super::{of, unknown};

    #[test]
    fn unknown_hosts_have_a_hint() {
        let services = json!([{"hostname": "cart.shop.svc.cluster.local"}, {"hostname": "pay.example.com"}]);
        let note = |host: &str| {
            let request = Request::new("GET", &format!("http://{host}/")).unwrap();
            unknown(&services, &request, &explain(&ProxyConfig::default(), &request))
        };
        for (host, expected) in [
            ("crat.shop.svc.cluster.local", "did you mean \"cart.shop.svc.cluster.local\"?"),
            ("pai.example.com", "did you mean \"pay.example.com\"?"),
            ("crat", "did you mean \"cart.shop.svc.cluster.local\"?"),
            ("warehouse", "lists what the proxy knows"),
        ] {
            let note = note(host).unwrap();
            assert!(note.contains(expected) && note.contains(host), "{note}");
        }
        assert_eq!(note("www.debian.org"), None);
        assert_eq!(note("10.0.0.1"), None);
    }

    #[test]
    fn short_names_are_completed() {
        let services = json!([
            {"hostname": "cart.shop.svc.cluster.local", "defaultAddress": "10.0.0.1"},
            {"hostname": "cart.bank.svc.cluster.local", "defaultAddress": "10.0.0.2"},
            {"hostname": "pay.example.com", "defaultAddress": "0.0.0.0"},
        ]);
        for (host, namespace, expected) in [
            ("cart", "shop", "10.0.0.1"),
            ("cart", "bank", "10.0.0.2"),
            ("cart.bank", "shop", "10.0.0.2"),
            ("cart.bank.svc", "shop", "10.0.0.2"),
            ("cart.shop.svc.cluster.local", "bank", "10.0.0.1"),
        ] {
            assert_eq!(of(&services, host, namespace), [expected.parse::<std::net::IpAddr>().unwrap()], "{host}");
        }
        assert!(of(&services, "cart", "other").is_empty());
        assert!(of(&services, "pay.example.com", "shop").is_empty());
    }
}
