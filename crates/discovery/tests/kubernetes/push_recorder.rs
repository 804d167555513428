//! A client that subscribes to all four types and keeps every push: what was empty, what went and came back.

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

/// What stands for a set of names: all clusters, all listeners, the virtual hosts of the port, or one cluster's
/// addresses, by its name.
pub(crate) const CLUSTERS: &str = "clusters";
pub(crate) const LISTENERS: &str = "listeners";
pub(crate) const HOSTS: &str = "hosts";

/// A set as one push told it.
type Told = (String, BTreeSet<String>);

#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    pushes: usize,
    told: Vec<Told>,
}

impl Witness {
    /// Follows all clusters, listeners, the hosts of port 80 and the endpoints of these clusters.
    pub(crate) async fn of(server: SocketAddr, clusters: &[&str]) -> Witness {
        let witness = Witness::default();
        let node = Node { id: "sidecar~10.9.9.9~client.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
        let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect_lazy();
        let mut client = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await.unwrap();
        client.subscribe(&TypeUrl::ENDPOINT, clusters);
        client.subscribe(&TypeUrl::LISTENER, &[]);
        client.subscribe(&TypeUrl::ROUTE, &["80"]);
        let log = witness.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(response)) = client.next().await {
                client.ack(&response);
                let mut log = log.lock().unwrap();
                log.pushes += 1;
                log.told.extend(read(&response));
            }
        });
        let kinds = clusters.iter().copied().chain([CLUSTERS, LISTENERS, HOSTS]);
        for what in kinds {
            witness.until(what, |told| !told.is_empty()).await;
        }
        witness
    }

    /// How many responses came so far.
    pub(crate) fn pushes(&self) -> usize {
        self.0.lock().unwrap().pushes
    }

    /// Every set that was told otherwise than before, by its name, in order. One that is pushed again as it was is none.
    pub(crate) fn changed(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        let mut now: BTreeMap<&str, &BTreeSet<String>> = BTreeMap::new();
        let news = log.told.iter().filter_map(|(name, told)| (now.insert(name, told) != Some(told)).then_some(name));
        news.cloned().collect()
    }

    /// Waits until the last word on a set is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&BTreeSet<String>) -> bool) {
        wait::until_within(Duration::from_secs(90), what, async || {
            let told = self.last(what);
            if is_so(&told) { Ok(()) } else { Err(format!("{told:?}")) }
        })
        .await;
    }

    /// Waits until a cluster has these addresses.
    pub(crate) async fn until_addresses(&self, cluster: &str, addresses: &[&str]) {
        let wanted: BTreeSet<String> = addresses.iter().map(|a| (*a).to_owned()).collect();
        self.until(cluster, |told| *told == wanted).await;
    }

    fn last(&self, what: &str) -> BTreeSet<String> {
        let log = self.0.lock().unwrap();
        log.told.iter().rev().find(|(name, _)| name == what).map(|(_, told)| told.clone()).unwrap_or_default()
    }

    /// Sets that were told to be empty.
    pub(crate) fn emptied(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        log.told.iter().filter(|(_, told)| told.is_empty()).map(|(name, _)| name.clone()).collect()
    }

    /// What was there, went, and came back.
    pub(crate) fn flapped(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        let mut now: BTreeMap<&str, &BTreeSet<String>> = BTreeMap::new();
        let mut gone: BTreeSet<(&str, &String)> = BTreeSet::new();
        let mut flapped = Vec::new();
        for (name, told) in &log.told {
            let before = now.insert(name, told).into_iter().flatten();
            gone.extend(before.filter(|member| !told.contains(*member)).map(|member| (name.as_str(), member)));
            let back = told.iter().filter(|member| gone.contains(&(name.as_str(), *member)));
            flapped.extend(back.map(|member| format!("{name}: {member}")));
        }
        flapped
    }

    /// Fails if anything was ever emptied or went and came back.
    pub(crate) fn assert_calm(&self) {
        assert_eq!((self.emptied(), self.flapped()), (Vec::new(), Vec::new()), "emptied and flapped");
    }
}

fn read(response: &DiscoveryResponse) -> Vec<Told> {
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
    use super::Witness;

    fn told(words: &[(&str, &[&str])]) -> Witness {
        let witness = Witness::default();
        let told = words.iter().map(|(name, all)| ((*name).to_owned(), all.iter().map(|a| (*a).to_owned()).collect()));
        witness.0.lock().unwrap().told.extend(told);
        witness
    }

    #[test]
    fn what_goes_and_comes_back_has_flapped() {
        let replaced = told(&[("a", &["1", "2"]), ("b", &["1"]), ("a", &["2", "3"])]);
        assert_eq!((replaced.flapped(), replaced.emptied()), (vec![], vec![]));
        assert_eq!(told(&[("a", &["1"]), ("a", &["1"]), ("a", &["2"])]).changed(), ["a", "a"]);
        let flapped = told(&[("a", &["1", "2"]), ("a", &[]), ("b", &["9"]), ("a", &["1"])]);
        assert_eq!((flapped.flapped(), flapped.emptied()), (vec!["a: 1".to_owned()], vec!["a".to_owned()]));
    }
}
