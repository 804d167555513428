//! Renders route tables, whole or in pieces of some virtual hosts that other tables share: repeated protobuf fields
//! concatenate.

mod action;
mod filters;
mod hashing;
mod headers;
mod matches;
mod retry;

use api::envoy::config::core::v3::Metadata;
use api::envoy::config::route::v3::route::Action;
use api::envoy::config::route::v3::route_action::ClusterSpecifier;
use api::envoy::config::route::v3::virtual_host::TlsRequirementType;
use api::envoy::config::route::v3::{
    Decorator, DirectResponseAction, Route, RouteAction, RouteConfiguration, VirtualHost,
};
use api::{Duration, Resource, Struct, Value, value};

use crate::names;
use crate::plan::route::{
    DefaultRoute, DestinationPlan, RouteEntry, RoutePlan, RuleRoute, TablePurpose, VirtualHostPlan,
};

/// Size limit of direct response bodies, as large as Istio's API allows. Envoy's default is 4 KiB.
const DIRECT_RESPONSE_LIMIT: u32 = 1024 * 1024;
const MISDIRECTED: &str = "misdirected";
/// Status of requests to hosts of another server of the port.
const MISDIRECTED_REQUEST: u32 = 421;
/// Status of requests to blocked hosts.
const BAD_GATEWAY: u32 = 502;
const DEFAULT_ROUTE: &str = "default";
/// The number of RouteConfiguration's field `virtual_hosts`.
const VIRTUAL_HOSTS_FIELD: u32 = 2;

/// The route table.
pub fn route(plan: &RoutePlan) -> RouteConfiguration {
    let virtual_hosts = plan.virtual_hosts.iter().map(|host| virtual_host(host)).collect();
    RouteConfiguration { virtual_hosts, ..shell(plan) }
}

/// The route table, encoded.
pub fn resource(plan: &RoutePlan) -> Resource {
    Resource::new(plan.name.clone(), &route(plan))
}

/// Some virtual hosts of a table, encoded. Such pieces, one after the other and after the shell, are the table.
pub fn piece<'a>(hosts: impl IntoIterator<Item = &'a VirtualHostPlan>) -> Vec<u8> {
    let mut out = Vec::new();
    for host in hosts {
        prost::encoding::message::encode(VIRTUAL_HOSTS_FIELD, &virtual_host(host), &mut out);
    }
    out
}

/// The route table without its virtual hosts.
pub fn shell(plan: &RoutePlan) -> RouteConfiguration {
    let serves = plan.purpose == TablePurpose::Listener;
    RouteConfiguration {
        name: plan.name.to_string(),
        validate_clusters: Some(false),
        max_direct_response_body_size_bytes: serves.then_some(DIRECT_RESPONSE_LIMIT),
        ignore_port_in_host_matching: serves,
        ..RouteConfiguration::default()
    }
}

/// One virtual host.
pub fn virtual_host(plan: &VirtualHostPlan) -> VirtualHost {
    let session = plan.session.as_ref().map(filters::session);
    VirtualHost {
        name: plan.name.to_string(),
        domains: plan.domains.iter().map(|d| d.to_string()).collect(),
        routes: plan.routes.iter().map(entry).collect(),
        include_request_attempt_count: plan.attempt_count,
        require_tls: if plan.require_tls { TlsRequirementType::All } else { TlsRequirementType::None } as i32,
        typed_per_filter_config: session.into_iter().collect(),
        ..VirtualHost::default()
    }
}

fn entry(plan: &RouteEntry) -> Route {
    match plan {
        RouteEntry::Default(plan) => default_route(plan),
        RouteEntry::Rule(plan) => rule(plan),
        RouteEntry::Passthrough { name, cluster, forwarded_host } => {
            let action = RouteAction { append_x_forwarded_host: *forwarded_host, ..to_cluster(cluster) };
            Route { action: Some(Action::Route(action)), ..named(name) }
        }
        RouteEntry::BlackHole => {
            let action = DirectResponseAction { status: BAD_GATEWAY, ..DirectResponseAction::default() };
            Route { action: Some(Action::DirectResponse(action)), ..named(names::BLOCK_ALL) }
        }
        RouteEntry::Misdirected => {
            let action = DirectResponseAction { status: MISDIRECTED_REQUEST, ..DirectResponseAction::default() };
            Route { action: Some(Action::DirectResponse(action)), ..named(MISDIRECTED) }
        }
    }
}

fn named(name: &str) -> Route {
    Route { name: name.into(), r#match: Some(matches::any_path()), ..Route::default() }
}

fn default_route(plan: &DefaultRoute) -> Route {
    let action = RouteAction {
        retry_policy: retry::policy(plan.mesh_retries.as_deref(), retry::RetryHosts::Any),
        hash_policy: plan.hash.as_ref().and_then(|h| hashing::policy(h)).into_iter().collect(),
        ..to_cluster(&plan.cluster)
    };
    Route {
        decorator: Some(decorator(plan.operation.to_string())),
        action: Some(Action::Route(action)),
        ..named(DEFAULT_ROUTE)
    }
}

/// Forwards to one cluster, without a timeout.
fn to_cluster(cluster: &str) -> RouteAction {
    RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.into())),
        timeout: Some(Duration::default()),
        max_grpc_timeout: Some(Duration::default()),
        ..RouteAction::default()
    }
}

fn decorator(operation: String) -> Decorator {
    Decorator { operation, ..Decorator::default() }
}

fn rule(plan: &RuleRoute) -> Route {
    let route = plan.route();
    let condition = plan.condition();
    let mut out = Route {
        name: rule_name(plan),
        r#match: Some(condition.map_or_else(matches::any_path, |c| matches::route_match(c, plan.semantics))),
        metadata: Some(origin(plan)),
        stat_prefix: condition.map(|c| c.stat_prefix.clone()).unwrap_or_default(),
        ..Route::default()
    };
    let authority = route.headers.as_ref().map(|h| headers::extend_route(&mut out, h)).unwrap_or_default();
    if let Some(redirect) = &route.redirect {
        out.action = action::redirect(redirect, plan).map(Action::Redirect);
    } else if let Some(response) = &route.direct_response {
        out.action = Some(Action::DirectResponse(action::direct_response(response)));
    } else {
        let action = action::forward(plan, authority, &mut out);
        out.action = Some(Action::Route(action));
    }
    out.decorator = Some(decorator(operation(plan, &out)));
    out.typed_per_filter_config = filters::of_rule(plan);
    if plan.flags.advertise_http3 {
        out.response_headers_to_add.push(headers::http3_offer(plan.port));
    }
    out
}

fn rule_name(plan: &RuleRoute) -> String {
    let name = &plan.route().name;
    match plan.condition() {
        Some(condition) if !condition.name.is_empty() => format!("{name}.{}", condition.name),
        _ => name.clone(),
    }
}

/// The config object of a route, for readers of a config dump.
fn origin(plan: &RuleRoute) -> Metadata {
    let path = format!("/apis/networking.istio.io/v1/namespaces/{}/virtual-service/{}", plan.namespace, plan.object);
    let config = Value { kind: Some(value::Kind::StringValue(path)) };
    let istio = Struct { fields: [("config".to_owned(), config)].into() };
    Metadata { filter_metadata: [("istio".to_owned(), istio)].into(), ..Metadata::default() }
}

/// The operation name in traces: by destination if there is exactly one, else by VirtualService.
fn operation(plan: &RuleRoute, out: &Route) -> String {
    let path = out.r#match.as_ref().map_or_else(|| "/*".to_owned(), matches::path_text);
    if let Some(Action::Route(_)) = &out.action
        && let [DestinationPlan { cluster: Some(cluster), .. }] = &plan.destinations[..]
    {
        return format!("{}:{}{path}", cluster.host, cluster.port);
    }
    format!("{}:{}{path}", plan.object, plan.port)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::{DefaultRoute, RouteConfiguration, RouteEntry, RoutePlan, TablePurpose, VirtualHostPlan};
    use model::hashed::Hashed;

    fn host(name: &str) -> Hashed<VirtualHostPlan> {
        let route = DefaultRoute {
            cluster: format!("outbound|80||{name}").into(),
            operation: name.into(),
            hash: None,
            mesh_retries: None,
        };
        Hashed::new(VirtualHostPlan {
            name: name.into(),
            domains: vec![name.into()],
            routes: Hashed::new(vec![RouteEntry::Default(route)]),
            attempt_count: true,
            session: None,
            require_tls: false,
        })
    }

    #[test]
    fn joined_table_equals_the_rendered_table() {
        let virtual_hosts = vec![host("cart"), host("orders")];
        let plan = RoutePlan { name: "80".into(), virtual_hosts, purpose: TablePurpose::Listener };
        let mut joined = super::shell(&plan).encode_to_vec();
        plan.virtual_hosts.iter().for_each(|host| joined.extend(super::piece([&**host])));
        assert_eq!(RouteConfiguration::decode(&*joined), Ok(super::route(&plan)));
    }
}
