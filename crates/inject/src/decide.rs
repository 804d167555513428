//! Decides whether a pod is injected.

use serde_json::Value;

use crate::annotations::INJECT;
use crate::config::{InjectorConfig, LabelSelector, Policy};
use crate::pod;

/// Namespaces of Kubernetes itself, whose pods are never injected.
pub const SYSTEM_NAMESPACES: &[&str] = &["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

/// Whether a pod is injected, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The pod is injected.
    Inject,
    /// The pod is left alone, for this reason.
    Skip(SkipReason),
}

/// Why a pod is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It uses the network of its node.
    HostNetwork,
    /// It is in a namespace of Kubernetes itself.
    SystemNamespace,
    /// Its own label or annotation refuses.
    Refused,
    /// A `neverInjectSelector` matches it.
    NeverSelector,
    /// The policy does not inject pods that do not ask for it.
    Policy,
}

impl SkipReason {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            SkipReason::HostNetwork => "it uses the host network",
            SkipReason::SystemNamespace => "it is in a system namespace",
            SkipReason::Refused => "sidecar.istio.io/inject is false",
            SkipReason::NeverSelector => "a neverInjectSelector matches",
            SkipReason::Policy => "the policy does not inject it",
        }
    }
}

/// Decides for a pod that a webhook was asked about.
pub fn decide(config: &InjectorConfig, pod: &Value, namespace: &str) -> Decision {
    decide_by(config.policy, &config.never, &config.always, pod, namespace)
}

/// Decides for a workload that is injected by hand: neither policy nor selectors count.
pub(crate) fn decide_by_hand(pod: &Value, namespace: &str) -> Decision {
    decide_by(Policy::Enabled, &[], &[], pod, namespace)
}

fn decide_by(
    policy: Policy,
    never: &[LabelSelector],
    always: &[LabelSelector],
    pod: &Value,
    namespace: &str,
) -> Decision {
    if pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
        return Decision::Skip(SkipReason::HostNetwork);
    }
    if SYSTEM_NAMESPACES.contains(&namespace) {
        return Decision::Skip(SkipReason::SystemNamespace);
    }
    if policy == Policy::Unknown {
        return Decision::Skip(SkipReason::Policy);
    }
    match pod::label(pod, INJECT).or_else(|| pod::annotation(pod, INJECT)) {
        Some("true") => return Decision::Inject,
        Some("false") => return Decision::Skip(SkipReason::Refused),
        // Any other value counts as none.
        _ => {}
    }
    let labels = pod.pointer("/metadata/labels").unwrap_or(&Value::Null);
    if never.iter().any(|selector| selector.matches(labels)) {
        return Decision::Skip(SkipReason::NeverSelector);
    }
    if policy == Policy::Enabled || always.iter().any(|selector| selector.matches(labels)) {
        return Decision::Inject;
    }
    Decision::Skip(SkipReason::Policy)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Decision, SkipReason, decide};
    use crate::config::InjectorConfig;

    fn decided(config: &str, pod: Value, namespace: &str) -> Decision {
        let (config, _) = InjectorConfig::parse(config).expect("config");
        decide(&config, &pod, namespace)
    }

    #[test]
    fn the_label_decides_before_the_annotation() {
        let pod = |label: &str, annotation: &str| {
            json!({"metadata": {"labels": {"sidecar.istio.io/inject": label},
                "annotations": {"sidecar.istio.io/inject": annotation}}})
        };
        assert_eq!(decided("policy: disabled", pod("true", "false"), "x"), Decision::Inject);
        assert_eq!(decided("policy: enabled", pod("false", "true"), "x"), Decision::Skip(SkipReason::Refused));
        assert_eq!(decided("policy: disabled", pod("maybe", "true"), "x"), Decision::Skip(SkipReason::Policy));
    }

    #[test]
    fn host_network_and_system_namespaces_are_never_injected() {
        let asks = json!({"metadata": {"labels": {"sidecar.istio.io/inject": "true"}}});
        assert_eq!(
            decided("policy: enabled", asks.clone(), "kube-public"),
            Decision::Skip(SkipReason::SystemNamespace)
        );
        let mut host = asks.clone();
        host["spec"] = json!({"hostNetwork": true});
        assert_eq!(decided("policy: enabled", host, "x"), Decision::Skip(SkipReason::HostNetwork));
        assert_eq!(decided("policy: sometimes", asks, "x"), Decision::Skip(SkipReason::Policy));
    }

    #[test]
    fn never_goes_before_always_and_empty_selectors_match_nothing() {
        let config = "{policy: disabled, neverInjectSelector: [{}, {matchLabels: {a: b}}], \
            alwaysInjectSelector: [{matchExpressions: [{key: c, operator: Exists}]}]}";
        let pod = |labels: Value| json!({"metadata": {"labels": labels}});
        assert_eq!(decided(config, pod(json!({"a": "b", "c": ""})), "x"), Decision::Skip(SkipReason::NeverSelector));
        assert_eq!(decided(config, pod(json!({"c": "d"})), "x"), Decision::Inject);
        assert_eq!(decided(config, pod(json!({})), "x"), Decision::Skip(SkipReason::Policy));
    }
}
