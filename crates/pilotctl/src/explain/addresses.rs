//! Addresses of a host, from the list of services: the name as given, or completed with the proxy's namespace.

use std::net::IpAddr;

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::of;

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
