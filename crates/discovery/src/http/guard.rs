//! Protects debug pages against web sites that make a browser send requests: such a request comes from loopback, so the
//! peer address is not enough. Checks the host name (DNS rebinding) and the origin (cross-site requests).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};

use super::PageResponse;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Host names under which pages are served.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllowedHosts(Arc<HostNames>);

#[derive(Debug, Default)]
struct HostNames {
    /// Suffixes of Service names in this instance's namespace: `.istio-system.svc`.
    suffixes: Vec<String>,
    configured: Vec<String>,
}

impl AllowedHosts {
    /// Services of this namespace, and names of `--debugHosts`.
    pub(crate) fn new(namespace: &str, domain: &str, configured: &[String]) -> AllowedHosts {
        let suffixes = ["", ".svc", &format!(".svc.{domain}")].map(|end| format!(".{namespace}{end}").to_lowercase());
        let configured =
            configured.iter().map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect();
        AllowedHosts(Arc::new(HostNames { suffixes: suffixes.to_vec(), configured }))
    }

    /// Whether no outsider can make this name resolve to us: IP addresses are not resolved, names without a dot are in no
    /// public zone, and names of Services belong to the cluster.
    fn contains(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let is_service = |suffix: &String| host.strip_suffix(suffix.as_str()).is_some_and(is_label);
        address.parse::<IpAddr>().is_ok()
            || is_label(&host)
            || host.ends_with(".localhost")
            || self.0.suffixes.iter().any(is_service)
            || self.0.configured.contains(&host)
    }
}

fn is_label(name: &str) -> bool {
    !name.is_empty() && !name.contains('.')
}

/// Rejects requests with a foreign host name and cross-site requests of browsers.
pub(super) async fn own_site_only(State(hosts): State<AllowedHosts>, request: Request, next: Next) -> Response {
    match rejection_reason(&hosts, request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(reason) => PageResponse::refused(StatusCode::FORBIDDEN, reason).into_response(),
    }
}

fn rejection_reason(hosts: &AllowedHosts, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    const NAME: &str = "could not serve pages under this host name: use an IP address, localhost or the name of the \
                        Service, or add the name to --debugHosts";
    const SITE: &str = "could not serve pages to another site";
    let authority = match (uri.authority(), headers.get(HOST)) {
        (Some(authority), _) => Some(authority.clone()),
        (None, Some(host)) => match Authority::try_from(host.as_bytes()) {
            Ok(authority) => Some(authority),
            Err(_) => return Some(NAME),
        },
        // Not a browser: every browser sends a host.
        (None, None) => None,
    };
    let is_foreign = |authority: &Authority| authority.as_str().contains('@') || !hosts.contains(authority.host());
    if authority.as_ref().is_some_and(is_foreign) {
        return Some(NAME);
    }
    let is_own = |site: &HeaderValue| ["same-origin", "none"].iter().any(|own| site == own);
    if headers.get(FETCH_SITE).is_some_and(|site| !is_own(site)) {
        return Some(SITE);
    }
    let is_same = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        origin.is_some() && origin == authority.as_ref().map(Authority::as_str)
    };
    headers.get(ORIGIN).is_some_and(|origin| !is_same(origin)).then_some(SITE)
}

/// Adds headers that keep browsers from sharing, caching or embedding a page.
pub(super) async fn security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
        (REFERRER_POLICY, "no-referrer"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::{AllowedHosts, HeaderMap, HeaderName, Uri, rejection_reason};

    fn is_allowed(headers: &[(&'static str, &str)]) -> bool {
        let hosts = AllowedHosts::new("istio-system", "cluster.local", &["Pilot.Example.com".to_owned()]);
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        rejection_reason(&hosts, &Uri::from_static("/debug/syncz"), &headers).is_none()
    }

    #[test]
    fn hole_12_only_names_that_cannot_be_rebound_are_allowed() {
        for good in [
            "127.0.0.1:8080",
            "10.0.0.7:15014",
            "[::1]:8080",
            "localhost",
            "localhost:8080",
            "pilot.localhost:8080",
            "discovery",
            "istiod.istio-system:15014",
            "istiod.istio-system.svc:15014",
            "istiod-canary.istio-system.svc.cluster.local.",
            "pilot.example.com",
        ] {
            assert!(is_allowed(&[("host", good)]), "{good}");
        }
        for bad in [
            "rebound.example.com:8080",
            "127.0.0.1.nip.io",
            "localhost.example.com",
            "a.istiod.istio-system.svc",
            "istiod.other.svc.cluster.local",
            "istio-system.svc.cluster.local",
            "user@127.0.0.1@x",
            "",
        ] {
            assert!(!is_allowed(&[("host", bad)]), "{bad}");
        }
        assert!(is_allowed(&[]), "not a browser");
    }

    #[test]
    fn hole_12_cross_site_requests_are_rejected() {
        let host = ("host", "127.0.0.1:8080");
        for (site, expected) in [("none", true), ("same-origin", true), ("cross-site", false), ("same-site", false)] {
            assert_eq!(is_allowed(&[host, ("sec-fetch-site", site)]), expected, "{site}");
        }
        for (origin, expected) in [
            ("http://127.0.0.1:8080", true),
            ("http://127.0.0.1:9090", false),
            ("https://evil.example", false),
            ("null", false),
        ] {
            assert_eq!(is_allowed(&[host, ("origin", origin)]), expected, "{origin}");
        }
        assert!(!is_allowed(&[("origin", "http://127.0.0.1:8080")]), "an origin without a host");
    }
}
