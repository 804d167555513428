//! A listener plan as Envoy's Listener.

use api::envoy::config::listener::v3::Listener;

use crate::plan::listener::ListenerPlan;

/// The listener.
pub fn listener(plan: &ListenerPlan) -> Listener {
    Listener { name: plan.name.to_string(), ..Listener::default() }
}
