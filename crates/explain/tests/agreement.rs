//! Explanations agree with a real Envoy: requests are generated from the route configurations of the recorded cases, so
//! that most of them match a route, and some just miss it.

mod generated;

use api::TypeUrl;
use api::envoy::config::route::v3::RouteConfiguration;
use explain::private_envoy::PrivateEnvoy;
use explain::{ProxyConfig, explain_routes};
use fastrand::Rng;
use generated::request;
use serde_json::json;
use testkit::cases::CaseStore;
use testkit::servers;

const TABLES: usize = 25;
const REQUESTS_PER_TABLE: usize = 10;
const SEED: u64 = 19;

/// Route configurations of the recorded cases with more than one way through them.
fn tables() -> Vec<(String, RouteConfiguration)> {
    let mut found = Vec::new();
    for case in CaseStore::read(|_| true).cases {
        for proxy in &case.proxies {
            let resources: Vec<_> = case.expected(&proxy.name, &TypeUrl::ROUTE).iter().map(|r| (**r).clone()).collect();
            let Ok(config) = ProxyConfig::from_dump(&json!({"configs": resources}).to_string()) else { continue };
            let tables = config.routes.into_values().filter(|t| t.virtual_hosts.iter().any(|h| h.routes.len() > 1));
            found.extend(tables.map(|table| (format!("{} {}", case.label(), table.name), table)));
        }
    }
    found
}

#[tokio::test]
async fn explanations_agree_with_a_real_envoy() {
    if servers::without("envoy") {
        return;
    }
    let envoy = servers::binary("envoy");
    let mut random = Rng::with_seed(SEED);
    let mut tables = tables();
    random.shuffle(&mut tables);
    let (mut asked, mut forwarded, mut conditional, mut excused, mut wrong) = (0, 0, 0, 0, Vec::new());
    for (label, table) in tables.iter().take(TABLES) {
        let private = PrivateEnvoy::start(&envoy, table).await.unwrap_or_else(|e| panic!("{label}: {e}"));
        for _ in 0..REQUESTS_PER_TABLE {
            let Some(request) = request(table, &mut random) else { continue };
            let explanation = explain_routes(&ProxyConfig::default(), table, &request);
            let observed = private.ask(&request).await.unwrap_or_else(|e| panic!("{label}: {request:?}: {e}"));
            asked += 1;
            forwarded += usize::from(observed.cluster.is_some());
            let is_conditional = !explanation.conditions.is_empty();
            conditional += usize::from(is_conditional);
            match observed.disagreement(&explanation) {
                Some(_) if is_conditional => excused += 1,
                Some(text) => wrong.push(format!("{label}: {request:?}: {text}\n{explanation}")),
                None => {}
            }
        }
    }
    println!(
        "{asked} requests, {forwarded} forwarded, {conditional} on conditions, {excused} of them differ, seed {SEED}"
    );
    assert!(asked >= 200 && forwarded >= 100, "{asked} requests, {forwarded} forwarded");
    assert!(conditional * 20 <= asked, "{conditional} of {asked} explanations are conditional");
    assert!(wrong.is_empty(), "{} of {asked} differ:\n{}", wrong.len(), wrong.join("\n"));
}
