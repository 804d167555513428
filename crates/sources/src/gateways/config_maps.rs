//! ConfigMaps that change the objects of managed gateways: those that Gateways refer to, and the defaults of classes.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::connect;
use crate::kubernetes::access::Access;
use crate::kubernetes::client::reason;

/// Label of a ConfigMap with the defaults of a class, in the namespace of the control plane.
const DEFAULTS_LABEL: &str = "gateway.istio.io/defaults-for-class";
const RETRY: Duration = Duration::from_secs(2);

/// Namespace and name of a ConfigMap.
pub type ConfigMapName = (String, String);

/// The content of ConfigMaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayConfigMaps {
    /// By namespace and name; `None` if it does not exist. One that was not read yet is missing.
    pub parameters: BTreeMap<ConfigMapName, Option<BTreeMap<String, String>>>,
    /// By class.
    pub class_defaults: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether the defaults of classes were listed.
    pub is_listed: bool,
}

/// Follows the ConfigMaps that are referred to, and those of classes in `namespace`.
pub async fn follow(
    mut access: Access,
    namespace: String,
    referred: watch::Receiver<BTreeSet<ConfigMapName>>,
    content: watch::Sender<GatewayConfigMaps>,
    stop: CancellationToken,
) {
    let Some(client) = connect(&mut access, &stop).await else { return };
    let both = async {
        tokio::join!(follow_defaults(&client, &namespace, &content), follow_parameters(&client, referred, &content))
    };
    stop.run_until_cancelled(both).await;
}

/// Publishes the defaults of classes. Of several for one class the oldest counts.
async fn follow_defaults(client: &Client, namespace: &str, content: &watch::Sender<GatewayConfigMaps>) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut events = pin!(watcher::watcher(api, watcher::Config::default().labels(DEFAULTS_LABEL)));
    let mut known: BTreeMap<String, ConfigMap> = BTreeMap::new();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let name = |map: &ConfigMap| map.metadata.name.clone().unwrap_or_default();
        match event {
            Ok(Event::Init) => known.clear(),
            Ok(Event::InitApply(map)) => {
                known.insert(name(&map), map);
                continue;
            }
            Ok(Event::Apply(map)) => drop(known.insert(name(&map), map)),
            Ok(Event::Delete(map)) => drop(known.remove(&name(&map))),
            Ok(Event::InitDone) => is_failing = false,
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(namespace, %error, "could not watch ConfigMaps of gateway classes; retrying");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        let defaults = defaults_by_class(known.values());
        content.send_if_modified(|content| {
            let is_changed = content.class_defaults != defaults || !content.is_listed;
            (content.class_defaults, content.is_listed) = (defaults, true);
            is_changed
        });
    }
}

fn defaults_by_class<'a>(maps: impl Iterator<Item = &'a ConfigMap>) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut maps: Vec<&ConfigMap> = maps.collect();
    maps.sort_by_key(|map| (map.metadata.creation_timestamp.as_ref().map(|time| time.0), map.metadata.name.clone()));
    let mut defaults = BTreeMap::new();
    for map in maps {
        if let Some(class) = map.metadata.labels.as_ref().and_then(|labels| labels.get(DEFAULTS_LABEL)) {
            defaults.entry(class.clone()).or_insert_with(|| map.data.clone().unwrap_or_default());
        }
    }
    defaults
}

/// Publishes the ConfigMaps that are referred to. A watch of metadata reports which ones changed.
async fn follow_parameters(
    client: &Client,
    mut referred: watch::Receiver<BTreeSet<ConfigMapName>>,
    content: &watch::Sender<GatewayConfigMaps>,
) {
    let api: Api<PartialObjectMeta<ConfigMap>> = Api::all(client.clone());
    let mut events = pin!(watcher::watcher(api, watcher::Config::default()));
    let mut names = referred.borrow_and_update().clone();
    let mut unread: BTreeSet<ConfigMapName> = names.clone();
    loop {
        let failed = read(client, std::mem::take(&mut unread), content).await;
        tokio::select! {
            changed = referred.changed() => {
                if changed.is_err() {
                    return;
                }
                let next = referred.borrow_and_update().clone();
                unread.extend(next.difference(&names).cloned());
                content.send_modify(|content| content.parameters.retain(|name, _| next.contains(name)));
                names = next;
            }
            // Without references nothing is watched.
            changed = changed(&mut events), if !names.is_empty() => match changed {
                MapChange::One(name) => unread.extend(names.get(&name).cloned()),
                // Some may have been deleted before the list.
                MapChange::Listed => unread.clone_from(&names),
                MapChange::None => {}
            },
            () = tokio::time::sleep(RETRY), if !failed.is_empty() => {}
        }
        unread.extend(failed.into_iter().filter(|name| names.contains(name)));
    }
}

/// Something that the watch of ConfigMaps reported.
enum MapChange {
    One(ConfigMapName),
    Listed,
    None,
}

/// The next ConfigMap that was added, changed or deleted.
async fn changed(
    events: &mut (impl Stream<Item = watcher::Result<Event<PartialObjectMeta<ConfigMap>>>> + Unpin),
) -> MapChange {
    let named = |map: PartialObjectMeta<ConfigMap>| {
        (map.metadata.namespace.unwrap_or_default(), map.metadata.name.unwrap_or_default())
    };
    match events.next().await {
        Some(Ok(Event::Apply(map) | Event::Delete(map))) => MapChange::One(named(map)),
        Some(Ok(Event::InitDone)) => MapChange::Listed,
        Some(Ok(Event::Init | Event::InitApply(_))) => MapChange::None,
        Some(Err(error)) => {
            debug!(%error, "could not watch ConfigMaps of Gateways; retrying");
            tokio::time::sleep(RETRY).await;
            MapChange::None
        }
        None => std::future::pending().await,
    }
}

/// Reads ConfigMaps and publishes them. Returns those that could not be read.
async fn read(
    client: &Client,
    names: BTreeSet<ConfigMapName>,
    content: &watch::Sender<GatewayConfigMaps>,
) -> BTreeSet<ConfigMapName> {
    let mut failed = BTreeSet::new();
    for name in names {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &name.0);
        match api.get_opt(&name.1).await {
            Ok(map) => {
                let data = map.map(|map| map.data.unwrap_or_default());
                content.send_if_modified(|content| {
                    let before = content.parameters.insert(name, data.clone());
                    before.as_ref() != Some(&data)
                });
            }
            Err(error) => {
                debug!(
                    config_map = format!("{}/{}", name.0, name.1),
                    error = reason(&error),
                    "could not read ConfigMap; retrying"
                );
                failed.insert(name);
            }
        }
    }
    failed
}
