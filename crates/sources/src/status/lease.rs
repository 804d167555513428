//! Leader election between replicas: the leader holds a Lease and renews it in time.

use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use model::config::timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::since_1970;
use crate::kubernetes::client::reason;

/// A Lease that is not renewed for this long may be taken by another replica.
const DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this long stops leading, before another may take over.
const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);

/// The Lease, and the identity of this replica.
#[derive(Clone, Debug)]
pub struct Election {
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Unique among the replicas.
    pub identity: String,
}

/// The last observed holder, and since when by our own clock: clocks of other replicas are not trusted.
struct ObservedLease {
    holder: String,
    renewed: Value,
    since: Instant,
}

/// Takes part in the election until stopped, and publishes whether this replica leads.
pub(crate) async fn elect(client: Client, election: Election, leads: watch::Sender<bool>, stop: CancellationToken) {
    let api = api(&client, &election.namespace);
    let mut seen: Option<ObservedLease> = None;
    let mut renewed: Option<Instant> = None;
    let mut failing = false;
    loop {
        let attempted = attempt(&api, &election, &mut seen).await;
        match &attempted {
            Ok(true) => renewed = Some(Instant::now()),
            Ok(false) => renewed = None,
            // Logged once: the next attempts most likely fail with the same error.
            Err(error) if !failing => {
                warn!(lease = election.name, error = reason(error), "could not renew the lease; retrying");
            }
            Err(_) => {}
        }
        failing = attempted.is_err();
        let leading = renewed.is_some_and(|at| at.elapsed() < DEADLINE);
        leads.send_if_modified(|before| {
            let changed = *before != leading;
            if changed {
                info!(lease = election.name, leading, "leadership changed");
            }
            *before = leading;
            changed
        });
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    if renewed.is_some() {
        release(&api, &election).await;
    }
}

fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource())
}

fn resource() -> ApiResource {
    ApiResource {
        group: "coordination.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "coordination.k8s.io/v1".to_owned(),
        kind: "Lease".to_owned(),
        plural: "leases".to_owned(),
    }
}

/// Takes or renews the Lease; false if another replica holds it.
async fn attempt(
    api: &Api<DynamicObject>,
    election: &Election,
    seen: &mut Option<ObservedLease>,
) -> Result<bool, kube::Error> {
    let Some(mut lease) = api.get_opt(&election.name).await? else {
        let object = DynamicObject::new(&election.name, &resource()).data(json!({"spec": spec(election, None)}));
        return taken(api.create(&PostParams::default(), &object).await);
    };
    let current = lease.data.get("spec").cloned().unwrap_or_default();
    let holder = current.get("holderIdentity").and_then(Value::as_str).unwrap_or_default().to_owned();
    if holder != election.identity && !holder.is_empty() {
        let renewed = current.get("renewTime").cloned().unwrap_or_default();
        let known = seen.as_ref().filter(|s| s.holder == holder && s.renewed == renewed);
        match known {
            Some(known) if known.since.elapsed() >= DURATION => {}
            Some(_) => return Ok(false),
            None => {
                *seen = Some(ObservedLease { holder, renewed, since: Instant::now() });
                return Ok(false);
            }
        }
    }
    lease.data["spec"] = spec(election, Some(&current));
    taken(api.replace(&election.name, &PostParams::default(), &lease).await)
}

/// Whether the write succeeded. A conflict means that another replica was faster.
fn taken(result: Result<DynamicObject, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

fn spec(election: &Election, before: Option<&Value>) -> Value {
    let held = before.and_then(|b| b.get("holderIdentity")).and_then(Value::as_str) == Some(&election.identity);
    let transitions = before.and_then(|b| b.get("leaseTransitions")).and_then(Value::as_i64).unwrap_or_default();
    let now = micro_time();
    let acquired = before.filter(|_| held).and_then(|b| b.get("acquireTime")).cloned();
    json!({
        "holderIdentity": election.identity,
        "leaseDurationSeconds": DURATION.as_secs(),
        "acquireTime": acquired.unwrap_or_else(|| json!(now)),
        "renewTime": now,
        "leaseTransitions": if held || before.is_none() { transitions } else { transitions + 1 },
    })
}

/// Releases the Lease, so that another replica need not wait until it expires.
async fn release(api: &Api<DynamicObject>, election: &Election) {
    let Ok(Some(mut lease)) = api.get_opt(&election.name).await else { return };
    let holder = lease.data.pointer("/spec/holderIdentity").and_then(Value::as_str);
    if holder == Some(&election.identity) {
        lease.data["spec"]["holderIdentity"] = json!("");
        let _ = api.replace(&election.name, &PostParams::default(), &lease).await;
    }
}

/// The current time in Kubernetes' MicroTime format.
fn micro_time() -> String {
    let now = since_1970();
    let seconds = timestamp::format(now.as_secs() as i64);
    format!("{}.{:06}Z", seconds.trim_end_matches('Z'), now.subsec_micros())
}
