//! Rules of the networking kinds, except VirtualService.

use super::{check, findings};
use crate::config::Kind;

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
    check(Kind::Gateway, &table.iter().map(|(spec, expected)| (spec.as_str(), *expected)).collect::<Vec<_>>());
    let spec = server("port: {number: 80, name: http, protocol: HTTP}");
    assert_eq!(findings(Kind::Gateway, "a.b", "", &spec), ["error: invalid gateway name: \"a.b\""]);
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
            "warning: configPatches[0]: unknown field \"patch.value.conect_timeout\"; did you mean \"connectTimeout\"?",
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
    check(Kind::EnvoyFilter, &table.iter().map(|(spec, expected)| (spec.as_str(), *expected)).collect::<Vec<_>>());
}
