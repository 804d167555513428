//! Recognizes requests from local programs. A browser on this machine also connects from loopback, on behalf of any web
//! page (cross-site requests, DNS rebinding). Browsers mark such requests with headers that pages cannot change; kubelet,
//! curl and Prometheus send none of them.

use std::net::IpAddr;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Uri};

const FETCH_SITE: &str = "sec-fetch-site";

/// True if the peer is loopback, the host is an IP address or `localhost`, and no web page sent the request.
pub(super) fn is_local(peer: IpAddr, uri: &Uri, headers: &HeaderMap) -> bool {
    let is_of_page = headers.contains_key(ORIGIN)
        || headers.get_all(FETCH_SITE).iter().any(|site| !site.as_bytes().eq_ignore_ascii_case(b"none"));
    let by_header = headers.get_all(HOST).iter().all(|host| {
        let authority = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
        authority.is_some_and(|authority| is_own_name(authority.host()))
    });
    peer.is_loopback() && !is_of_page && by_header && uri.host().is_none_or(is_own_name)
}

/// IP addresses cannot be rebound; the only safe name is `localhost`.
fn is_own_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let is_localhost = host.eq_ignore_ascii_case("localhost");
    is_localhost || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Request;

    use super::is_local;

    fn check(peer: &str, uri: &str, headers: &[(&str, &str)], expected: bool) {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let peer: IpAddr = peer.parse().unwrap();
        assert_eq!(is_local(peer, request.uri(), request.headers()), expected, "{peer} {uri} {headers:?}");
    }

    #[test]
    fn hole_10_requests_from_web_pages_are_not_local() {
        let own = ("host", "127.0.0.1:15020");
        for host in ["localhost:15020", "LOCALHOST", "127.0.0.1:15020", "[::1]:15020", "10.0.0.1:15020", "localhost."] {
            check("127.0.0.1", "/drain", &[("host", host)], true);
        }
        check("::1", "/drain", &[], true);
        check("127.0.0.1", "/drain", &[own, ("sec-fetch-site", "none")], true);
        check("10.0.0.1", "/drain", &[own], false);
        for site in ["cross-site", "same-site", "same-origin", "CROSS-SITE", ""] {
            check("127.0.0.1", "/drain", &[own, ("sec-fetch-site", site)], false);
        }
        for origin in ["https://evil.example", "null", "http://127.0.0.1:15020"] {
            check("127.0.0.1", "/drain", &[own, ("origin", origin)], false);
        }
        for host in ["evil.example:15020", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"] {
            check("127.0.0.1", "/drain", &[("host", host)], false);
        }
        check("127.0.0.1", "http://evil.example/drain", &[own], false);
        check("127.0.0.1", "/drain", &[own, ("host", "evil.example")], false);
    }
}
