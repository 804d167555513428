//! EnvoyFilters: working patches next to broken ones.

use testkit::backend::HttpBackend;
use testkit::envoy::XdsTransport;
use testkit::{client, wait};

use crate::mesh::{Mesh, host, http_service, service_port};

testkit::over_both!(a_lua_filter_runs_next_to_broken_patches);

/// An EnvoyFilter of the client's namespace.
pub(crate) fn filter(name: &str, patches: &[String]) -> String {
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: {name}, namespace: outside}}\n\
         spec:\n  configPatches:\n{}\n",
        patches.concat()
    )
}

/// A patch that inserts an HTTP filter before the router of outbound listeners.
pub(crate) fn before_router(value: &str) -> String {
    format!(
        "  - applyTo: HTTP_FILTER\n    match:\n      context: SIDECAR_OUTBOUND\n      listener:\n        filterChain:\n          \
         filter: {{name: envoy.filters.network.http_connection_manager, subFilter: {{name: envoy.filters.http.router}}}}\n    \
         patch:\n      operation: INSERT_BEFORE\n      value: {value}\n"
    )
}

/// Settings of a Lua filter that adds a response header.
pub(crate) fn lua(header: &str) -> String {
    format!(
        "{{'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: \
         {{inline_string: \"function envoy_on_response(h) h:headers():add('{header}', 'yes') end\"}}}}"
    )
}

async fn a_lua_filter_runs_next_to_broken_patches(transport: XdsTransport) {
    let backend = HttpBackend::start("v1").await;
    let port = service_port();
    let inline = before_router(&format!("{{name: lua.inline, typed_config: {}}}", lua("x-inline")));
    let fetched = before_router(
        "{name: lua-fetched, config_discovery: {config_source: {ads: {}, resource_api_version: V3}, \
         type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]}}",
    );
    let extension = format!(
        "  - applyTo: EXTENSION_CONFIG\n    patch:\n      operation: ADD\n      \
         value: {{name: lua-fetched, typed_config: {}}}\n",
        lua("x-fetched")
    );
    let broken = [
        before_router("{name: lua.unknown, typed_config: {'@type': type.googleapis.com/no.such.Type}}"),
        "  - applyTo: CLUSTER\n    patch: {operation: MERGE, value: {connect_timeout: [1]}}\n".to_owned(),
        "  - applyTo: LISTENER\n    patch: {operation: ADD}\n".to_owned(),
    ];
    let service = http_service("cart", port, &[&backend], &["v1"]);
    let documents = [service.clone(), filter("broken", &broken), filter("lua", &[inline, fetched, extension])];
    let mesh = Mesh::start(transport, port, &documents).await;
    let headers = async |expected: [&str; 2]| {
        wait::until("filters as configured", async || {
            let reply = client::get(mesh.address, &host("cart"), "/").await?;
            let found = [reply.header("x-inline"), reply.header("x-fetched")];
            if reply.backend() == "v1" && found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    };
    headers(["yes", "yes"]).await;
    mesh.discovery.write("mesh.yaml", &[service, filter("broken", &broken)].join("---\n"));
    headers(["", ""]).await;
    mesh.assert_settled().await;
}
