//! Telemetry, extensions, EnvoyFilters and ProxyConfigs.

use serde_json::{Value, json};

use super::dice::{Dice, sprinkle};
use super::services::Service;
use super::{NAMESPACES, ROOT, istio};

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..8 {
        let namespace = if number == 0 { ROOT } else { *dice.pick(NAMESPACES) };
        let mut spec = telemetry(dice);
        if number > 0 && dice.chance(50) {
            spec["selector"] = json!({"matchLabels": {"app": dice.pick(&town[..12]).name}});
        }
        objects.push(istio("Telemetry", "telemetry.istio.io", namespace, &format!("telemetry{number}"), spec));
    }
    for number in 0..5 {
        let namespace = *dice.pick(NAMESPACES);
        objects.push(istio("WasmPlugin", "extensions.istio.io", namespace, &format!("plugin{number}"), plugin(dice)));
        objects.push(istio(
            "TrafficExtension",
            "extensions.istio.io",
            namespace,
            &format!("more{number}"),
            extension(dice),
        ));
        objects.push(istio(
            "EnvoyFilter",
            "networking.istio.io",
            if number == 0 { ROOT } else { namespace },
            &format!("patch{number}"),
            patches(dice),
        ));
    }
    for namespace in [ROOT, "alpha", "gamma"] {
        let mut spec = json!({"environmentVariables": {"A": "b"}});
        sprinkle(
            &mut spec,
            &[(50, "concurrency", json!(2)), (30, "selector", json!({"matchLabels": {"version": "v1"}}))],
            dice,
        );
        objects.push(istio("ProxyConfig", "networking.istio.io", namespace, "some", spec));
    }
}

fn telemetry(dice: &mut Dice) -> Value {
    let mode = *dice.pick(&["CLIENT", "SERVER", "CLIENT_AND_SERVER"]);
    let logs = *dice.pick(&["lines", "text-lines", "grpc-lines", "tcp-lines", "otel-lines", "envoy"]);
    let traces = *dice.pick(&["spans", "otel", "otel-http", "skywalk", "dog"]);
    let mut log = json!({"providers": [{"name": logs}]});
    sprinkle(
        &mut log,
        &[
            (30, "match", json!({"mode": mode})),
            (30, "filter", json!({"expression": "response.code >= 400 || connection.mtls"})),
            (10, "disabled", json!(true)),
        ],
        dice,
    );
    let mut trace = json!({"providers": [{"name": traces}]});
    sprinkle(
        &mut trace,
        &[
            (40, "randomSamplingPercentage", json!(12.5)),
            (20, "disableSpanReporting", json!(true)),
            (20, "match", json!({"mode": mode})),
            (20, "useRequestIdForTraceSampling", json!(false)),
            (20, "enableIstioTags", json!(false)),
            (
                40,
                "customTags",
                json!({"l": {"literal": {"value": "v"}}, "e": {"environment": {"name": "E", "defaultValue": "d"}}, "h": {"header": {"name": "x-h"}}, "f": {"formatter": {"value": "%PROTOCOL%"}}}),
            ),
        ],
        dice,
    );
    let mut spec = json!({});
    sprinkle(
        &mut spec,
        &[
            (60, "accessLogging", json!([log])),
            (20, "accessLogging", json!([log, {"providers": [{"name": "lines"}], "match": {"mode": "SERVER"}}])),
            (50, "tracing", json!([trace])),
            (
                40,
                "metrics",
                json!([{"providers": [{"name": "prometheus"}], "overrides": [
            {"match": {"metric": "REQUEST_COUNT", "mode": mode}, "tagOverrides": {"x": {"value": "request.host"}, "response_code": {"operation": "REMOVE"}}},
            {"match": {"mode": "CLIENT"}, "disabled": dice.chance(30)}]}]),
            ),
            (10, "metrics", json!([{"overrides": [{"match": {"metric": "ALL_METRICS"}, "disabled": true}]}])),
            (10, "metrics", json!([{"providers": [{"name": "prometheus"}], "reportingInterval": "7s"}])),
        ],
        dice,
    );
    spec
}

fn plugin(dice: &mut Dice) -> Value {
    let mut spec = json!({"url": dice.pick(&["file:///opt/f.wasm", "oci://registry.example/f:v1", "https://files.example/f.wasm"])});
    sprinkle(
        &mut spec,
        &[
            (50, "phase", json!(dice.pick(&["AUTHN", "AUTHZ", "STATS"]))),
            (40, "priority", json!(dice.roll(9))),
            (40, "pluginConfig", json!({"a": {"b": [1, "x"]}})),
            (20, "failStrategy", json!("FAIL_OPEN")),
            (20, "imagePullPolicy", json!("Always")),
            (20, "pluginName", json!("named")),
            (30, "match", json!([{"mode": dice.pick(&["CLIENT", "SERVER"]), "ports": [{"number": 80}]}])),
            (20, "type", json!("HTTP")),
            (20, "vmConfig", json!({"env": [{"name": "A", "value": "b"}, {"name": "H", "valueFrom": "HOST"}]})),
            (30, "selector", json!({"matchLabels": {"version": "v1"}})),
        ],
        dice,
    );
    spec
}

fn extension(dice: &mut Dice) -> Value {
    let mut spec = if dice.chance(50) {
        json!({"lua": {"inlineCode": "function envoy_on_request(h) end"}})
    } else {
        json!({"wasm": {"url": "file:///opt/g.wasm"}})
    };
    sprinkle(
        &mut spec,
        &[
            (50, "phase", json!(dice.pick(&["AUTHN", "AUTHZ", "STATS"]))),
            (40, "priority", json!(dice.roll(9))),
            (30, "match", json!([{"mode": dice.pick(&["CLIENT", "SERVER"])}])),
            (30, "selector", json!({"matchLabels": {"version": "v1"}})),
        ],
        dice,
    );
    spec
}

fn patches(dice: &mut Dice) -> Value {
    let context = *dice.pick(&["ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"]);
    let manager = json!({"filterChain": {"filter": {"name": "envoy.filters.network.http_connection_manager"}}});
    let fault = json!({"name": "envoy.filters.http.header_to_metadata", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"}});
    let all = [
        json!({"applyTo": "CLUSTER", "match": {"context": context}, "patch": {"operation": "MERGE", "value": {"connect_timeout": "9s"}}}),
        json!({"applyTo": "CLUSTER", "match": {"context": "SIDECAR_OUTBOUND", "cluster": {"service": "s3.delta.svc.cluster.local"}}, "patch": {"operation": "REMOVE"}}),
        json!({"applyTo": "CLUSTER", "match": {"context": context}, "patch": {"operation": "ADD", "value": {"name": "added", "type": "STATIC", "connect_timeout": "1s"}}}),
        json!({"applyTo": "NETWORK_FILTER", "match": {"context": context, "listener": manager}, "patch": {"operation": "MERGE", "value": {"typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stream_idle_timeout": "9s", "xff_num_trusted_hops": 3}}}}),
        json!({"applyTo": "HTTP_FILTER", "match": {"context": context, "listener": manager}, "patch": {"operation": dice.pick(&["INSERT_FIRST", "ADD"]), "value": fault}}),
        json!({"applyTo": "HTTP_FILTER", "match": {"context": context, "listener": {"filterChain": {"filter": {"name": "envoy.filters.network.http_connection_manager", "subFilter": {"name": "envoy.filters.http.cors"}}}}},
            "patch": {"operation": dice.pick(&["REMOVE", "INSERT_AFTER", "INSERT_BEFORE", "REPLACE"]), "value": fault}}),
        json!({"applyTo": "VIRTUAL_HOST", "match": {"context": context, "routeConfiguration": {"portNumber": 80}}, "patch": {"operation": "MERGE", "value": {"request_headers_to_remove": ["x-none"]}}}),
        json!({"applyTo": "HTTP_ROUTE", "match": {"context": context, "routeConfiguration": {"vhost": {"route": {"action": "ROUTE"}}}}, "patch": {"operation": "MERGE", "value": {"route": {"max_stream_duration": {"max_stream_duration": "3s"}}}}}),
        json!({"applyTo": "ROUTE_CONFIGURATION", "match": {"context": context}, "patch": {"operation": "MERGE", "value": {"response_headers_to_remove": ["x-r"]}}}),
        json!({"applyTo": "LISTENER", "match": {"context": context, "listener": {"portNumber": 80}}, "patch": {"operation": "MERGE", "value": {"per_connection_buffer_limit_bytes": 4096}}}),
        json!({"applyTo": "FILTER_CHAIN", "match": {"context": context, "listener": {"filterChain": {"transportProtocol": "tls"}}}, "patch": {"operation": "MERGE", "value": {"transport_socket_connect_timeout": "3s"}}}),
    ];
    let mut chosen: Vec<Value> = (0..=dice.roll(3)).map(|_| dice.pick(&all).clone()).collect();
    chosen.truncate(3);
    let mut spec = json!({"configPatches": chosen});
    sprinkle(
        &mut spec,
        &[(30, "priority", json!(dice.roll(5))), (40, "workloadSelector", json!({"labels": {"version": "v1"}}))],
        dice,
    );
    spec
}
