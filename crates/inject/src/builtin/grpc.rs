//! The templates for gRPC applications without an Envoy: `grpc-agent` runs an agent that writes their bootstrap file,
//! `grpc-simple` writes one that names the control plane.

use serde_json::{Value, json};

use super::input::RenderInput;
use super::parts::{self, EnvironmentList};
use super::sidecar::readiness;
use crate::annotations::{REWRITE_PROBES, USER_VOLUME, USER_VOLUME_MOUNT};
use crate::pod::{self, ContainerList, JsonMap, PROXY, object};

pub(super) fn agent(input: &RenderInput<'_>) -> Value {
    let mut annotations = parts::common_annotations(input);
    annotations.insert(REWRITE_PROBES.to_owned(), "false".into());
    let mut containers = vec![agent_container(input)];
    containers.extend(input.applications().into_iter().map(|name| application(input, name)));
    let mut spec = JsonMap::new();
    spec.insert("containers".to_owned(), containers.into());
    spec.insert("volumes".to_owned(), volumes(input).into());
    parts::pull_secrets(&mut spec, input);
    json!({"metadata": {"labels": parts::canonical_labels(input, false), "annotations": annotations}, "spec": spec})
}

fn agent_container(input: &RenderInput<'_>) -> Value {
    let wait = json!(["pilot-agent", "wait", "--url=http://localhost:15020/healthz/ready"]);
    let mut container = json!({
        "name": PROXY,
        "image": parts::image(input, "global.proxy.image", || input.proxy_image()),
        "ports": [{"containerPort": 15020, "protocol": "TCP", "name": "mesh-metrics"}],
        "args": parts::arguments("sidecar", input),
        "lifecycle": {"postStart": {"exec": {"command": wait}}},
        "env": environment(input),
    });
    let map = object(&mut container);
    parts::pull_policy(map, input);
    // Upstream's template has resources and mounts under the same condition as the probe.
    let mut mounts = Vec::new();
    if input.status_port() != "0" {
        map.insert("readinessProbe".to_owned(), readiness(input, 15020));
        map.insert("resources".to_owned(), parts::resources(input));
        mounts = self::mounts(input);
    }
    mounts.extend(parts::user_entries(input, USER_VOLUME_MOUNT));
    if !mounts.is_empty() {
        map.insert("volumeMounts".to_owned(), mounts.into());
    }
    container
}

fn environment(input: &RenderInput<'_>) -> Vec<Value> {
    let mut env = EnvironmentList::default();
    env.value("ISTIO_META_GENERATOR", "grpc");
    env.value("OUTPUT_CERTS", "/var/lib/istio/data");
    if input.inbound_to_localhost() {
        env.value("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true");
    }
    parts::identity(&mut env, input);
    parts::settings(&mut env, input);
    env.value("ISTIO_META_APP_CONTAINERS", input.applications().join(","));
    parts::place(&mut env, input);
    parts::network(&mut env, input);
    parts::owner(&mut env, input, &input.workload.name);
    parts::mesh(&mut env, input);
    parts::proxy_metadata(&mut env, input);
    // gRPC resolves names by xDS.
    env.value("ISTIO_META_DNS_CAPTURE", "false");
    env.value("DISABLE_ENVOY", "true");
    env.into_list()
}

fn mounts(input: &RenderInput<'_>) -> Vec<Value> {
    let mut mounts = vec![
        parts::mount("workload-socket", "/var/run/secrets/workload-spiffe-uds"),
        parts::workload_certificates_mount(input),
    ];
    if parts::uses_istiod_certificates(input) {
        mounts.push(parts::mount("istiod-ca-cert", "/var/run/secrets/istio"));
    }
    mounts.push(parts::mount("istio-data", "/var/lib/istio/data"));
    mounts.push(parts::mount("istio-xds", "/etc/istio/proxy"));
    mounts.push(parts::mount("istio-token", "/var/run/secrets/tokens"));
    if input.values.is_set("global.mountMtlsCerts") {
        mounts.push(parts::read_only_mount("istio-certs", "/etc/certs/"));
    }
    mounts.push(parts::mount("istio-podinfo", "/etc/istio/pod"));
    mounts
}

/// What a container of the application gets: the bootstrap file and the certificates.
fn application(input: &RenderInput<'_>, name: &str) -> Value {
    json!({
        "name": name,
        "env": [
            {"name": "GRPC_XDS_EXPERIMENTAL_SECURITY_SUPPORT", "value": "true"},
            {"name": "GRPC_XDS_BOOTSTRAP", "value": "/etc/istio/proxy/grpc-bootstrap.json"},
        ],
        "volumeMounts": [
            parts::mount("istio-data", "/var/lib/istio/data"),
            parts::mount("istio-xds", "/etc/istio/proxy"),
            parts::workload_certificates_mount(input),
        ],
    })
}

fn volumes(input: &RenderInput<'_>) -> Vec<Value> {
    let mut volumes = vec![parts::empty_dir("workload-socket"), parts::workload_certificates_volume(input)];
    volumes.extend(parts::bootstrap_volume(input));
    volumes.extend([parts::memory_dir("istio-xds"), parts::empty_dir("istio-data"), parts::pod_info()]);
    volumes.push(parts::token(input));
    if parts::uses_istiod_certificates(input) {
        volumes.push(parts::root_certificate(input));
    }
    volumes.extend(parts::mounted_certificates(input));
    volumes.extend(parts::user_entries(input, USER_VOLUME));
    volumes
}

const FOLDER: &str = "/var/lib/grpc/data/";
const VOLUME: &str = "grpc-io-proxyless-bootstrap";

pub(super) fn simple(input: &RenderInput<'_>) -> Value {
    let mut env = EnvironmentList::default();
    env.field("INSTANCE_IP", "status.podIP");
    env.field("POD_NAME", "metadata.name");
    env.field("POD_NAMESPACE", "metadata.namespace");
    env.value("ISTIO_NAMESPACE", input.values.text("global.istioNamespace", "istio-system"));
    let init = json!({
        "name": "grpc-bootstrap-init",
        "image": "busybox:1.28",
        "volumeMounts": [parts::mount(VOLUME, FOLDER)],
        "env": env.into_list(),
        "command": ["sh", "-c", WRITE_BOOTSTRAP],
    });
    let application = |container: &Value| {
        json!({
            "name": pod::text(container, "name"),
            "env": [
                {"name": "GRPC_XDS_BOOTSTRAP", "value": "/var/lib/grpc/data/bootstrap.json"},
                {"name": "GRPC_GO_LOG_VERBOSITY_LEVEL", "value": "99"},
                {"name": "GRPC_GO_LOG_SEVERITY_LEVEL", "value": "info"},
            ],
            "volumeMounts": [parts::mount(VOLUME, FOLDER)],
        })
    };
    let containers: Vec<Value> =
        pod::containers(input.pod, ContainerList::Containers).iter().map(application).collect();
    json!({
        "metadata": {"annotations": {REWRITE_PROBES: "false"}},
        "spec": {"initContainers": [init], "containers": containers, "volumes": [parts::empty_dir(VOLUME)]},
    })
}

/// Writes the bootstrap file of a gRPC client that connects to the control plane in plain text.
const WRITE_BOOTSTRAP: &str = r#"cat > /var/lib/grpc/data/bootstrap.json <<END
{"xds_servers": [{"server_uri": "dns:///istiod.$ISTIO_NAMESPACE.svc:15010",
                  "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
 "node": {"id": "sidecar~$INSTANCE_IP~$POD_NAME.$POD_NAMESPACE~cluster.local", "metadata": {"GENERATOR": "grpc"}}}
END"#;
