//! Messages of the Copilot API (package `api`), as Pilot 0.8 to 1.0 used them. Requests are empty.

use std::collections::BTreeMap;

pub const HEALTH: &str = "/api.IstioCopilot/Health";
pub const ROUTES: &str = "/api.IstioCopilot/Routes";
pub const INTERNAL_ROUTES: &str = "/api.IstioCopilot/InternalRoutes";

#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthResponse {
    #[prost(bool, tag = "1")]
    pub healthy: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RoutesResponse {
    /// By host; the only field of the Copilot of Pilot 0.8.
    #[prost(btree_map = "string, message", tag = "1")]
    pub backends: BTreeMap<String, BackendSet>,
    #[prost(message, repeated, tag = "2")]
    pub routes: Vec<RouteWithBackends>,
}

/// A mapping of a route to a process of an application.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RouteWithBackends {
    #[prost(string, tag = "1")]
    pub hostname: String,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(message, optional, tag = "3")]
    pub backends: Option<BackendSet>,
    #[prost(string, tag = "4")]
    pub capi_process_guid: String,
    /// Percentage of the requests of a route; 0 where Copilot reports no weights.
    #[prost(int32, tag = "5")]
    pub route_weight: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InternalRoutesResponse {
    #[prost(message, repeated, tag = "1")]
    pub internal_routes: Vec<InternalRouteWithBackends>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InternalRouteWithBackends {
    #[prost(string, tag = "1")]
    pub hostname: String,
    #[prost(string, tag = "2")]
    pub vip: String,
    #[prost(message, optional, tag = "3")]
    pub backends: Option<BackendSet>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackendSet {
    #[prost(message, repeated, tag = "1")]
    pub backends: Vec<RouteBackend>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, prost::Message)]
pub struct RouteBackend {
    #[prost(string, tag = "1")]
    pub address: String,
    #[prost(uint32, tag = "2")]
    pub port: u32,
}
