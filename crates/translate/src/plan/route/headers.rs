//! Headers that proxies add by themselves, as far as the client's settings decide about routes.

use scope::View;

/// Settings of the client about headers.
pub(super) struct ProxyHeaders {
    /// Tell servers how often a request was tried.
    pub(super) attempt_count: bool,
    /// Keep a rewritten host in x-forwarded-host.
    pub(super) forwarded_host: bool,
}

/// The settings of this client.
pub(super) fn of_client(view: &View) -> ProxyHeaders {
    let headers = view.proxy_config.proxy_headers.as_ref();
    let attempt_count = headers.and_then(|h| h.attempt_count.as_ref());
    let forwarded_host = headers.and_then(|h| h.x_forwarded_host.as_ref());
    ProxyHeaders {
        attempt_count: !attempt_count.and_then(|a| a.disabled).unwrap_or(false),
        forwarded_host: forwarded_host.and_then(|f| f.enabled).unwrap_or(false),
    }
}
