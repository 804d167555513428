//! Deploys managed gateways: keeps the objects that are wanted for each Gateway at the API server. `state` decides what to
//! write, `apply` writes, `observed` watches for changes of others, `config_maps` reads what users add. Only the leader
//! writes.

mod apply;
pub mod config_maps;
mod conflict;
mod object;
mod observed;
mod ownership;
mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::backoff::Backoff;
use crate::kubernetes::access::Access;
use crate::kubernetes::rate_limit::RateLimit;
use crate::status::{Election, elect};

pub use object::GatewayName;
use observed::GatewayWatches;
use state::DeploymentState;
pub use state::{GatewayDeployment, WantedDeployments};

const FIELD_MANAGER: &str = "pilotage-gateway-controller";
const MANAGED_LABEL: &str = "gateway.istio.io/managed";
const NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// How many Gateways are written concurrently.
const AT_ONCE: usize = 16;
/// Requests per second, and the size of a burst: apart from those of the watches, so that neither waits for the other.
const REQUESTS: (f64, i64) = (400.0, 400);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Problems by Gateway.
pub type DeploymentProblems = BTreeMap<GatewayName, Vec<String>>;

/// Writes the objects of managed gateways.
#[derive(Clone, Debug)]
pub struct GatewayDeployer {
    pub access: Access,
    /// The leader election; without one every replica writes.
    pub election: Option<Election>,
}

impl GatewayDeployer {
    /// Writes until stopped. Problems are published when they change.
    pub async fn run(
        self,
        wanted: watch::Receiver<WantedDeployments>,
        problems: watch::Sender<DeploymentProblems>,
        stop: CancellationToken,
    ) {
        let mut access = self.access.with_own_rate_limit(RateLimit::of_flags(REQUESTS.0, REQUESTS.1));
        let Some(client) = connect(&mut access, &stop).await else { return };
        let (lead, leads) = watch::channel(self.election.is_none());
        let election = async {
            match self.election.clone() {
                Some(election) => elect(client.clone(), election, lead, stop.clone()).await,
                // The channel must stay open: this replica always leads.
                None => {
                    stop.cancelled().await;
                    drop(lead);
                }
            }
        };
        tokio::join!(election, deploy(&client, wanted, problems, leads, &stop));
    }
}

async fn connect(access: &mut Access, stop: &CancellationToken) -> Option<Client> {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        match access.client().await {
            Ok(client) => return Some(client),
            Err(error) => warn!(%error, "could not set up a client to deploy gateways; retrying"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = backoff.wait() => {}
        }
    }
}

/// Writes what is wanted while this replica leads.
async fn deploy(
    client: &Client,
    mut wanted: watch::Receiver<WantedDeployments>,
    problems: watch::Sender<DeploymentProblems>,
    mut leads: watch::Receiver<bool>,
    stop: &CancellationToken,
) {
    let mut state = DeploymentState::default();
    let mut writes = FuturesUnordered::new();
    let mut watches: Option<GatewayWatches> = None;
    state.set_wanted(&wanted.borrow_and_update());
    loop {
        let leading = *leads.borrow_and_update();
        match (leading, watches.is_some()) {
            (true, false) => watches = Some(GatewayWatches::start(client)),
            (false, true) => {
                // Another leader may write; everything is compared again when we lead.
                watches = None;
                state = DeploymentState::default();
                state.set_wanted(&wanted.borrow_and_update());
                writes.clear();
            }
            _ => {}
        }
        while leading
            && writes.len() < AT_ONCE
            && let Some(task) = state.next()
        {
            writes.push(apply::apply(client.clone(), task));
        }
        let retry = state.next_retry();
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wanted.changed() => match changed {
                Ok(()) => {
                    state.set_wanted(&wanted.borrow_and_update());
                    problems.send_if_modified(|published| forget_others(published, &wanted.borrow()));
                }
                Err(_) => return,
            },
            changed = leads.changed() => if changed.is_err() { return },
            Some(observation) = next(&mut watches) => {
                for gateway in state.observe(observation) {
                    publish(&problems, &gateway, &state);
                }
            }
            Some((gateway, outcome)) = writes.next() => {
                state.done(&gateway, outcome);
                publish(&problems, &gateway, &state);
            }
            () = wait_until(retry), if leading && retry.is_some() => state.retry_due(),
        }
    }
}

/// Removes problems of Gateways that are no longer wanted. Returns whether there were any.
fn forget_others(problems: &mut DeploymentProblems, wanted: &WantedDeployments) -> bool {
    let before = problems.len();
    problems.retain(|name, _| wanted.contains_key(name));
    problems.len() != before
}

async fn next(watches: &mut Option<GatewayWatches>) -> Option<observed::Observation> {
    match watches {
        Some(watches) => watches.next().await,
        None => std::future::pending().await,
    }
}

async fn wait_until(retry: Option<tokio::time::Instant>) {
    match retry {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn publish(problems: &watch::Sender<DeploymentProblems>, gateway: &GatewayName, state: &DeploymentState) {
    let current = state.problems_of(gateway);
    problems.send_if_modified(|published| {
        if published.get(gateway) == current {
            return false;
        }
        match current {
            Some(current) => drop(published.insert(gateway.clone(), current.clone())),
            None => drop(published.remove(gateway)),
        }
        true
    });
}
