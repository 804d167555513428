//! A client that subscribes to CDS, EDS, LDS and RDS and records every push, to find sets that became empty or flapped.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::Node;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::route::v3::RouteConfiguration;
use api::envoy::service::discovery::v3::DiscoveryResponse;
use prost::Message;
use testkit::wait;
use tonic::transport::Endpoint;
use xds::client::SotwClient;

use crate::serving::addresses;

/// Keys of recorded sets: all clusters, all listeners, the virtual hosts of the port. Addresses of a cluster have its name
/// as key.
pub(crate) const CLUSTERS: &str = "clusters";
pub(crate) const LISTENERS: &str = "listeners";
pub(crate) const HOSTS: &str = "hosts";

/// Key and members of a set in one push.
type PushedSet = (String, BTreeSet<String>);

#[derive(Clone, Default)]
pub(crate) struct PushRecorder(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    pushes: usize,
    sets: Vec<PushedSet>,
}

impl PushRecorder {
    /// Subscribes to all clusters, listeners, the hosts of port 80 and the endpoints of these clusters.
    pub(crate) async fn of(server: SocketAddr, clusters: &[&str]) -> PushRecorder {
        let recorder = PushRecorder::default();
        let node = Node { id: "sidecar~10.9.9.9~client.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
        let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect_lazy();
        let mut client = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await.unwrap();
        client.subscribe(&TypeUrl::ENDPOINT, clusters);
        client.subscribe(&TypeUrl::LISTENER, &[]);
        client.subscribe(&TypeUrl::ROUTE, &["80"]);
        let log = recorder.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(response)) = client.next().await {
                client.ack(&response);
                let mut log = log.lock().unwrap();
                log.pushes += 1;
                log.sets.extend(read(&response));
            }
        });
        let kinds = clusters.iter().copied().chain([CLUSTERS, LISTENERS, HOSTS]);
        for what in kinds {
            recorder.until(what, |members| !members.is_empty()).await;
        }
        recorder
    }

    /// Number of responses so far.
    pub(crate) fn pushes(&self) -> usize {
        self.0.lock().unwrap().pushes
    }

    /// Keys of sets that differ from their previous push, in order.
    pub(crate) fn changed(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        let mut now: BTreeMap<&str, &BTreeSet<String>> = BTreeMap::new();
        let news =
            log.sets.iter().filter_map(|(name, members)| (now.insert(name, members) != Some(members)).then_some(name));
        news.cloned().collect()
    }

    /// Waits until the last push of a set fulfils a condition.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&BTreeSet<String>) -> bool) {
        wait::until_within(Duration::from_secs(90), what, async || {
            let members = self.last(what);
            if is_so(&members) { Ok(()) } else { Err(format!("{members:?}")) }
        })
        .await;
    }

    /// Waits until a cluster has these addresses.
    pub(crate) async fn until_addresses(&self, cluster: &str, addresses: &[&str]) {
        let wanted: BTreeSet<String> = addresses.iter().map(|a| (*a).to_owned()).collect();
        self.until(cluster, |members| *members == wanted).await;
    }

    fn last(&self, what: &str) -> BTreeSet<String> {
        let log = self.0.lock().unwrap();
        log.sets.iter().rev().find(|(name, _)| name == what).map(|(_, members)| members.clone()).unwrap_or_default()
    }

    /// Keys of sets that were pushed empty.
    pub(crate) fn emptied(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        log.sets.iter().filter(|(_, members)| members.is_empty()).map(|(name, _)| name.clone()).collect()
    }

    /// Members that were removed and added again.
    pub(crate) fn flapped(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        let mut now: BTreeMap<&str, &BTreeSet<String>> = BTreeMap::new();
        let mut gone: BTreeSet<(&str, &String)> = BTreeSet::new();
        let mut flapped = Vec::new();
        for (name, members) in &log.sets {
            let before = now.insert(name, members).into_iter().flatten();
            gone.extend(before.filter(|member| !members.contains(*member)).map(|member| (name.as_str(), member)));
            let back = members.iter().filter(|member| gone.contains(&(name.as_str(), *member)));
            flapped.extend(back.map(|member| format!("{name}: {member}")));
        }
        flapped
    }

    /// Fails if a set was emptied or a member flapped.
    pub(crate) fn assert_calm(&self) {
        assert_eq!((self.emptied(), self.flapped()), (Vec::new(), Vec::new()), "emptied and flapped");
    }
}

fn read(response: &DiscoveryResponse) -> Vec<PushedSet> {
    let all = |what: &str, names: Vec<String>| vec![(what.to_owned(), names.into_iter().collect())];
    let kind = TypeUrl::from(response.type_url.clone());
    if kind == TypeUrl::CLUSTER {
        all(CLUSTERS, decoded::<Cluster>(response).into_iter().map(|c| c.name).collect())
    } else if kind == TypeUrl::LISTENER {
        all(LISTENERS, decoded::<Listener>(response).into_iter().map(|l| l.name).collect())
    } else if kind == TypeUrl::ROUTE {
        let routes = decoded::<RouteConfiguration>(response);
        all(HOSTS, routes.into_iter().flat_map(|r| r.virtual_hosts).map(|h| h.name).collect())
    } else {
        let assignments = decoded::<ClusterLoadAssignment>(response).into_iter();
        assignments.map(|a| (a.cluster_name.clone(), addresses(&a).into_iter().collect())).collect()
    }
}

fn decoded<M: Message + Default>(response: &DiscoveryResponse) -> Vec<M> {
    response.resources.iter().map(|any| M::decode(any.value.as_slice()).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::PushRecorder;

    fn recorded(pushes: &[(&str, &[&str])]) -> PushRecorder {
        let recorder = PushRecorder::default();
        let sets = pushes.iter().map(|(name, all)| ((*name).to_owned(), all.iter().map(|a| (*a).to_owned()).collect()));
        recorder.0.lock().unwrap().sets.extend(sets);
        recorder
    }

    #[test]
    fn a_member_that_is_removed_and_added_again_has_flapped() {
        let replaced = recorded(&[("a", &["1", "2"]), ("b", &["1"]), ("a", &["2", "3"])]);
        assert_eq!((replaced.flapped(), replaced.emptied()), (vec![], vec![]));
        assert_eq!(recorded(&[("a", &["1"]), ("a", &["1"]), ("a", &["2"])]).changed(), ["a", "a"]);
        let flapped = recorded(&[("a", &["1", "2"]), ("a", &[]), ("b", &["9"]), ("a", &["1"])]);
        assert_eq!((flapped.flapped(), flapped.emptied()), (vec!["a: 1".to_owned()], vec!["a".to_owned()]));
    }
}
