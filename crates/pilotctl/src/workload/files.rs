//! The files of a workload outside Kubernetes, in upstream's format: settings of the agent, environment of its start
//! script, roots, token and host names.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// What the files are made from.
pub(super) struct MachineInputs<'a> {
    /// The WorkloadGroup as a document.
    pub(super) group: &'a Value,
    /// The mesh config as a document.
    pub(super) mesh: &'a Value,
    pub(super) roots: &'a str,
    pub(super) token: &'a str,
    pub(super) cluster_id: &'a str,
    pub(super) istio_namespace: &'a str,
    pub(super) revision: &'a str,
    /// Address of the gateway that leads to the control plane.
    pub(super) gateway: Option<&'a str>,
    /// Address of the machine; empty if it finds out itself.
    pub(super) address: &'a str,
    pub(super) registers: bool,
    pub(super) captures_dns: bool,
}

/// One file: name, text, and whether only its owner may read it.
pub(super) type MachineFile = (&'static str, String, bool);

/// All files.
pub(super) fn files(inputs: &MachineInputs<'_>) -> Result<Vec<MachineFile>> {
    let metadata = proxy_metadata(inputs);
    Ok(vec![
        ("mesh.yaml", mesh_file(inputs, &metadata)?, false),
        ("cluster.env", environment(inputs, &metadata), false),
        ("root-cert.pem", inputs.roots.to_owned(), false),
        ("istio-token", inputs.token.to_owned(), true),
        ("hosts", hosts(inputs), false),
    ])
}

fn text<'a>(document: &'a Value, pointer: &str) -> &'a str {
    document.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

/// `istiod[-revision].namespace.svc`.
fn control_plane(inputs: &MachineInputs<'_>) -> String {
    let revision = match inputs.revision {
        "" | "default" => String::new(),
        revision => format!("-{revision}"),
    };
    format!("istiod{revision}.{}.svc", inputs.istio_namespace)
}

fn labels(inputs: &MachineInputs<'_>) -> BTreeMap<String, String> {
    let of = |pointer: &str| inputs.group.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    let all = of("/spec/template/labels").chain(of("/spec/metadata/labels"));
    all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn ports(inputs: &MachineInputs<'_>) -> BTreeMap<String, u64> {
    let ports = inputs.group.pointer("/spec/template/ports").and_then(Value::as_object).into_iter().flatten();
    ports.filter_map(|(name, port)| Some((name.clone(), port.as_u64()?))).collect()
}

fn proxy_metadata(inputs: &MachineInputs<'_>) -> BTreeMap<String, String> {
    let (group, labels) = (inputs.group, labels(inputs));
    let name = text(group, "/metadata/name");
    let label = |names: &[&str], default: &str| {
        let found = names.iter().find_map(|name| labels.get(*name));
        found.map_or(default, String::as_str).to_owned()
    };
    let service = label(&["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"], name);
    let revision = label(&["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"], "latest");
    let trust_domain = or(text(inputs.mesh, "/trustDomain"), "cluster.local");
    let mesh_id = or(text(inputs.mesh, "/defaultConfig/meshId"), trust_domain);
    let pod_ports: Vec<Value> = ports(inputs)
        .into_iter()
        .map(|(name, port)| json!({"name": name, "containerPort": port, "protocol": ""}))
        .collect();
    let mut metadata = BTreeMap::from(
        [
            ("CANONICAL_SERVICE", service),
            ("CANONICAL_REVISION", revision),
            ("POD_NAMESPACE", text(group, "/metadata/namespace").to_owned()),
            ("SERVICE_ACCOUNT", or(text(group, "/spec/template/serviceAccount"), "default").to_owned()),
            ("TRUST_DOMAIN", trust_domain.to_owned()),
            ("ISTIO_META_CLUSTER_ID", inputs.cluster_id.to_owned()),
            ("ISTIO_META_MESH_ID", mesh_id.to_owned()),
            ("ISTIO_META_NETWORK", text(group, "/spec/template/network").to_owned()),
            ("ISTIO_META_POD_PORTS", json!(pod_ports).to_string()),
            ("ISTIO_META_WORKLOAD_NAME", name.to_owned()),
            ("ISTIO_METAJSON_LABELS", json!(labels).to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let given = inputs.mesh.pointer("/defaultConfig/proxyMetadata").and_then(Value::as_object).into_iter().flatten();
    metadata.extend(given.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))));
    if inputs.captures_dns {
        metadata.insert("ISTIO_META_DNS_CAPTURE".to_owned(), "true".to_owned());
    }
    if inputs.registers {
        metadata.insert("ISTIO_META_AUTO_REGISTER_GROUP".to_owned(), name.to_owned());
    }
    metadata
}

/// The mesh config with this workload's part.
fn mesh_file(inputs: &MachineInputs<'_>, metadata: &BTreeMap<String, String>) -> Result<String> {
    let mut config = inputs.mesh.pointer("/defaultConfig").and_then(Value::as_object).cloned().unwrap_or_default();
    config.insert("proxyMetadata".to_owned(), json!(metadata));
    if !matches!(inputs.revision, "" | "default") || !config.contains_key("discoveryAddress") {
        config.insert("discoveryAddress".to_owned(), json!(format!("{}:15012", control_plane(inputs))));
    }
    if let Some(probe) = inputs.group.pointer("/spec/probe").filter(|probe| !probe.is_null()) {
        config.insert("readinessProbe".to_owned(), probe.clone());
    }
    let file: Map<String, Value> = Map::from_iter([("defaultConfig".to_owned(), config.into())]);
    serde_saphyr::to_string(&file).context("could not write mesh.yaml")
}

/// `KEY='value'` for each variable, sorted.
fn environment(inputs: &MachineInputs<'_>, metadata: &BTreeMap<String, String>) -> String {
    let (name, namespace) = (text(inputs.group, "/metadata/name"), text(inputs.group, "/metadata/namespace"));
    let numbers: Vec<String> = ports(inputs).values().map(u64::to_string).collect();
    let mut variables = metadata.clone();
    for (key, value) in [
        ("ISTIO_INBOUND_PORTS", or(&numbers.join(","), "*").to_owned()),
        ("ISTIO_NAMESPACE", namespace.to_owned()),
        ("ISTIO_SERVICE", format!("{name}.{namespace}")),
        ("ISTIO_SERVICE_CIDR", "*".to_owned()),
        ("ISTIO_LOCAL_EXCLUDE_PORTS", "22,15090,15021,15020".to_owned()),
        ("ISTIO_SVC_IP", inputs.address.to_owned()),
    ] {
        if !value.is_empty() {
            variables.insert(key.to_owned(), value);
        }
    }
    if !matches!(inputs.revision, "" | "default") {
        variables.insert("CA_ADDR".to_owned(), format!("{}:15012", control_plane(inputs)));
    }
    // The file is read by a shell.
    let quoted = |value: &String| value.replace('\'', "'\\''");
    variables.iter().map(|(key, value)| format!("{key}='{}'\n", quoted(value))).collect()
}

fn hosts(inputs: &MachineInputs<'_>) -> String {
    inputs.gateway.map(|gateway| format!("{gateway} {}\n", control_plane(inputs))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::{MachineInputs, files};

    fn made(revision: &str) -> BTreeMap<&'static str, (String, bool)> {
        let group = json!({
            "metadata": {"name": "cart", "namespace": "shop"},
            "spec": {"metadata": {"labels": {"app": "it's", "version": "v2"}},
                "template": {"serviceAccount": "keeper", "network": "n1", "ports": {"http": 8080, "grpc": 9000}},
                "probe": {"httpGet": {"port": 8080}}},
        });
        let mesh = json!({"trustDomain": "td", "defaultConfig": {"proxyMetadata": {"A": "b"}, "concurrency": 3}});
        let inputs = MachineInputs {
            group: &group,
            mesh: &mesh,
            roots: "roots",
            token: "token",
            cluster_id: "Kubernetes",
            istio_namespace: "istio-system",
            revision,
            gateway: Some("192.0.2.1"),
            address: "",
            registers: true,
            captures_dns: true,
        };
        files(&inputs).unwrap().into_iter().map(|(name, text, is_private)| (name, (text, is_private))).collect()
    }

    #[test]
    fn files_are_upstreams() {
        let files = made("");
        let names: Vec<_> = files.iter().map(|(name, (_, is_private))| (*name, *is_private)).collect();
        let expected = [
            ("cluster.env", false),
            ("hosts", false),
            ("istio-token", true),
            ("mesh.yaml", false),
            ("root-cert.pem", false),
        ];
        assert_eq!(names, expected);
        assert_eq!(files["hosts"].0, "192.0.2.1 istiod.istio-system.svc\n");
        let mesh: Value = serde_saphyr::from_str(&files["mesh.yaml"].0).unwrap();
        let config = &mesh["defaultConfig"];
        assert_eq!(config["discoveryAddress"], "istiod.istio-system.svc:15012");
        assert_eq!((&config["concurrency"], &config["readinessProbe"]["httpGet"]["port"]), (&json!(3), &json!(8080)));
        let metadata = &config["proxyMetadata"];
        for (key, value) in [
            ("A", "b"),
            ("CANONICAL_SERVICE", "it's"),
            ("CANONICAL_REVISION", "v2"),
            ("ISTIO_META_AUTO_REGISTER_GROUP", "cart"),
            ("ISTIO_META_MESH_ID", "td"),
            ("SERVICE_ACCOUNT", "keeper"),
        ] {
            assert_eq!(metadata[key], value, "{key}");
        }
    }

    #[test]
    fn the_environment_is_sorted_and_quoted() {
        let text = &made("canary")["cluster.env"].0;
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.is_sorted_by_key(|line| line.split('=').next()), "{text}");
        for line in [
            "CA_ADDR='istiod-canary.istio-system.svc:15012'",
            "CANONICAL_SERVICE='it'\\''s'",
            "ISTIO_INBOUND_PORTS='9000,8080'",
            "ISTIO_SERVICE='cart.shop'",
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
    }
}
