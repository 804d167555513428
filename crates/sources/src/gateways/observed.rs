//! Watches Gateways and the objects that are deployed for them. Only metadata is read.

use std::collections::BTreeSet;
use std::pin::pin;

use futures_util::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ApiResource};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use model::config::Kind;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::object::{DeployedKind, GatewayName, ObjectName};
use super::{FIRST_WAIT, LONGEST_WAIT, MANAGED_LABEL, NAME_LABEL, ownership};
use crate::backoff::Backoff;
use crate::kubernetes::client::reason;

/// Events that are received but not handled yet.
const QUEUE: usize = 256;

/// Something that was observed at the API server.
#[derive(Clone, Debug)]
pub(super) enum Observation {
    /// A Gateway exists with this UID; `None` if it was deleted.
    Gateway(GatewayName, Option<String>),
    /// An object exists.
    Object(ObjectName, ObservedObject),
    /// An object was deleted, in this version.
    Deleted(ObjectName, GatewayName, u64),
    /// All Gateways were listed.
    GatewaysListed(BTreeSet<GatewayName>),
    /// All objects of a kind were listed.
    Listed(DeployedKind, BTreeSet<ObjectName>),
}

/// An object that is deployed for a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedObject {
    pub(super) gateway: GatewayName,
    pub(super) uid: String,
    /// UID of the Gateway that owns it.
    pub(super) owner: Option<String>,
    pub(super) version: u64,
    /// Hash of the fields that we own.
    pub(super) fields: Option<u64>,
}

/// The resource version as a number; 0 if it is none.
pub(super) fn version(object: &ObjectMeta) -> u64 {
    object.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// All watches. They end when it is dropped.
pub(super) struct GatewayWatches {
    received: mpsc::Receiver<Observation>,
    _tasks: JoinSet<()>,
}

impl GatewayWatches {
    pub(super) fn start(client: &Client) -> GatewayWatches {
        let (sender, received) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_gateways(client.clone(), sender.clone()));
        for kind in DeployedKind::ALL {
            tasks.spawn(watch_objects(client.clone(), kind, sender.clone()));
        }
        GatewayWatches { received, _tasks: tasks }
    }

    /// The next observation. `None` if all watches have ended.
    pub(super) async fn next(&mut self) -> Option<Observation> {
        self.received.recv().await
    }
}

pub(super) fn gateway_resource() -> ApiResource {
    let kind = Kind::KubernetesGateway;
    let (group, version) = (kind.group().to_owned(), kind.versions().first().copied().unwrap_or("v1").to_owned());
    let api_version = format!("{group}/{version}");
    ApiResource { group, version, api_version, kind: kind.as_str().to_owned(), plural: kind.plural().to_owned() }
}

async fn watch_gateways(client: Client, sender: mpsc::Sender<Observation>) {
    let name = |object: &ObjectMeta| GatewayName {
        namespace: object.namespace.clone().unwrap_or_default(),
        name: object.name.clone().unwrap_or_default(),
    };
    let mut listed = BTreeSet::new();
    let translate = |event: Event<PartialObjectMeta>| match event {
        Event::Init => {
            listed.clear();
            None
        }
        Event::InitApply(object) => {
            listed.insert(name(&object.metadata));
            Some(Observation::Gateway(name(&object.metadata), object.metadata.uid))
        }
        Event::Apply(object) => {
            let uid = object.metadata.uid.clone().filter(|_| object.metadata.deletion_timestamp.is_none());
            Some(Observation::Gateway(name(&object.metadata), uid))
        }
        Event::Delete(object) => Some(Observation::Gateway(name(&object.metadata), None)),
        Event::InitDone => Some(Observation::GatewaysListed(std::mem::take(&mut listed))),
    };
    watch(client, &gateway_resource(), watcher::Config::default(), translate, sender).await;
}

async fn watch_objects(client: Client, kind: DeployedKind, sender: mpsc::Sender<Observation>) {
    let name = |object: &ObjectMeta| ObjectName {
        kind,
        namespace: object.namespace.clone().unwrap_or_default(),
        name: object.name.clone().unwrap_or_default(),
    };
    let mut listed = BTreeSet::new();
    let translate = |event: Event<PartialObjectMeta>| match event {
        Event::Init => {
            listed.clear();
            None
        }
        Event::InitApply(object) => {
            listed.insert(name(&object.metadata));
            Some(Observation::Object(name(&object.metadata), observed(&object.metadata)))
        }
        Event::Apply(object) => Some(Observation::Object(name(&object.metadata), observed(&object.metadata))),
        Event::Delete(object) => {
            let meta = &object.metadata;
            Some(Observation::Deleted(name(meta), gateway_of(meta), version(meta)))
        }
        Event::InitDone => Some(Observation::Listed(kind, std::mem::take(&mut listed))),
    };
    let labelled = watcher::Config::default().labels(MANAGED_LABEL);
    watch(client, &kind.resource(), labelled, translate, sender).await;
}

fn observed(object: &ObjectMeta) -> ObservedObject {
    let owner = object.owner_references.iter().flatten().find(|owner| owner.kind == "Gateway");
    ObservedObject {
        gateway: gateway_of(object),
        uid: object.uid.clone().unwrap_or_default(),
        owner: owner.map(|owner| owner.uid.clone()),
        version: version(object),
        fields: ownership::owned_fields(object),
    }
}

fn gateway_of(object: &ObjectMeta) -> GatewayName {
    let label = object.labels.as_ref().and_then(|labels| labels.get(NAME_LABEL)).cloned();
    GatewayName { namespace: object.namespace.clone().unwrap_or_default(), name: label.unwrap_or_default() }
}

/// Watches a kind without end. A failed watch is restarted.
async fn watch(
    client: Client,
    resource: &ApiResource,
    config: watcher::Config,
    mut translate: impl FnMut(Event<PartialObjectMeta>) -> Option<Observation>,
    sender: mpsc::Sender<Observation>,
) {
    let api: Api<PartialObjectMeta> = Api::all_with(client, resource);
    let mut events = pin!(watcher::watcher(api, config));
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                log_failure(&resource.plural, &error, is_failing);
                is_failing = true;
                backoff.wait().await;
                continue;
            }
        };
        if matches!(event, Event::InitDone) {
            is_failing = false;
            backoff.reset();
        }
        if let Some(observation) = translate(event)
            && sender.send(observation).await.is_err()
        {
            return;
        }
    }
}

/// A missing permission is logged once: without the watch, changes of others are not noticed.
fn log_failure(kind: &str, error: &watcher::Error, is_failing: bool) {
    let denied = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status)
            if status.code == 403 =>
        {
            Some(status)
        }
        _ => None,
    };
    match denied {
        Some(status) if !is_failing => {
            let error = reason(&kube::Error::Api(status.clone()));
            let needs = format!("list and watch on {kind}");
            warn!(needs, error, "could not watch objects of managed gateways: permission is missing; retrying");
        }
        _ => debug!(kind, %error, "could not watch objects of managed gateways; retrying"),
    }
}
