//! Headers that a route adds, sets and removes.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use api::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use api::envoy::config::route::v3::Route;
use api::istio::networking::v1alpha3::Headers;
use api::istio::networking::v1alpha3::headers::HeaderOperations;

/// Header operations of a route.
pub(super) struct HeaderEdits {
    pub(super) request_add: Vec<HeaderValueOption>,
    pub(super) request_remove: Vec<String>,
    pub(super) response_add: Vec<HeaderValueOption>,
    pub(super) response_remove: Vec<String>,
    /// The new host of requests, which Envoy does not allow as a header operation. Empty to keep the host.
    pub(super) authority: String,
}

/// Header operations of a VirtualService.
pub(super) fn operations(headers: &Headers) -> HeaderEdits {
    let request = headers.request.as_ref();
    let response = headers.response.as_ref();
    let authority = request.map_or("", |r| match authority(&r.set) {
        "" => authority(&r.add),
        set => set,
    });
    HeaderEdits {
        request_add: additions(request),
        request_remove: removals(request),
        response_add: additions(response),
        response_remove: removals(response),
        authority: authority.into(),
    }
}

/// Appends operations to the route. Returns the new host of requests, or an empty string.
pub(super) fn extend_route(route: &mut Route, headers: &Headers) -> String {
    let operations = operations(headers);
    route.request_headers_to_add.extend(operations.request_add);
    route.request_headers_to_remove.extend(operations.request_remove);
    route.response_headers_to_add.extend(operations.response_add);
    route.response_headers_to_remove.extend(operations.response_remove);
    operations.authority
}

/// An alt-svc header that offers HTTP/3 for a day.
pub(super) fn http3_offer(port: u16) -> HeaderValueOption {
    option("alt-svc", &format!("h3=\":{port}\"; ma=86400"), HeaderAppendAction::AppendIfExistsOrAdd)
}

fn additions(operations: Option<&HeaderOperations>) -> Vec<HeaderValueOption> {
    let Some(operations) = operations else { return Vec::new() };
    let all = |map: &BTreeMap<String, String>, action: HeaderAppendAction| {
        let kept = map.iter().filter(|(key, _)| !is_internal(key));
        kept.map(|(key, value)| option(key, value, action)).collect::<Vec<_>>()
    };
    let mut out = all(&operations.set, HeaderAppendAction::OverwriteIfExistsOrAdd);
    out.extend(all(&operations.add, HeaderAppendAction::AppendIfExistsOrAdd));
    out
}

fn option(key: &str, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: key.into(), value: value.into(), ..HeaderValue::default() }),
        append_action: action as i32,
        ..HeaderValueOption::default()
    }
}

fn removals(operations: Option<&HeaderOperations>) -> Vec<String> {
    let all = operations.map_or(&[][..], |o| &o.remove);
    all.iter().filter(|key| !is_internal(key)).cloned().collect()
}

fn authority(headers: &BTreeMap<String, String>) -> &str {
    let of_host = |key: &str| key.eq_ignore_ascii_case(":authority") || key.eq_ignore_ascii_case("host");
    headers.iter().rfind(|(key, _)| of_host(key)).map_or("", |(_, value)| value)
}

/// Headers that Envoy does not allow to change.
fn is_internal(key: &str) -> bool {
    key.starts_with(':') || key.eq_ignore_ascii_case("host")
}
