//! The route for captured HTTP to hosts of no service: to the cluster that resolves the host by DNS.

use api::Duration;
use api::envoy::config::route::v3::{
    Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route, route_action, route_match,
};

use crate::names;

/// Routes all requests to the dynamic DNS cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnyNameRoute {
    pub attempt_count: bool,
    pub append_forwarded_host: bool,
}

/// Size limit of direct response bodies.
const DIRECT_RESPONSE_LIMIT: u32 = 1024 * 1024;
const NO_LIMIT: Option<Duration> = Some(Duration { seconds: 0, nanos: 0 });

pub(super) fn render(plan: AnyNameRoute) -> RouteConfiguration {
    let virtual_host = VirtualHost {
        name: names::ALLOW_ANY_DYNAMIC_DNS.into(),
        domains: vec!["*".into()],
        routes: vec![everything(plan)],
        include_request_attempt_count: plan.attempt_count,
        ..VirtualHost::default()
    };
    RouteConfiguration {
        name: names::ALLOW_ANY_DYNAMIC_DNS.into(),
        virtual_hosts: vec![virtual_host],
        validate_clusters: Some(false),
        max_direct_response_body_size_bytes: Some(DIRECT_RESPONSE_LIMIT),
        ignore_port_in_host_matching: true,
        ..RouteConfiguration::default()
    }
}

#[allow(deprecated)]
fn everything(plan: AnyNameRoute) -> Route {
    let action = RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(names::ALLOW_ANY_DYNAMIC_DNS_CLUSTER.into())),
        timeout: NO_LIMIT,
        max_grpc_timeout: NO_LIMIT,
        append_x_forwarded_host: plan.append_forwarded_host,
        ..RouteAction::default()
    };
    Route {
        name: names::ALLOW_ANY_DYNAMIC_DNS.into(),
        r#match: Some(RouteMatch {
            path_specifier: Some(route_match::PathSpecifier::Prefix("/".into())),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::Route(action)),
        ..Route::default()
    }
}
