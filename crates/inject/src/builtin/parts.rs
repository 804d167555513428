//! Parts that several built-in templates share: environment, volumes, mounts, resources, names.

use std::collections::BTreeMap;

use api::istio::mesh::v1alpha1::MeshConfig;
use api::istio::mesh::v1alpha1::mesh_config::extension_provider::{Provider, ServiceAttributeEnrichment};
use serde_json::{Value, json};

use super::input::RenderInput;
use crate::annotations;
use crate::pod::{self, ContainerList, JsonMap};
use crate::proxy_config;

pub(crate) const BOOTSTRAP_OVERRIDE: &str = "sidecar.istio.io/bootstrapOverride";
const PROXY_IMAGE: &str = "sidecar.istio.io/proxyImage";

/// Environment variables in order.
#[derive(Default)]
pub(crate) struct EnvironmentList(Vec<Value>);

impl EnvironmentList {
    pub(crate) fn value(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(json!({"name": name, "value": value.into()}));
    }

    pub(crate) fn field(&mut self, name: &str, path: &str) {
        self.0.push(json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    }

    pub(crate) fn resource(&mut self, name: &str, resource: &str) {
        let reference = json!({"resource": resource, "divisor": "1"});
        self.0.push(json!({"name": name, "valueFrom": {"resourceFieldRef": reference}}));
    }

    pub(crate) fn into_list(self) -> Vec<Value> {
        self.0
    }
}

/// Adds the first variables of every proxy: the pod's identity and the address of the CA.
pub(crate) fn identity(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    let values = input.values;
    env.value("PILOT_CERT_PROVIDER", values.text("global.pilotCertProvider", "istiod"));
    let suffix = values.given("revision").map(|revision| format!("-{revision}")).unwrap_or_default();
    let namespace = values.text("global.istioNamespace", "istio-system");
    let address = values.given("global.caAddress");
    env.value("CA_ADDR", address.unwrap_or_else(|| format!("istiod{suffix}.{namespace}.svc:15012")));
    env.field("POD_NAME", "metadata.name");
    env.field("POD_NAMESPACE", "metadata.namespace");
    env.field("INSTANCE_IP", "status.podIP");
    env.field("SERVICE_ACCOUNT", "spec.serviceAccountName");
    env.field("HOST_IP", "status.hostIP");
}

/// Adds variables with the proxy's settings and the application's ports.
pub(crate) fn settings(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    env.value("PROXY_CONFIG", proxy_config::without_defaults(input.proxy_config));
    let containers = pod::containers(input.pod, ContainerList::Containers).iter();
    let ports: Vec<&Value> = containers.filter_map(|c| c.get("ports")?.as_array()).flatten().collect();
    env.value("ISTIO_META_POD_PORTS", json!(ports).to_string());
}

/// Adds limits for the Go runtime of upstream's agent; ours ignores them.
pub(crate) fn limits(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    env.resource("GOMEMLIMIT", "limits.memory");
    env.resource("GOMAXPROCS", "limits.cpu");
    if !input.compliance_policy.is_empty() {
        env.value("COMPLIANCE_POLICY", input.compliance_policy);
        if input.compliance_policy == "fips-140-3" {
            env.value("GODEBUG", "fips140=only");
        }
    }
}

/// Adds variables with the cluster and node of the pod.
pub(crate) fn place(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    let cluster = input.values.given("global.multiCluster.clusterName");
    env.value("ISTIO_META_CLUSTER_ID", cluster.unwrap_or_else(|| "Kubernetes".to_owned()));
    env.field("ISTIO_META_NODE_NAME", "spec.nodeName");
}

pub(crate) fn network(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    if let Some(network) = input.values.given("global.network") {
        env.value("ISTIO_META_NETWORK", network);
    }
}

/// Adds variables with the name and owner of the workload.
pub(crate) fn owner(env: &mut EnvironmentList, input: &RenderInput<'_>, name: &str) {
    if !name.is_empty() {
        env.value("ISTIO_META_WORKLOAD_NAME", name);
    }
    let workload = input.workload;
    if !workload.api_version.is_empty() && !workload.name.is_empty() {
        let namespace = if workload.namespace.is_empty() { "default" } else { &workload.namespace };
        let kind = workload.kind.to_lowercase();
        let (version, name) = (&workload.api_version, &workload.name);
        env.value("ISTIO_META_OWNER", format!("kubernetes://apis/{version}/namespaces/{namespace}/{kind}s/{name}"));
    }
}

pub(crate) fn bootstrap_override(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    if input.annotation(BOOTSTRAP_OVERRIDE).is_some() {
        env.value("ISTIO_BOOTSTRAP_OVERRIDE", "/etc/istio/custom-bootstrap/custom_bootstrap.json");
    }
}

/// Adds variables with the mesh and its trust domain.
pub(crate) fn mesh(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    let domain = input.trust_domain();
    let id = input.values.given("global.meshID").unwrap_or_else(|| domain.clone());
    if !id.is_empty() {
        env.value("ISTIO_META_MESH_ID", id);
    }
    if !domain.is_empty() {
        env.value("TRUST_DOMAIN", domain);
    }
}

pub(crate) fn proxy_metadata(env: &mut EnvironmentList, input: &RenderInput<'_>) {
    for (name, value) in &input.proxy_config.proxy_metadata {
        env.value(name, value);
    }
}

/// Arguments that all proxies share.
pub(crate) fn arguments(role: &str, input: &RenderInput<'_>) -> Vec<String> {
    let values = input.values;
    let domain = values.text("global.proxy.clusterDomain", "cluster.local");
    let level = input.setting("sidecar.istio.io/logLevel", "global.proxy.logLevel", "warning");
    let components =
        input.setting("sidecar.istio.io/componentLogLevel", "global.proxy.componentLogLevel", "misc:error");
    let mut arguments = vec![
        "proxy".to_owned(),
        role.to_owned(),
        "--domain".to_owned(),
        format!("$(POD_NAMESPACE).svc.{domain}"),
        format!("--proxyLogLevel={level}"),
        format!("--proxyComponentLogLevel={components}"),
        log_output_level(input),
    ];
    if values.is_set("global.sts.servicePort") {
        arguments.push(format!("--stsPort={}", values.text("global.sts.servicePort", "")));
    }
    if values.is_set("global.logAsJson") {
        arguments.push("--log_as_json".to_owned());
    }
    arguments
}

pub(crate) fn log_output_level(input: &RenderInput<'_>) -> String {
    let level = input.setting("sidecar.istio.io/agentLogLevel", "global.logging.level", "default:info");
    format!("--log_output_level={level}")
}

/// The image of a container. An annotation or value with a slash is a whole reference and used unchanged.
pub(crate) fn image(input: &RenderInput<'_>, path: &str, default: impl Fn() -> String) -> String {
    let given = input.setting(PROXY_IMAGE, path, "");
    if given.contains('/') { given } else { default() }
}

/// Adds the pull policy of the values.
pub(crate) fn pull_policy(container: &mut JsonMap, input: &RenderInput<'_>) {
    if let Some(policy) = input.values.given("global.imagePullPolicy") {
        container.insert("imagePullPolicy".to_owned(), policy.into());
    }
}

/// Requests and limits: by annotations, else those of the values.
pub(crate) fn resources(input: &RenderInput<'_>) -> Value {
    let quantities = |cpu: &str, memory: &str| {
        let given = [("cpu", input.annotation(cpu)), ("memory", input.annotation(memory))];
        let given = given.into_iter().filter_map(|(name, text)| Some((name.to_owned(), Value::from(text?))));
        given.collect::<JsonMap>()
    };
    let requests = quantities(annotations::PROXY_CPU, annotations::PROXY_MEMORY);
    let limits = quantities(annotations::PROXY_CPU_LIMIT, annotations::PROXY_MEMORY_LIMIT);
    if requests.is_empty() && limits.is_empty() {
        return input.values.at("global.proxy.resources").and_then(without_nulls).unwrap_or_else(|| json!({}));
    }
    let mut resources = JsonMap::new();
    for (name, quantities) in [("requests", requests), ("limits", limits)] {
        if !quantities.is_empty() {
            resources.insert(name.to_owned(), Value::Object(quantities));
        }
    }
    Value::Object(resources)
}

/// A value without nulls, and without maps and lists that have only nulls.
pub(crate) fn without_nulls(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) => {
            let kept: JsonMap = map.iter().filter_map(|(k, v)| Some((k.clone(), without_nulls(v)?))).collect();
            (map.is_empty() || !kept.is_empty()).then_some(Value::Object(kept))
        }
        Value::Array(list) => {
            let kept: Vec<Value> = list.iter().filter_map(without_nulls).collect();
            (list.is_empty() || !kept.is_empty()).then_some(Value::Array(kept))
        }
        other => Some(other.clone()),
    }
}

/// Canonical name and revision of the workload. Upstream shortens the name for sidecars only.
pub(crate) fn canonical_labels(input: &RenderInput<'_>, shorten: bool) -> JsonMap {
    let first = |names: &[&str]| {
        names.iter().filter_map(|name| input.label(name)).find(|text| !text.is_empty()).map(str::to_owned)
    };
    let name = first(&["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"])
        .unwrap_or_else(|| input.workload.name.clone());
    let name = if shorten {
        let cut: String = name.chars().take(63).collect();
        cut.trim_matches(['-', '_', '.']).to_owned()
    } else {
        name
    };
    let revision = first(&["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"])
        .unwrap_or_else(|| "latest".to_owned());
    let labels = [("service.istio.io/canonical-name", name), ("service.istio.io/canonical-revision", revision)];
    labels.into_iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect()
}

/// Revision, and the container that kubectl uses by default.
pub(crate) fn common_annotations(input: &RenderInput<'_>) -> JsonMap {
    let mut annotations = JsonMap::new();
    let revision = if input.revision.is_empty() { "default" } else { input.revision };
    annotations.insert("istio.io/rev".to_owned(), revision.into());
    if let Some(first) = input.applications().first() {
        for name in ["kubectl.kubernetes.io/default-logs-container", "kubectl.kubernetes.io/default-container"] {
            if input.annotation(name).is_none() {
                annotations.insert(name.to_owned(), (*first).into());
            }
        }
    }
    annotations
}

pub(crate) fn uses_gke_certificates(input: &RenderInput<'_>) -> bool {
    input.values.text("global.caName", "") == "GkeWorkloadCertificate"
}

pub(crate) fn uses_istiod_certificates(input: &RenderInput<'_>) -> bool {
    input.values.text("global.pilotCertProvider", "istiod") == "istiod"
}

pub(crate) fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path})
}

pub(crate) fn read_only_mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path, "readOnly": true})
}

/// Mount of the certificates that another provider writes.
pub(crate) fn workload_certificates_mount(input: &RenderInput<'_>) -> Value {
    const PATH: &str = "/var/run/secrets/workload-spiffe-credentials";
    if uses_gke_certificates(input) {
        read_only_mount("gke-workload-certificate", PATH)
    } else {
        mount("workload-certs", PATH)
    }
}

/// Volume of the certificates that another provider writes.
pub(crate) fn workload_certificates_volume(input: &RenderInput<'_>) -> Value {
    if uses_gke_certificates(input) {
        let driver = json!({"driver": "workloadcertificates.security.cloud.google.com"});
        json!({"name": "gke-workload-certificate", "csi": driver})
    } else {
        empty_dir("workload-certs")
    }
}

pub(crate) fn empty_dir(name: &str) -> Value {
    json!({"name": name, "emptyDir": {}})
}

pub(crate) fn memory_dir(name: &str) -> Value {
    json!({"name": name, "emptyDir": {"medium": "Memory"}})
}

/// Labels and annotations of the pod as files.
pub(crate) fn pod_info() -> Value {
    let item = |name: &str| json!({"path": name, "fieldRef": {"fieldPath": format!("metadata.{name}")}});
    json!({"name": "istio-podinfo", "downwardAPI": {"items": [item("labels"), item("annotations")]}})
}

/// The token with which the agent asks for a certificate.
pub(crate) fn token(input: &RenderInput<'_>) -> Value {
    let audience = input.values.text("global.sds.token.aud", "istio-ca");
    let token = json!({"path": "istio-token", "expirationSeconds": 43200, "audience": audience});
    json!({"name": "istio-token", "projected": {"sources": [{"serviceAccountToken": token}]}})
}

/// The root certificate of the control plane.
pub(crate) fn root_certificate(input: &RenderInput<'_>) -> Value {
    let bundle = input.values.given("global.trustBundleName");
    let by_bundle = input.values.at("pilot.env.ENABLE_CLUSTER_TRUST_BUNDLE_API") == Some(&Value::Bool(true));
    if by_bundle {
        let name = format!("istio.io:istiod-ca:{}", bundle.as_deref().unwrap_or("root-cert"));
        let source = json!({"clusterTrustBundle": {"name": name, "path": "root-cert.pem"}});
        return json!({"name": "istiod-ca-cert", "projected": {"sources": [source]}});
    }
    json!({"name": "istiod-ca-cert", "configMap": {"name": bundle.as_deref().unwrap_or("istio-ca-root-cert")}})
}

/// Certificates from a Secret of the service account.
pub(crate) fn mounted_certificates(input: &RenderInput<'_>) -> Option<Value> {
    if !input.values.is_set("global.mountMtlsCerts") {
        return None;
    }
    let account = input.pod.pointer("/spec/serviceAccountName").and_then(Value::as_str).filter(|name| !name.is_empty());
    let secret = format!("istio.{}", account.unwrap_or("default"));
    Some(json!({"name": "istio-certs", "secret": {"optional": true, "secretName": secret}}))
}

pub(crate) fn bootstrap_volume(input: &RenderInput<'_>) -> Option<Value> {
    let name = input.annotation(BOOTSTRAP_OVERRIDE)?;
    Some(json!({"name": "custom-bootstrap-volume", "configMap": {"name": name}}))
}

/// Volumes or mounts of the user, from an annotation with a JSON map by name.
pub(crate) fn user_entries(input: &RenderInput<'_>, annotation: &str) -> Vec<Value> {
    let Some(text) = input.annotation(annotation) else { return Vec::new() };
    let Ok(entries) = serde_json::from_str::<BTreeMap<String, Value>>(text) else { return Vec::new() };
    let named = |(name, value): (String, Value)| {
        let mut entry = JsonMap::from_iter([("name".to_owned(), Value::from(name))]);
        entry.extend(value.as_object().cloned().unwrap_or_default());
        Value::Object(entry)
    };
    entries.into_iter().map(named).collect()
}

pub(crate) fn pull_secrets(spec: &mut JsonMap, input: &RenderInput<'_>) {
    let Some(Value::Array(names)) = input.values.at("global.imagePullSecrets") else { return };
    if !names.is_empty() {
        let secrets: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        spec.insert("imagePullSecrets".to_owned(), secrets.into());
    }
}

/// The excluded inbound ports, with the status port added.
pub(crate) fn exclude_inbound_port(port: &str, excluded: &str) -> String {
    let port = port.trim();
    if port.is_empty() || port == "0" || excluded.split(',').any(|known| known == port) {
        return excluded.to_owned();
    }
    let known = excluded.split(',').map(str::trim).filter(|known| !known.is_empty());
    known.chain([port]).collect::<Vec<_>>().join(",")
}

/// The networks of a pod for Multus, with the network of the CNI plug-in added.
pub(crate) fn append_multus_network(existing: &str, network: &str) -> String {
    if existing.is_empty() {
        return network.to_owned();
    }
    let Some(end) = existing.rfind(']') else {
        if existing.split(',').any(|known| known.trim() == network) {
            return existing.to_owned();
        }
        return format!("{existing}, {network}");
    };
    let Ok(known) = serde_json::from_str::<Vec<JsonMap>>(existing) else { return existing.to_owned() };
    let (namespace, name) = network.rsplit_once('/').unwrap_or(("", network));
    let text = |entry: &JsonMap, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if known.iter().any(|entry| text(entry, "name") == name && text(entry, "namespace") == namespace) {
        return existing.to_owned();
    }
    let entry =
        if namespace.is_empty() { json!({ "name": name }) } else { json!({"name": name, "namespace": namespace}) };
    let separator = if known.is_empty() { "" } else { ", " };
    format!("{}{separator}{entry}{}", &existing[..end], &existing[end..])
}

/// `OTEL_RESOURCE_ATTRIBUTES`, if a tracing provider asks for them.
pub(crate) fn otel_resource_attributes(mesh: &MeshConfig, pod: &Value, namespace: &str) -> Option<String> {
    let asks = mesh.extension_providers.iter().any(|provider| {
        matches!(&provider.provider, Some(Provider::Opentelemetry(otel))
            if otel.service_attribute_enrichment == i32::from(ServiceAttributeEnrichment::OtelSemanticConventions))
    });
    if !asks {
        return None;
    }
    let annotation =
        |name: &str| pod::annotation(pod, &format!("resource.opentelemetry.io/{name}")).filter(|text| !text.is_empty());
    let containers = pod::containers(pod, ContainerList::Containers);
    let mut attributes = Vec::new();
    if let Some(namespace) = annotation("service.namespace").or((!namespace.is_empty()).then_some(namespace)) {
        attributes.push(format!("service.namespace={namespace}"));
    }
    let label = || pod::label(pod, "app.kubernetes.io/version").filter(|text| !text.is_empty()).map(str::to_owned);
    let image = || match containers {
        [only] => image_version(pod::text(only, "image")),
        _ => None,
    };
    if let Some(version) = annotation("service.version").map(str::to_owned).or_else(label).or_else(image) {
        attributes.push(format!("service.version={version}"));
    }
    if let Some(id) = annotation("service.instance.id") {
        attributes.push(format!("service.instance.id={id}"));
    } else if let Some(first) = containers.first() {
        attributes.push(format!("service.instance.id={namespace}.$(POD_NAME).{}", pod::text(first, "name")));
    }
    Some(attributes.join(",")).filter(|text| !text.is_empty())
}

/// Tag and digest of an image reference.
fn image_version(image: &str) -> Option<String> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = last.rsplit_once(':').map(|(_, tag)| tag);
    match (tag, digest) {
        (Some(tag), Some(digest)) => Some(format!("{tag}@{digest}")),
        (one, other) => one.or(other).map(str::to_owned),
    }
}

/// The volume mounts of every proxy container. `revoked` is mounted next to the certificates of istiod.
pub(super) fn proxy_mounts(input: &RenderInput<'_>, revoked: Option<Value>) -> Vec<Value> {
    let mut mounts = vec![
        mount("workload-socket", "/var/run/secrets/workload-spiffe-uds"),
        mount("credential-socket", "/var/run/secrets/credential-uds"),
        workload_certificates_mount(input),
    ];
    if uses_istiod_certificates(input) {
        mounts.push(mount("istiod-ca-cert", "/var/run/secrets/istio"));
        mounts.extend(revoked);
    }
    mounts.push(mount("istio-data", "/var/lib/istio/data"));
    if input.annotation(BOOTSTRAP_OVERRIDE).is_some() {
        mounts.push(mount("custom-bootstrap-volume", "/etc/istio/custom-bootstrap"));
    }
    mounts.push(mount("istio-envoy", "/etc/istio/proxy"));
    mounts.push(mount("istio-token", "/var/run/secrets/tokens"));
    if input.values.is_set("global.mountMtlsCerts") {
        mounts.push(read_only_mount("istio-certs", "/etc/certs/"));
    }
    mounts.push(mount("istio-podinfo", "/etc/istio/pod"));
    mounts
}

#[cfg(test)]
mod tests {
    use super::{append_multus_network, exclude_inbound_port, image_version};

    #[test]
    fn the_status_port_is_excluded_once() {
        for (port, excluded, expected) in [
            ("15020", "", "15020"),
            ("15020", "80", "80,15020"),
            ("15020", "80, 15021", "80,15021,15020"),
            ("15020", "15020,4", "15020,4"),
            ("0", "7", "7"),
        ] {
            assert_eq!(exclude_inbound_port(port, excluded), expected);
        }
    }

    #[test]
    fn the_network_of_the_plug_in_is_added_once() {
        for (existing, expected) in [
            ("", "default/istio-cni"),
            ("a", "a, default/istio-cni"),
            ("a, default/istio-cni", "a, default/istio-cni"),
            (r#"[{"name":"a"}]"#, r#"[{"name":"a"}, {"name":"istio-cni","namespace":"default"}]"#),
            (r#"[{"name":"istio-cni","namespace":"default"}]"#, r#"[{"name":"istio-cni","namespace":"default"}]"#),
            ("]broken", "]broken"),
        ] {
            assert_eq!(append_multus_network(existing, "default/istio-cni"), expected);
        }
    }

    #[test]
    fn the_version_of_an_image_is_its_tag_and_digest() {
        for (image, expected) in [
            ("nginx", None),
            ("host:5000/nginx", None),
            ("host:5000/nginx:1", Some("1")),
            ("nginx@sha256:ab", Some("sha256:ab")),
            ("nginx:1@sha256:ab", Some("1@sha256:ab")),
        ] {
            assert_eq!(image_version(image).as_deref(), expected);
        }
    }
}
