//! Converts a Pod into a workload of the model.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::endpoint::{Locality, TlsMode};
use model::labels::Labels;
use model::names::{ClusterId, Namespace, NetworkId, Str};
use model::workload::{ContainerPort, PodHostname, Transport, Workload, WorkloadKey};

use super::interner::{InternPool, Interner};
use super::locality::{self, WorkloadLocation};
use super::schema;

const TLS_MODE: &str = "security.istio.io/tlsMode";
const WORKLOAD_NAME: &str = "service.istio.io/workload-name";

/// The fields of a Pod that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredPod {
    pub(super) template: Arc<PodTemplate>,
    pub(super) addresses: Arc<[Str]>,
    pub(super) node: Str,
    own_name: Option<Arc<PodHostname>>,
    phase: Phase,
    is_ready: bool,
    is_terminating: bool,
}

/// The fields that pods of one owner have in common, stored once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PodTemplate {
    pub(super) labels: Labels,
    ports: Arc<[ContainerPort]>,
    service_account: Str,
    workload_name: Str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Succeeded,
    Failed,
}

impl StoredPod {
    pub(super) fn of(
        pod: &schema::PodObject,
        interner: &mut Interner,
        templates: &mut InternPool<PodTemplate>,
    ) -> StoredPod {
        let labels = interner.labels(pod.metadata.labels.as_ref());
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let template = PodTemplate {
            ports: named_ports(&pod.spec, interner),
            service_account: interner.text(&pod.spec.service_account_name),
            workload_name: interner.text(&workload_name(&pod.metadata, name, &labels)),
            labels,
        };
        StoredPod {
            template: templates.share(template),
            addresses: addresses(&pod.status),
            node: interner.text(&pod.spec.node_name),
            own_name: own_name(name, &pod.spec, interner),
            phase: match pod.status.phase.as_str() {
                "Failed" => Phase::Failed,
                "Succeeded" => Phase::Succeeded,
                _ => Phase::Running,
            },
            is_ready: pod.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True"),
            is_terminating: pod.metadata.deletion_timestamp.is_some(),
        }
    }

    pub(super) fn labels(&self) -> &Labels {
        &self.template.labels
    }

    /// The address by which endpoints without a target pod find this one.
    pub(super) fn usable_address(&self) -> Option<&Str> {
        self.addresses.first().filter(|_| self.is_usable())
    }

    /// Failed pods are treated as deleted, although the API server still has them.
    pub(super) fn is_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    /// Whether it is running, ready and not terminating.
    pub(super) fn is_usable(&self) -> bool {
        self.phase == Phase::Running && self.is_ready && !self.is_terminating && !self.addresses.is_empty()
    }
}

/// Facts from outside of the Pod object.
pub(super) struct PodContext<'a> {
    pub(super) cluster: &'a ClusterId,
    pub(super) trust_domain: &'a str,
    pub(super) node: Option<&'a Locality>,
    pub(super) network: NetworkId,
}

/// The workload of a pod.
pub(super) fn workload(
    namespace: &Namespace,
    name: &Str,
    pod: &StoredPod,
    context: PodContext<'_>,
    interner: &mut Interner,
) -> Arc<Workload> {
    let locality = locality::of_pod(pod.labels()).or_else(|| context.node.cloned()).unwrap_or_default();
    let location =
        WorkloadLocation { locality: &locality, cluster: context.cluster, node: &pod.node, network: &context.network };
    // The set is not interned: it contains the node, so hardly two are equal.
    let labels = locality::with_location_labels(pod.labels(), &location, |(k, v)| interner.label(k, v));
    let account = format!("spiffe://{}/ns/{namespace}/sa/{}", context.trust_domain, pod.template.service_account);
    Arc::new(Workload {
        key: WorkloadKey { namespace: namespace.clone(), name: name.clone(), cluster: context.cluster.clone() },
        labels,
        addresses: pod.addresses.clone(),
        ports: pod.template.ports.clone(),
        network: context.network,
        service_account: interner.text(&account),
        tls: match pod.labels().get(TLS_MODE) {
            Some(mode) if **mode == *"istio" => TlsMode::Istio,
            _ => TlsMode::Disabled,
        },
        workload_name: pod.template.workload_name.clone(),
        node_name: pod.node.clone(),
        own_name: pod.own_name.clone(),
        is_ready: pod.is_usable(),
        locality,
    })
}

/// The DNS name of the pod itself, which it has only with a subdomain.
fn own_name(name: &str, spec: &schema::PodSpec, interner: &mut Interner) -> Option<Arc<PodHostname>> {
    if spec.subdomain.is_empty() {
        return None;
    }
    let host = if spec.hostname.is_empty() { name } else { spec.hostname.as_str() };
    Some(Arc::new(PodHostname { host: host.into(), sub_domain: interner.text(&spec.subdomain) }))
}

fn addresses(status: &schema::PodStatus) -> Arc<[Str]> {
    let mut found: Vec<Str> = Vec::new();
    for ip in std::iter::once(&status.pod_ip).chain(status.pod_ips.iter().map(|p| &p.ip)) {
        if !ip.is_empty() && !found.iter().any(|known| **known == **ip) {
            found.push(ip.as_str().into());
        }
    }
    found.into()
}

/// Named ports of containers and of sidecar init containers; the first of a name wins.
fn named_ports(spec: &schema::PodSpec, interner: &mut Interner) -> Arc<[ContainerPort]> {
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports).filter(|p| !p.name.is_empty());
    let mut found: Vec<ContainerPort> = Vec::new();
    for port in ports {
        let transport = Transport::parse(&port.protocol);
        if !found.iter().any(|known| *known.name == *port.name && known.transport == transport) {
            found.push(ContainerPort { name: interner.text(&port.name), transport, number: port.container_port });
        }
    }
    found.into()
}

/// The name of the workload that owns the pod. Owner references count only if the pod's own name was generated.
fn workload_name(meta: &ObjectMeta, name: &str, labels: &Labels) -> String {
    if let Some(label) = labels.get(WORKLOAD_NAME) {
        return label.to_string();
    }
    let generated = meta.generate_name.as_deref().is_some_and(|prefix| !prefix.is_empty());
    let mut owners = meta.owner_references.iter().flatten();
    let Some(owner) = owners.find(|o| o.controller == Some(true)).filter(|_| generated) else {
        return name.to_owned();
    };
    let without_hash = |label: &str| {
        let hash = labels.get(label).filter(|hash| !hash.is_empty())?;
        let shorter = owner.name.strip_suffix(&**hash)?;
        Some(shorter.strip_suffix('-').unwrap_or(&owner.name).to_owned())
    };
    let found = match owner.kind.as_str() {
        "ReplicaSet" => without_hash("pod-template-hash").or_else(|| without_hash("rollouts-pod-template-hash")),
        "ReplicationController" => labels.get("deploymentconfig").filter(|n| !n.is_empty()).map(|n| n.to_string()),
        "Job" => cron_job(&owner.name).map(str::to_owned),
        _ => None,
    };
    found.unwrap_or_else(|| owner.name.clone())
}

/// The name of the CronJob that created a Job: the Job's name without the timestamp at its end.
fn cron_job(job: &str) -> Option<&str> {
    let (name, time) = job.rsplit_once('-')?;
    let is_time = (8..=10).contains(&time.len()) && time.bytes().all(|b| b.is_ascii_digit());
    (is_time && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::interner::{InternPool, Interner};
    use super::{StoredPod, cron_job};

    fn workload(owner: serde_json::Value, labels: serde_json::Value) -> String {
        let pod = json!({"metadata": {"name": "p-1", "generateName": "p-", "labels": labels,
            "ownerReferences": [owner]}});
        let pod = serde_json::from_value(pod).expect("a pod");
        let pod = StoredPod::of(&pod, &mut Interner::default(), &mut InternPool::default());
        pod.template.workload_name.to_string()
    }

    fn owner(kind: &str, name: &str) -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", "controller": true})
    }

    #[test]
    fn workload_is_named_after_the_owner_of_the_pod() {
        assert_eq!(workload(owner("ReplicaSet", "cart-7d9"), json!({"pod-template-hash": "7d9"})), "cart");
        assert_eq!(workload(owner("ReplicaSet", "cart-7d9"), json!({"rollouts-pod-template-hash": "7d9"})), "cart");
        assert_eq!(workload(owner("ReplicaSet", "bare"), json!({})), "bare");
        assert_eq!(workload(owner("StatefulSet", "db"), json!({})), "db");
        assert_eq!(workload(owner("Job", "tidy-12345678"), json!({})), "tidy");
        assert_eq!(workload(owner("Job", "tidy-123"), json!({})), "tidy-123");
        assert_eq!(workload(owner("Job", "x"), json!({"service.istio.io/workload-name": "given"})), "given");
    }

    #[test]
    fn only_a_timestamp_is_removed_from_a_job() {
        assert_eq!(cron_job("a-b-1234567890"), Some("a-b"));
        assert_eq!(cron_job("a-12345678901"), None);
        assert_eq!(cron_job("-12345678"), None);
    }
}
