//! The result: each step with what was chosen, where it was configured, and what was passed over and why.

use std::fmt::{self, Display, Formatter};

use api::envoy::config::core::v3::Metadata;
use api::envoy::config::route::v3::Route;
use api::value::Kind;
use serde::Serialize;

use crate::access::{Access, Arrival};
use crate::places::RouteShape;
use crate::request::Request;

/// How one request goes through a proxy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub request: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<ListenerStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_configuration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_host: Option<HostStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteStep>,
    /// Routes of the virtual host, if none matches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<Rejected>,
    /// What the way depends on apart from the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyStep>,
    pub outcome: RequestOutcome,
    /// What the proxies of its endpoints do with it, as far as they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<Arrival>,
    /// The request as the route forwards it.
    #[serde(skip)]
    pub forwarded: Option<Request>,
}

/// A candidate that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rejected {
    pub what: String,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStep {
    pub name: String,
    pub reason: String,
    pub filter_chain: String,
    /// HTTP or network filters in their order.
    pub filters: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<Rejected>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostStep {
    pub name: String,
    /// The domain that matches.
    pub domain: String,
    pub authority: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<Rejected>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStep {
    pub name: String,
    /// Position in the virtual host, counted from 1.
    pub number: usize,
    /// The object that it comes from, as a path of its API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<Rejected>,
    /// The routes of the same object up to this one, which is the last.
    #[serde(skip)]
    pub of_object: Vec<RouteShape>,
}

impl RouteStep {
    /// The step of the route at `index` of these.
    pub(crate) fn new(routes: &[Route], index: usize, passed_over: Vec<Rejected>) -> RouteStep {
        let config = config_of(routes[index].metadata.as_ref());
        let same = routes[..=index].iter().filter(|route| config_of(route.metadata.as_ref()) == config);
        let of_object = same.map(RouteShape::of).collect();
        RouteStep { name: routes[index].name.clone(), number: index + 1, config, passed_over, of_object }
    }
}

/// What filters or the router do with the request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyStep {
    pub what: String,
    pub detail: String,
}

/// Where the request ends up.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestOutcome {
    /// Sent to one of these clusters.
    Forwarded(Vec<ClusterStep>),
    Redirected {
        status: u32,
        location: String,
    },
    Answered {
        status: u32,
        body: String,
    },
    /// Not forwarded, and why.
    NotServed(String),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStep {
    pub name: String,
    /// Percent of requests.
    pub percent: f64,
    /// How Envoy finds its endpoints, and how it balances.
    pub discovery: String,
    pub tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    pub endpoints: Vec<EndpointStep>,
    /// Why there is no endpoint, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStep {
    pub address: String,
    pub locality: String,
    pub priority: u32,
    pub weight: u32,
    pub health: String,
}

/// The object named in a resource's metadata, as Istio does.
pub(crate) fn config_of(metadata: Option<&Metadata>) -> Option<String> {
    match metadata?.filter_metadata.get("istio")?.fields.get("config")?.kind.as_ref()? {
        Kind::StringValue(path) => Some(path.clone()),
        _ => None,
    }
}

/// A route's number and name.
pub(crate) fn route_title(name: &str, number: usize) -> String {
    match name {
        "" => format!("route {number}"),
        name => format!("route {number} ({name})"),
    }
}

impl Explanation {
    pub(crate) fn new(request: &Request) -> Explanation {
        let Request { method, scheme, authority, path, .. } = request;
        Explanation {
            request: format!("{method} {scheme}://{authority}{path}"),
            listener: None,
            route_configuration: None,
            virtual_host: None,
            route: None,
            unmatched: Vec::new(),
            conditions: Vec::new(),
            policies: Vec::new(),
            outcome: RequestOutcome::NotServed("no listener accepts the connection".to_owned()),
            arrivals: Vec::new(),
            forwarded: None,
        }
    }

    /// Paths of all objects that are named.
    pub fn configs(&self) -> Vec<&str> {
        let clusters = match &self.outcome {
            RequestOutcome::Forwarded(clusters) => &**clusters,
            _ => &[],
        };
        let of_clusters = clusters.iter().filter_map(|cluster| cluster.config.as_deref());
        let of_arrivals = self.arrivals.iter().flat_map(Arrival::configs);
        self.route.iter().filter_map(|route| route.config.as_deref()).chain(of_clusters).chain(of_arrivals).collect()
    }

    /// Whether a virtual host has the request's host, not only all hosts.
    pub fn has_named_host(&self) -> bool {
        self.virtual_host.as_ref().is_some_and(|found| found.domain != "*")
    }

    /// Whether the request is forwarded, redirected or answered, and no proxy at the other end denies it.
    pub fn is_served(&self) -> bool {
        let is_denied = |arrival: &Arrival| matches!(arrival.access, Access::Denied(_));
        !matches!(self.outcome, RequestOutcome::NotServed(_)) && !self.arrivals.iter().any(is_denied)
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        if let Some(listener) = &self.listener {
            writeln!(f, "  listener {}: {}", listener.name, listener.reason)?;
            writeln!(f, "    filter chain {}; filters {}", listener.filter_chain, listener.filters.join(", "))?;
            passed_over(f, &listener.passed_over)?;
        }
        if let Some(table) = &self.route_configuration {
            writeln!(f, "  route configuration {table}")?;
        }
        if let Some(host) = &self.virtual_host {
            writeln!(f, "  virtual host {}: domain {} matches {}", host.name, host.domain, host.authority)?;
            passed_over(f, &host.passed_over)?;
        }
        if let Some(step) = &self.route {
            let name = route_title(&step.name, step.number);
            let from = step.config.as_ref().map_or(String::new(), |config| format!(" from {config}"));
            writeln!(f, "  {name}{from}")?;
            passed_over(f, &step.passed_over)?;
        }
        passed_over(f, &self.unmatched)?;
        self.conditions.iter().try_for_each(|condition| writeln!(f, "    {condition}"))?;
        self.policies.iter().try_for_each(|policy| writeln!(f, "    {}: {}", policy.what, policy.detail))?;
        write!(f, "{}", self.outcome)?;
        self.arrivals.iter().try_for_each(|arrival| write!(f, "{arrival}"))
    }
}

fn passed_over(f: &mut Formatter<'_>, list: &[Rejected]) -> fmt::Result {
    list.iter().try_for_each(|rejected| writeln!(f, "    not {}: {}", rejected.what, rejected.reason))
}

impl Display for RequestOutcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            RequestOutcome::Forwarded(clusters) => clusters.iter().try_for_each(|cluster| write!(f, "{cluster}")),
            RequestOutcome::Redirected { status, location } => {
                writeln!(f, "  redirect with status {status} to {location}")
            }
            RequestOutcome::Answered { status, body } if body.is_empty() => {
                writeln!(f, "  answered with status {status}")
            }
            RequestOutcome::Answered { status, body } => {
                writeln!(f, "  answered with status {status} and body {body:?}")
            }
            RequestOutcome::NotServed(reason) => writeln!(f, "  not served: {reason}"),
        }
    }
}

impl Display for ClusterStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let tls = if self.tls { ", TLS" } else { "" };
        let from = self.config.as_ref().map_or(String::new(), |config| format!(" from {config}"));
        writeln!(f, "  {} % to cluster {} ({}{tls}){from}", self.percent, self.name, self.discovery)?;
        for endpoint in &self.endpoints {
            let EndpointStep { address, locality, priority, weight, health } = endpoint;
            let locality = if locality.is_empty() { String::new() } else { format!(" in {locality}") };
            writeln!(f, "    {address}{locality}, priority {priority}, weight {weight}, {health}")?;
        }
        self.problem.iter().try_for_each(|problem| writeln!(f, "    {problem}"))
    }
}
