//! The template `gateway`: fills in the container of a gateway's pod.

use serde_json::{Value, json};

use super::input::{PROXY_ID, RenderInput};
use super::parts::{self, EnvironmentList};
use super::sidecar::number;
use crate::pod::{JsonMap, PROXY, object};

pub(super) fn render(input: &RenderInput<'_>) -> Value {
    let context = if input.values.is_set("gateways.securityContext") {
        input.values.at("gateways.securityContext").cloned().unwrap_or_default()
    } else {
        // An unprivileged gateway may listen on ports below 1024.
        json!({"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]})
    };
    let mut spec = JsonMap::new();
    spec.insert("securityContext".to_owned(), context);
    spec.insert("containers".to_owned(), json!([container(input)]));
    spec.insert("volumes".to_owned(), volumes(input).into());
    parts::pull_secrets(&mut spec, input);
    let metadata =
        json!({"labels": parts::canonical_labels(input, false), "annotations": parts::common_annotations(input)});
    json!({"metadata": metadata, "spec": spec})
}

fn container(input: &RenderInput<'_>) -> Value {
    let time = |field: &str, default: &str| number(&input.values.text(&format!("global.proxy.{field}"), default));
    let mut container = json!({
        "name": PROXY,
        "image": parts::image(input, "global.proxy.image", || input.proxy_image()),
        "ports": [{"containerPort": 15090, "protocol": "TCP", "name": "http-envoy-prom"}],
        "args": parts::arguments("router", input),
        "securityContext": {"runAsUser": PROXY_ID, "runAsGroup": PROXY_ID},
        "env": environment(input),
        "readinessProbe": {
            "httpGet": {"path": "/healthz/ready", "port": 15021},
            "initialDelaySeconds": time("readinessInitialDelaySeconds", "0"),
            "periodSeconds": time("readinessPeriodSeconds", "15"),
            "timeoutSeconds": 3,
            "failureThreshold": time("readinessFailureThreshold", "4"),
        },
        "volumeMounts": parts::proxy_mounts(input, None),
    });
    let map = object(&mut container);
    if input.values.is_set("global.proxy.lifecycle")
        && let Some(lifecycle) = input.values.at("global.proxy.lifecycle")
    {
        map.insert("lifecycle".to_owned(), lifecycle.clone());
    }
    parts::pull_policy(map, input);
    container
}

fn environment(input: &RenderInput<'_>) -> Vec<Value> {
    let mut env = EnvironmentList::default();
    parts::identity(&mut env, input);
    env.resource("ISTIO_CPU_LIMIT", "limits.cpu");
    parts::settings(&mut env, input);
    parts::limits(&mut env, input);
    env.value("ISTIO_META_APP_CONTAINERS", input.applications().join(","));
    parts::place(&mut env, input);
    env.value("ISTIO_META_INTERCEPTION_MODE", input.mesh_interception_mode());
    parts::network(&mut env, input);
    parts::owner(&mut env, input, &input.workload.name);
    parts::bootstrap_override(&mut env, input);
    parts::mesh(&mut env, input);
    parts::proxy_metadata(&mut env, input);
    env.into_list()
}

fn volumes(input: &RenderInput<'_>) -> Vec<Value> {
    let mut volumes = vec![
        parts::empty_dir("workload-socket"),
        parts::empty_dir("credential-socket"),
        parts::workload_certificates_volume(input),
    ];
    volumes.extend(parts::bootstrap_volume(input));
    volumes.extend([parts::memory_dir("istio-envoy"), parts::empty_dir("istio-data"), parts::pod_info()]);
    volumes.push(parts::token(input));
    if parts::uses_istiod_certificates(input) {
        volumes.push(parts::root_certificate(input));
    }
    volumes.extend(parts::mounted_certificates(input));
    volumes
}
