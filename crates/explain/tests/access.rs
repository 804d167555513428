//! Compares the evaluation of RBAC filters with a real Envoy, over requests made from the recorded cases' policies.

use api::TypeUrl;
use api::envoy::config::core::v3::TrafficDirection;
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::config::route::v3::RouteConfiguration;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpConnectionManager, http_filter};
use explain::arrival::{Access, ArrivalEndpoint, ClientTransport, Destination, RequestSource, arrival};
use explain::private_envoy::PrivateEnvoy;
use explain::{ProxyConfig, Request, explain_routes};
use fastrand::Rng;
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use testkit::cases::CaseStore;
use testkit::servers;

const REQUESTS_PER_CHAIN: usize = 12;
const SEED: u64 = 19;

/// A proxy with one inbound HTTP chain that has RBAC filters, and these filters as JSON.
struct GuardedChain {
    label: String,
    config: ProxyConfig,
    filters: Vec<Value>,
    port: u16,
}

fn as_json(config: &api::Any) -> Option<Value> {
    let name = config.type_url.rsplit('/').next()?;
    let descriptor = api::reflect::envoy().get_message_by_name(name)?;
    let mut value = serde_json::to_value(DynamicMessage::decode(descriptor, &*config.value).ok()?).ok()?;
    value["@type"] = json!(config.type_url);
    Some(value)
}

/// RBAC filters of the manager of a chain.
fn filters_of(chain: &api::envoy::config::listener::v3::FilterChain) -> Option<Vec<Value>> {
    let managers = chain.filters.iter().filter_map(|filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(config)) if config.type_url.ends_with("HttpConnectionManager") => {
            HttpConnectionManager::decode(&*config.value).ok()
        }
        _ => None,
    });
    let mut found = Vec::new();
    for filter in managers.flat_map(|manager| manager.http_filters) {
        let Some(http_filter::ConfigType::TypedConfig(config)) = &filter.config_type else { continue };
        if config.type_url.ends_with("ext_authz.v3.ExtAuthz") {
            return None;
        }
        if config.type_url.ends_with("http.rbac.v3.RBAC") {
            found.push(json!({"name": filter.name, "typed_config": as_json(config)?}));
        }
    }
    (!found.is_empty()).then_some(found)
}

fn chains() -> Vec<GuardedChain> {
    let mut found = Vec::new();
    for case in CaseStore::read(|label| label.contains("ap-") || label.contains("ra-")).cases {
        for proxy in &case.proxies {
            let resources: Vec<_> =
                case.expected(&proxy.name, &TypeUrl::LISTENER).iter().map(|r| (**r).clone()).collect();
            let Ok(config) = ProxyConfig::from_dump(&json!({"configs": resources}).to_string()) else { continue };
            for listener in &config.listeners {
                let is_plain = |chain: &&api::envoy::config::listener::v3::FilterChain| {
                    chain
                        .filter_chain_match
                        .as_ref()
                        .is_some_and(|m| m.transport_protocol == "raw_buffer" && m.destination_port.is_some())
                };
                let is_inbound = listener.traffic_direction == TrafficDirection::Inbound as i32;
                for chain in listener.filter_chains.iter().filter(|_| is_inbound).filter(is_plain) {
                    let Some(filters) = filters_of(chain) else { continue };
                    // A private Envoy listens on a socket without address and port.
                    let text = json!(filters).to_string();
                    if ["destinationPort", "destinationIp", "directRemoteIp", "remoteIp", "requestedServerName"]
                        .iter()
                        .any(|of| text.contains(of))
                    {
                        continue;
                    }
                    let mut only = listener.clone();
                    only.filter_chains = vec![chain.clone()];
                    let port = chain.filter_chain_match.as_ref().and_then(|m| m.destination_port).unwrap_or_default();
                    found.push(GuardedChain {
                        label: format!("{} {}", case.label(), proxy.name),
                        config: ProxyConfig { listeners: vec![only], ..ProxyConfig::default() },
                        filters,
                        port: u16::try_from(port).unwrap_or_default(),
                    });
                }
            }
        }
    }
    found
}

/// All texts below the matchers of filters: values that requests are made from.
fn words(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if !text.contains(['@', ' ']) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| words(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| words(field, found)),
        _ => {}
    }
}

fn request(words: &[String], random: &mut Rng) -> Option<Request> {
    let paths: Vec<&String> = words.iter().filter(|word| word.starts_with('/')).collect();
    let path = match random.choice(&paths) {
        Some(path) if random.u8(..) > 60 => format!("{path}{}", random.choice(["", "/x", "x", "?a=b"])?),
        _ => "/other".to_owned(),
    };
    let methods: Vec<&String> =
        words.iter().filter(|word| ["GET", "POST", "PUT", "DELETE"].contains(&word.as_str())).collect();
    let method = random.choice(&methods).filter(|_| random.bool()).map_or("GET", |method| method.as_str());
    let is_host = |word: &&String| word.contains('.') && !word.contains(['/', '*', '(', '\\', '_']);
    let hosts: Vec<&String> = words.iter().filter(is_host).collect();
    let host = random.choice(&hosts).filter(|_| random.bool()).map_or("a.example", |host| host.as_str());
    let mut request = Request::new(method, &format!("http://{host}{path}")).ok()?;
    let plain: Vec<&String> = words
        .iter()
        .filter(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
        .collect();
    for _ in 0..random.usize(..3) {
        if let (Some(name), Some(value)) = (random.choice(&plain), random.choice(words))
            && value.bytes().all(|b| b.is_ascii_graphic())
            && !["content-length", "transfer-encoding", "connection", "host", "upgrade"]
                .contains(&&*name.to_lowercase())
        {
            request.header(&format!("{name}: {value}")).ok()?;
        }
    }
    Some(request)
}

fn to_any_backend() -> RouteConfiguration {
    let text = r#"{"configs": [{"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": "in",
        "virtualHosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "c"}}]}]}]}"#;
    ProxyConfig::from_dump(text)
        .unwrap_or_else(|e| panic!("{e}"))
        .routes
        .remove("in")
        .unwrap_or_else(|| panic!("no table"))
}

#[tokio::test]
async fn policies_decide_as_in_a_real_envoy() {
    if servers::without("envoy") {
        return;
    }
    let (envoy, table) = (servers::binary("envoy"), to_any_backend());
    let mut random = Rng::with_seed(SEED);
    let source = RequestSource::default();
    let (mut asked, mut denied, mut undecided, mut wrong) = (0, 0, 0, Vec::new());
    for chain in chains() {
        let private = PrivateEnvoy::with_filters(&envoy, &table, &chain.filters).await;
        let private = private.unwrap_or_else(|e| panic!("{}: {e}", chain.label));
        let mut known = Vec::new();
        chain.filters.iter().for_each(|filter| words(filter, &mut known));
        for _ in 0..REQUESTS_PER_CHAIN {
            let Some(request) = request(&known, &mut random) else { continue };
            let explanation = explain_routes(&ProxyConfig::default(), &table, &request);
            let destination = Destination {
                proxy: "destination",
                config: &chain.config,
                peer_authentications: Vec::new(),
                request_authentications: Vec::new(),
            };
            let address = ([10, 0, 1, 1], chain.port).into();
            let endpoint = ArrivalEndpoint { address, transport: ClientTransport::default() };
            let arrival = arrival(&destination, &endpoint, &source, &explanation);
            let observed = private.ask(&request).await.unwrap_or_else(|e| panic!("{}: {request:?}: {e}", chain.label));
            asked += 1;
            let agrees = match &arrival.access {
                Access::Allowed => observed.status == 200,
                Access::Denied(_) => observed.status == 403,
                Access::Unknown(_) => {
                    undecided += 1;
                    true
                }
            };
            denied += usize::from(observed.status == 403);
            if !agrees {
                wrong.push(format!("{}: {request:?}: Envoy answered {}\n{arrival}", chain.label, observed.status));
            }
        }
    }
    println!("{asked} requests, {denied} denied, {undecided} not decided, seed {SEED}");
    assert!(wrong.is_empty(), "{} of {asked} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(asked >= 100 && denied >= 20 && denied + 20 <= asked, "{asked} requests, {denied} denied");
    // Metadata of filters other than jwt_authn is unknown.
    assert!(undecided * 4 <= asked, "{undecided} of {asked} are not decided");
}
