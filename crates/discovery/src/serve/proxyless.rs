//! Resource sets of gRPC applications without an Envoy, computed by name from what an Envoy in their place would get.

use std::sync::Arc;

use api::{Resource, TypeUrl};
use model::proxy::Proxy;
use translate::proxyless::{self, EnvoyResources, GrpcClient};
use xds::ResourceSet;

use crate::serve::rendered::RenderedView;

/// The metadata of such clients.
const GENERATOR: (&str, &str) = ("GENERATOR", "grpc");

/// Whether a client is a gRPC application without an Envoy.
pub(crate) fn is_proxyless(proxy: &Proxy) -> bool {
    proxy.meta(GENERATOR.0) == Some(GENERATOR.1)
}

/// The set of a type; `None` for a type that is the same as Envoy's, or is not served.
pub(crate) fn set(rendered: &Arc<RenderedView>, proxy: &Arc<Proxy>, kind: &TypeUrl) -> Option<Arc<ResourceSet>> {
    if ![TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::CLUSTER].contains(kind) {
        return None;
    }
    let (rendered, proxy, own) = (rendered.clone(), proxy.clone(), kind.clone());
    let by_name = move |name: &str| {
        let client = GrpcClient { proxy: &proxy, domain: &rendered.view.settings.domain };
        proxyless::resource(client, &*rendered, &own, name)
    };
    Some(Arc::new(ResourceSet::new(kind.clone(), []).with_fallback(by_name)))
}

impl EnvoyResources for RenderedView {
    fn get(&self, kind: &TypeUrl, name: &str) -> Option<Resource> {
        self.set(kind)?.get(name)
    }

    fn listeners(&self) -> Vec<Resource> {
        self.set(&TypeUrl::LISTENER).map(|set| set.resources().cloned().collect()).unwrap_or_default()
    }
}
