//! Generates the Rust types of the wire formats from the committed descriptor sets.
//! The sets themselves are made by `tools/descriptors`; no protoc is needed to build.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::{env, fs, io};

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

/// Envoy packages with generated types, in addition to their imports. The rest of Envoy's API is available through
/// reflection only.
const ENVOY_ROOTS: &[&str] = &[
    "envoy/config/accesslog/v3/",
    "envoy/config/cluster/v3/",
    "envoy/config/core/v3/",
    "envoy/config/endpoint/v3/",
    "envoy/config/listener/v3/",
    "envoy/config/rbac/v3/",
    "envoy/config/route/v3/",
    "envoy/config/trace/v3/",
    "envoy/extensions/access_loggers/file/v3/",
    "envoy/extensions/access_loggers/grpc/v3/",
    "envoy/extensions/access_loggers/open_telemetry/v3/",
    "envoy/extensions/clusters/dynamic_forward_proxy/v3/",
    "envoy/extensions/filters/common/fault/v3/",
    "envoy/extensions/filters/http/cors/v3/",
    "envoy/extensions/filters/http/dynamic_forward_proxy/v3/",
    "envoy/extensions/filters/http/ext_authz/v3/",
    "envoy/extensions/filters/http/fault/v3/",
    "envoy/extensions/filters/http/grpc_stats/v3/",
    "envoy/extensions/filters/http/grpc_web/v3/",
    "envoy/extensions/filters/http/jwt_authn/v3/",
    "envoy/extensions/filters/http/rbac/v3/",
    "envoy/extensions/filters/http/router/v3/",
    "envoy/extensions/filters/http/stateful_session/v3/",
    "envoy/extensions/filters/http/wasm/v3/",
    "envoy/extensions/filters/listener/http_inspector/v3/",
    "envoy/extensions/filters/listener/original_dst/v3/",
    "envoy/extensions/filters/listener/original_src/v3/",
    "envoy/extensions/filters/listener/proxy_protocol/v3/",
    "envoy/extensions/filters/listener/tls_inspector/v3/",
    "envoy/extensions/filters/network/ext_authz/v3/",
    "envoy/extensions/filters/network/http_connection_manager/v3/",
    "envoy/extensions/filters/network/mongo_proxy/v3/",
    "envoy/extensions/filters/network/rbac/v3/",
    "envoy/extensions/filters/network/redis_proxy/v3/",
    "envoy/extensions/filters/network/sni_cluster/v3/",
    "envoy/extensions/filters/network/tcp_proxy/v3/",
    "envoy/extensions/filters/network/wasm/v3/",
    "envoy/extensions/http/stateful_session/cookie/v3/",
    "envoy/extensions/http/stateful_session/header/v3/",
    "envoy/extensions/load_balancing_policies/",
    "envoy/extensions/network/dns_resolver/cares/v3/",
    "envoy/extensions/path/match/uri_template/v3/",
    "envoy/extensions/request_id/uuid/v3/",
    "envoy/extensions/retry/host/previous_hosts/v3/",
    "envoy/extensions/retry/priority/previous_priorities/v3/",
    "envoy/extensions/transport_sockets/proxy_protocol/v3/",
    "envoy/extensions/transport_sockets/raw_buffer/v3/",
    "envoy/extensions/transport_sockets/tls/v3/",
    "envoy/extensions/upstreams/http/v3/",
    "envoy/extensions/wasm/v3/",
    "envoy/service/discovery/v3/",
    "envoy/service/status/v3/",
    "envoy/type/",
    "contrib/envoy/extensions/filters/network/mysql_proxy/v3/",
    "udpa/type/v1/",
    "xds/type/v3/",
];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=descriptors");
    println!("cargo:rerun-if-changed=build.rs");
    let envoy = closure(read("descriptors/envoy.binpb")?, ENVOY_ROOTS);
    generate(envoy, "envoy.rs")?;
    generate(
        closure(
            read("descriptors/istio.binpb")?,
            &["mesh/", "networking/", "security/", "telemetry/", "type/", "extensions/", "meta/", "mcp/", "analysis/"],
        ),
        "istio.rs",
    )
}

fn read(path: &str) -> io::Result<FileDescriptorSet> {
    let bytes = fs::read(path)?;
    FileDescriptorSet::decode(bytes.as_slice()).map_err(io::Error::other)
}

/// The files whose path starts with one of `roots` and their transitive imports, in the set's order.
fn closure(set: FileDescriptorSet, roots: &[&str]) -> FileDescriptorSet {
    let by_name: BTreeMap<&str, &FileDescriptorProto> = set.file.iter().map(|f| (f.name(), f)).collect();
    let mut wanted: HashSet<&str> = HashSet::new();
    let mut open: Vec<&str> =
        by_name.keys().copied().filter(|name| roots.iter().any(|r| name.starts_with(r))).collect();
    while let Some(name) = open.pop() {
        if wanted.insert(name) {
            open.extend(by_name[name].dependency.iter().map(String::as_str));
        }
    }
    FileDescriptorSet { file: set.file.iter().filter(|f| wanted.contains(f.name())).cloned().collect() }
}

/// Maps become BTreeMaps, so that encoding is deterministic.
fn generate(set: FileDescriptorSet, include: &str) -> io::Result<()> {
    let out = Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join(include.trim_end_matches(".rs"));
    fs::create_dir_all(&out)?;
    prost_build::Config::new()
        .btree_map(["."])
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .out_dir(&out)
        .include_file(include)
        .compile_fds(set)
}
