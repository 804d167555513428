//! Remote clusters in the format of Pilot 0.8: a ConfigMap with a `Cluster` object in each entry. It names the Secret that
//! holds the kubeconfig under the same key as the entry. `remote` starts these clusters.

use std::collections::{BTreeMap, BTreeSet};

use model::config::read_yaml;
use model::problem::{Problem, Severity, Subject};
use serde_json::Value;

use super::kubeconfig::KubeconfigEntry;

const PLATFORM: &str = "config.istio.io/platform";
const SECRET: &str = "config.istio.io/accessConfigSecret";
const SECRET_NAMESPACE: &str = "config.istio.io/accessConfigSecretNamespace";
/// The namespace of the Secret if the entry names none.
const DEFAULT_NAMESPACE: &str = "istio-system";

/// Namespace and name.
pub(super) type SecretName = (String, String);

/// The entries of the ConfigMap, and the Secrets that they name.
#[derive(Debug, Default)]
pub(super) struct ClusterRegistry {
    /// By their key in the ConfigMap.
    entries: BTreeMap<String, ClusterEntry>,
    faults: Vec<Problem>,
    /// Secrets that were listed; `None` for one that does not exist.
    secrets: BTreeMap<SecretName, Option<BTreeMap<String, String>>>,
}

#[derive(Debug)]
struct ClusterEntry {
    cluster: String,
    secret: SecretName,
    /// The last kubeconfig of the Secret, in base64. A cluster is removed with its entry, not with its Secret.
    kubeconfig: Option<String>,
}

/// Why an entry is not used.
#[derive(Debug, thiserror::Error)]
enum ClusterEntryError {
    #[error("could not parse the entry: {0}")]
    Yaml(serde_saphyr::Error),
    #[error("the entry is not a Cluster but {0:?}")]
    Kind(String),
    #[error("the platform {0:?} is not supported, only Kubernetes")]
    Platform(String),
    #[error("the annotation {SECRET} names no Secret")]
    NoSecret,
    #[error("another entry already names the cluster {0}")]
    Duplicate(String),
}

impl ClusterRegistry {
    /// Replaces the entries. One that cannot be used does not affect the others.
    pub(super) fn put(&mut self, data: &BTreeMap<String, String>) {
        let mut before = std::mem::take(&mut self.entries);
        self.faults.clear();
        for (key, text) in data {
            match read(key, text) {
                Ok(entry) if self.entries.values().any(|known| known.cluster == entry.cluster) => {
                    self.faults.push(fault(key, ClusterEntryError::Duplicate(entry.cluster).to_string()));
                }
                Ok(entry) => {
                    let same =
                        |known: &ClusterEntry| (&known.cluster, &known.secret) == (&entry.cluster, &entry.secret);
                    let known = before.remove(key).filter(same).and_then(|known| known.kubeconfig);
                    let kubeconfig = self.kubeconfig_in(&entry.secret, key).or(known);
                    self.entries.insert(key.clone(), ClusterEntry { kubeconfig, ..entry });
                }
                Err(error) => self.faults.push(fault(key, error.to_string())),
            }
        }
        let named = self.secrets();
        self.secrets.retain(|name, _| named.contains(name));
    }

    /// Records a Secret; `None` if it does not exist.
    pub(super) fn put_secret(&mut self, name: &SecretName, data: Option<BTreeMap<String, String>>) {
        self.secrets.insert(name.clone(), data);
        let secrets = &self.secrets;
        for (key, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.secret == *name) {
            if let Some(text) = kubeconfig_in(secrets, name, key) {
                entry.kubeconfig = Some(text);
            }
        }
    }

    /// How many clusters the ConfigMap names.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The Secrets that entries name.
    pub(super) fn secrets(&self) -> BTreeSet<SecretName> {
        self.entries.values().map(|entry| entry.secret.clone()).collect()
    }

    /// Kubeconfigs by cluster.
    pub(super) fn kubeconfigs(&self) -> BTreeMap<String, KubeconfigEntry> {
        let known = self.entries.iter().filter_map(|(key, entry)| {
            let (namespace, name) = &entry.secret;
            let found_at = format!("Secret {namespace}/{name}, key {key}");
            Some((entry.cluster.clone(), KubeconfigEntry { found_at, encoded: entry.kubeconfig.clone()? }))
        });
        known.collect()
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        let lacking = self.entries.iter().filter_map(|(key, entry)| {
            let is_listed = self.secrets.contains_key(&entry.secret);
            if !is_listed || self.kubeconfig_in(&entry.secret, key).is_some() {
                return None;
            }
            let (namespace, name) = &entry.secret;
            let message = format!("the Secret {namespace}/{name} has no kubeconfig under {key:?}");
            let problem = fault(key, message);
            Some(match entry.kubeconfig {
                Some(_) => Problem { severity: Severity::Warning, ..problem },
                None => problem,
            })
        });
        self.faults.iter().cloned().chain(lacking).collect()
    }

    fn kubeconfig_in(&self, secret: &SecretName, key: &str) -> Option<String> {
        kubeconfig_in(&self.secrets, secret, key)
    }
}

fn kubeconfig_in(
    secrets: &BTreeMap<SecretName, Option<BTreeMap<String, String>>>,
    secret: &SecretName,
    key: &str,
) -> Option<String> {
    secrets.get(secret)?.as_ref()?.get(key).cloned()
}

fn fault(key: &str, message: String) -> Problem {
    Problem::error(Subject::Cluster(key.into()), message)
}

/// Reads one entry. Annotations that are not strings count as missing.
fn read(key: &str, text: &str) -> Result<ClusterEntry, ClusterEntryError> {
    let document = read_yaml(text).map_err(ClusterEntryError::Yaml)?;
    let word = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let annotation = |name: &str| {
        let all = document.pointer("/metadata/annotations");
        all.and_then(|all| all.get(name)).and_then(Value::as_str).unwrap_or_default()
    };
    let (kind, platform, secret) = (word("/kind"), annotation(PLATFORM), annotation(SECRET));
    if kind != "Cluster" {
        return Err(ClusterEntryError::Kind(kind.to_owned()));
    }
    if !platform.is_empty() && platform != "Kubernetes" {
        return Err(ClusterEntryError::Platform(platform.to_owned()));
    }
    if secret.is_empty() {
        return Err(ClusterEntryError::NoSecret);
    }
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Ok(ClusterEntry {
        cluster: or(word("/metadata/name"), key),
        secret: (or(annotation(SECRET_NAMESPACE), DEFAULT_NAMESPACE), secret.to_owned()),
        kubeconfig: None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{ClusterRegistry, SecretName};

    fn entry(cluster: &str, annotations: &str) -> String {
        format!("kind: Cluster\nmetadata:\n  name: {cluster}\n  annotations: {{{annotations}}}\n")
    }

    fn map(entries: &[(&str, String)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, text)| (key.to_string(), text.clone())).collect()
    }

    fn creds() -> SecretName {
        ("istio-system".to_owned(), "creds".to_owned())
    }

    fn kubeconfigs(cluster_registry: &ClusterRegistry) -> BTreeMap<String, String> {
        cluster_registry.kubeconfigs().into_iter().map(|(cluster, entry)| (cluster, entry.encoded)).collect()
    }

    const NAMED: &str = "config.istio.io/accessConfigSecret: creds, config.istio.io/pilotCfgStore: true";

    #[test]
    fn a_cluster_has_the_name_of_its_object_and_the_kubeconfig_of_its_key() {
        let mut cluster_registry = ClusterRegistry::default();
        cluster_registry.put(&map(&[("file.yaml", entry("east", NAMED))]));
        assert_eq!(cluster_registry.secrets().into_iter().collect::<Vec<_>>(), [creds()]);
        assert!(
            cluster_registry.kubeconfigs().is_empty() && cluster_registry.problems().is_empty(),
            "the Secret was not listed yet"
        );
        cluster_registry.put_secret(&creds(), Some(map(&[("file.yaml", "one".to_owned())])));
        assert_eq!(kubeconfigs(&cluster_registry), map(&[("east", "one".to_owned())]));
    }

    #[test]
    fn a_cluster_is_removed_with_its_entry_and_not_with_its_secret() {
        let mut cluster_registry = ClusterRegistry::default();
        cluster_registry.put_secret(&creds(), Some(map(&[("east", "one".to_owned())])));
        cluster_registry.put(&map(&[("east", entry("east", NAMED))]));
        cluster_registry.put_secret(&creds(), None);
        assert_eq!(kubeconfigs(&cluster_registry), map(&[("east", "one".to_owned())]));
        let problems: Vec<String> = cluster_registry.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems, ["cluster east: the Secret istio-system/creds has no kubeconfig under \"east\""]);
        cluster_registry.put(&BTreeMap::new());
        assert!(cluster_registry.kubeconfigs().is_empty() && cluster_registry.problems().is_empty());
    }

    #[test]
    fn a_bad_entry_is_reported_and_does_not_affect_others() {
        let mut cluster_registry = ClusterRegistry::default();
        cluster_registry.put_secret(&creds(), Some(map(&[("good", "one".to_owned())])));
        let consul = format!("{NAMED}, config.istio.io/platform: Consul");
        cluster_registry.put(&map(&[
            ("good", entry("good", NAMED)),
            ("a", "kind: [".to_owned()),
            ("b", "kind: Secret".to_owned()),
            ("c", entry("c", &consul)),
            ("d", entry("d", "")),
            ("twice", entry("good", NAMED)),
        ]));
        assert_eq!(kubeconfigs(&cluster_registry), map(&[("good", "one".to_owned())]));
        let about: Vec<String> = cluster_registry.problems().iter().map(|p| p.about.to_string()).collect();
        assert_eq!(about, ["cluster a", "cluster b", "cluster c", "cluster d", "cluster twice"]);
    }
}
