//! The proxy as scope and translation read it: field by field, recording each read.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use model::endpoint::Locality;
use model::labels::{Labels, selects};
use model::names::{ClusterId, Namespace, NetworkId, Str};
use model::proxy::{Interception, Proxy, ProxyKind};
use model::workload::ContainerPort;

use crate::reads::{Input, ReadSet, Reads, Selector, Tracked};

/// A proxy whose reads are recorded.
#[derive(Clone, Debug)]
pub struct ReadProxy {
    pub kind: Tracked<ProxyKind>,
    pub id: Tracked<Str>,
    pub ips: Tracked<Vec<IpAddr>>,
    pub namespace: Tracked<Namespace>,
    pub domain: Tracked<Str>,
    pub cluster: Tracked<ClusterId>,
    pub service_cluster: Tracked<Str>,
    pub network: Tracked<NetworkId>,
    pub locality: Tracked<Locality>,
    pub labels: TrackedLabels,
    pub interception: Tracked<Interception>,
    pub pod_ports: Tracked<Vec<ContainerPort>>,
    pub extensions: Tracked<BTreeSet<Str>>,
    pub envoy_version: Tracked<Str>,
    proxy: Arc<Proxy>,
    reads: Arc<Reads>,
}

impl ReadProxy {
    pub fn new(proxy: Arc<Proxy>, reads: &Arc<Reads>) -> ReadProxy {
        ReadProxy {
            kind: Tracked::new(proxy.kind, Input::Kind, reads),
            id: Tracked::new(proxy.id.clone(), Input::Id, reads),
            ips: Tracked::new(proxy.ips.clone(), Input::Ips, reads),
            namespace: Tracked::new(proxy.namespace.clone(), Input::Namespace, reads),
            domain: Tracked::new(proxy.domain.clone(), Input::Domain, reads),
            cluster: Tracked::new(proxy.cluster.clone(), Input::Cluster, reads),
            service_cluster: Tracked::new(proxy.service_cluster.clone(), Input::ServiceCluster, reads),
            network: Tracked::new(proxy.network.clone(), Input::Network, reads),
            locality: Tracked::new(proxy.locality.clone(), Input::Locality, reads),
            labels: TrackedLabels { labels: proxy.labels.clone(), reads: reads.clone() },
            interception: Tracked::new(proxy.interception, Input::Interception, reads),
            pod_ports: Tracked::new(proxy.pod_ports.clone(), Input::PodPorts, reads),
            extensions: Tracked::new(proxy.extensions.clone(), Input::Extensions, reads),
            envoy_version: Tracked::new(proxy.envoy_version.clone(), Input::EnvoyVersion, reads),
            reads: reads.clone(),
            proxy,
        }
    }

    /// A metadata value as text.
    pub fn meta(&self, key: &str) -> Option<&str> {
        self.reads.note_metadata(key);
        self.proxy.meta(key)
    }

    /// Whether a metadata value is "true" (or "1"), as upstream reads booleans.
    pub fn flag(&self, key: &str) -> bool {
        self.reads.note_metadata(key);
        self.proxy.flag(key)
    }

    /// Whether the proxy is of this version of Istio or newer. A proxy without a version counts as newest.
    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        self.reads.note_metadata("ISTIO_VERSION");
        self.proxy.is_at_least(major, minor)
    }

    pub fn has_ipv4(&self) -> bool {
        self.reads.note(Input::Families);
        self.proxy.has_ipv4()
    }

    pub fn has_ipv6(&self) -> bool {
        self.reads.note(Input::Families);
        self.proxy.has_ipv6()
    }

    /// Whether it has addresses of both families.
    pub fn is_dual_stack(&self) -> bool {
        self.has_ipv4() && self.has_ipv6()
    }

    /// The proxy itself, without recording reads: never use it for output.
    pub fn unrecorded(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// Hashes the value of an input that belongs to the proxy. Returns false for any other input.
    pub(crate) fn hash_input(&self, input: Input, state: &mut impl Hasher) -> bool {
        let proxy = &*self.proxy;
        match input {
            Input::Kind => proxy.kind.hash(state),
            Input::Id => proxy.id.hash(state),
            Input::Ips => proxy.ips.hash(state),
            Input::Families => (proxy.has_ipv4(), proxy.has_ipv6()).hash(state),
            Input::Namespace => proxy.namespace.hash(state),
            Input::Domain => proxy.domain.hash(state),
            Input::Cluster => proxy.cluster.hash(state),
            Input::ServiceCluster => proxy.service_cluster.hash(state),
            Input::Network => proxy.network.hash(state),
            Input::Locality => proxy.locality.hash(state),
            Input::Labels => proxy.labels.hash(state),
            Input::Interception => proxy.interception.hash(state),
            Input::PodPorts => proxy.pod_ports.hash(state),
            Input::Extensions => proxy.extensions.hash(state),
            Input::EnvoyVersion => proxy.envoy_version.hash(state),
            _ => return false,
        }
        true
    }

    /// Hashes the values of single metadata keys and labels, and the results of selectors.
    pub(crate) fn hash_keys(&self, set: &ReadSet, state: &mut impl Hasher) {
        set.metadata.iter().for_each(|key| self.proxy.meta(key).hash(state));
        set.labels.iter().for_each(|key| self.proxy.labels.get(key).hash(state));
        set.selectors.iter().for_each(|selector| selects(selector, &self.proxy.labels).hash(state));
    }
}

/// Labels of a proxy, read one by one, by a selector, or all together.
#[derive(Clone, Debug)]
pub struct TrackedLabels {
    labels: Labels,
    reads: Arc<Reads>,
}

impl TrackedLabels {
    /// Labels without a recorder, for tests.
    pub fn unrecorded(labels: Labels) -> TrackedLabels {
        TrackedLabels { labels, reads: Arc::default() }
    }

    pub fn get(&self, key: &str) -> Option<&Str> {
        self.reads.note_label(key);
        self.labels.get(key)
    }

    /// Whether a selector matches this proxy. An empty selector matches everything.
    pub fn is_selected_by(&self, selector: &Selector) -> bool {
        if !selector.is_empty() {
            self.reads.note_selector(selector);
        }
        selects(selector, &self.labels)
    }
}

/// Labels that can be read one by one or matched by a selector.
pub(crate) trait Selectable {
    fn get(&self, key: &str) -> Option<&Str>;
    fn is_selected_by(&self, selector: &Selector) -> bool;
}

impl Selectable for TrackedLabels {
    fn get(&self, key: &str) -> Option<&Str> {
        TrackedLabels::get(self, key)
    }

    fn is_selected_by(&self, selector: &Selector) -> bool {
        TrackedLabels::is_selected_by(self, selector)
    }
}

impl Selectable for Labels {
    fn get(&self, key: &str) -> Option<&Str> {
        Labels::get(self, key)
    }

    fn is_selected_by(&self, selector: &Selector) -> bool {
        selects(selector, self)
    }
}

/// All labels; the read is recorded as such.
impl Deref for TrackedLabels {
    type Target = Labels;

    fn deref(&self) -> &Labels {
        self.reads.note(Input::Labels);
        &self.labels
    }
}
