//! The one route of an inbound connection manager: all requests to the workload, without a timeout.

use api::Duration;
use api::envoy::config::route::v3::{
    Decorator, RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route, route_action,
    route_match,
};
use model::names::Str;

/// Routes all requests to one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundRoute {
    pub cluster: Str,
    /// The service's host and port, for traces.
    pub host: Str,
    pub port: u16,
    /// False for gRPC, whose streams must not be retried after a reset.
    pub retry: bool,
}

const NO_LIMIT: Option<Duration> = Some(Duration { seconds: 0, nanos: 0 });

pub(super) fn render(plan: &InboundRoute) -> RouteConfiguration {
    let virtual_host = VirtualHost {
        name: format!("inbound|http|{}", plan.port),
        domains: vec!["*".into()],
        routes: vec![everything(plan)],
        ..VirtualHost::default()
    };
    RouteConfiguration {
        name: plan.cluster.to_string(),
        virtual_hosts: vec![virtual_host],
        validate_clusters: Some(false),
        ..RouteConfiguration::default()
    }
}

fn everything(plan: &InboundRoute) -> Route {
    let retry =
        || RetryPolicy { retry_on: "reset-before-request".into(), num_retries: Some(2), ..RetryPolicy::default() };
    let action = RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(plan.cluster.to_string())),
        timeout: NO_LIMIT,
        max_stream_duration: Some(route_action::MaxStreamDuration {
            max_stream_duration: NO_LIMIT,
            grpc_timeout_header_max: NO_LIMIT,
            ..route_action::MaxStreamDuration::default()
        }),
        retry_policy: plan.retry.then(retry),
        ..RouteAction::default()
    };
    Route {
        name: "default".into(),
        r#match: Some(RouteMatch {
            path_specifier: Some(route_match::PathSpecifier::Prefix("/".into())),
            ..RouteMatch::default()
        }),
        decorator: Some(Decorator { operation: operation(plan), ..Decorator::default() }),
        action: Some(route::Action::Route(action)),
        ..Route::default()
    }
}

/// `host:port/*`, with brackets around an IPv6 host.
fn operation(plan: &InboundRoute) -> String {
    let (host, port) = (&plan.host, plan.port);
    if host.contains(':') { format!("[{host}]:{port}/*") } else { format!("{host}:{port}/*") }
}
