//! What the process environment says about this instance.

use model::settings::Knobs;
use model::suggest;
use sources::status::Election;
use tracing::warn;

/// Reads environment variables. Tests pass a closure instead of changing the process environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables that are read and are not settings of the mesh.
pub(crate) const PROCESS_VARIABLES: &[&str] = &[
    "CLUSTER_ID",
    "HOME",
    "HOSTNAME",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "NOTIFY_SOCKET",
    "PILOTAGE_ANALYSIS",
    "POD_NAME",
    "POD_NAMESPACE",
    "REVISION",
    "RUST_LOG",
    "WATCHDOG_USEC",
];

/// Variables with these prefixes that are not settings of the mesh.
const OTHER_VARIABLES: &[&str] = &["PILOTAGE_ANALYSIS", "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS"];
/// Variables of the tests, the demo and the build.
const FOREIGN_VARIABLES: &[&str] = &["PILOTAGE_ENVOY", "PILOTAGE_CACHE", "PILOTAGE_REVISION", "PILOTAGE_BUILD_STATUS"];

/// Logs each variable that looks like a setting and is none, because it has no effect.
pub fn log_unknown_variables(names: impl Iterator<Item = String>) {
    for (name, hint) in unknown_variables(names) {
        warn!(name, "environment variable has no effect: unknown setting{hint}");
    }
}

fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let known = || Knobs::NAMES.iter().chain(OTHER_VARIABLES).copied();
    let is_ours = |name: &String| name.starts_with("PILOT_") || name.starts_with("PILOTAGE_");
    let is_unknown = |name: &String| !known().chain(FOREIGN_VARIABLES.iter().copied()).any(|known| known == name);
    // Kubernetes sets such variables for a Service named pilot.
    let is_service = |name: &String| name.contains("_PORT") || name.contains("_SERVICE_HOST");
    let mut unknown: Vec<String> = names.filter(|n| is_ours(n) && is_unknown(n) && !is_service(n)).collect();
    unknown.sort();
    unknown.into_iter().map(|name| (suggest::hint(&name, known()), name)).map(|(hint, name)| (name, hint)).collect()
}

/// Namespace of an instance that does not know its own.
const DEFAULT_NAMESPACE: &str = "istio-system";

/// Name and namespace of this instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `--namespace`, else `$POD_NAMESPACE`.
    pub(crate) configured_namespace: Option<String>,
    /// `$POD_NAME`, else `$HOSTNAME`.
    pub(crate) name: Option<String>,
}

impl Instance {
    pub(crate) fn new(namespace_flag: &str, environment: Environment<'_>) -> Instance {
        let flag = Some(namespace_flag.to_owned()).filter(|namespace| !namespace.is_empty());
        Instance {
            configured_namespace: flag.or_else(|| environment("POD_NAMESPACE")),
            name: environment("POD_NAME").or_else(|| environment("HOSTNAME")),
        }
    }

    /// The configured namespace, else `istio-system`.
    pub(crate) fn namespace(&self) -> &str {
        self.configured_namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The election among the replicas of one revision. A revision other than the default is appended to the name of the
    /// Lease: each writes for its own objects.
    pub(crate) fn election(&self, lease: &str, environment: Environment<'_>) -> Election {
        let revision = environment("REVISION").unwrap_or_default();
        Election {
            namespace: self.namespace().to_owned(),
            name: match revision.as_str() {
                "" | "default" => lease.to_owned(),
                other => format!("{lease}-{other}"),
            },
            identity: format!("{}-{}", self.name.as_deref().unwrap_or_default(), std::process::id()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Instance, unknown_variables};

    #[test]
    fn each_revision_has_its_own_lease() {
        let lease = |revision: &str| {
            let instance = Instance::default();
            instance.election("leader", &|name| (name == "REVISION").then(|| revision.to_owned())).name
        };
        assert_eq!(["", "default", "next"].map(lease), ["leader", "leader", "leader-next"]);
    }

    #[test]
    fn misspelt_settings_are_found_and_those_of_others_are_not() {
        let names = ["PILOT_HTTP1O", "PILOT_HTTP10", "HOME", "PILOT_PORT_80_TCP", "PILOTAGE_ENVOY", "PILOT_X"];
        let found = unknown_variables(names.into_iter().map(str::to_owned));
        let expected = [("PILOT_HTTP1O", "; did you mean \"PILOT_HTTP10\"?"), ("PILOT_X", "")];
        assert_eq!(found, expected.map(|(name, hint)| (name.to_owned(), hint.to_owned())));
    }
}
