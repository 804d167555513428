//! `sidecarz`: services and configuration visible to one proxy, in the format of upstream's sidecar scope.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::config::print::message_to_json;
use model::service::Service;
use prost::Message;
use serde_json::{Map, Value, json};

use super::{PageQuery, PageResponse, Pages, clients, objects};

pub(super) fn sidecarz(pages: &Pages, query: &PageQuery) -> PageResponse {
    let connection = match clients::connection_for(pages, query) {
        Ok(connection) => connection,
        Err(answer) => return answer,
    };
    let Some(cut) = connection.cut() else { return PageResponse::json(json!({})) };
    let view = &cut.view;
    let sidecar = view.sidecar.as_ref();
    let services = |list: &[Arc<Service>]| list.iter().map(|service| objects::service(service)).collect::<Value>();
    let mut by_host: BTreeMap<String, Value> = BTreeMap::new();
    for service in view.services() {
        by_host.insert(service.hostname.to_string(), objects::service(service));
    }
    let policy = view.outbound_policy.encode_to_vec();
    PageResponse::json(json!({
        "version": cut.number.to_string(),
        "name": sidecar.map_or("default-sidecar", |sidecar| &*sidecar.meta.name),
        "namespace": sidecar.map_or(view.proxy.namespace.as_str(), |sidecar| sidecar.meta.namespace.as_str()),
        "outboundTrafficPolicy": message_to_json("istio.networking.v1alpha3.OutboundTrafficPolicy", &policy),
        "services": services(view.services()),
        "egressListenerServices": view.egress.iter().map(|listener| services(&listener.services)).collect::<Value>(),
        "servicesByHostname": by_host.into_iter().collect::<Map<_, _>>(),
        "sidecar": sidecar.map(|sidecar| message_to_json("istio.networking.v1alpha3.Sidecar", &sidecar.spec.encode_to_vec())),
        "destinationRules": destination_rules(view),
    }))
}

/// The DestinationRules that apply to calls of this proxy, by host.
fn destination_rules(view: &::scope::View) -> Value {
    let rules = view.services().iter().filter_map(|service| {
        let rule = view.destination_rule(service.hostname.as_str())?;
        let from = rule.from.iter().map(|(namespace, name)| json!(format!("{namespace}/{name}")));
        Some((service.hostname.to_string(), from.collect::<Value>()))
    });
    rules.collect::<Map<_, _>>().into()
}
