//! Consistent hashing as Envoy's hash policy.

use api::envoy::config::route::v3::route_action::HashPolicy;
use api::envoy::config::route::v3::route_action::hash_policy::{
    ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
};
use api::istio::networking::v1alpha3::load_balancer_settings::ConsistentHashLb;
use api::istio::networking::v1alpha3::load_balancer_settings::consistent_hash_lb::{HashKey, HttpCookie};

/// The policy; `None` without a hash key.
pub(super) fn policy(hash: &ConsistentHashLb) -> Option<HashPolicy> {
    let specifier = match hash.hash_key.as_ref()? {
        HashKey::HttpHeaderName(name) => {
            PolicySpecifier::Header(Header { header_name: name.clone(), ..Header::default() })
        }
        HashKey::HttpCookie(cookie) => PolicySpecifier::Cookie(cookie_of(cookie)),
        HashKey::UseSourceIp(on) => PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: *on }),
        HashKey::HttpQueryParameterName(name) => PolicySpecifier::QueryParameter(QueryParameter { name: name.clone() }),
    };
    Some(HashPolicy { policy_specifier: Some(specifier), ..HashPolicy::default() })
}

fn cookie_of(cookie: &HttpCookie) -> Cookie {
    let attribute = |a: &_| {
        let api::istio::networking::v1alpha3::load_balancer_settings::consistent_hash_lb::http_cookie::Attribute {
            name,
            value,
        } = a;
        CookieAttribute { name: name.clone(), value: value.clone() }
    };
    Cookie {
        name: cookie.name.clone(),
        ttl: cookie.ttl,
        path: cookie.path.clone(),
        attributes: cookie.attributes.iter().map(attribute).collect(),
    }
}
