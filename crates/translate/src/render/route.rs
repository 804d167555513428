//! A route plan as Envoy's RouteConfiguration.

use api::envoy::config::route::v3::RouteConfiguration;

use crate::plan::route::RoutePlan;

/// The route table.
pub fn route(plan: &RoutePlan) -> RouteConfiguration {
    RouteConfiguration { name: plan.name.to_string(), ..RouteConfiguration::default() }
}
