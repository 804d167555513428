//! Sticky sessions. The filter is empty; the config is in the routes of services with persistent sessions.

use api::any;
use api::envoy::extensions::filters::http::stateful_session::v3::StatefulSession;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;

#[derive(Debug, Hash)]
struct StatefulSessionFilter;

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.view.settings.knobs.persistent_session && input.side != ListenerSide::SidecarInbound {
        filters.push(HttpFilter::new(StatefulSessionFilter));
    }
}

impl FilterPlan for StatefulSessionFilter {
    fn render(&self) -> EnvoyFilter {
        named("envoy.filters.http.stateful_session", any(&StatefulSession::default()))
    }
}
