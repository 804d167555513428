//! The template `sidecar`: an init container that redirects traffic, and the proxy.

use serde_json::{Value, json};

use super::input::{PROXY_ID, RenderInput};
use super::parts::{self, EnvironmentList};
use crate::annotations::{self as names};
use crate::pod::{INIT, JsonMap, PROXY, VALIDATION, object};

const CAP_NET_BIND: &str = "sidecar.istio.io/capNetBindService";

pub(super) fn render(input: &RenderInput<'_>) -> Value {
    let init = (input.interception_mode() != "NONE").then(|| redirection(input));
    let proxy = proxy(input);
    let mut spec = JsonMap::new();
    if input.is_native() {
        let all: Vec<Value> = init.into_iter().chain([proxy]).collect();
        spec.insert("initContainers".to_owned(), all.into());
    } else {
        spec.insert("initContainers".to_owned(), init.into_iter().collect());
        spec.insert("containers".to_owned(), json!([proxy]));
    }
    spec.insert("volumes".to_owned(), volumes(input).into());
    parts::pull_secrets(&mut spec, input);
    json!({"metadata": {"labels": labels(input), "annotations": annotations(input)}, "spec": spec})
}

fn labels(input: &RenderInput<'_>) -> JsonMap {
    let own = |name: &str, default: &str| {
        let own = input.label(name).filter(|text| !text.is_empty());
        (name.to_owned(), Value::from(own.unwrap_or(default)))
    };
    let mut labels = JsonMap::from_iter([own("security.istio.io/tlsMode", "istio")]);
    if input.metadata_is("ISTIO_META_ENABLE_HBONE", "true") {
        labels.extend([own("networking.istio.io/tunnel", "http")]);
    }
    labels.extend(parts::canonical_labels(input, true));
    labels
}

fn annotations(input: &RenderInput<'_>) -> JsonMap {
    let mut annotations = parts::common_annotations(input);
    if input.uses_cni() {
        cni_annotations(&mut annotations, input);
    }
    annotations
}

/// Adds annotations with the settings of traffic redirection, which a CNI plug-in reads.
fn cni_annotations(annotations: &mut JsonMap, input: &RenderInput<'_>) {
    let mut add = |name: &str, value: String| annotations.insert(name.to_owned(), value.into());
    if input.values.text("pilot.cni.provider", "default") == "multus" {
        const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
        let known = input.annotation(NETWORKS).unwrap_or_default();
        add(NETWORKS, parts::append_multus_network(known, "default/istio-cni"));
    }
    add(names::INTERCEPTION_MODE, input.interception_mode().to_owned());
    for (name, value) in [
        (names::INCLUDE_OUTBOUND_RANGES, included_ranges(input)),
        (names::EXCLUDE_OUTBOUND_RANGES, excluded_ranges(input)),
    ] {
        if !value.is_empty() {
            add(name, value);
        }
    }
    add(names::INCLUDE_INBOUND_PORTS, included_ports(input));
    add(names::EXCLUDE_INBOUND_PORTS, excluded_ports(input));
    if let Some(ports) = outbound_ports(input, names::INCLUDE_OUTBOUND_PORTS, "global.proxy.includeOutboundPorts") {
        add(names::INCLUDE_OUTBOUND_PORTS, ports);
    }
    if let Some(ports) = outbound_ports(input, names::EXCLUDE_OUTBOUND_PORTS, "global.proxy.excludeOutboundPorts") {
        add(names::EXCLUDE_OUTBOUND_PORTS, ports);
    }
    for name in [names::KUBEVIRT_INTERFACES, names::REROUTE_INTERFACES, names::EXCLUDE_INTERFACES] {
        if let Some(text) = input.annotation(name).filter(|text| !text.is_empty()) {
            add(name, text.to_owned());
        }
    }
}

fn included_ranges(input: &RenderInput<'_>) -> String {
    input.setting(names::INCLUDE_OUTBOUND_RANGES, "global.proxy.includeIPRanges", "*")
}

fn excluded_ranges(input: &RenderInput<'_>) -> String {
    input.setting(names::EXCLUDE_OUTBOUND_RANGES, "global.proxy.excludeIPRanges", "")
}

fn included_ports(input: &RenderInput<'_>) -> String {
    input.setting(names::INCLUDE_INBOUND_PORTS, "global.proxy.includeInboundPorts", "*")
}

fn excluded_ports(input: &RenderInput<'_>) -> String {
    let excluded = input.setting(names::EXCLUDE_INBOUND_PORTS, "global.proxy.excludeInboundPorts", "");
    parts::exclude_inbound_port(&input.status_port(), &excluded)
}

/// Ports by annotation, else a value that is not empty.
fn outbound_ports(input: &RenderInput<'_>, annotation: &str, path: &str) -> Option<String> {
    input.annotation(annotation).map(str::to_owned).or_else(|| input.values.given(path))
}

/// The init container: it redirects traffic, or checks what a CNI plug-in has done.
fn redirection(input: &RenderInput<'_>) -> Value {
    let name = if input.uses_cni() { VALIDATION } else { INIT };
    let mut container = json!({
        "name": name,
        "image": parts::image(input, "global.proxy_init.image", || input.init_image()),
        "args": redirection_arguments(input),
        "resources": parts::resources(input),
        "securityContext": redirection_rights(input),
    });
    let map = object(&mut container);
    parts::pull_policy(map, input);
    let mut env = EnvironmentList::default();
    parts::proxy_metadata(&mut env, input);
    let env = env.into_list();
    if !env.is_empty() {
        map.insert("env".to_owned(), env.into());
    }
    container
}

fn redirection_arguments(input: &RenderInput<'_>) -> Vec<String> {
    let port = |port: i32, default: i32| if port == 0 { default } else { port }.to_string();
    let excluded = excluded_ports(input);
    let inbound = if excluded.is_empty() { "15090,15021".to_owned() } else { format!("15090,15021,{excluded}") };
    let mut arguments = vec!["istio-iptables".to_owned()];
    let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
    add("-p", port(input.mesh.proxy_listen_port, 15001));
    add("-z", port(input.mesh.proxy_inbound_listen_port, 15006));
    add("-u", PROXY_ID.to_string());
    add("-m", input.interception_mode().to_owned());
    add("-i", included_ranges(input));
    add("-x", excluded_ranges(input));
    add("-b", included_ports(input));
    add("-d", inbound);
    if let Some(ports) = outbound_ports(input, names::INCLUDE_OUTBOUND_PORTS, "global.proxy.includeOutboundPorts") {
        add("-q", ports);
    }
    if let Some(ports) = outbound_ports(input, names::EXCLUDE_OUTBOUND_PORTS, "global.proxy.excludeOutboundPorts") {
        add("-o", ports);
    }
    let rerouted = input.annotation(names::REROUTE_INTERFACES).or(input.annotation(names::KUBEVIRT_INTERFACES));
    if let Some(interfaces) = rerouted {
        add("-k", interfaces.to_owned());
    }
    if let Some(interfaces) = input.annotation(names::EXCLUDE_INTERFACES) {
        add("-c", interfaces.to_owned());
    }
    arguments.push(parts::log_output_level(input));
    let values = input.values;
    let switches = [
        ("--log_as_json", values.is_set("global.logAsJson")),
        ("--run-validation", input.uses_cni()),
        ("--skip-rule-apply", input.uses_cni()),
        ("--force-apply", !input.uses_cni() && values.is_set("global.proxy_init.forceApplyIptables")),
        ("--native-nftables", values.is_set("global.nativeNftables")),
    ];
    arguments.extend(switches.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.to_owned()));
    arguments
}

fn is_privileged(input: &RenderInput<'_>) -> bool {
    input.values.is_set("global.proxy.privileged")
}

fn redirection_rights(input: &RenderInput<'_>) -> Value {
    let privileged = is_privileged(input);
    let mut rights = if input.uses_cni() {
        json!({
            "allowPrivilegeEscalation": privileged, "privileged": privileged,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true, "runAsGroup": PROXY_ID, "runAsUser": PROXY_ID, "runAsNonRoot": true,
        })
    } else {
        json!({
            "allowPrivilegeEscalation": privileged, "privileged": privileged,
            "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
            "readOnlyRootFilesystem": false, "runAsGroup": 0, "runAsUser": 0, "runAsNonRoot": false,
        })
    };
    seccomp(&mut rights, input);
    rights
}

fn seccomp(rights: &mut Value, input: &RenderInput<'_>) {
    if input.values.is_set("global.proxy.seccompProfile")
        && let Some(profile) = input.values.at("global.proxy.seccompProfile")
    {
        object(rights).insert("seccompProfile".to_owned(), profile.clone());
    }
}

fn proxy(input: &RenderInput<'_>) -> Value {
    let mut arguments = parts::arguments("sidecar", input);
    if let Some(path) = input.values.given("global.proxy.outlierLogPath") {
        arguments.push(format!("--outlierLogPath={path}"));
    }
    let mut container = json!({
        "name": PROXY,
        "image": parts::image(input, "global.proxy.image", || input.proxy_image()),
        "ports": [{"containerPort": 15090, "protocol": "TCP", "name": "http-envoy-prom"}],
        "args": arguments,
        "env": environment(input),
        "securityContext": proxy_rights(input),
        "resources": parts::resources(input),
        "volumeMounts": mounts(input),
    });
    let map = object(&mut container);
    if input.is_native() {
        map.insert("restartPolicy".to_owned(), "Always".into());
    }
    if let Some(lifecycle) = lifecycle(input) {
        map.insert("lifecycle".to_owned(), lifecycle);
    }
    parts::pull_policy(map, input);
    if input.status_port() != "0" {
        probes(map, input);
    }
    container
}

fn lifecycle(input: &RenderInput<'_>) -> Option<Value> {
    if input.values.is_set("global.proxy.lifecycle") {
        return input.values.at("global.proxy.lifecycle").cloned();
    }
    if input.is_native() {
        let port = format!("--debug-port={}", input.status_port());
        let command = json!(["pilot-agent", "request", port, "POST", "drain"]);
        return Some(json!({"preStop": {"exec": {"command": command}}}));
    }
    input.holds_application().then(|| json!({"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}))
}

fn probes(container: &mut JsonMap, input: &RenderInput<'_>) {
    let request = json!({"path": "/healthz/ready", "port": 15021});
    if input.values.at("global.proxy.startupProbe.enabled").is_none_or(|on| *on == Value::Bool(true)) {
        let threshold = number(&input.values.text("global.proxy.startupProbe.failureThreshold", "600"));
        container.insert(
            "startupProbe".to_owned(),
            json!({
                "httpGet": request, "initialDelaySeconds": 0, "periodSeconds": 1, "timeoutSeconds": 3,
                "failureThreshold": threshold,
            }),
        );
    }
    container.insert("readinessProbe".to_owned(), readiness(input, 15021));
}

/// The readiness probe of the proxy, with times by annotation or value.
pub(super) fn readiness(input: &RenderInput<'_>, port: u16) -> Value {
    let time = |annotation: &str, field: &str, default: &str| {
        number(&input.setting(annotation, &format!("global.proxy.{field}"), default))
    };
    json!({
        "httpGet": {"path": "/healthz/ready", "port": port},
        "initialDelaySeconds": time(names::INITIAL_DELAY, "readinessInitialDelaySeconds", "0"),
        "periodSeconds": time(names::PERIOD, "readinessPeriodSeconds", "15"),
        "timeoutSeconds": 3,
        "failureThreshold": time(names::FAILURE_THRESHOLD, "readinessFailureThreshold", "4"),
    })
}

pub(super) fn number(text: &str) -> Value {
    text.trim().parse::<i64>().map_or_else(|_| Value::from(text), Value::from)
}

fn environment(input: &RenderInput<'_>) -> Vec<Value> {
    let mut env = EnvironmentList::default();
    if input.inbound_to_localhost() {
        env.value("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true");
    }
    parts::identity(&mut env, input);
    env.resource("ISTIO_CPU_LIMIT", "limits.cpu");
    parts::settings(&mut env, input);
    env.value("ISTIO_META_APP_CONTAINERS", input.applications().join(","));
    parts::limits(&mut env, input);
    parts::place(&mut env, input);
    let mode = input.annotation(names::INTERCEPTION_MODE).filter(|mode| !mode.is_empty());
    env.value("ISTIO_META_INTERCEPTION_MODE", mode.unwrap_or_else(|| input.mesh_interception_mode()));
    parts::network(&mut env, input);
    let name = input.label("service.istio.io/workload-name").filter(|name| !name.is_empty());
    parts::owner(&mut env, input, name.unwrap_or(&input.workload.name));
    parts::bootstrap_override(&mut env, input);
    parts::mesh(&mut env, input);
    if input.values.text("global.proxy.tracer", "") == "datadog"
        && let Some(text) = input.annotation("apm.datadoghq.com/env")
        && let Ok(Value::Object(variables)) = serde_json::from_str(text)
    {
        for (name, value) in variables {
            env.value(&name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
    }
    if let Some(attributes) = parts::otel_resource_attributes(input.mesh, input.pod, &input.workload.namespace) {
        env.value("OTEL_RESOURCE_ATTRIBUTES", attributes);
    }
    parts::proxy_metadata(&mut env, input);
    env.into_list()
}

fn proxy_rights(input: &RenderInput<'_>) -> Value {
    let mut rights = json!({
        "allowPrivilegeEscalation": is_privileged(input),
        "capabilities": {"drop": ["ALL"]},
        "privileged": is_privileged(input),
        "readOnlyRootFilesystem": true,
        "runAsGroup": PROXY_ID,
        "runAsNonRoot": true,
        "runAsUser": PROXY_ID,
    });
    let binds = input.setting(CAP_NET_BIND, "global.proxy.capNetBindService", "") == "true";
    let mut added = Vec::new();
    if input.metadata_is("IPTABLES_TRACE_LOGGING", "true") {
        added.push("NET_ADMIN");
        rights["allowPrivilegeEscalation"] = json!(true);
        rights["privileged"] = json!(true);
    } else {
        added.extend(input.is_tproxy().then_some("NET_ADMIN"));
        added.extend(binds.then_some("NET_BIND_SERVICE"));
    }
    if !added.is_empty() {
        rights["capabilities"]["add"] = json!(added);
        rights["runAsNonRoot"] = json!(false);
        rights["runAsUser"] = json!(0);
    }
    seccomp(&mut rights, input);
    rights
}

fn uses_lightstep<'a>(input: &RenderInput<'a>) -> Option<&'a str> {
    let tls = input.proxy_config.tracing.as_ref()?.tls_settings.as_ref()?;
    (input.values.text("global.proxy.tracer", "") == "lightstep").then_some(tls.ca_certificates.as_str())
}

fn mounts(input: &RenderInput<'_>) -> Vec<Value> {
    let revoked = parts::mount("istio-ca-crl", "/var/run/secrets/istio/crl");
    let mut mounts = parts::proxy_mounts(input, Some(revoked));
    if let Some(file) = uses_lightstep(input) {
        let folder = &file[..file.rfind('/').map_or(0, |at| at + 1)];
        mounts.push(parts::read_only_mount("lightstep-certs", folder));
    }
    mounts.extend(parts::user_entries(input, names::USER_VOLUME_MOUNT));
    mounts
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
    let list = input.values.given("pilot.crlConfigMapName");
    let list = list.as_deref().unwrap_or("istio-ca-crl");
    volumes.push(json!({"name": "istio-ca-crl", "configMap": {"name": list, "optional": true}}));
    volumes.extend(parts::mounted_certificates(input));
    volumes.extend(parts::user_entries(input, names::USER_VOLUME));
    if uses_lightstep(input).is_some() {
        let secret = json!({"optional": true, "secretName": "lightstep.cacert"});
        volumes.push(json!({"name": "lightstep-certs", "secret": secret}));
    }
    volumes
}
