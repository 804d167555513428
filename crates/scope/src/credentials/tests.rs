//! Which client may have which secret.

use std::sync::Arc;

use api::envoy::config::core::v3::Node;
use model::change::{Batch, Change, Credential, SourceId};
use model::config::parse::documents;
use model::names::{CredentialKey, CredentialKind};
use model::proxy::Proxy;
use model::settings::Settings;
use model::snapshot::Snapshot;

use super::Secret;
use crate::View;

const WRITTEN: &str = "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.example], tls: {mode: MUTUAL, credentialName: cert}}
  - {port: {number: 443, name: b, protocol: HTTPS}, hosts: [b.example], tls: {mode: SIMPLE, credentialName: 'kubernetes-gateway://bank/cert'}}
";

/// A Gateway of the Gateway API that refers to a certificate of another namespace.
const REFERRING: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: front, namespace: edge}
spec:
  hosts: [front-istio.edge.svc.cluster.local]
  ports: [{number: 443, name: https, protocol: HTTPS}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: edge}
spec:
  gatewayClassName: istio
  listeners:
  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: bank}]}}
";

const GRANT: &str = "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: edge, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: edge}]
  to: [{group: '', kind: Secret, name: cert}]
";

fn pem(label: &str) -> String {
    format!("-----BEGIN {label}-----\nMAMCAQE=\n-----END {label}-----\n")
}

/// A snapshot with these documents, and a Secret `cert` and a ConfigMap `roots` in the namespaces `edge` and `bank`.
fn world(text: &str) -> Snapshot {
    let (certificate, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    let entries =
        [("tls.crt", certificate.as_bytes()), ("tls.key", key.as_bytes()), ("ca.crt", certificate.as_bytes())];
    let mut changes: Vec<Change> = documents(text, "f").objects.into_iter().map(Change::Applied).collect();
    for namespace in ["edge", "bank"] {
        for (kind, name) in [(CredentialKind::Secret, "cert"), (CredentialKind::ConfigMap, "roots")] {
            let key = CredentialKey { kind, namespace: namespace.into(), name: name.into() };
            changes.push(Change::Credential(key, Some(Arc::new(Credential::of(entries)))));
        }
    }
    Snapshot::empty(Settings::default()).apply(vec![Batch { source: SourceId("test".into()), changes }]).0
}

/// The kind of secret that a client of this kind and namespace, which gateways select, gets for a name.
fn asked(world: &Snapshot, kind: &str, namespace: &str, name: &str) -> &'static str {
    let id = format!("{kind}~10.0.0.1~edge.{namespace}~{namespace}.svc.cluster.local");
    let proxy = Proxy::from_node(&Node { id, ..Node::default() }).unwrap();
    let account = ("SERVICE_ACCOUNT".into(), "front-istio".into());
    let metadata = proxy.metadata.clone().into_iter().chain([account]).collect();
    let proxy = Arc::new(Proxy { labels: [("app", "edge")].into_iter().collect(), metadata, ..proxy });
    let view = View::new(world, &proxy, crate::inbound::targets(world, &proxy));
    match view.secret(name) {
        Some(Secret::KeyPair(_)) => "pair",
        Some(Secret::Ca(_)) => "authority",
        None => "nothing",
    }
}

#[test]
fn a_gateway_has_the_secrets_of_its_namespace() {
    let world = world(WRITTEN);
    let cases = [
        ("router", "edge", "kubernetes://cert", "pair"),
        ("router", "edge", "kubernetes://edge/cert", "pair"),
        ("router", "edge", "kubernetes://cert-cacert", "authority"),
        ("router", "edge", "kubernetes://bank/cert", "nothing"),
        ("router", "edge", "kubernetes://bank/cert-cacert", "nothing"),
        ("router", "shop", "kubernetes://edge/cert", "nothing"),
        ("router", "shop", "kubernetes://cert", "nothing"),
        ("router", "edge", "configmap://bank/roots-cacert", "authority"),
    ];
    for (kind, namespace, name, expected) in cases {
        assert_eq!(asked(&world, kind, namespace, name), expected, "{kind} of {namespace} asks for {name}");
    }
}

#[test]
fn a_sidecar_has_no_keys() {
    let world = world(WRITTEN);
    assert_eq!(asked(&world, "sidecar", "edge", "kubernetes://cert"), "nothing");
    assert_eq!(asked(&world, "sidecar", "edge", "kubernetes-gateway://edge/cert"), "nothing");
    assert_eq!(asked(&world, "sidecar", "edge", "kubernetes://cert-cacert"), "authority");
}

#[test]
fn a_wrong_name_is_nothing() {
    let world = world(WRITTEN);
    for name in [
        "",
        "cert",
        "default",
        "kubernetes://",
        "kubernetes://edge/",
        "kubernetes:///cert",
        "kubernetes://a/b/c",
        "kubernetes-gateway://cert",
        "configmap://roots",
        "kubernetes://other",
        "invalid://",
        "file-cert:/a~/b",
    ] {
        assert_eq!(asked(&world, "router", "edge", name), "nothing", "{name}");
    }
}

#[test]
fn a_written_gateway_reaches_into_no_other_namespace_even_with_a_grant() {
    let world = world(&format!("{WRITTEN}---{GRANT}"));
    assert_eq!(asked(&world, "router", "edge", "kubernetes-gateway://bank/cert"), "nothing");
}

#[test]
fn a_grant_opens_the_secret_that_a_gateway_refers_to() {
    let name = "kubernetes-gateway://bank/cert";
    assert_eq!(asked(&world(REFERRING), "router", "edge", name), "nothing");
    let granted = world(&format!("{REFERRING}---{GRANT}"));
    assert_eq!(asked(&granted, "router", "edge", name), "pair");
    assert_eq!(asked(&granted, "router", "bank", name), "nothing", "no gateway of that namespace");
    assert_eq!(asked(&granted, "router", "edge", "kubernetes-gateway://bank/other"), "nothing");
}
