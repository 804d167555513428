//! Headers that proxies add: the client's settings that affect routes.

use scope::View;

/// Header settings of the client.
pub(super) struct ProxyHeaders {
    /// Send x-envoy-attempt-count.
    pub(super) attempt_count: bool,
    /// Preserve a rewritten host in x-forwarded-host.
    pub(super) forwarded_host: bool,
}

pub(super) fn of_client(view: &View) -> ProxyHeaders {
    let headers = view.proxy_config.proxy_headers.as_ref();
    let attempt_count = headers.and_then(|h| h.attempt_count.as_ref());
    let forwarded_host = headers.and_then(|h| h.x_forwarded_host.as_ref());
    ProxyHeaders {
        attempt_count: !attempt_count.and_then(|a| a.disabled).unwrap_or(false),
        forwarded_host: forwarded_host.and_then(|f| f.enabled).unwrap_or(false),
    }
}
