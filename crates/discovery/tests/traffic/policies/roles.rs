//! Istio 0.8's ServiceRoles, converted to AuthorizationPolicies.

use testkit::envoy::XdsTransport;

use super::Guarded;
use crate::mesh::service;

testkit::over_both!(service_roles_allow_exactly_what_they_list);

const OLD: &str = "
apiVersion: rbac.istio.io/v1alpha1
kind: RbacConfig
metadata: {name: default, namespace: istio-system}
spec: {mode: ON_WITH_INCLUSION, inclusion: {namespaces: [shop]}}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRole
metadata: {name: reader, namespace: shop}
spec:
  rules:
  - {services: [cart.shop.svc.cluster.local], methods: [GET], paths: [/items*]}
  - {services: ['*'], methods: ['*'], paths: [/health]}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRoleBinding
metadata: {name: readers, namespace: shop}
spec: {subjects: [{user: '*'}], roleRef: {kind: ServiceRole, name: reader}}
---
apiVersion: rbac.istio.io/v1alpha1
kind: ServiceRoleBinding
metadata: {name: writers, namespace: shop}
spec: {subjects: [{user: '*'}], roleRef: {kind: ServiceRole, name: writer}}
";

async fn service_roles_allow_exactly_what_they_list(transport: XdsTransport) {
    let documents = [OLD.to_owned(), service("cart", 80, "HTTP", "http", "")];
    let guarded = Guarded::start(transport, &documents, "").await;
    guarded.has_problem("there is no ServiceRole shop/writer").await;
    guarded.has_problem("write instead").await;
    guarded
        .check(&[
            (200, "GET /items", &[]),
            (200, "GET /items/1?x=y", &[]),
            (403, "POST /items", &[]),
            (403, "GET /", &[]),
            (200, "PUT /health", &[]),
            (403, "GET /health/1", &[]),
        ])
        .await;
    guarded.mesh.assert_settled().await;
}
