//! Mesh config: one variant for each seed, and the default for the first.

use serde_json::{Value, json};

use super::dice::Dice;

/// Mesh config as text. JSON is YAML.
pub(super) fn generate(seed: u64, dice: &mut Dice) -> String {
    let mut mesh = if seed == 1 { json!({}) } else { chosen(dice) };
    mesh["extensionProviders"] = providers();
    mesh.to_string()
}

fn chosen(dice: &mut Dice) -> Value {
    let mut mesh = json!({});
    let mut put = |dice: &mut Dice, percent: usize, key: &str, values: &[Value]| {
        if dice.chance(percent) {
            mesh[key] = dice.pick(values).clone();
        }
    };
    connections(dice, &mut put);
    defaults(dice, &mut put);
    mesh
}

type Put<'a> = &'a mut dyn FnMut(&mut Dice, usize, &str, &[Value]);

/// Settings of connections and access logs.
fn connections(dice: &mut Dice, put: Put<'_>) {
    put(dice, 30, "outboundTrafficPolicy", &[json!({"mode": "REGISTRY_ONLY"}), json!({"mode": "ALLOW_ANY"})]);
    put(dice, 20, "inboundTrafficPolicy", &[json!({"mode": "LOCALHOST"}), json!({"mode": "PASSTHROUGH"})]);
    put(dice, 40, "accessLogFile", &[json!("/dev/stdout")]);
    put(dice, 30, "accessLogEncoding", &[json!("JSON"), json!("TEXT")]);
    put(dice, 25, "accessLogFormat", &[json!("[%START_TIME%] %REQ(:METHOD)%\n"), json!("{\"a\": \"%PROTOCOL%\"}")]);
    put(dice, 15, "disableEnvoyListenerLog", &[json!(true)]);
    put(dice, 15, "enableAutoMtls", &[json!(false)]);
    put(dice, 30, "connectTimeout", &[json!("3s")]);
    put(dice, 30, "protocolDetectionTimeout", &[json!("5s"), json!("0.1s")]);
    put(dice, 30, "h2UpgradePolicy", &[json!("UPGRADE"), json!("DO_NOT_UPGRADE")]);
    put(dice, 30, "trustDomainAliases", &[json!(["old.example"]), json!(["a.example", "b.example"])]);
    put(dice, 20, "trustDomain", &[json!("td.example")]);
    put(dice, 20, "dnsRefreshRate", &[json!("30s")]);
    put(dice, 20, "tcpKeepalive", &[json!({"probes": 3, "time": "10s", "interval": "5s"})]);
    put(dice, 20, "verifyCertificateAtClient", &[json!(true), json!(false)]);
    put(
        dice,
        20,
        "outboundClusterStatName",
        &[json!("%SERVICE_FQDN%_%SERVICE_PORT%"), json!("%SERVICE%_%SUBSET_NAME%_%SERVICE_PORT_NAME%")],
    );
    put(dice, 20, "inboundClusterStatName", &[json!("%SERVICE%_%SERVICE_PORT%_%SERVICE_PORT_NAME%")]);
}

/// Defaults of the mesh.
fn defaults(dice: &mut Dice, put: Put<'_>) {
    put(dice, 15, "defaultServiceExportTo", &[json!(["."]), json!(["*"])]);
    put(dice, 15, "defaultVirtualServiceExportTo", &[json!(["."])]);
    put(dice, 15, "defaultDestinationRuleExportTo", &[json!(["."])]);
    put(
        dice,
        30,
        "localityLbSetting",
        &[
            json!({"enabled": false}),
            json!({"failoverPriority": ["topology.kubernetes.io/region", "version"]}),
            json!({"failover": [{"from": "west", "to": "east"}]}),
            json!({"distribute": [{"from": "west/zone-0/*", "to": {"west/*": 60, "east/*": 40}}]}),
        ],
    );
    put(
        dice,
        30,
        "pathNormalization",
        &[
            json!({"normalization": "NONE"}),
            json!({"normalization": "MERGE_SLASHES"}),
            json!({"normalization": "DECODE_AND_MERGE_SLASHES"}),
        ],
    );
    put(
        dice,
        30,
        "defaultHttpRetryPolicy",
        &[
            json!({"attempts": 0}),
            json!({"attempts": 5, "perTryTimeout": "1s", "retryOn": "5xx,503", "backoff": "0.2s"}),
        ],
    );
    put(
        dice,
        25,
        "serviceSettings",
        &[
            json!([{"settings": {"clusterLocal": true}, "hosts": ["*.alpha.svc.cluster.local", "s7.beta.svc.cluster.local"]}]),
        ],
    );
    put(
        dice,
        20,
        "meshMTLS",
        &[json!({"minProtocolVersion": "TLSV1_3"}), json!({"cipherSuites": ["ECDHE-RSA-AES256-GCM-SHA384"]})],
    );
    put(dice, 20, "tlsDefaults", &[json!({"minProtocolVersion": "TLSV1_3", "ecdhCurves": ["P-256"]})]);
    put(
        dice,
        30,
        "defaultProviders",
        &[
            json!({"accessLogging": ["lines"]}),
            json!({"tracing": ["spans"], "metrics": ["prometheus"]}),
            json!({"accessLogging": ["grpc-lines", "envoy"]}),
        ],
    );
    put(dice, 20, "enableTracing", &[json!(true)]);
    put(
        dice,
        40,
        "defaultConfig",
        &[
            json!({"tracing": {"sampling": 42.5, "zipkin": {"address": "zipkin.alpha:9411"}, "customTags": {"a": {"literal": {"value": "b"}}}, "maxPathTagLength": 99}}),
            json!({"holdApplicationUntilProxyStarts": true, "concurrency": 3}),
            json!({"gatewayTopology": {"numTrustedProxies": 2, "forwardClientCertDetails": "APPEND_FORWARD"}}),
            json!({"proxyHeaders": {"server": {"disabled": true}, "requestId": {"disabled": true}, "forwardedClientCert": "SANITIZE", "attemptCount": {"disabled": true}}}),
            json!({"proxyHeaders": {"server": {"value": "mine"}, "envoyDebugHeaders": {"disabled": true}, "metadataExchangeHeaders": {"mode": "IN_MESH"}, "preserveHttp1HeaderCase": true, "setCurrentClientCertDetails": {"subject": true, "uri": false}}}),
        ],
    );
}

/// Extension providers for Telemetry and AuthorizationPolicy.
fn providers() -> Value {
    let backend = |port: u16| json!({"service": "s0.alpha.svc.cluster.local", "port": port});
    let with = |more: Value| {
        let mut all = backend(80);
        for (key, value) in more.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        all
    };
    json!([
        {"name": "lines", "envoyFileAccessLog": {"path": "/dev/stderr", "logFormat": {"labels": {"status": "%RESPONSE_CODE%", "nested": {"a": "%PROTOCOL%"}}}}},
        {"name": "text-lines", "envoyFileAccessLog": {"path": "/tmp/lines", "logFormat": {"text": "%REQ(X)% %FILTER_STATE(A:PLAIN)%"}, "omitEmptyValues": true}},
        {"name": "grpc-lines", "envoyHttpAls": with(json!({"logName": "calls", "additionalRequestHeadersToLog": ["x-a"], "filterStateObjectsToLog": ["fs"]}))},
        {"name": "tcp-lines", "envoyTcpAls": with(json!({"logName": "bytes"}))},
        {"name": "otel-lines", "envoyOtelAls": with(json!({"logName": "otel", "logFormat": {"text": "x %PROTOCOL%", "labels": {"k": "%REQ(Y)%"}}}))},
        {"name": "spans", "zipkin": with(json!({"maxTagLength": 50, "enable64bitTraceId": true, "path": "/spans"}))},
        {"name": "otel", "opentelemetry": backend(80)},
        {"name": "otel-http", "opentelemetry": with(json!({"http": {"path": "/v1/traces", "timeout": "3s", "headers": [{"name": "x-k", "value": "v"}]}, "resourceDetectors": {"environment": {}}}))},
        {"name": "skywalk", "skywalking": with(json!({"accessToken": "t"}))},
        {"name": "dog", "datadog": with(json!({"maxTagLength": 20}))},
        {"name": "prometheus", "prometheus": {}},
        {"name": "check-http", "envoyExtAuthzHttp": with(json!({"pathPrefix": "/check", "timeout": "0.5s", "failOpen": true, "statusOnError": "503",
            "includeRequestHeadersInCheck": ["x-check", "x-p-*"], "includeAdditionalHeadersInCheck": {"x-more": "1"}, "headersToUpstreamOnAllow": ["x-up"], "headersToDownstreamOnDeny": ["x-down"], "headersToDownstreamOnAllow": ["x-ok"],
            "includeRequestBodyInCheck": {"maxRequestBytes": 100, "allowPartialMessage": true}, "clearRouteCache": true}))},
        {"name": "check-grpc", "envoyExtAuthzGrpc": with(json!({"timeout": "1s", "includeRequestBodyInCheck": {"maxRequestBytes": 9, "packAsBytes": true}}))}
    ])
}
