//! RBAC documents and the policies that they are converted to.

use serde_json::{Value, json};

use crate::change::{Batch, Change, SourceId};
use crate::config::parse::documents;
use crate::config::print::message_to_json;
use crate::config::problem::Severity;
use crate::snapshot::Snapshot;
use crate::snapshot::gateway_api::tests::empty;

const SERVICES: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http}], workloadSelector: {labels: {app: cart, tier: web}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mail, namespace: shop}
spec: {hosts: [mail.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http}]}
";

const ROLE: &str = "
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRole
metadata: {name: reader, namespace: shop}
spec: {rules: [{services: [cart*], methods: [GET, HEAD], paths: [/items*]}]}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRoleBinding
metadata: {name: readers, namespace: shop}
spec:
  subjects: [{user: cluster.local/ns/shop/sa/web}, {properties: {source.namespace: ops}}]
  roleRef: {kind: ServiceRole, name: reader}
";

fn switch(spec: &str) -> String {
    format!(
        "apiVersion: rbac.istio.io/v1alpha1\nkind: RbacConfig\nmetadata: {{name: default, namespace: istio-system}}\nspec: {spec}\n"
    )
}

fn snapshot(texts: &[&str]) -> Snapshot {
    let parsed = documents(&texts.join("---\n"), "old.yaml");
    assert!(parsed.problems.iter().all(|p| p.severity == Severity::Info), "{:?}", parsed.problems);
    let changes = parsed.objects.into_iter().map(Change::Applied).collect();
    empty().apply(vec![Batch { source: SourceId("files".into()), changes }]).0
}

/// Policies as namespace, name and spec.
fn policies(snapshot: &Snapshot) -> Vec<(String, String, Value)> {
    let shown = snapshot.policy.authorization_policies.iter().map(|policy| {
        let spec = message_to_json(
            "istio.security.v1beta1.AuthorizationPolicy",
            &prost::Message::encode_to_vec(&*policy.spec),
        );
        (policy.meta.namespace.to_string(), policy.meta.name.to_string(), spec)
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by_key(|(namespace, name, _)| (namespace.clone(), name.clone()));
    shown
}

fn messages(snapshot: &Snapshot, severity: Severity) -> Vec<String> {
    let all = snapshot.problems.values().flatten().filter(|problem| problem.severity == severity);
    all.map(|problem| problem.message.to_string()).collect()
}

#[test]
fn binding_allows_what_its_role_allows_and_the_rest_is_denied() {
    let snapshot = snapshot(&[SERVICES, ROLE, &switch("{mode: 'ON'}")]);
    let rules = json!([
        {"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/web"]}}],
         "to": [{"operation": {"methods": ["GET", "HEAD"], "paths": ["/items*"]}}]},
        {"from": [{"source": {"namespaces": ["ops"]}}],
         "to": [{"operation": {"methods": ["GET", "HEAD"], "paths": ["/items*"]}}]},
    ]);
    let cart = json!({"selector": {"matchLabels": {"app": "cart", "tier": "web"}}, "rules": rules});
    assert_eq!(
        policies(&snapshot),
        [("istio-system".into(), "rbac-default-1".into(), json!({})), ("shop".into(), "rbac-readers-1".into(), cart),]
    );
    let messages = messages(&snapshot, Severity::Info);
    assert!(
        messages.iter().any(|text| text.contains("kind: AuthorizationPolicy") && text.contains("/items*")),
        "{messages:?}"
    );
}

#[test]
fn without_rbac_config_nothing_is_denied() {
    for texts in [&[SERVICES, ROLE][..], &[SERVICES, ROLE, &switch("{mode: 'OFF'}")]] {
        let snapshot = snapshot(texts);
        assert_eq!(policies(&snapshot), []);
        assert_eq!(messages(&snapshot, Severity::Warning), ["has no effect: no RbacConfig enables access control"]);
    }
}

#[test]
fn inclusion_and_exclusion_are_kept() {
    let only_mail = snapshot(&[
        SERVICES,
        ROLE,
        &switch("{mode: ON_WITH_INCLUSION, inclusion: {services: [mail.shop.svc.cluster.local]}}"),
    ]);
    let mail = json!({"selector": {"matchLabels": {"app": "mail"}}});
    assert_eq!(policies(&only_mail), [("shop".into(), "rbac-default-1".into(), mail)], "cart is not included");
    let but_shop = snapshot(&[SERVICES, &switch("{mode: ON_WITH_EXCLUSION, exclusion: {namespaces: [shop]}}")]);
    let all = json!({"rules": [{}]});
    assert_eq!(
        policies(&but_shop),
        [("istio-system".into(), "rbac-default-1".into(), json!({})), ("shop".into(), "rbac-default-2".into(), all)]
    );
}

#[test]
fn parts_without_equivalent_allow_nothing() {
    let role = ROLE
        .replace("source.namespace: ops", "source.labels: ops")
        .replace("paths: [/items*]", "constraints: [{key: version, values: [v1]}]");
    let snapshot = snapshot(&[SERVICES, &role, &switch("{mode: 'ON'}")]);
    assert_eq!(policies(&snapshot), [("istio-system".into(), "rbac-default-1".into(), json!({}))]);
    let messages = messages(&snapshot, Severity::Error);
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages.iter().all(|text| text.ends_with("this part of role reader allows nothing")), "{messages:?}");
}
