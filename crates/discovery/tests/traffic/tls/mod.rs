//! TLS with real certificates, which a small agent hands to each Envoy over SDS: at gateways, between sidecars,
//! and what policies say of who is on the other side.

mod checks;
mod gateway;
mod principals;
mod sidecars;

/// A Sidecar document that takes calls of `cart.shop` in on this port.
fn inbound(port: u16, protocol: &str, backend: u16) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
         workloadSelector: {{labels: {{app: cart}}}}\n  ingress:\n  \
         - port: {{number: {port}, name: in, protocol: {protocol}}}\n    bind: 127.0.0.1\n    captureMode: NONE\n    \
         defaultEndpoint: 127.0.0.1:{backend}\n  egress: [{{hosts: ['~/*']}}]\n"
    )
}

/// A PeerAuthentication document of the whole mesh.
fn mode(mode: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {{name: default, namespace: istio-system}}\nspec: {{mtls: {{mode: {mode}}}}}\n"
    )
}
