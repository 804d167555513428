//! The rules, each by the smallest object that breaks it: kind, spec, and what is said about it.
//! An empty third column means that nothing may be said.

mod virtual_service;

use crate::config::{Kind, parse};
use crate::problem::Severity;

/// What is said about an object of this kind, one line a finding.
fn told(kind: Kind, name: &str, annotation: &str, spec: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: {}/{}\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop, annotations: {{{annotation}}}}}\nspec: {spec}\n",
        kind.group(),
        kind.versions()[0],
    );
    let parsed = parse::documents(&text, "f");
    assert_eq!(parsed.problems, [], "{kind} {spec}");
    let mark = |severity| if severity == Severity::Error { "error" } else { "warning" };
    super::validate(&parsed.objects[0]).iter().map(|p| format!("{}: {}", mark(p.severity), p.message)).collect()
}

fn check(kind: Kind, table: &[(&str, &str)]) {
    for (spec, expected) in table {
        let found = told(kind, "a", "", spec);
        match *expected {
            "" => assert_eq!(found, Vec::<String>::new(), "{kind} {spec}"),
            text => assert!(found.iter().any(|line| line.contains(text)), "{kind} {spec}: {found:#?}"),
        }
    }
}

#[test]
fn destination_rules() {
    check(
        Kind::DestinationRule,
        &[
            ("{host: b, trafficPolicy: {loadBalancer: {simple: RANDOM}}}", ""),
            ("{}", "error: empty domain name not allowed"),
            ("{host: b, trafficPolicy: {}}", "error: trafficPolicy: traffic policy must have at least one field"),
            ("{host: b, subsets: [{name: v1}, {name: v1}]}", "error: subsets[1]: duplicate subset names: v1"),
            ("{host: b, subsets: [{name: v.1}]}", "subset name is invalid: v.1"),
            ("{host: b, trafficPolicy: {connectionPool: {}}}", "connection pool must have at least one field"),
            (
                "{host: b, trafficPolicy: {connectionPool: {tcp: {maxConnections: -1}}}}",
                "max connections must be non-negative",
            ),
            ("{host: b, trafficPolicy: {connectionPool: {tcp: {idleTimeout: 0s}}}}", ""),
            (
                "{host: b, trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE, useClientProtocol: true}}}}",
                "use client protocol must not be true",
            ),
            (
                "{host: b, trafficPolicy: {outlierDetection: {consecutiveErrors: 1}}}",
                "warning: trafficPolicy.outlierDetection: outlier detection consecutive errors is deprecated",
            ),
            (
                "{host: b, trafficPolicy: {outlierDetection: {maxEjectionPercent: 101}}}",
                "percentage 101 is not in range 0..100",
            ),
            (
                "{host: b, trafficPolicy: {outlierDetection: {consecutiveLocalOriginFailures: 1}}}",
                "split external local origin errors is set to false",
            ),
            (
                "{host: b, trafficPolicy: {loadBalancer: {consistentHash: {maglev: {tableSize: 4}}}}}",
                "tableSize must be a prime number for maglev",
            ),
            (
                "{host: b, trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {ttl: 1s}}}}}",
                "name required for HttpCookie",
            ),
            (
                "{host: b, trafficPolicy: {loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}]}}}}",
                "warning: trafficPolicy.loadBalancer.localityLbSetting: outlier detection policy must be provided for failover",
            ),
            (
                "{host: b, trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: a, to: {b: 60, c: 30}}]}}}}",
                "total locality weight 90 != 100",
            ),
            (
                "{host: b, trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: a, to: {b/*: 60, b/c: 40}}]}}}}",
                "locality b/c overlap with previous specified ones",
            ),
            ("{host: b, trafficPolicy: {loadBalancer: {warmup: {}}}}", "duration is required"),
            ("{host: b, trafficPolicy: {tls: {mode: MUTUAL}}}", "client certificate required for mutual tls"),
            (
                "{host: b, trafficPolicy: {tls: {mode: SIMPLE, credentialName: a, caCertificates: b}}}",
                "cannot specify client certificates or CA certificate",
            ),
            (
                "{host: b, trafficPolicy: {tls: {mode: SIMPLE, credentialName: 'configmap://other/b'}}}",
                "namespace must match the configuration namespace \"shop\"",
            ),
            ("{host: b, trafficPolicy: {tls: {mode: SIMPLE, credentialName: 'configmap://shop/b'}}}", ""),
            (
                "{host: b, trafficPolicy: {portLevelSettings: [{tls: {mode: SIMPLE}}]}}",
                "portTrafficPolicy must have valid port",
            ),
            (
                "{host: b, trafficPolicy: {tunnel: {protocol: GET, targetHost: a, targetPort: 1}}}",
                "tunnel protocol must be \"CONNECT\" or \"POST\"",
            ),
            (
                "{host: b, workloadSelector: {matchLabels: {a: b}}, exportTo: ['*']}",
                "cannot have exportTo beyond current namespace",
            ),
            ("{host: b, workloadSelector: {matchLabels: {a: b}}, exportTo: [.]}", ""),
            ("{host: b, workloadSelector: {}}", "warning: selector: workload selector specified without labels"),
        ],
    );
}

#[test]
fn gateways() {
    let server = |rest: &str| format!("{{servers: [{{hosts: ['*'], {rest}}}]}}");
    let https = |tls: &str| server(&format!("port: {{number: 443, name: https, protocol: HTTPS}}, tls: {{{tls}}}"));
    let table = [
        (server("port: {number: 80, name: http, protocol: HTTP}"), ""),
        ("{}".into(), "error: gateway must have at least one server"),
        (server("bind: 127.0.0.1"), "error: servers[0]: port is required"),
        (server("port: {number: 80, name: x, protocol: NOPE}"), "invalid protocol \"NOPE\", supported protocols are HTTP"),
        (server("port: {number: 0, name: x, protocol: HTTP}"), "port number 0 must be in the range 1..65535"),
        (server("port: {number: 0, name: x, protocol: HTTP}, bind: 'unix:///a'"), ""),
        (server("port: {number: 80, protocol: HTTP}"), "port name must be set"),
        (server("port: {number: 80, name: x, protocol: HTTP, targetPort: 1}"), "targetPort has no impact on Gateways"),
        (server("port: {number: 443, name: x, protocol: TLS}"), "server must have TLS settings for HTTPS/TLS protocols"),
        (server("port: {number: 80, name: x, protocol: HTTP}, tls: {httpsRedirect: true}"), ""),
        (server("port: {number: 80, name: x, protocol: HTTP}, tls: {mode: SIMPLE, credentialName: c}"), "server cannot have TLS settings for plain text HTTP ports"),
        (server("port: {number: 80, name: x, protocol: TCP}, tls: {mode: SIMPLE, credentialName: c}"), "server cannot have TLS settings for non HTTPS/TLS ports"),
        (https("mode: SIMPLE, credentialName: c"), ""),
        (https("mode: SIMPLE"), "SIMPLE TLS requires a server certificate"),
        (https("mode: MUTUAL, serverCertificate: a, privateKey: b"), "MUTUAL TLS requires a client CA bundle"),
        (https("mode: SIMPLE, credentialName: c, credentialNames: [c]"), "only one of credential_name, credential_names"),
        (https("mode: ISTIO_MUTUAL, credentialName: c"), "ISTIO_MUTUAL TLS cannot have associated credentialName"),
        (https("mode: SIMPLE, credentialName: c, cipherSuites: [nope]"), "warning: servers[0].tls: ignoring invalid cipher suites: [nope]"),
        (https("mode: SIMPLE, credentialName: c, cipherSuites: [AES128-SHA, AES128-SHA]"), "ignoring duplicate cipher suites: [AES128-SHA]"),
        (https("mode: PASSTHROUGH, credentialName: c"), "warning: servers[0].tls: PASSTHROUGH mode does not use certificates"),
        ("{servers: [{hosts: [short], port: {number: 80, name: a, protocol: HTTP}}]}".into(), "short names (non FQDN) are not allowed"),
        ("{servers: [{hosts: [./a.com, 10.0.0.1], port: {number: 80, name: a, protocol: HTTP}}]}".into(), ""),
        ("{servers: [{hosts: ['*x.com'], port: {number: 80, name: a, protocol: HTTP}}]}".into(), "partial wildcard \"*x.com\" not allowed"),
        ("{servers: [{hosts: ['*'], port: {number: 80, name: a, protocol: HTTP}}, {hosts: ['*'], port: {number: 81, name: a, protocol: HTTP}}]}".into(), "port names in servers must be unique: duplicate name a"),
    ];
    check(Kind::Gateway, &table.iter().map(|(spec, told)| (spec.as_str(), *told)).collect::<Vec<_>>());
    let spec = server("port: {number: 80, name: http, protocol: HTTP}");
    assert_eq!(told(Kind::Gateway, "a.b", "", &spec), ["error: invalid gateway name: \"a.b\""]);
}

#[test]
fn service_entries() {
    check(
        Kind::ServiceEntry,
        &[
            ("{hosts: [a.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}", ""),
            ("{resolution: DNS}", "error: service entry must have at least one host"),
            ("{hosts: ['*']}", "error: invalid host *"),
            ("{hosts: ['*x.com'], resolution: STATIC}", "warning: partial wildcard \"*x.com\" not allowed"),
            ("{hosts: [a.com], addresses: [x]}", "x is not a valid IP"),
            (
                "{hosts: [a.com], addresses: [10.0.0.0/8], resolution: DNS}",
                "CIDR addresses are allowed only for NONE/STATIC resolution types",
            ),
            (
                "{hosts: [a.com], ports: [{number: 80, name: a}, {number: 80, name: b}]}",
                "service entry port 80 already defined",
            ),
            ("{hosts: [a.com], ports: [{number: 80, name: a_b}]}", "invalid port name: a_b"),
            ("{hosts: [a.com], ports: [{number: 80, name: a, protocol: NOPE}]}", "unsupported protocol: NOPE"),
            (
                "{hosts: [a.com], endpoints: [{address: 10.0.0.1}]}",
                "no endpoints should be provided for resolution type none",
            ),
            (
                "{hosts: [a.com], endpoints: [{address: b.com}], resolution: STATIC}",
                "endpoint address \"b.com\" is not a valid IP address",
            ),
            ("{hosts: [a.com], endpoints: [{address: b.com}], resolution: DNS}", ""),
            (
                "{hosts: ['*.com'], resolution: DNS}",
                "hosts must be FQDN or contain only prefix wildcards if no endpoints are provided for resolution mode DNS",
            ),
            (
                "{hosts: [a.com], endpoints: [{address: 10.0.0.1, ports: {x: 1}}], resolution: STATIC}",
                "endpoint port 1 is not defined by the service entry",
            ),
            (
                "{hosts: [a.com], endpoints: [{address: a.b}, {address: c.d}], resolution: DNS_ROUND_ROBIN}",
                "there must only be 0 or 1 endpoint for resolution mode DNS_ROUND_ROBIN",
            ),
            (
                "{hosts: [a.com, b.com], ports: [{number: 80, name: a, protocol: TCP}], resolution: STATIC}",
                "multiple hosts provided with non-HTTP, non-TLS ports",
            ),
            (
                "{hosts: [a.com], endpoints: [{address: 10.0.0.1}], workloadSelector: {labels: {a: b}}, resolution: STATIC}",
                "only one of WorkloadSelector or Endpoints is allowed",
            ),
            ("{hosts: [a.com], resolution: DYNAMIC_DNS}", "host must be wildcarded for resolution mode DYNAMIC_DNS"),
            ("{hosts: [a.com], resolution: 9}", "unsupported resolution type 9"),
            ("{hosts: [a.com], exportTo: ['~'], resolution: DNS}", ""),
            (
                "{hosts: [a.com], workloadSelector: {labels: {a: '*'}}, resolution: STATIC}",
                "wildcard is not supported in selector: \"a=*\"",
            ),
        ],
    );
}

#[test]
fn workloads() {
    check(
        Kind::WorkloadEntry,
        &[
            ("{address: 10.0.0.1}", ""),
            ("{address: a.com, ports: {http: 80}}", ""),
            ("{}", "error: address is required"),
            ("{network: n1}", "warning: address is unset with network \"n1\""),
            ("{address: 'unix:///a', ports: {http: 80}}", "unix endpoint unix:///a must not include ports"),
            ("{address: a_b}", "endpoint address \"a_b\" is not a valid FQDN or an IP address"),
        ],
    );
    check(
        Kind::WorkloadGroup,
        &[
            ("{template: {}}", ""),
            ("{}", "error: template is required"),
            ("{template: {}, probe: {}}", "error: probe: unknown health check method"),
            ("{template: {}, probe: {exec: {}}}", "exec.command is required"),
            ("{template: {}, probe: {httpGet: {port: 80, scheme: ftp}}}", "httpGet.scheme must be one of"),
            ("{template: {}, probe: {grpc: {port: 80}}}", ""),
            ("{template: {}, metadata: {labels: {'a b': c}}}", "invalid tag key"),
        ],
    );
}

#[test]
fn sidecars() {
    check(
        Kind::Sidecar,
        &[
            ("{egress: [{hosts: [./*, '~istio-system/*']}]}", ""),
            ("{}", "error: sidecar: empty configuration provided"),
            ("{egress: [{hosts: [a.com]}]}", "host must be of form namespace/dnsName"),
            ("{egress: [{hosts: []}]}", "egress listener must contain at least one host"),
            (
                "{egress: [{hosts: ['*/*']}, {port: {number: 80, protocol: HTTP}, hosts: ['*/*']}]}",
                "error: egress[0]: sidecar: the egress listener with empty port should be the last",
            ),
            ("{egress: [{hosts: ['*/*', a/b.com]}]}", "warning: egress[0]: `*/*` host select all resources"),
            ("{egress: [{hosts: [a/*, a/b.com]}]}", "warning: egress[0]: duplicated egress host: a/b.com"),
            (
                "{egress: [{port: {number: 0, protocol: HTTP}, hosts: ['*/*']}]}",
                "ports with 0 value must have a unix domain socket bind address",
            ),
            (
                "{egress: [{port: {number: 0, protocol: HTTP}, bind: 'unix:///a', captureMode: IPTABLES, hosts: ['*/*']}]}",
                "captureMode must be DEFAULT/NONE",
            ),
            ("{ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: '127.0.0.1:80'}]}", ""),
            (
                "{ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: '10.0.0.1:80'}]}",
                "defaultEndpoint must be of form 127.0.0.1:<port>",
            ),
            (
                "{ingress: [{port: {number: 80, protocol: HTTP}}, {port: {number: 80, protocol: HTTP}}]}",
                "ports on IP bound listeners must be unique",
            ),
            (
                "{ingress: [{port: {number: 443, protocol: HTTPS}, tls: {mode: ISTIO_MUTUAL}}]}",
                "cannot set mode to ISTIO_MUTUAL in sidecar ingress tls",
            ),
            (
                "{ingress: [{port: {number: 80, protocol: TCP}, connectionPool: {http: {maxRetries: 1}}}]}",
                "warning: ingress[0]: sidecar: HTTP connection pool settings are configured for port 80",
            ),
            ("{outboundTrafficPolicy: {mode: 3}}", "ALLOW_ANY_DYNAMIC_DNS mode is only supported in MeshConfig"),
            ("{outboundTrafficPolicy: {egressProxy: {host: a.com}}}", "egress_proxy must be set only with ALLOW_ANY"),
            (
                "{outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: a.com}}}",
                "egress_proxy port must be non-nil",
            ),
        ],
    );
}

#[test]
fn envoy_filters() {
    let patch = |rest: &str| format!("{{configPatches: [{{{rest}}}]}}");
    let table = [
        (
            patch(
                "applyTo: CLUSTER, match: {cluster: {service: a}}, patch: {operation: MERGE, value: {connect_timeout: 5s}}",
            ),
            "",
        ),
        (patch("patch: {operation: REMOVE}"), "error: configPatches[0]: Envoy filter: missing applyTo"),
        (patch("applyTo: CLUSTER"), "Envoy filter: missing patch"),
        (patch("applyTo: CLUSTER, patch: {operation: MERGE}"), "missing patch value for non-remove operation"),
        (
            patch("applyTo: CLUSTER, match: {listener: {}}, patch: {operation: REMOVE}"),
            "applyTo for cluster class objects cannot have non cluster match",
        ),
        (
            patch("applyTo: HTTP_ROUTE, match: {listener: {}}, patch: {operation: REMOVE}"),
            "applyTo for http route class objects",
        ),
        (
            patch("applyTo: LISTENER, match: {cluster: {}}, patch: {operation: REMOVE}"),
            "applyTo for listener class objects cannot have non listener match",
        ),
        (
            patch(
                "applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {}}}}, patch: {operation: REMOVE}",
            ),
            "filter match has no name to match on",
        ),
        (
            patch(
                "applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: a, subFilter: {name: b}}}}}, patch: {operation: REMOVE}",
            ),
            "subfilter match can be used with applyTo HTTP_FILTER only",
        ),
        (
            patch("applyTo: CLUSTER, match: {proxy: {proxyVersion: '('}}, patch: {operation: REMOVE}"),
            "invalid regex for proxy version",
        ),
        (
            patch(
                "applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.http_connection_manager}}}}, patch: {operation: REMOVE}",
            ),
            "warning: configPatches[0]: using deprecated filter name \"envoy.http_connection_manager\"",
        ),
        (
            patch("applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: soon}}"),
            "warning: configPatches[0]: the patch has no effect: patch.value.connect_timeout: expected a duration",
        ),
        (
            patch("applyTo: CLUSTER, patch: {operation: MERGE, value: {conect_timeout: 1s}}"),
            "warning: configPatches[0]: unknown field \"patch.value.conect_timeout\"",
        ),
        (
            patch(
                "applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {'@type': type.googleapis.com/no.Such}}}",
            ),
            "could not resolve Any message type: type.googleapis.com/no.Such",
        ),
        (
            patch(
                "applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, inlineCode: x}}}",
            ),
            "",
        ),
        (patch("applyTo: CLUSTER, match: {context: WAYPOINT}"), ""),
    ];
    check(Kind::EnvoyFilter, &table.iter().map(|(spec, told)| (spec.as_str(), *told)).collect::<Vec<_>>());
}

#[test]
fn authorization_policies() {
    check(
        Kind::AuthorizationPolicy,
        &[
            ("{}", ""),
            ("{rules: [{}]}", ""),
            ("{action: DENY}", "error: DENY action without `rules` is meaningless"),
            ("{action: CUSTOM, rules: [{}]}", "`provider.name` must not be empty"),
            (
                "{action: CUSTOM, provider: {name: x}, rules: [{from: [{source: {principals: [a]}}]}]}",
                "From.Principals is currently not supported with CUSTOM action",
            ),
            ("{provider: {name: x}}", "`provider` must not be with non CUSTOM action, found ALLOW"),
            ("{rules: [{from: [{}]}]}", "error: rules[0].from[0]: `from.source` must not be nil"),
            ("{rules: [{from: [{source: {}}]}]}", "`from.source` must not be empty"),
            ("{rules: [{from: [{source: {ipBlocks: [a]}}]}]}", "bad IP address (a)"),
            ("{rules: [{from: [{source: {ipBlocks: [10.0.0.0/99]}}]}]}", "bad CIDR range (10.0.0.0/99)"),
            ("{rules: [{from: [{source: {namespaces: ['']}}]}]}", "empty value not allowed, found in Namespaces"),
            (
                "{rules: [{from: [{source: {serviceAccounts: [a/b/c]}}]}]}",
                "expected format 'serviceAccount' or 'namespace/serviceAccount'",
            ),
            (
                "{rules: [{from: [{source: {serviceAccounts: [a], namespaces: [b]}}]}]}",
                "cannot set serviceAccounts with namespaces or principals",
            ),
            ("{rules: [{from: [{source: {trustDomains: [a*b]}}]}]}", "wildcard is only allowed at the start or end"),
            ("{rules: [{to: [{operation: {ports: ['99999']}}]}]}", "bad port (99999)"),
            ("{rules: [{to: [{operation: {paths: ['/a/{**}/{*}']}}]}]}", "{**} is not the last operator"),
            ("{rules: [{to: [{operation: {paths: ['/a/{x}']}}]}]}", "beyond a supported path template"),
            ("{rules: [{to: [{operation: {paths: ['/a/{*}/b', '/x*']}}]}]}", ""),
            (
                "{rules: [{when: [{key: request.headers, values: [a]}]}]}",
                "bad key (request.headers): should have format a[b]",
            ),
            ("{rules: [{when: [{key: 'request.headers[a]', values: [a]}]}]}", ""),
            (
                "{rules: [{when: [{key: nope, values: [a]}]}]}",
                "invalid `value` for `key` nope: unknown attribute: nope",
            ),
            (
                "{rules: [{when: [{key: source.ip}]}]}",
                "at least one of `values` or `notValues` must be set for key source.ip",
            ),
            (
                "{action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}",
                "warning: rules[0]: configured AuthorizationPolicy will deny all traffic to TCP ports",
            ),
            ("{action: DENY, rules: [{to: [{operation: {methods: [GET], ports: ['80']}}]}]}", ""),
            (
                "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Service, name: s}]}",
                "only one of targetRefs or workloadSelector can be set",
            ),
            ("{targetRefs: [{kind: Pod, name: s}]}", "targetRef must be to one of"),
            ("{targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: s}]}", ""),
        ],
    );
}

#[test]
fn authentication() {
    check(
        Kind::RequestAuthentication,
        &[
            ("{jwtRules: [{issuer: a, jwksUri: 'https://a/keys'}]}", ""),
            ("{jwtRules: [{}]}", "error: jwtRules[0]: issuer or jwksUri must be non-empty string"),
            ("{jwtRules: [{jwksUri: 'ftp://a'}]}", "URI scheme \"ftp\" is not supported"),
            ("{jwtRules: [{issuer: a, jwks: '{'}]}", "jwks parse error"),
            (
                "{jwtRules: [{issuer: a, jwks: '{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\
                 \"x\":\"_K1RmSiNO7OHQVpTf35PCjgSAHfARnwMqnX6jKcjZdU\",\
                 \"y\":\"LDJav2Wopi6TaV34Kkg-XjKC-zjpJ6d-JbrQz-RpZFU\"}]}'}]}",
                "",
            ),
            (
                "{jwtRules: [{issuer: a, jwks: '{\"keys\":[{\"kty\":\"RSA\",\"e\":\"AQAB\",\"n\":\"x\"}]}'}]}",
                "warning: jwtRules[0]: jwks: every token of this issuer is refused",
            ),
            (
                "{jwtRules: [{issuer: a, jwks: '{\"keys\":[{\"kty\":\"oct\",\"k\":\"x\"}]}'}]}",
                "warning: jwtRules[0]: jwks key at index 0 contains private key material",
            ),
            ("{jwtRules: [{issuer: a, audiences: ['']}]}", "audience must be non-empty string"),
            (
                "{jwtRules: [{issuer: a, outputClaimToHeaders: [{header: 'a b', claim: c}]}]}",
                "header name a b is not a valid header name",
            ),
        ],
    );
    check(
        Kind::PeerAuthentication,
        &[
            ("{mtls: {mode: STRICT}}", ""),
            ("{portLevelMtls: {80: {mode: STRICT}}}", "mesh/namespace peer authentication cannot have port level mTLS"),
            ("{selector: {matchLabels: {a: b}}, portLevelMtls: {80: {mode: STRICT}}}", ""),
            (
                "{selector: {matchLabels: {a: b}}, portLevelMtls: {70000: {mode: STRICT}}}",
                "port must be in range 1..65535",
            ),
        ],
    );
}

#[test]
fn telemetry_proxy_config_and_extensions() {
    check(
        Kind::Telemetry,
        &[
            ("{accessLogging: [{providers: [{name: envoy}]}]}", ""),
            ("{accessLogging: [{providers: [{}]}]}", "error: accessLogging[0]: providers.name may not be empty"),
            ("{tracing: [{}, {}]}", "warning: multiple tracing is not currently supported"),
            ("{tracing: [{randomSamplingPercentage: 101}]}", "randomSamplingPercentage must be in range [0.0, 100.0]"),
            ("{tracing: [{customTags: {a: {literal: {}}}}]}", "literal tag value may not be empty"),
            (
                "{metrics: [{overrides: [{tagOverrides: {a: {operation: UPSERT}}}]}]}",
                "tagOverrides.value must be set when operation is UPSERT",
            ),
        ],
    );
    check(
        Kind::ProxyConfig,
        &[("{concurrency: 2}", ""), ("{concurrency: -1}", "concurrency must be greater than or equal to 0")],
    );
    check(
        Kind::WasmPlugin,
        &[
            ("{url: 'oci://r/i:v1'}", ""),
            ("{url: r/i:v1}", ""),
            ("{}", "error: url field needs to be set"),
            ("{url: 'ftp://a'}", "url contains unsupported scheme: ftp"),
            ("{url: a, sha256: x}", "sha256 field must be 64 characters long"),
            ("{url: a, vmConfig: {env: [{name: a}, {name: a}]}}", "duplicate env"),
            ("{url: a, match: [{ports: [{number: 70000}]}]}", "error: match[0].ports[0]: port is out of range: 70000"),
        ],
    );
    check(
        Kind::TrafficExtension,
        &[
            ("{lua: {inlineCode: x}}", ""),
            ("{}", "exactly one of wasm or lua must be set"),
            ("{lua: {}}", "lua.inlineCode cannot be empty"),
            ("{wasm: {}}", "error: wasm: url field needs to be set"),
        ],
    );
}

#[test]
fn annotations_that_decide() {
    let policy = |annotation: &str, spec: &str| told(Kind::AuthorizationPolicy, "a", annotation, spec);
    assert_eq!(policy("istio.io/dry-run: 'true'", "{}"), Vec::<String>::new());
    assert_eq!(
        policy("istio.io/dry-run: maybe", "{}"),
        ["error: shop/a has annotation istio.io/dry-run with invalid value (maybe)"]
    );
    let entry = told(Kind::WorkloadEntry, "a", "istio.io/dry-run: 'true'", "{address: 10.0.0.1}");
    assert_eq!(entry, ["error: shop/a has unsupported annotation istio.io/dry-run, please remove the annotation"]);
    let internal = told(Kind::WorkloadEntry, "a", "internal.istio.io/parents: x", "{address: 10.0.0.1}");
    assert_eq!(internal, ["error: \"internal.istio.io/parents\" annotation found, this may not be set by users"]);
}

#[test]
fn findings_are_bounded_but_errors_are_kept() {
    let hosts = vec!["'*x.com'"; 500].join(", ");
    let found =
        told(Kind::ServiceEntry, "a", "", &format!("{{hosts: [{hosts}], addresses: [bad], resolution: STATIC}}"));
    assert!(found.len() <= 51, "{}", found.len());
    assert!(found.iter().any(|line| line.starts_with("error: ")));
}
