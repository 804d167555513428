//! Descriptor pools for reading and writing messages as JSON.
//! Each pool costs memory, so it is built on first use.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

static ISTIO: LazyLock<DescriptorPool> = LazyLock::new(|| pool(include_bytes!("../descriptors/istio.binpb")));
static ENVOY: LazyLock<DescriptorPool> = LazyLock::new(|| pool(include_bytes!("../descriptors/envoy.binpb")));

/// Istio's API: every config kind, mesh config and networks.
pub fn istio() -> &'static DescriptorPool {
    &ISTIO
}

/// Envoy's whole API with contrib, xds and udpa.
pub fn envoy() -> &'static DescriptorPool {
    &ENVOY
}

fn pool(set: &[u8]) -> DescriptorPool {
    DescriptorPool::decode(set).expect("the committed descriptor set is complete; a test decodes it")
}

#[cfg(test)]
mod tests {
    #[test]
    fn committed_sets_are_complete() {
        assert!(super::istio().get_message_by_name("istio.networking.v1alpha3.VirtualService").is_some());
        assert!(super::envoy().get_message_by_name("envoy.config.cluster.v3.Cluster").is_some());
    }
}
