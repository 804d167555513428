//! The rules of VirtualService.

use super::check;
use crate::config::Kind;

const ROUTE: &str = "http: [{route: [{destination: {host: b}}]}]";

/// A spec for one host with more in it.
fn with(rest: &str) -> String {
    format!("{{hosts: [b.com], {rest}}}")
}

/// A spec with one HTTP route and more in the route.
fn http(rest: &str) -> String {
    with(&format!("http: [{{route: [{{destination: {{host: b}}}}], {rest}}}]"))
}

fn check_all(table: &[(String, &str)]) {
    check(Kind::VirtualService, &table.iter().map(|(spec, expected)| (spec.as_str(), *expected)).collect::<Vec<_>>());
}

#[test]
fn hosts_gateways_and_visibility() {
    check_all(&[
        (with(ROUTE), ""),
        ("{hosts: [b.com]}".into(), "error: http, tcp or tls must be provided in virtual service"),
        (
            format!("{{hosts: ['*'], {ROUTE}}}"),
            "error: wildcard host * is not allowed for virtual services bound to the mesh",
        ),
        (format!("{{hosts: ['*'], gateways: [ns/edge], {ROUTE}}}"), ""),
        (format!("{{hosts: [10.0.0.1, '::1'], {ROUTE}}}"), ""),
        (format!("{{hosts: [a_b.com], {ROUTE}}}"), "error: domain name \"a_b.com\" invalid (label \"a_b\" invalid)"),
        (format!("{{hosts: ['*.com', a.com], {ROUTE}}}"), "error: duplicate hosts in virtual service: *.com & a.com"),
        (format!("{{hosts: [a.com, '*.com'], {ROUTE}}}"), "error: duplicate hosts in virtual service: a.com & *.com"),
        (format!("{{hosts: [a.com, b.com], {ROUTE}}}"), ""),
        (format!("{{gateways: [edge], {ROUTE}}}"), "error: delegate virtual service must have no gateways specified"),
        (format!("{{{ROUTE}}}"), ""),
        (with(&format!("gateways: [edge.shop], {ROUTE}")), "warning: using legacy gatewayName format \"edge.shop\""),
        (with(&format!("gateways: [shop/a_b], {ROUTE}")), "error: invalid value for gateway name: \"a_b\""),
        (
            with(&format!("exportTo: [., shop], {ROUTE}")),
            "error: exportTo: duplicate entries in exportTo for entry shop",
        ),
        (
            with(&format!("exportTo: ['*', shop], {ROUTE}")),
            "cannot have both public (*) and non-public exportTo values",
        ),
        (with(&format!("exportTo: ['~'], {ROUTE}")), "exportTo ~ (none) is not allowed"),
    ]);
}

#[test]
fn tcp_and_tls_routes() {
    let to_b = "route: [{destination: {host: b}}]";
    check_all(&[
        (
            with(&format!("tcp: [{{match: [{{port: 70000}}], {to_b}}}]")),
            "error: tcp[0].match[0]: port number 70000 must be in",
        ),
        (with("tcp: [{}]"), "error: tcp[0]: TCP route is required"),
        (
            with(&format!("tls: [{{match: [{{sniHosts: [c.com]}}], {to_b}}}]")),
            "SNI host \"c.com\" is not a compatible subset",
        ),
        (with(&format!("tls: [{{match: [{{sniHosts: [b.com]}}], {to_b}}}]")), ""),
        (with(&format!("tls: [{{{to_b}}}]")), "error: tls[0]: TLS route must have at least one match condition"),
    ]);
}

#[test]
fn what_an_http_route_does() {
    check_all(&[
        (with("http: [{}]"), "error: http[0]: HTTP route, redirect or direct_response is required"),
        (
            with("http: [{delegate: {name: x}, redirect: {uri: /x}}]"),
            "error: http[0]: root HTTP route  must not specify redirect",
        ),
        (http("redirect: {uri: /x}"), "error: http[0]: HTTP route cannot contain both route and redirect"),
        (
            with("http: [{redirect: {redirectCode: 200, uri: /x}}]"),
            "error: http[0].redirect: 200 is not a valid redirect code",
        ),
        (with("http: [{redirect: {}}]"), "redirect must specify URI, authority, scheme, or port"),
        (with("http: [{directResponse: {status: 700}}]"), "HTTP status 700 is not in range 200-599"),
        (http("timeout: 0s"), "error: http[0].timeout: duration must be greater than 1ms"),
        (http("timeout: 1.0005s"), "only durations to ms precision are supported"),
        (
            http("retries: {attempts: 0, retryOn: 5xx}"),
            "http retry policy configured when attempts are set to 0 (disabled)",
        ),
        (http("retries: {attempts: 2, retryOn: '5xx,503,nope'}"), "\"nope\" is not a valid retryOn policy"),
        (http("retries: {attempts: 2, retryOn: '5xx,503,reset'}"), ""),
        (http("rewrite: {}"), "rewrite must specify at least one of URI"),
        (
            http("rewrite: {authority: x}, headers: {request: {set: {Host: z}}}"),
            "authority header cannot be set multiple times",
        ),
        (http("headers: {response: {remove: [':path']}}"), "header cannot have \":\" prefix"),
        (http("headers: {request: {add: {x: '%A'}}}"), "Un-terminated variable expression '%A'"),
        (http("corsPolicy: {allowMethods: [GRAB]}"), "\"GRAB\" is not a supported HTTP method"),
        (http("corsPolicy: {maxAge: 1.5s}"), "max_age duration is accurate only to seconds precision"),
        (http("fault: {}"), "HTTP fault injection must have an abort and/or a delay"),
        (http("fault: {abort: {grpcStatus: NOPE}}"), "gRPC status \"NOPE\" is not supported"),
        (
            http("fault: {delay: {fixedDelay: 1s, percentage: {value: 101}}}"),
            "percentage 101 is neither 0.0, nor in range",
        ),
        (http("mirrorPercent: 5"), "warning: http[0]: using deprecated setting \"mirrorPercent\""),
        (http("mirror: {host: c}, mirrorPercentage: {value: -1}"), "mirror_percentage must have a min value of 0"),
        (
            with("http: [{route: [{destination: {host: '*'}}]}]"),
            "error: http[0].route[0].destination: invalid destination host *",
        ),
        (with("http: [{route: [{destination: {host: b, subset: a.b}}]}]"), "subset name is invalid: a.b"),
        (with("http: [{route: [{destination: {host: b}, weight: -1}]}]"), "error: http[0].route[0]: weight -1 < 0"),
        (with("http: [{route: [{destination: {host: b}}, {destination: {host: c}}]}]"), "total destination weight = 0"),
    ]);
}

#[test]
fn what_an_http_route_matches() {
    check_all(&[
        (http("match: [{uri: {regex: '('}}]"), "error: http[0].match[0]: \"uri\": error parsing regexp"),
        (http("match: [{uri: {regex: '(a{1000}){1000}'}}]"), "\"uri\": expression too large; Istio uses RE2 style"),
        (http("match: [{uri: {prefix: ''}}]"), ""),
        (http("match: [{method: {prefix: ''}}]"), "\"method\": prefix string match should not be empty"),
        (http("match: [{headers: {'a b': {exact: x}}}]"), "header name a b is not a valid header name"),
        (
            http("match: [{headers: {'@request.auth.claims.x': {exact: x}}}]"),
            "JWT claim based routing (key: @request.auth.claims.x)",
        ),
        (http("match: [{withoutHeaders: {x: {regex: '*'}}}]"), ""),
        (http("match: [{sourceNamespace: a/b}]"), "sourceNamespace match a/b is invalid"),
        (http("match: [{sourceLabels: {'a b': c}}]"), "invalid tag key: \"a b\""),
    ]);
}

#[test]
fn rules_that_are_never_reached() {
    let routes = |matches: [&str; 2]| {
        let [a, b] = matches.map(|one| format!("{{{one} route: [{{destination: {{host: b}}}}]}}"));
        with(&format!("http: [{a}, {b}]"))
    };
    check_all(&[
        (routes(["", ""]), "warning: virtualService rule #1 not used (only the last rule can have no matches)"),
        (routes(["name: all,", "match: [{port: 1}],"]), "rule #1 not used (route without matches defined before)"),
        (
            routes(["match: [{port: 1}],", "match: [{name: m, port: 1}],"]),
            "rule #1 match \"m\" is not used (duplicate/overlapping match in rule #0)",
        ),
        (
            routes(["match: [{uri: {prefix: /a}}],", "match: [{uri: {prefix: /ab}}],"]),
            "rule #1 match #0 of prefix /ab is not used (duplicate/overlapping match in rule #0 of prefix /a on #0)",
        ),
        (routes(["match: [{uri: {prefix: /ab}}],", "match: [{uri: {prefix: /a}}],"]), ""),
        (routes(["match: [{uri: {prefix: /a}, port: 1}],", "match: [{uri: {prefix: /ab}}],"]), ""),
    ]);
}
