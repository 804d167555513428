//! TLS with real certificates from an SDS server: at gateways, between sidecars, and in policies on the peer.

mod checks;
mod gateway;
mod principals;
mod sidecars;

/// A Sidecar document with an ingress listener of `cart.shop` on this port.
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
