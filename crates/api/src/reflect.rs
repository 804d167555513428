//! Descriptor pools for reading and writing messages as JSON. Each is built on first use, to save memory.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;
use prost_reflect::DescriptorPool;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

const ENVOY_SET: &[u8] = include_bytes!("../descriptors/envoy.binpb");

static ISTIO: LazyLock<DescriptorPool> = LazyLock::new(|| pool(include_bytes!("../descriptors/istio.binpb")));
static ENVOY: LazyLock<DescriptorPool> = LazyLock::new(|| pool(ENVOY_SET));

/// Istio's API: every config kind, mesh config and networks.
pub fn istio() -> &'static DescriptorPool {
    &ISTIO
}

/// Envoy's whole API with contrib, xds and udpa.
pub fn envoy() -> &'static DescriptorPool {
    &ENVOY
}

/// One file of Envoy's API and its transitive imports, for gRPC reflection. Other files are not decoded, because the
/// whole set would take megabytes.
pub fn envoy_files(root: &str) -> FileDescriptorSet {
    const COMPLETE: &str = "the committed descriptor set is complete; a test decodes it";
    let all = RawFileSet::decode(Bytes::from_static(ENVOY_SET)).expect(COMPLETE);
    let outlines = all.file.into_iter().map(|file| (FileOutline::decode(file.clone()).expect(COMPLETE), file));
    let mut by_name: BTreeMap<String, (Vec<String>, Bytes)> =
        outlines.map(|(outline, file)| (outline.name, (outline.dependency, file))).collect();
    let mut wanted = vec![root.to_owned()];
    let mut set = FileDescriptorSet::default();
    while let Some(name) = wanted.pop() {
        // Already in the set.
        let Some((imports, file)) = by_name.remove(&name) else { continue };
        wanted.extend(imports);
        set.file.push(FileDescriptorProto::decode(file).expect(COMPLETE));
    }
    set
}

/// A FileDescriptorSet with undecoded files.
#[derive(Clone, PartialEq, Message)]
struct RawFileSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file: Vec<Bytes>,
}

/// A file's name and imports.
#[derive(Clone, PartialEq, Message)]
struct FileOutline {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
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

    #[test]
    fn files_include_their_imports() {
        let set = super::envoy_files("envoy/service/discovery/v3/ads.proto");
        let pool = prost_reflect::DescriptorPool::from_file_descriptor_set(set).unwrap();
        assert!(pool.get_service_by_name("envoy.service.discovery.v3.AggregatedDiscoveryService").is_some());
        assert!(pool.get_message_by_name("envoy.config.cluster.v3.Cluster").is_none());
    }
}
