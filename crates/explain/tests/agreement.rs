//! Explanations agree with a real Envoy: requests are generated from the route configurations of the recorded cases, so
//! that most of them match a route, and some just miss it.

use api::TypeUrl;
use api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use api::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{RouteConfiguration, RouteMatch};
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use explain::private_envoy::PrivateEnvoy;
use explain::{ProxyConfig, Request, explain_routes};
use fastrand::Rng;
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

/// A text that the matcher accepts, if that is easy to say.
fn accepted(matcher: &StringMatcher) -> Option<String> {
    match matcher.match_pattern.as_ref()? {
        MatchPattern::Exact(text) => Some(text.clone()),
        MatchPattern::Prefix(text) => Some(format!("{text}x")),
        MatchPattern::Suffix(text) => Some(format!("x{text}")),
        MatchPattern::Contains(text) => Some(format!("x{text}x")),
        MatchPattern::SafeRegex(_) | MatchPattern::Custom(_) => Some("7".to_owned()),
    }
}

fn path_for(matcher: &RouteMatch, random: &mut Rng) -> String {
    match &matcher.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) if random.bool() => format!("{prefix}x/y"),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) if random.bool() => format!("{prefix}/y"),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) if random.bool() => format!("{prefix}y"),
        Some(PathSpecifier::Prefix(path) | PathSpecifier::Path(path) | PathSpecifier::PathSeparatedPrefix(path)) => {
            path.clone()
        }
        Some(PathSpecifier::SafeRegex(_)) => "/users/7/basket".to_owned(),
        _ => "/other".to_owned(),
    }
}

/// A request made for one route of a table.
fn request(table: &RouteConfiguration, random: &mut Rng) -> Option<Request> {
    let host = random.choice(&table.virtual_hosts)?;
    let domain = random.choice(&host.domains)?.replace('*', "w");
    let matcher = random.choice(&host.routes)?.r#match.clone()?;
    let mut path = path_for(&matcher, random);
    for parameter in &matcher.query_parameters {
        let value = match &parameter.query_parameter_match_specifier {
            Some(QueryParameterMatchSpecifier::StringMatch(text)) => accepted(text)?,
            _ => "1".to_owned(),
        };
        if random.u8(..) > 50 {
            path += &format!("{}{}={value}", if path.contains('?') { '&' } else { '?' }, parameter.name);
        }
    }
    let mut request = Request::new("GET", &format!("http://{domain}{path}")).ok()?;
    for header in &matcher.headers {
        let value = match header.header_match_specifier.as_ref()? {
            HeaderMatchSpecifier::StringMatch(text) => accepted(text)?,
            HeaderMatchSpecifier::ExactMatch(text) => text.clone(),
            _ => "1".to_owned(),
        };
        match &*header.name {
            // Envoy rejects unknown methods before it looks at routes.
            ":method" if ["GET", "POST", "PUT", "DELETE"].contains(&&*value) => request.method = value,
            ":authority" => request.authority = value,
            name if name.starts_with(':') => {}
            name if random.u8(..) > 50 => request.header(&format!("{name}: {value}")).ok()?,
            _ => {}
        }
    }
    let is_sendable = request.method != "CONNECT" && !request.authority.contains(['[', ' ']);
    is_sendable.then_some(request)
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
    let (mut asked, mut forwarded, mut wrong) = (0, 0, Vec::new());
    for (label, table) in tables.iter().take(TABLES) {
        let private = PrivateEnvoy::start(&envoy, table).await.unwrap_or_else(|e| panic!("{label}: {e}"));
        for _ in 0..REQUESTS_PER_TABLE {
            let Some(request) = request(table, &mut random) else { continue };
            let explanation = explain_routes(&ProxyConfig::default(), table, &request);
            let observed = private.ask(&request).await.unwrap_or_else(|e| panic!("{label}: {request:?}: {e}"));
            asked += 1;
            forwarded += usize::from(observed.cluster.is_some());
            if let Some(text) = observed.disagreement(&explanation)
                && explanation.conditions.is_empty()
            {
                wrong.push(format!("{label}: {request:?}: {text}\n{explanation}"));
            }
        }
    }
    println!("{asked} requests, {forwarded} forwarded, seed {SEED}");
    assert!(asked >= 200 && forwarded >= 100, "{asked} requests, {forwarded} forwarded");
    assert!(wrong.is_empty(), "{} of {asked} differ:\n{}", wrong.len(), wrong.join("\n"));
}
