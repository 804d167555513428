//! A view of the snapshot that records what the conversion reads, so that other changes convert nothing again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use api::istio::networking::v1alpha3::ServiceEntry;

use super::grants::Grants;
use crate::change::Credential;
use crate::config::gateway_api::LabelSelector;
use crate::config::{Config, Key, Kind, Object, Spec};
use crate::endpoint::Endpoint;
use crate::hashed::Hashed;
use crate::labels::Labels;
use crate::names::{CredentialKey, CredentialKind, Hostname, Namespace, ServiceKey, Str};
use crate::service::Service;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::snapshot::objects::Objects;

const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The recorded reads.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapshotReads {
    pub(super) hosts: BTreeSet<Hostname>,
    pub(super) endpoints: BTreeSet<ServiceKey>,
    pub(super) credentials: BTreeSet<CredentialKey>,
    entries: BTreeSet<Key>,
    pub(super) namespaces: bool,
    /// All services were read.
    pub(super) services: bool,
}

impl SnapshotReads {
    /// Whether this ServiceEntry was read.
    pub(super) fn has_entry(&self, key: &Key) -> bool {
        self.entries.contains(key)
    }
}

/// The snapshot, with recorded reads.
pub(super) struct TrackedSnapshot<'a> {
    snapshot: &'a Snapshot,
    pub(super) grants: Grants,
    reads: RefCell<SnapshotReads>,
}

impl<'a> TrackedSnapshot<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> TrackedSnapshot<'a> {
        TrackedSnapshot { snapshot, grants: Grants::new(&snapshot.objects), reads: RefCell::default() }
    }

    pub(super) fn into_reads(self) -> SnapshotReads {
        self.reads.into_inner()
    }

    pub(super) fn objects(&self) -> &'a Objects {
        &self.snapshot.objects
    }

    pub(super) fn settings(&self) -> &'a Settings {
        &self.snapshot.settings
    }

    /// The host name of a Kubernetes Service.
    pub(super) fn host_of(&self, namespace: &str, name: &str) -> String {
        format!("{name}.{namespace}.svc.{}", self.settings().domain)
    }

    /// All services, oldest first.
    pub(super) fn services(&self) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        self.reads.borrow_mut().services = true;
        self.snapshot.services.iter()
    }

    /// A Service by its name.
    pub(super) fn service(&self, namespace: &str, name: &str) -> Option<&'a Arc<Service>> {
        self.host(&self.host_of(namespace, name), namespace)
    }

    /// The service of a host in a namespace.
    pub(super) fn host(&self, host: &str, namespace: &str) -> Option<&'a Arc<Service>> {
        self.reads.borrow_mut().hosts.insert(host.into());
        self.snapshot.services.get(&ServiceKey { hostname: host.into(), namespace: namespace.into() })
    }

    /// The services of a host in all namespaces.
    pub(super) fn owners(&self, host: &str) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        self.reads.borrow_mut().hosts.insert(host.into());
        self.snapshot.services.owners(host)
    }

    pub(super) fn endpoints(&self, service: &Service) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
        let key = service.key();
        let found = self.snapshot.endpoints.of(&key);
        self.reads.borrow_mut().endpoints.insert(key);
        found
    }

    pub(super) fn service_entry(&self, namespace: &str, name: &str) -> Option<ServiceEntry> {
        match &self.entry(namespace, name)?.spec {
            Spec::ServiceEntry(entry) => Some(entry.open()),
            _ => None,
        }
    }

    /// Labels of a ServiceEntry.
    pub(super) fn entry_labels(&self, namespace: &str, name: &str) -> Option<&'a Labels> {
        self.entry(namespace, name).map(|object| &object.meta.labels)
    }

    fn entry(&self, namespace: &str, name: &str) -> Option<&'a Object> {
        let key = Key { kind: Kind::ServiceEntry, namespace: namespace.into(), name: name.into() };
        let found = self.snapshot.objects.get(&key);
        self.reads.borrow_mut().entries.insert(key);
        found
    }

    pub(super) fn namespace_labels(&self, namespace: &str) -> Option<&'a Labels> {
        self.reads.borrow_mut().namespaces = true;
        self.snapshot.namespaces.labels(namespace)
    }

    pub(super) fn credential(&self, kind: CredentialKind, namespace: &str, name: &str) -> Option<&'a Arc<Credential>> {
        let key = CredentialKey { kind, namespace: namespace.into(), name: name.into() };
        let found = self.snapshot.credentials.get(&key);
        self.reads.borrow_mut().credentials.insert(key);
        found
    }

    /// Whether a selector matches this namespace. Unknown namespaces never match.
    pub(super) fn selects_namespace(&self, selector: &LabelSelector, namespace: &str) -> bool {
        self.reads.borrow_mut().namespaces = true;
        let labels = self.snapshot.namespaces.labels(namespace);
        labels.is_some_and(|labels| selects(selector, &named(labels, namespace)))
    }

    /// Namespaces that a selector matches, sorted.
    pub(super) fn selected_namespaces(&self, selector: &LabelSelector) -> Vec<&'a Namespace> {
        self.reads.borrow_mut().namespaces = true;
        let all = self.snapshot.namespaces.iter();
        all.filter(|(name, labels)| selects(selector, &named(labels, name))).map(|(name, _)| name).collect()
    }

    /// Objects of one kind by namespace and name.
    pub(super) fn all<T: 'a>(&self, kind: Kind, spec: impl Fn(&'a Spec) -> Option<&'a Hashed<T>>) -> Vec<Config<T>> {
        let objects = self.snapshot.objects.of(kind);
        let config = |object: &'a Object| {
            spec(&object.spec).map(|spec| Config { meta: object.meta.clone(), spec: spec.clone() })
        };
        objects.filter_map(config).collect()
    }
}

/// All objects of one kind: `all!(snapshot, HttpRoute)`.
macro_rules! all {
    ($snapshot:expr, $kind:ident) => {
        $snapshot.all($crate::config::Kind::$kind, |spec| match spec {
            $crate::config::Spec::$kind(it) => Some(it),
            _ => None,
        })
    };
}
pub(super) use all;

/// The labels of a namespace with its name, which newer clusters set themselves.
fn named(labels: &Labels, namespace: &str) -> Labels {
    match labels.get(NAMESPACE_NAME) {
        Some(name) if **name == *namespace => labels.clone(),
        _ => labels.with(NAMESPACE_NAME, namespace),
    }
}

/// Whether a Kubernetes label selector matches. A malformed one matches nothing.
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().all(|(key, value)| labels.get(key).is_some_and(|l| **l == **value));
    equal
        && selector.match_expressions.iter().all(|expression| {
            let label: Option<&Str> = labels.get(&expression.key);
            let listed = label.is_some_and(|label| expression.values.iter().any(|value| **value == **label));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => label.is_some(),
                "DoesNotExist" => label.is_none(),
                _ => false,
            }
        })
}
