//! Reports Envoys that wait for secrets. Such an Envoy accepts its clusters and does not ask for listeners, or it
//! subscribes to secrets that this server does not have for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::TypeUrl;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::TransportSocket;
use api::envoy::config::core::v3::transport_socket::ConfigType;
use api::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use api::envoy::extensions::transport_sockets::tls::v3::{CommonTlsContext, UpstreamTlsContext};
use model::change::{Batch, Change, SourceId};
use model::problem::{Problem, ProblemCode, Subject};
use prost::Message;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::clients::Connection;
use super::proxyless::is_proxyless;
use super::session::ControlPlane;

/// How often clients are examined.
const PERIOD: Duration = Duration::from_secs(2);
/// Secrets usually arrive within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Proxies and secrets that are named; more are counted.
const MOST_PROXIES: usize = 50;
const MOST_SECRETS: usize = 10;
/// Clusters that are examined for the secrets of one proxy.
const MOST_CLUSTERS: usize = 200;

/// Publishes the proxies that wait as problems, until the server stops.
pub(crate) async fn follow(pilot: Arc<ControlPlane>, stop: CancellationToken) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut published = Vec::new();
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let problems = problems(&pilot.clients().all(), SystemTime::now());
        if problems == published {
            continue;
        }
        published.clone_from(&problems);
        let batch = Batch { source: SourceId("proxies".into()), changes: vec![Change::Problems(problems)] };
        if pilot.world().changes().send(batch).await.is_err() {
            return;
        }
    }
}

fn problems(clients: &[Arc<Connection>], now: SystemTime) -> Vec<Problem> {
    let mut all: Vec<Problem> = clients.iter().filter_map(|client| problem(client, now)).collect();
    all.sort_by(|one, other| (&one.about, &one.message).cmp(&(&other.about, &other.message)));
    all.dedup();
    if all.len() > MOST_PROXIES {
        let message = format!("{} further Envoys wait for secrets", all.len() - MOST_PROXIES);
        all.truncate(MOST_PROXIES);
        all.push(Problem::error(Subject::Setting("proxies".into()), message).coded(ProblemCode::WaitingForSecrets));
    }
    all
}

fn problem(client: &Connection, now: SystemTime) -> Option<Problem> {
    if client.only_looks() || is_proxyless(&client.proxy) {
        return None;
    }
    let message = waits_for_agent(client, now).or_else(|| waits_for_us(client, now))?;
    let about = Subject::Setting(format!("Envoy of {}", client.proxy.id).into());
    Some(Problem::error(about, message).coded(ProblemCode::WaitingForSecrets))
}

/// The client has accepted its clusters and asks for no listeners.
fn waits_for_agent(client: &Connection, now: SystemTime) -> Option<String> {
    let is_waiting = client.look(|watched| {
        let clusters = watched.get(&TypeUrl::CLUSTER)?;
        let (sent, acked) = clusters.nonces();
        let is_late = clusters.updated_at().is_some_and(|at| now.duration_since(at).is_ok_and(|ago| ago > PATIENCE));
        Some(!watched.contains_key(&TypeUrl::LISTENER) && acked.is_some() && sent == acked && is_late)
    });
    if is_waiting != Some(true) {
        return None;
    }
    let cut = client.cut()?;
    let set = cut.set(&TypeUrl::CLUSTER)?;
    let clusters = set.resources().take(MOST_CLUSTERS);
    let clusters = clusters.filter_map(|resource| Cluster::decode(resource.body.joined()).ok());
    let secrets: BTreeSet<String> = clusters.flat_map(|cluster| secrets_of(&cluster)).collect();
    if secrets.is_empty() {
        return None;
    }
    Some(format!(
        "it accepted its clusters and waits for the secrets {}, which its agent serves; GET /healthz/ready of the agent's \
         status port says why it has none",
        named(secrets)
    ))
}

/// The client subscribes to secrets that it is not sent.
fn waits_for_us(client: &Connection, now: SystemTime) -> Option<String> {
    if now.duration_since(client.since).is_ok_and(|since| since <= PATIENCE) {
        return None;
    }
    let names = client.look(|watched| watched.get(&TypeUrl::SECRET).map(|asked| asked.names.clone()))?;
    let cut = client.cut()?;
    let set = cut.set(&TypeUrl::SECRET);
    let has = |name: &str| set.as_ref().is_some_and(|set| set.get(name).is_some());
    let missing: BTreeSet<String> = names.iter().filter(|name| !has(name)).map(ToString::to_string).collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "it waits for the secrets {}, which do not exist in a namespace that this proxy may read; listeners with them accept \
         no connections",
        named(missing)
    ))
}

fn named(secrets: BTreeSet<String>) -> String {
    let more = secrets.len().saturating_sub(MOST_SECRETS);
    let listed = secrets.into_iter().take(MOST_SECRETS).collect::<Vec<_>>().join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

/// Names of the secrets that a cluster refers to.
fn secrets_of(cluster: &Cluster) -> Vec<String> {
    let matched = cluster.transport_socket_matches.iter().filter_map(|of| of.transport_socket.as_ref());
    let contexts = matched.chain(&cluster.transport_socket).filter_map(tls_context);
    contexts.flat_map(|context| names_of(&context)).collect()
}

fn tls_context(socket: &TransportSocket) -> Option<CommonTlsContext> {
    let Some(ConfigType::TypedConfig(config)) = &socket.config_type else { return None };
    let is_tls = config.type_url.ends_with(".UpstreamTlsContext");
    UpstreamTlsContext::decode(&*config.value).ok().filter(|_| is_tls)?.common_tls_context
}

fn names_of(context: &CommonTlsContext) -> Vec<String> {
    let roots = match &context.validation_context_type {
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            combined.validation_context_sds_secret_config.as_ref()
        }
        Some(ValidationContextType::ValidationContextSdsSecretConfig(config)) => Some(config),
        _ => None,
    };
    context.tls_certificate_sds_secret_configs.iter().chain(roots).map(|secret| secret.name.clone()).collect()
}
