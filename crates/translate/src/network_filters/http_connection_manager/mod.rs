//! The HTTP connection manager: the network filter that speaks HTTP and runs HTTP filters.
//! `settings` holds what all managers on one side of a proxy share.

mod any_name_route;
mod inbound_route;
mod render;
mod settings;

use model::hashed::Hashed;
use model::names::Str;

pub(crate) use any_name_route::AnyNameRoute;
pub(crate) use inbound_route::InboundRoute;
pub(super) use render::render;
pub(crate) use settings::{
    CertDetails, ForwardClientCert, Http1, HttpSettings, PathNormalization, ServerHeader, gateway, http_proxy, inbound,
    outbound,
};

use crate::http_filters::HttpFilter;

/// One connection manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpConnectionManager {
    pub stat_prefix: Str,
    pub routes: Routes,
    /// The port is declared as HTTP/2: Envoy's HTTP/2 defaults are set explicitly.
    pub http2: bool,
    pub settings: Hashed<HttpSettings>,
    pub filters: Hashed<Vec<HttpFilter>>,
}

/// Where the routes come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Routes {
    /// RDS: the route table of this name.
    Rds(Str),
    /// All requests go to the workload.
    Inbound(InboundRoute),
    /// All requests go to the addresses that their host resolves to.
    AnyName(AnyNameRoute),
}
