//! Features of the Gateway API that are supported, by the names of its conformance suite. Every GatewayClass of ours lists
//! them in its status, and `cargo xtask conformance` tests what the class lists: this table is the only claim.

use serde_json::{Value, json};

/// In the order of their names, as the API demands. Not supported: MeshClusterIPMatching, UDPRoute.
const SUPPORTED: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructurePropagation",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "Mesh",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];

/// The list for the status of a GatewayClass.
pub(super) fn supported() -> Vec<Value> {
    SUPPORTED.iter().map(|name| json!({"name": name})).collect()
}

#[cfg(test)]
mod tests {
    use super::SUPPORTED;

    #[test]
    fn names_are_in_order_and_fit_into_a_status() {
        assert!(SUPPORTED.is_sorted_by(|a, b| a < b));
        assert!(SUPPORTED.len() <= 64);
    }
}
