//! Methods, paths, hosts, headers and addresses; no tokens.

use testkit::envoy::XdsTransport;
use testkit::{client, wait};

use super::{Guarded, Row, annotated_policy, policy};

testkit::over_both!(
    cve_2021_39155_39156_31920_2020_8595_no_spelling_of_a_denied_request_is_allowed,
    slashes_are_decoded_and_merged_on_request,
    sources_without_identity_are_distinguished,
    policy_takes_effect_and_is_withdrawn,
    hole_14_strict_mode_denies_paths_and_hosts_in_every_spelling,
    hole_14_the_analysis_reports_spellings_that_pass_by_default,
);

const ALLOWED: &str = "
  - to:
    - operation: {methods: [GET, HEAD], paths: [/api/*, /exact, '*/end']}
    - operation: {methods: [POST], paths: ['/orders/{*}/items', '/files/{**}/meta']}
    - operation: {hosts: [admin.example, '*.ops.example'], notPaths: [/secret*], notMethods: [TRACE]}
  - when:
    - {key: 'request.headers[x-role]', values: [ops, lead-*], notValues: [lead-guest]}";

const DENIED: &str = "
  - to:
    - operation: {paths: [/api/private, /api/private/*]}
  - when:
    - {key: 'request.headers[x-blocked]', values: ['*']}";

/// Default path normalization: dot segments and backslashes, but no escaped or double slashes.
const SPELLINGS: &[Row<'_>] = &[
    // Methods and simple paths.
    (200, "GET /api/", &[]),
    (200, "GET /api/x", &[]),
    (200, "HEAD /api/x", &[]),
    (403, "POST /api/x", &[]),
    (403, "OPTIONS /api/x", &[]),
    (403, "GET /api", &[]),
    (403, "GET /API/x", &[]),
    (403, "GET /", &[]),
    (200, "GET /exact", &[]),
    (403, "GET /exact/", &[]),
    (403, "GET /EXACT", &[]),
    (403, "GET /exact.", &[]),
    (403, "GET /exact;v=1", &[]),
    (403, "GET /exact%20", &[]),
    (200, "GET /x/end", &[]),
    (403, "GET /x/end/", &[]),
    (403, "GET /x/endless", &[]),
    // The query is not part of the path.
    (200, "GET /api/x?y=/api/private", &[]),
    (200, "GET /exact?x", &[]),
    (403, "GET /other?p=/exact", &[]),
    (403, "GET /other?x/end", &[]),
    (403, "GET /api/private?x=1", &[]),
    // A denied path is denied in every spelling.
    (403, "GET /api/private", &[]),
    (403, "GET /api/private/", &[]),
    (403, "GET /api/private/key", &[]),
    (403, "GET /api/./private", &[]),
    (403, "GET /api/x/../private", &[]),
    (403, "GET /api/%2e/private", &[]),
    (403, "GET /api/x/%2E%2e/private", &[]),
    (403, "GET /api\\private", &[]),
    (403, "GET /api/x/..\\private", &[]),
    (403, "GET http://cart.example/api/private", &[]),
    // Different paths, for Envoy and for the workload.
    (200, "GET /api/Private", &[]),
    (200, "GET /api/private;v=1", &[]),
    (200, "GET /api/private.", &[]),
    (200, "GET /api//private", &[]),
    (200, "GET /api/%2Fprivate", &[]),
    (403, "GET //api/x", &[]),
    (403, "GET /api%2Fx", &[]),
    (403, "GET /x/../../exact/..", &[]),
    (200, "GET /../exact", &[]),
    (400, "GET /api/x#fragment", &[]),
    // Path templates: one segment, or any number.
    (200, "POST /orders/7/items", &[]),
    (200, "POST /orders/7/items?x=1", &[]),
    (403, "POST /orders/7/8/items", &[]),
    (403, "POST /orders//items", &[]),
    (403, "POST /orders/7/items/", &[]),
    (403, "GET /orders/7/items", &[]),
    (200, "POST /files/a/b/meta", &[]),
    (403, "POST /files/a/b/metadata", &[]),
    // Hosts.
    (200, "PUT /x", &["host: admin.example"]),
    (200, "PUT /x", &["host: ADMIN.Example"]),
    (200, "PUT http://admin.example/x", &[]),
    (403, "PUT /x", &["host: admin.example.evil.example"]),
    (403, "PUT /x", &["host: evil-admin.example"]),
    (403, "PUT /x", &["x-forwarded-host: admin.example"]),
    (200, "PUT /x", &["host: db.ops.example"]),
    (200, "PUT /x", &["host: DB.OPS.EXAMPLE"]),
    (403, "PUT /x", &["host: ops.example"]),
    (403, "PUT /secret", &["host: admin.example"]),
    (403, "PUT /secrets?x", &["host: admin.example"]),
    (403, "PUT /x/../secret", &["host: admin.example"]),
    (200, "PUT /SECRET", &["host: admin.example"]),
    (403, "GET /api/private", &["host: admin.example"]),
    // Headers.
    (200, "DELETE /z", &["x-role: ops"]),
    (200, "DELETE /z", &["X-ROLE: ops"]),
    (403, "DELETE /z", &["x-role: OPS"]),
    (403, "DELETE /z", &["x-role: opsy"]),
    (200, "DELETE /z", &["x-role: lead-db"]),
    (403, "DELETE /z", &["x-role: lead-guest"]),
    (403, "DELETE /z", &["x-role: lead"]),
    (403, "DELETE /z", &["x-role:"]),
    (403, "DELETE /z", &["x-role: ops", "x-role: lead-guest"]),
    (403, "DELETE /api/private", &["x-role: ops"]),
    (403, "GET /api/x", &["x-blocked: yes"]),
    (403, "GET /api/x", &["X-Blocked:  1", "x-blocked: 2"]),
];

async fn cve_2021_39155_39156_31920_2020_8595_no_spelling_of_a_denied_request_is_allowed(transport: XdsTransport) {
    let watched = "  - to: [{operation: {paths: ['*']}}]";
    let policies = [
        policy("allowed", "ALLOW", ALLOWED),
        policy("denied", "DENY", DENIED),
        policy("watched", "AUDIT", watched),
        annotated_policy("rehearsed", "DENY", "{istio.io/dry-run: 'true'}", "  - to: [{operation: {paths: [/api/*]}}]"),
    ];
    let guarded = Guarded::start(transport, &policies, "").await;
    guarded.check(SPELLINGS).await;
    // The dry run denies nothing, but counts what it would deny.
    let counters = guarded.mesh.envoy.admin().stats("rbac.*shadow_denied").await.expect("counters");
    assert!(counters.values().sum::<u64>() > 0, "{counters:?}");
    guarded.mesh.assert_settled().await;
}

async fn slashes_are_decoded_and_merged_on_request(transport: XdsTransport) {
    let settings = "pathNormalization: {normalization: DECODE_AND_MERGE_SLASHES}\n";
    let denied = "  - to: [{operation: {paths: [/admin, /admin/*]}}]";
    // Only /public is allowed, in every spelling.
    let closed = "  - to: [{operation: {methods: [POST], notPaths: [/public/*]}}]";
    let policies = [policy("denied", "DENY", denied), policy("closed", "DENY", closed)];
    let guarded = Guarded::start(transport, &policies, settings).await;
    let rows: &[Row<'_>] = &[
        (200, "GET /", &[]),
        (200, "GET /administrator", &[]),
        (200, "GET /x//admin", &[]),
        (403, "GET /admin", &[]),
        (403, "GET //admin", &[]),
        (403, "GET ///admin//x", &[]),
        (403, "GET /%2Fadmin", &[]),
        (403, "GET /%2fadmin%2fx", &[]),
        (403, "GET /admin%2Fx", &[]),
        (403, "GET /x/..//admin", &[]),
        (403, "GET /x/..%2Fadmin", &[]),
        (403, "GET /x%2F..%2Fadmin", &[]),
        (403, "GET /%5Cadmin", &[]),
        (403, "GET /x%5c..%5cadmin", &[]),
        (200, "POST /public/x", &[]),
        (200, "POST //public//x", &[]),
        (200, "POST /public%2Fx", &[]),
        (403, "POST /public", &[]),
        (403, "POST /public/../x", &[]),
        (403, "POST /public%2F..%2Fx", &[]),
        (403, "POST /x?/public/", &[]),
    ];
    guarded.check(rows).await;
    guarded.mesh.assert_settled().await;
}

/// Plain-text callers have an address but no identity, so rules about identities do not match them.
async fn sources_without_identity_are_distinguished(transport: XdsTransport) {
    let allowed = "
  - from: [{source: {ipBlocks: [127.0.0.0/8]}}]
    to: [{operation: {paths: [/near]}}]
  - from: [{source: {ipBlocks: [10.0.0.0/8]}}]
    to: [{operation: {paths: [/far]}}]
  - from: [{source: {notIpBlocks: [127.0.0.1]}}]
    to: [{operation: {paths: [/not-here]}}]
  - from: [{source: {principals: ['*']}}]
    to: [{operation: {paths: [/known]}}]
  - from: [{source: {namespaces: [shop, '*']}}]
    to: [{operation: {paths: [/neighbour]}}]
  - from: [{source: {notNamespaces: [evil]}}]
    to: [{operation: {paths: [/not-evil, /no-identity]}}]
  - to: [{operation: {paths: [/open]}}]";
    let denied = "
  - from: [{source: {notPrincipals: ['*']}}]
    to: [{operation: {paths: [/no-identity]}}]
  - from: [{source: {principals: ['*']}}]
    to: [{operation: {paths: [/open]}}]";
    let policies = [policy("allowed", "ALLOW", allowed), policy("denied", "DENY", denied)];
    let guarded = Guarded::start(transport, &policies, "").await;
    let rows: &[Row<'_>] = &[
        (200, "GET /near", &[]),
        (200, "GET /near", &["x-forwarded-for: 10.1.1.1"]),
        (403, "GET /far", &[]),
        (403, "GET /far", &["x-forwarded-for: 10.1.1.1"]),
        (403, "GET /not-here", &[]),
        (403, "GET /known", &[]),
        (
            403,
            "GET /known",
            &[
                "x-forwarded-client-cert: By=spiffe://cluster.local/ns/shop/sa/cart;URI=spiffe://cluster.local/ns/shop/sa/a",
            ],
        ),
        (403, "GET /neighbour", &[]),
        (200, "GET /not-evil", &[]),
        (403, "GET /no-identity", &[]),
        (200, "GET /open", &[]),
        (403, "GET /elsewhere", &[]),
    ];
    guarded.check(rows).await;
    guarded.mesh.assert_settled().await;
}

async fn policy_takes_effect_and_is_withdrawn(transport: XdsTransport) {
    let guarded = Guarded::start(transport, &[], "").await;
    let becomes = async |wanted: u16| {
        wait::until(&format!("status {wanted}"), async || {
            let got = super::raw_request(guarded.mesh.address, "GET /x", &[]).await?;
            if got == wanted { Ok(()) } else { Err(got.to_string()) }
        })
        .await;
    };
    becomes(200).await;
    // An ALLOW policy without rules allows nothing.
    guarded.mesh.discovery.write("closed.yaml", &policy("closed", "ALLOW", "    []"));
    becomes(403).await;
    guarded.mesh.discovery.remove("closed.yaml");
    becomes(200).await;
    guarded.mesh.assert_settled().await;
}

const DENIED_ADMIN: &str = "
  - to: [{operation: {paths: [/admin, /admin/*]}}]
  - to: [{operation: {hosts: [admin.example, '*.ops.example']}}]
  - when: [{key: 'request.headers[:authority]', values: [old.example]}]";

/// Spellings that pass by default, as in upstream, and that the analysis reports.
const OTHER_SPELLINGS: &[(&str, &[&str])] = &[
    ("GET //admin", &[]),
    ("GET //admin/x", &[]),
    ("GET /admin%2f", &[]),
    ("GET /admin%2Fx", &[]),
    ("GET /%2Fadmin", &[]),
    ("GET /x", &["host: admin.example:8080"]),
    ("GET /x", &["host: ADMIN.example:8080"]),
    ("GET /x", &["host: admin.example."]),
    ("GET /x", &["host: a.ops.example:80"]),
    ("GET /x", &["host: OLD.example"]),
    ("GET /x", &["host: old.example:1"]),
];

async fn hole_14_strict_mode_denies_paths_and_hosts_in_every_spelling(transport: XdsTransport) {
    let policies = [policy("denied", "DENY", DENIED_ADMIN)];
    let strict = [("PILOTAGE_STRICT_AUTHORIZATION", "true")];
    let guarded = Guarded::start_with(transport, &policies, "", &strict).await;
    let rows: Vec<Row<'_>> = OTHER_SPELLINGS.iter().map(|(line, headers)| (403, *line, *headers)).collect();
    guarded.check(&rows).await;
    // The written path is denied as before, and nothing else.
    let rows: &[Row<'_>] = &[
        (403, "GET /admin", &[]),
        (403, "GET /x", &["host: Admin.Example"]),
        (403, "GET /x", &["host: a.ops.example"]),
        (200, "GET /administrator", &[]),
        (200, "GET /x", &["host: admin.example.org"]),
        (200, "GET /x", &["host: not-admin.example"]),
        (200, "GET /x", &["host: cart.example:8080"]),
    ];
    guarded.check(rows).await;
    guarded.mesh.assert_settled().await;
    let page = client::get(guarded.mesh.discovery.http(), "localhost", "/debug/analyze").await.expect("findings");
    assert!(!page.body.contains("PIL000"), "{}", page.body);
}

async fn hole_14_the_analysis_reports_spellings_that_pass_by_default(transport: XdsTransport) {
    let guarded = Guarded::start(transport, &[policy("denied", "DENY", DENIED_ADMIN)], "").await;
    let rows: Vec<Row<'_>> = OTHER_SPELLINGS.iter().map(|(line, headers)| (200, *line, *headers)).collect();
    guarded.check(&rows).await;
    let page = client::get(guarded.mesh.discovery.http(), "localhost", "/debug/analyze").await.expect("findings");
    for named in ["PIL0002", "//admin", "DECODE_AND_MERGE_SLASHES", "PIL0003", "admin.example:*", ":authority"] {
        assert!(page.body.contains(named), "no {named} in {}", page.body);
    }
    guarded.mesh.assert_settled().await;
}
