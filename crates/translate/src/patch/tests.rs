//! Patches to whole messages. List positions are tested in `list`.

use std::sync::Arc;

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::Node;
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::route::v3::RouteConfiguration;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use model::config::message::read;
use model::config::parse::documents;
use model::config::patches::{Patch, PatchSet};
use model::config::{Config, encode};
use model::config::{Meta, Spec};
use model::hashed::Hashed;
use model::proxy::Proxy;
use model::settings::Knobs;
use prost::{Message, Name};
use prost_reflect::DynamicMessage;
use scope::patches::HeldPatch;

use super::merge::{self, ListMerge, MessageMerge};
use super::selection::{PatchEffect, select};
use super::{cluster, listener, route};

const MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// A message from its JSON.
fn message<M: Message + Name + Default>(text: &str) -> M {
    M::decode(&*bytes(&M::full_name(), text)).unwrap()
}

fn bytes(name: &str, text: &str) -> Vec<u8> {
    let descriptor = api::reflect::envoy().get_message_by_name(name).unwrap();
    let (message, findings) = read(&descriptor, &json(text), "");
    assert_eq!(findings, [], "{text}");
    encode::encode(&message)
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The message as JSON, for comparison.
fn shown<M: Message + Name>(message: &M) -> serde_json::Value {
    let descriptor = api::reflect::envoy().get_message_by_name(&M::full_name()).unwrap();
    let dynamic = DynamicMessage::decode(descriptor, &*message.encode_to_vec()).unwrap();
    serde_json::to_value(&dynamic).unwrap()
}

/// Patches as an EnvoyFilter lists them, for any proxy.
fn patches(list: &str) -> Vec<Hashed<Patch>> {
    let text = format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: f, namespace: shop}}\n\
         spec: {{configPatches: [{list}]}}\n"
    );
    let object = documents(&text, "config.yaml").objects.remove(0);
    let Spec::EnvoyFilter(spec) = &object.spec else { panic!("not a filter: {object:?}") };
    let set = PatchSet::new(Config { meta: object.meta.clone(), spec: spec.clone() }, None, &Knobs::default());
    let node = Node { id: "sidecar~10.0.0.1~a.shop~shop.svc.cluster.local".into(), ..Node::default() };
    set.for_proxy(&Proxy::from_node(&node).unwrap()).cloned().collect()
}

fn check_merge(list_merge: ListMerge, into: &str, from: &str, expected: &str) {
    let mut merged: Cluster = message(into);
    let operation = if list_merge == ListMerge::Append { "MERGE" } else { "MERGE_AND_REPLACE_LIST" };
    let list = format!("{{applyTo: CLUSTER, patch: {{operation: {operation}, value: {from}}}}}");
    MessageMerge::new(&mut merged).merge(&patches(&list)[0]);
    assert_eq!(merged, message(expected), "{from} into {into}");
}

#[test]
fn scalars_are_overwritten_and_messages_merged() {
    check_merge(
        ListMerge::Append,
        r#"{"name": "a", "lb_policy": "RANDOM", "upstream_connection_options": {"tcp_keepalive": {"keepalive_probes": 3}}}"#,
        r#"{"name": "b", "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 5}}}"#,
        r#"{"name": "b", "lb_policy": "RANDOM",
            "upstream_connection_options": {"tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 5}}}"#,
    );
}

#[test]
fn durations_are_replaced_whole() {
    check_merge(
        ListMerge::Append,
        r#"{"connect_timeout": "1.5s"}"#,
        r#"{"connect_timeout": "7s"}"#,
        r#"{"connect_timeout": "7s"}"#,
    );
}

#[test]
fn lists_grow_unless_they_are_to_be_replaced() {
    let old = r#"{"circuit_breakers": {"thresholds": [{"max_requests": 1}]}}"#;
    let new = r#"{"circuit_breakers": {"thresholds": [{"max_connections": 2}]}}"#;
    let both = r#"{"circuit_breakers": {"thresholds": [{"max_requests": 1}, {"max_connections": 2}]}}"#;
    check_merge(ListMerge::Append, old, new, both);
    check_merge(ListMerge::Replace, old, new, new);
    check_merge(ListMerge::Replace, old, "{}", old);
}

#[test]
fn values_of_maps_are_replaced() {
    check_merge(
        ListMerge::Append,
        r#"{"metadata": {"filter_metadata": {"a": {"x": 1, "y": 2}, "b": {"z": 3}}}}"#,
        r#"{"metadata": {"filter_metadata": {"a": {"x": 4}, "c": {}}}}"#,
        r#"{"metadata": {"filter_metadata": {"a": {"x": 4}, "b": {"z": 3}, "c": {}}}}"#,
    );
}

#[test]
fn one_of_several_choices_replaces_another() {
    check_merge(
        ListMerge::Append,
        r#"{"type": "EDS"}"#,
        r#"{"cluster_type": {"name": "own"}}"#,
        r#"{"cluster_type": {"name": "own"}}"#,
    );
}

#[test]
fn contents_of_different_types_are_not_merged() {
    let any =
        |name: &str, text: &str| api::Any { type_url: format!("type.googleapis.com/{name}"), value: bytes(name, text) };
    let (cluster, listener) = ("envoy.config.cluster.v3.Cluster", "envoy.config.listener.v3.Listener");
    let old = any(cluster, r#"{"name": "a", "alt_stat_name": "s"}"#);
    assert_eq!(merge::merge_any(&old, &any(listener, r#"{"name": "b"}"#)), None);
    let unknown = api::Any { type_url: "type.googleapis.com/no.such.Type".into(), value: Vec::new() };
    assert_eq!(merge::merge_any(&unknown, &unknown), None);
    let merged = merge::merge_any(&old, &any(cluster, r#"{"name": "b"}"#));
    assert_eq!(merged, Some(any(cluster, r#"{"name": "b", "alt_stat_name": "s"}"#)));
}

#[test]
fn a_transport_socket_is_merged_by_content_and_alone() {
    let tls = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let socket = |sni: &str, rest: &str| {
        format!(r#""transport_socket": {{"name": "tls", "typed_config": {{"@type": "{tls}", "sni": "{sni}"{rest}}}}}"#)
    };
    let list = format!(
        r#"{{applyTo: CLUSTER, patch: {{operation: MERGE, value: {{"name": "other", {}}}}}}}"#,
        socket("b", r#", "max_session_keys": 4"#)
    );
    let patches = patches(&list);
    let check = |into: &str, expected: &str| {
        let mut merged: Cluster = message(into);
        cluster::apply(&mut merged, &patches);
        assert_eq!(shown(&merged), shown(&message::<Cluster>(expected)));
    };
    let (old, new) = (socket("a", r#", "allow_renegotiation": true"#), socket("b", r#", "max_session_keys": 4"#));
    let merged = socket("b", r#", "allow_renegotiation": true, "max_session_keys": 4"#);
    check(&format!(r#"{{"name": "a", {old}}}"#), &format!(r#"{{"name": "a", {merged}}}"#));
    check(r#"{"name": "a"}"#, &format!(r#"{{"name": "a", {new}}}"#));
    let listed = |socket: &str| format!(r#"{{"name": "a", "transport_socket_matches": [{{"name": "m", {socket}}}]}}"#);
    check(&listed(&old), &listed(&merged));
    let plain = r#""transport_socket": {"name": "raw"}"#;
    check(&listed(plain), &listed(plain));
}

/// A listener with two chains after some patches, as names of chains and their filters.
fn chains_after(name: &str, list: &str) -> String {
    let manager = r#""typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "http_filters": [{"name": "cors"}, {"name": "router"}]}"#;
    let mut listener: Listener = message(&format!(
        r#"{{"name": "{name}", "filter_chains": [
            {{"name": "web", "filter_chain_match": {{"destination_port": 80, "server_names": ["a.example"]}},
             "filters": [{{"name": "rbac"}}, {{"name": "{MANAGER}", {manager}}}]}},
            {{"name": "tcp", "filter_chain_match": {{"destination_port": 90, "application_protocols": ["x", "y"]}},
             "filters": [{{"name": "rbac"}}, {{"name": "tcp"}}]}}],
          "default_filter_chain": {{"name": "rest", "filters": [{{"name": "tcp"}}]}}}}"#
    ));
    listener::apply(&mut listener, &patches(list));
    let chains = listener.filter_chains.iter().chain(listener.default_filter_chain.as_ref());
    let shown = chains.map(|chain| {
        let filters = chain.filters.iter().map(|filter| match &filter.config_type {
            Some(api::envoy::config::listener::v3::filter::ConfigType::TypedConfig(any)) => {
                let manager = HttpConnectionManager::decode(&*any.value).unwrap();
                manager.http_filters.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join("+")
            }
            _ => filter.name.clone(),
        });
        format!("{}:{}", chain.name, filters.collect::<Vec<_>>().join(","))
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[test]
fn chains_are_removed_and_added() {
    let remove = |chain: &str| {
        format!(
            "{{applyTo: FILTER_CHAIN, match: {{listener: {{filterChain: {{{chain}}}}}}}, patch: {{operation: REMOVE}}}}"
        )
    };
    assert_eq!(chains_after("l", &remove("name: web")), "tcp:rbac,tcp rest:tcp");
    assert_eq!(chains_after("l", &remove("name: rest")), "web:rbac,cors+router tcp:rbac,tcp");
    assert_eq!(chains_after("l", &remove("sni: a.example")), "tcp:rbac,tcp rest:tcp");
    assert_eq!(chains_after("l", &remove("applicationProtocols: 'y,x'")), "web:rbac,cors+router rest:tcp");
    assert_eq!(chains_after("l", &remove("destinationPort: 90")), "web:rbac,cors+router rest:tcp");
    assert_eq!(chains_after("l", &remove("transportProtocol: tls")), "web:rbac,cors+router tcp:rbac,tcp rest:tcp");
    let add = "{applyTo: FILTER_CHAIN, patch: {operation: ADD, value: {name: new, filters: [{name: x}]}}}, \
               {applyTo: FILTER_CHAIN, patch: {operation: ADD, value: {name: without}}}";
    assert_eq!(chains_after("l", add), "web:rbac,cors+router tcp:rbac,tcp new:x rest:tcp");
}

#[test]
fn capturing_listener_is_matched_by_chain_port() {
    let insert = "{applyTo: NETWORK_FILTER, match: {listener: {portNumber: 90}}, \
                  patch: {operation: INSERT_FIRST, value: {name: new}}}";
    assert_eq!(chains_after("virtualInbound", insert), "web:rbac,cors+router tcp:new,rbac,tcp rest:tcp");
}

#[test]
fn http_filters_are_patched_in_connection_managers_only() {
    let patch = |operation: &str, named: &str| {
        format!(
            "{{applyTo: HTTP_FILTER, match: {{listener: {{filterChain: {{filter: {{name: {MANAGER}, \
             subFilter: {{name: {named}}}}}}}}}}}, patch: {{operation: {operation}, value: {{name: lua}}}}}}"
        )
    };
    let rest = "tcp:rbac,tcp rest:tcp";
    assert_eq!(chains_after("l", &patch("INSERT_BEFORE", "router")), format!("web:rbac,cors+lua+router {rest}"));
    assert_eq!(chains_after("l", &patch("REPLACE", "cors")), format!("web:rbac,lua+router {rest}"));
    assert_eq!(chains_after("l", &patch("REMOVE", "cors")), format!("web:rbac,router {rest}"));
    assert_eq!(chains_after("l", &patch("REMOVE", "none")), format!("web:rbac,cors+router {rest}"));
}

#[test]
fn invalid_patch_changes_nothing() {
    let broken = "{applyTo: HTTP_FILTER, patch: {operation: ADD, value: {typed_config: {'@type': no.such.Type}}}}, \
                  {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: tcp}}}}, \
                   patch: {operation: REMOVE}}";
    assert_eq!(chains_after("l", broken), "web:rbac,cors+router tcp:rbac rest:");
}

/// Virtual hosts and their routes after some patches.
fn routes_after(list: &str) -> String {
    let mut table: RouteConfiguration = message(
        r#"{"name": "80", "virtual_hosts": [
            {"name": "a", "domains": ["a", "a.shop"], "routes": [
                {"name": "one", "route": {"cluster": "c"}}, {"name": "two", "redirect": {"host_redirect": "x"}}]},
            {"name": "b", "domains": ["b"], "routes": [{"name": "one", "direct_response": {"status": 200}}]}]}"#,
    );
    route::apply(&mut table, &patches(list));
    let hosts = table.virtual_hosts.iter().map(|host| {
        let routes: Vec<&str> = host.routes.iter().map(|route| route.name.as_str()).collect();
        format!("{}:{}", host.name, routes.join(","))
    });
    hosts.collect::<Vec<_>>().join(" ")
}

#[test]
fn virtual_hosts_are_removed_replaced_and_added() {
    let patch = |matching: &str, patch: &str| {
        format!(
            "{{applyTo: VIRTUAL_HOST, match: {{routeConfiguration: {{vhost: {{{matching}}}}}}}, patch: {{{patch}}}}}"
        )
    };
    assert_eq!(routes_after(&patch("name: a", "operation: REMOVE")), "b:one");
    assert_eq!(routes_after(&patch("domainName: a.shop", "operation: REMOVE")), "b:one");
    assert_eq!(routes_after(&patch("name: b", "operation: REPLACE, value: {name: c}")), "a:one,two c:");
    assert_eq!(routes_after(&patch("", "operation: ADD, value: {name: c}")), "a:one,two b:one c:");
    assert_eq!(routes_after(&patch("name: b", "operation: MERGE, value: {routes: [{name: x}]}")), "a:one,two b:one,x");
}

#[test]
fn routes_are_found_by_name_and_action() {
    let patch = |matching: &str, operation: &str| {
        format!(
            "{{applyTo: HTTP_ROUTE, match: {{routeConfiguration: {{vhost: {{{matching}}}}}}}, \
             patch: {{operation: {operation}, value: {{name: new}}}}}}"
        )
    };
    assert_eq!(routes_after(&patch("route: {action: REDIRECT}", "REMOVE")), "a:one b:one");
    assert_eq!(routes_after(&patch("route: {name: one, action: ROUTE}", "REMOVE")), "a:two b:one");
    assert_eq!(routes_after(&patch("name: b, route: {name: one}", "MERGE")), "a:one,two b:new");
    assert_eq!(routes_after(&patch("route: {name: one}", "INSERT_AFTER")), "a:one,new,two b:one,new");
    assert_eq!(routes_after(&patch("route: {name: two}", "INSERT_BEFORE")), "a:one,new,two b:one");
    assert_eq!(routes_after(&patch("name: a", "ADD")), "a:one,two,new b:one");
    // INSERT_FIRST inserts at the start, whichever route matches.
    assert_eq!(routes_after(&patch("route: {name: two}", "INSERT_FIRST")), "a:new,one,two b:one");
    assert_eq!(routes_after(&patch("name: a", "INSERT_FIRST")), "a:new,one,two b:one");
}

#[test]
fn a_whole_table_is_only_merged() {
    let value = "value: {vhds: {}, internal_only_headers: [x]}";
    let list =
        |operation: &str| format!("{{applyTo: ROUTE_CONFIGURATION, patch: {{operation: {operation}, {value}}}}}");
    let after = |operation: &str| {
        let mut table: RouteConfiguration = message(r#"{"name": "80", "internal_only_headers": ["y"]}"#);
        patches(&list(operation)).iter().for_each(|patch| MessageMerge::new(&mut table).merge(patch));
        table.internal_only_headers.join(",")
    };
    assert_eq!(after("MERGE"), "y,x");
    assert_eq!(after("MERGE_AND_REPLACE_LIST"), "x");
    assert_eq!(after("REMOVE"), "y");
}

#[test]
fn merging_several_patches_equals_merging_one_by_one() {
    let merge = |value: &str| format!("{{applyTo: CLUSTER, patch: {{operation: MERGE, value: {value}}}}}");
    let list = patches(
        &[
            merge(r#"{"type": "EDS", "circuit_breakers": {"thresholds": [{"max_requests": 1}]}}"#),
            merge(r#"{"cluster_type": {"name": "own"}}"#),
            merge(r#"{"type": "EDS", "connect_timeout": "7s"}"#),
            merge(r#"{"circuit_breakers": {"thresholds": [{"max_connections": 2}]}}"#),
        ]
        .join(","),
    );
    let text =
        r#"{"name": "a", "type": "STATIC", "eds_cluster_config": {"service_name": "s"}, "connect_timeout": "1.5s"}"#;
    let (mut together, mut apart): (Cluster, Cluster) = (message(text), message(text));
    cluster::apply(&mut together, &list);
    list.iter().for_each(|patch| cluster::apply(&mut apart, std::slice::from_ref(patch)));
    assert_eq!(together, apart);
    assert_eq!(together.circuit_breakers.unwrap_or_default().thresholds.len(), 2);
}

/// Number of patches selected for each resource, and the problems reported.
fn selected(list: &str, knobs: &Knobs, times: &[usize]) -> (Vec<usize>, Vec<String>) {
    let filter = Arc::new(Meta { name: "f".into(), namespace: "shop".into(), ..Meta::default() });
    let held: Vec<HeldPatch> =
        patches(list).into_iter().map(|patch| HeldPatch { patch, filter: filter.clone() }).collect();
    let held: Vec<&HeldPatch> = held.iter().collect();
    let mut problems = Vec::new();
    let effect = |_: &Patch, times: &usize| PatchEffect::Applies(*times);
    let list_merge = select(knobs, "shop", times, &held, effect, &mut problems);
    (list_merge.iter().flatten().map(|list| list.len()).collect(), problems.iter().map(ToString::to_string).collect())
}

#[test]
fn hole_04_patched_bytes_per_proxy_are_limited() {
    let add =
        |name: &str| format!("{{applyTo: HTTP_FILTER, patch: {{operation: INSERT_FIRST, value: {{name: {name}}}}}}}");
    let list = [add(&"x".repeat(500)), add("small"), add(&"y".repeat(300))].join(",");
    let knobs = Knobs { patched_bytes: 1000, ..Knobs::default() };
    let (counts, problems) = selected(&list, &knobs, &[1, 2]);
    assert_eq!(counts, [2, 2], "the first is too much in three places, the others are not");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("EnvoyFilter shop/f: a patch to HTTP_FILTER is not applied"), "{problems:?}");
}

#[test]
fn hole_04_patch_applications_per_proxy_are_limited() {
    let merge = "{applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x}}}";
    let knobs = Knobs { patch_applications: 10, ..Knobs::default() };
    let (counts, problems) = selected(&[merge; 5].join(","), &knobs, &[1; 4]);
    assert_eq!(counts, [2; 4], "two of five fit, and each is applied to all or to none");
    assert_eq!(problems.len(), 1, "a filter is reported once: {problems:?}");
}
