//! What the proxy of an endpoint does with a request: whether it accepts the connection (mutual TLS), the tokens
//! (RequestAuthentication) and the request (AuthorizationPolicy). `endpoints` lists the endpoints that a request goes to,
//! `arrival` follows it into one of their proxies. `rbac`, `tokens` and `transport` evaluate one thing each.

mod rbac;
mod tokens;
mod transport;
mod truth;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use api::Any;
use api::envoy::config::core::v3::TrafficDirection;
use api::envoy::config::endpoint::v3::LbEndpoint;
use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::config::listener::v3::{FilterChain, Listener};
use api::envoy::config::rbac::v3::Rbac;
use api::envoy::config::rbac::v3::rbac::Action;
use api::envoy::extensions::filters::http::jwt_authn::v3::JwtAuthentication;
use api::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_filter;
use api::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use prost::Message;
use serde_json::Value;

pub use crate::access::{Access, AccessCheck, Arrival, MatchedRule};
use crate::config::ProxyConfig;
use crate::explanation::{Explanation, RequestOutcome};
use crate::listener::{ConnectionTraits, Entry, address_of, chain_for, entry, inspects_http};
use crate::request::Request;
use crate::target::address_text;
use tokens::TokenCheck;
pub use transport::ClientTransport;
use truth::Truth;

/// Shadow rules with this prefix select requests for external authorization.
const CUSTOM_STATS: &str = "istio_ext_authz_";
const CAPTURE: &str = "virtualInbound";

/// An endpoint that a request is sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrivalEndpoint {
    pub address: SocketAddr,
    pub transport: ClientTransport,
}

/// What is known of the proxy that sends the request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestSource {
    pub addresses: Vec<IpAddr>,
    /// The SPIFFE ID of its certificate.
    pub identity: Option<String>,
}

/// The proxy of an endpoint, with the objects that decide how it accepts connections and tokens.
#[derive(Clone, Debug)]
pub struct Destination<'a> {
    pub proxy: &'a str,
    pub config: &'a ProxyConfig,
    /// PeerAuthentications, as paths of the API, the narrowest first.
    pub peer_authentications: Vec<String>,
    pub request_authentications: Vec<String>,
}

/// A request on its way into a proxy.
struct Arriving<'a> {
    /// `None` for bytes.
    request: Option<Request>,
    source: &'a RequestSource,
    transport: &'a ClientTransport,
    address: SocketAddr,
    claims: Option<Value>,
}

impl Arriving<'_> {
    fn identity(&self) -> Option<&str> {
        self.source.identity.as_deref()
    }
}

/// The endpoints that a request goes to, each address once.
pub fn endpoints(config: &ProxyConfig, explanation: &Explanation) -> Vec<ArrivalEndpoint> {
    let RequestOutcome::Forwarded(steps) = &explanation.outcome else { return Vec::new() };
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for cluster in steps.iter().filter_map(|step| config.clusters.get(&step.name)) {
        let service = cluster.eds_cluster_config.as_ref().map_or("", |eds| &*eds.service_name);
        let service = if service.is_empty() { &cluster.name } else { service };
        let assignment = config.endpoints.get(service).or(cluster.load_assignment.as_ref());
        for endpoint in assignment.iter().flat_map(|assignment| &assignment.endpoints).flat_map(|g| &g.lb_endpoints) {
            let Some(address) = socket_of(endpoint).filter(|address| known.insert(*address)) else { continue };
            found
                .push(ArrivalEndpoint { address, transport: ClientTransport::of(cluster, endpoint.metadata.as_ref()) });
        }
    }
    found
}

fn socket_of(endpoint: &LbEndpoint) -> Option<SocketAddr> {
    let Some(HostIdentifier::Endpoint(of)) = &endpoint.host_identifier else { return None };
    address_text(of.address.as_ref()?).parse().ok()
}

/// Follows a request into the proxy of an endpoint. The request is the one that the sending proxy forwards.
pub fn arrival(
    destination: &Destination<'_>,
    endpoint: &ArrivalEndpoint,
    source: &RequestSource,
    explanation: &Explanation,
) -> Arrival {
    let transport = &endpoint.transport;
    let mut arrival = Arrival {
        proxy: destination.proxy.to_owned(),
        address: endpoint.address.to_string(),
        mutual_tls: transport.has_certificate,
        identity: source.identity.clone().filter(|_| transport.has_certificate),
        filter_chain: None,
        peer_authentications: destination.peer_authentications.clone(),
        checks: Vec::new(),
        access: Access::Allowed,
    };
    let Some(listener) = inbound_listener(destination.config, endpoint.address) else {
        let what = format!("no inbound listener takes port {}: no policy applies", endpoint.address.port());
        arrival.checks.push(AccessCheck { what, rules: Vec::new() });
        return arrival;
    };
    let Some(chain) = inbound_chain(listener, endpoint, explanation.forwarded.is_some()) else {
        let reason = match transport.is_encrypted {
            false => "the proxy accepts mutual TLS only, and the request arrives in plain text".to_owned(),
            true => "no filter chain of the proxy accepts this TLS connection".to_owned(),
        };
        arrival.access = Access::Denied(reason);
        return arrival;
    };
    arrival.filter_chain = Some(chain.name.clone()).filter(|name| !name.is_empty());
    let request = explanation.forwarded.clone();
    let mut arriving = Arriving { request, source, transport, address: endpoint.address, claims: None };
    let access = filtered(chain, destination, &mut arriving, &mut arrival.checks);
    arrival.access = access;
    arrival
}

fn inbound_listener(config: &ProxyConfig, address: SocketAddr) -> Option<&Listener> {
    let inbound = || config.listeners.iter().filter(|l| l.traffic_direction == TrafficDirection::Inbound as i32);
    let own = inbound().find(|l| {
        l.name != CAPTURE
            && address_of(l)
                .is_some_and(|(ip, port)| port == address.port() && (ip.is_unspecified() || ip == address.ip()))
    });
    own.or_else(|| inbound().find(|listener| listener.name == CAPTURE))
}

fn inbound_chain<'a>(listener: &'a Listener, endpoint: &ArrivalEndpoint, is_http: bool) -> Option<&'a FilterChain> {
    let transport = &endpoint.transport;
    let mut protocols: Vec<&str> = Vec::new();
    if transport.is_mesh() && is_http {
        // The ALPN filter offers the request's protocol first.
        protocols.extend(["istio-http/1.1", "istio-h2", "istio-http/1.0"]);
    }
    protocols.extend(transport.protocols.iter().map(String::as_str));
    if !transport.is_encrypted && is_http && inspects_http(listener) {
        protocols.extend(["http/1.1", "h2c"]);
    }
    let connection = ConnectionTraits {
        port: endpoint.address.port(),
        addresses: &[endpoint.address.ip()],
        server_name: transport.is_encrypted.then(|| transport.server_name.to_ascii_lowercase()),
        is_encrypted: transport.is_encrypted,
        protocols: &protocols,
    };
    chain_for(listener, &connection, &mut Vec::new()).or(listener.default_filter_chain.as_ref())
}

/// Runs the filters of a chain until one denies the request.
fn filtered(
    chain: &FilterChain,
    destination: &Destination<'_>,
    arriving: &mut Arriving<'_>,
    checks: &mut Vec<AccessCheck>,
) -> Access {
    let mut access = Access::Allowed;
    let mut note = |result: Option<Access>| match result {
        Some(denied @ Access::Denied(_)) => Some(denied),
        Some(other) => {
            if access == Access::Allowed {
                access = other;
            }
            None
        }
        None => None,
    };
    for filter in &chain.filters {
        let Some(ConfigType::TypedConfig(config)) = &filter.config_type else { continue };
        if let Some(denied) = note(network_check(config, arriving, checks)) {
            return denied;
        }
    }
    if let (Entry::Http(manager), _) = entry(chain) {
        for filter in &manager.filters {
            let Some(http_filter::ConfigType::TypedConfig(config)) = &filter.config_type else { continue };
            if let Some(denied) = note(http_check(config, destination, arriving, checks)) {
                return denied;
            }
        }
    }
    access
}

/// `None` for other filters.
fn network_check(config: &Any, arriving: &Arriving<'_>, checks: &mut Vec<AccessCheck>) -> Option<Access> {
    if !config.type_url.ends_with("network.rbac.v3.RBAC") {
        return None;
    }
    let filter = NetworkRbac::decode(&*config.value).ok()?;
    let bytes = Arriving { request: None, claims: None, ..*arriving };
    let is_custom = filter.shadow_rules_stat_prefix == CUSTOM_STATS;
    rules_check(filter.rules.as_ref(), filter.shadow_rules.as_ref(), is_custom, &bytes, checks)
}

fn http_check(
    config: &Any,
    destination: &Destination<'_>,
    arriving: &mut Arriving<'_>,
    checks: &mut Vec<AccessCheck>,
) -> Option<Access> {
    if config.type_url.ends_with("jwt_authn.v3.JwtAuthentication") {
        let filter = JwtAuthentication::decode(&*config.value).ok()?;
        return Some(token_check(&filter, destination, arriving, checks));
    }
    if !config.type_url.ends_with("http.rbac.v3.RBAC") {
        return None;
    }
    let filter = HttpRbac::decode(&*config.value).ok()?;
    let is_custom = filter.shadow_rules_stat_prefix == CUSTOM_STATS;
    rules_check(filter.rules.as_ref(), filter.shadow_rules.as_ref(), is_custom, arriving, checks)
}

fn token_check(
    filter: &JwtAuthentication,
    destination: &Destination<'_>,
    arriving: &mut Arriving<'_>,
    checks: &mut Vec<AccessCheck>,
) -> Access {
    let Some(request) = &arriving.request else { return Access::Allowed };
    let (access, what) = match tokens::check(filter, request) {
        TokenCheck::NoToken => (Access::Allowed, "no token, and RequestAuthentication requires none".to_owned()),
        TokenCheck::Accepted { issuer, claims } => {
            arriving.claims = Some(claims);
            let what =
                format!("RequestAuthentication accepts the token of {issuer}; its signature is not checked here");
            (Access::Allowed, what)
        }
        TokenCheck::Rejected(reason) => {
            let what = format!("RequestAuthentication rejects the token: {reason}");
            (Access::Denied(format!("401: {reason}")), what)
        }
    };
    let rules = destination.request_authentications.iter().cloned();
    let rules = rules.map(|config| MatchedRule { config, field: None }).collect();
    checks.push(AccessCheck { what, rules });
    access
}

fn rules_check(
    rules: Option<&Rbac>,
    shadow: Option<&Rbac>,
    is_custom: bool,
    arriving: &Arriving<'_>,
    checks: &mut Vec<AccessCheck>,
) -> Option<Access> {
    let mut access = Access::Allowed;
    if let Some(shadow) = shadow.map(|rules| rbac::matching(rules, arriving)).filter(|m| m.truth != Truth::No) {
        let what =
            if is_custom { "AuthorizationPolicy CUSTOM applies" } else { "a dry run of AuthorizationPolicy matches" };
        checks.push(AccessCheck { what: what.to_owned(), rules: shadow.rules });
        if is_custom {
            access = Access::Unknown("external authorization decides".to_owned());
        }
    }
    let Some(rules) = rules else { return Some(access) };
    let found = rbac::matching(rules, arriving);
    let unknown = || Access::Unknown("a policy depends on what is not known here".to_owned());
    let denied = || Access::Denied("403: RBAC: access denied".to_owned());
    let (what, of_rules) = match (rbac::action(rules), found.truth) {
        (_, Truth::Unknown) => ("AuthorizationPolicy may match", unknown()),
        (Action::Allow, Truth::Yes) => ("AuthorizationPolicy ALLOW matches", Access::Allowed),
        (Action::Allow, Truth::No) => ("no rule of the AuthorizationPolicies with ALLOW matches", denied()),
        (Action::Deny, Truth::Yes) => ("AuthorizationPolicy DENY matches", denied()),
        (Action::Deny, Truth::No) => ("no rule of the AuthorizationPolicies with DENY matches", Access::Allowed),
        (Action::Log, Truth::Yes) => ("AuthorizationPolicy AUDIT matches", Access::Allowed),
        (Action::Log, Truth::No) => return Some(access),
    };
    // Who wonders about a missing match wants to see the policies.
    let named = match found.rules.is_empty() {
        true => rules.policies.keys().map(|name| MatchedRule::of(name)).collect(),
        false => found.rules,
    };
    checks.push(AccessCheck { what: what.to_owned(), rules: named });
    Some(if of_rules == Access::Allowed { access } else { of_rules })
}
