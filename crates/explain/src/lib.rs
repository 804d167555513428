//! Follows a request through the configuration of one Envoy and says why it goes where it goes: listener, filter chain,
//! virtual host, route, clusters and endpoints, and why other candidates do not match. Pure: a config dump and a request
//! in, an explanation out. Only `private_envoy`, which checks an explanation, and `verdict`, which checks a whole
//! configuration, start a process.
//!
//! `config` reads the dump, `request` the request. `listener`, `host` and `route` select as Envoy does (`matcher` for
//! strings and headers), `target` resolves clusters and endpoints, `explanation` is the result and its text. `arrival` follows
//! the request into the proxy of an endpoint: mutual TLS, tokens, authorization. `access` is what it finds. `places` finds the field of an object that a
//! route is made from. `summary` lists what a dump has, `samples` finds requests that go another way in another dump.

#![forbid(unsafe_code)]

mod access;
pub mod arrival;
pub mod config;
pub mod explanation;
mod host;
mod listener;
mod matcher;
pub mod places;
pub mod private_envoy;
pub mod request;
mod route;
pub mod samples;
pub mod summary;
mod target;
pub mod verdict;

pub use config::{DumpError, ProxyConfig};
pub use explanation::{Explanation, RequestOutcome};
pub use request::{Request, RequestError};

use explanation::{Rejected, RouteStep, route_title};
use listener::Entry;

/// Follows a request through a proxy's configuration.
pub fn explain(config: &ProxyConfig, request: &Request) -> Explanation {
    let mut explanation = Explanation::new(request);
    let Some(chosen) = listener::choose(config, request, &mut explanation) else { return explanation };
    match chosen {
        Entry::Http(manager) => http(config, request, &manager, &mut explanation),
        Entry::Tcp(clusters) => explanation.outcome = target::forwarded(config, clusters),
        Entry::Unknown => {
            explanation.outcome = RequestOutcome::NotServed("the filter chain has no HTTP or TCP proxy".into())
        }
    }
    explanation
}

fn http(config: &ProxyConfig, request: &Request, manager: &listener::HttpManager, explanation: &mut Explanation) {
    let Some(table) = manager.routes(config) else {
        let name = &manager.route_config;
        explanation.outcome = RequestOutcome::NotServed(format!("the proxy has no route configuration {name}"));
        return;
    };
    explanation.route_configuration = Some(table.name.clone());
    explain_table(config, table, manager.host_of(request), request, explanation);
}

/// Follows a request through one route configuration.
pub fn explain_routes(
    config: &ProxyConfig,
    table: &api::envoy::config::route::v3::RouteConfiguration,
    request: &Request,
) -> Explanation {
    let mut explanation = Explanation::new(request);
    explanation.route_configuration = Some(table.name.clone());
    explain_table(config, table, request.authority.clone(), request, &mut explanation);
    explanation
}

fn explain_table(
    config: &ProxyConfig,
    table: &api::envoy::config::route::v3::RouteConfiguration,
    authority: String,
    request: &Request,
    explanation: &mut Explanation,
) {
    let Some(found) = host::find(table, &authority) else {
        explanation.outcome =
            RequestOutcome::NotServed(format!("404: no virtual host has a domain that matches {authority}"));
        return;
    };
    explanation.virtual_host = Some(found.step(&authority));
    if host::requires_tls(found.host) && request.scheme == "http" {
        let location = format!("https://{}{}", request.authority, request.path);
        explanation.outcome = RequestOutcome::Redirected { status: 301, location };
        return;
    }
    let mut passed = Vec::new();
    for (index, route) in found.host.routes.iter().enumerate() {
        match route::mismatch(route.r#match.as_ref(), request) {
            Some(reason) => passed.push(Rejected { what: route_title(&route.name, index + 1), reason }),
            None => {
                explanation.conditions.extend(route::conditions(route.r#match.as_ref()));
                explanation.route = Some(RouteStep::new(&found.host.routes, index, passed));
                explanation.forwarded = Some(route::forwarded(route, request));
                explanation.policies.extend(route::policies(route, found.host));
                explanation.outcome = target::of_route(config, route, request);
                return;
            }
        }
    }
    let count = found.host.routes.len();
    explanation.unmatched = passed;
    explanation.outcome = RequestOutcome::NotServed(format!(
        "404: none of the {count} routes of virtual host {} matches",
        found.host.name
    ));
}
