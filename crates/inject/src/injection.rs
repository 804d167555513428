//! The injection of one pod: render → merge → finish.

use std::collections::BTreeMap;

use api::istio::mesh::v1alpha1::{MeshConfig, ProxyConfig};
use serde_json::{Value, json};

use crate::annotations::{self, REWRITE_PROBES, STATUS_PORT, TEMPLATES, boolean};
use crate::builtin::{self, RenderInput};
use crate::config::InjectorConfig;
use crate::error::InjectError;
use crate::merge::merge;
use crate::overrides::{self, StrippedPod};
use crate::pod::{self, ContainerList, JsonMap};
use crate::values::ChartValues;
use crate::workload::Workload;
use crate::{finish, gotemplate, probes, prometheus, yaml};

pub(crate) const NETWORK_LABEL: &str = "topology.istio.io/network";
const CLUSTER: &str = "ISTIO_META_CLUSTER_ID";
const NETWORK: &str = "ISTIO_META_NETWORK";

/// Settings of the mesh that all injections share.
#[derive(Clone, Copy, Debug)]
pub struct MeshInputs<'a> {
    /// The injector's configuration.
    pub config: &'a InjectorConfig,
    /// The chart's values.
    pub values: &'a ChartValues,
    /// The mesh config.
    pub mesh: &'a MeshConfig,
    /// Revision of this control plane.
    pub revision: &'a str,
    /// `COMPLIANCE_POLICY` of this control plane.
    pub compliance_policy: &'a str,
    /// Environment variables that custom templates may read.
    pub environment: &'a BTreeMap<String, String>,
}

/// Inputs of one injection.
#[derive(Clone, Debug)]
pub struct InjectionInput<'a> {
    /// Settings of the mesh.
    pub shared: MeshInputs<'a>,
    /// Metadata and spec of the pod.
    pub pod: &'a Value,
    /// The workload that it belongs to.
    pub workload: Workload,
    /// The proxy's settings, as `proxy_config::effective` merges them.
    pub proxy_config: ProxyConfig,
    /// Whether the proxy is a native sidecar, unless the pod's annotation says otherwise.
    pub native: bool,
    /// Variables of the proxy that the webhook's path names.
    pub variables: BTreeMap<String, String>,
    /// Whether `kube-inject` runs and not the webhook: then default templates, aliases and injected annotations are ignored.
    pub by_hand: bool,
}

/// An injected pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Injection {
    /// The pod with its proxy.
    pub pod: Value,
    /// Parts of the pod that were left unchanged, with the cause.
    pub warnings: Vec<String>,
}

/// Injects a pod.
pub fn inject(input: &InjectionInput<'_>) -> Result<Injection, InjectError> {
    if !input.pod.get("spec").is_some_and(Value::is_object) {
        return Err(InjectError::Pod("it has no spec".to_owned()));
    }
    check_annotations(input.pod)?;
    let user = overrides::strip(input.pod)?;
    let (mut merged, template) = render(input, &user)?;
    overrides::reapply(&mut merged, &user, &template);
    let is_tproxy = render_input(input, &user.pod).is_tproxy();
    overrides::apply_proxy_user(&mut merged, &user.pod, is_tproxy);
    let warnings = finish(input, &user, &template, &mut merged)?;
    Ok(Injection { pod: merged, warnings })
}

/// Checks the values of the pod's annotations.
pub(crate) fn check_annotations(pod: &Value) -> Result<(), InjectError> {
    let Some(Value::Object(given)) = pod.pointer("/metadata/annotations") else { return Ok(()) };
    match annotations::problems(given) {
        problems if problems.is_empty() => Ok(()),
        problems => Err(InjectError::Annotations(problems)),
    }
}

fn render_input<'a>(input: &'a InjectionInput<'a>, pod: &'a Value) -> RenderInput<'a> {
    RenderInput {
        pod,
        workload: &input.workload,
        proxy_config: &input.proxy_config,
        mesh: input.shared.mesh,
        values: input.shared.values,
        revision: input.shared.revision,
        native: input.native,
        compliance_policy: input.shared.compliance_policy,
        environment: input.shared.environment,
    }
}

/// The user's pod with all templates merged over it, and the templates alone.
fn render(input: &InjectionInput<'_>, user: &StrippedPod) -> Result<(Value, Value), InjectError> {
    // Annotations that point at the agent are of the earlier injection.
    let mut seen = user.pod.clone();
    if user.was_injected && prometheus::points_at_agent(&seen, input.proxy_config.status_port) {
        prometheus::clear(&mut seen);
    }
    let data = render_input(input, &seen);
    let (mut merged, mut template) = (user.pod.clone(), json!({}));
    let native_rendering = data.is_native();
    for name in templates(input) {
        let rendered = render_template(input.shared.config, &name, &data)?;
        merge(pod::object(&mut template), rendered.clone());
        if native_rendering {
            overrides::move_native_proxy(&mut merged, &template);
        }
        merge(pod::object(&mut merged), rendered);
    }
    check_shape(&merged)?;
    Ok((merged, template))
}

/// Names of the pod's templates.
fn templates(input: &InjectionInput<'_>) -> Vec<String> {
    let config = input.shared.config;
    let names: Vec<String> = match pod::annotation(input.pod, TEMPLATES) {
        Some(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        None if input.by_hand => vec!["sidecar".to_owned()],
        None => config.default_templates.clone(),
    };
    if input.by_hand {
        return names;
    }
    let expanded = |name: String| config.aliases.get(&name).cloned().unwrap_or_else(|| vec![name]);
    names.into_iter().flat_map(expanded).collect()
}

fn render_template(config: &InjectorConfig, name: &str, data: &RenderInput<'_>) -> Result<JsonMap, InjectError> {
    let failed = |reason: String| InjectError::Template { name: name.to_owned(), reason };
    match config.templates.get(name) {
        Some(Err(reason)) => Err(failed(reason.clone())),
        Some(Ok(template)) => {
            let text = gotemplate::run(template, data).map_err(|error| failed(error.to_string()))?;
            match yaml::read(&text).map_err(|reason| failed(format!("its output is not YAML: {reason}")))? {
                Value::Object(map) => Ok(map),
                Value::Null => Ok(JsonMap::new()),
                _ => Err(failed("its output is not a map".to_owned())),
            }
        }
        None => builtin::render(name, data).ok_or_else(|| {
            let custom = config.templates.keys().map(String::as_str);
            let mut known: Vec<&str> = builtin::NAMES.iter().copied().chain(custom).collect();
            known.sort_unstable();
            known.dedup();
            InjectError::UnknownTemplate { name: name.to_owned(), known: known.join(", ") }
        }),
    }
}

/// An error if the rendered pod has a form that no API server accepts.
fn check_shape(pod: &Value) -> Result<(), InjectError> {
    let bad = |what: String| Err(InjectError::Pod(format!("after merging the templates, {what}")));
    for kind in ["labels", "annotations"] {
        let marks = pod.pointer(&format!("/metadata/{kind}")).and_then(Value::as_object);
        if let Some((name, _)) = marks.into_iter().flatten().find(|(_, value)| !value.is_string()) {
            return bad(format!("{name} in metadata.{kind} is not a string"));
        }
    }
    for list in ContainerList::BOTH {
        for container in pod::containers(pod, list) {
            let name = pod::text(container, "name");
            if name.is_empty() {
                return bad(format!("an entry of spec.{} has no name", list.field()));
            }
            for field in ["args", "command"] {
                let texts = container.get(field).and_then(Value::as_array);
                if texts.into_iter().flatten().any(|text| !text.is_string()) {
                    return bad(format!("{field} of container {name} are not all strings"));
                }
            }
            let env = container.get("env").and_then(Value::as_array).into_iter().flatten();
            if let Some(entry) = env.into_iter().find(|e| e.get("value").is_some_and(|value| !value.is_string())) {
                return bad(format!("variable {} of container {name} is not a string", pod::text(entry, "name")));
            }
        }
    }
    Ok(())
}

fn finish(
    input: &InjectionInput<'_>,
    user: &StrippedPod,
    template: &Value,
    merged: &mut Value,
) -> Result<Vec<String>, InjectError> {
    let variables = variables(input);
    finish::set_environment(merged, &variables);
    let merges = input.shared.mesh.enable_prometheus_merge.unwrap_or(true);
    prometheus::apply(merged, user, merges, input.proxy_config.status_port)?;
    prometheus::apply_secure_port(merged);
    let mut warnings = Vec::new();
    let rewrites = pod::annotation(merged, REWRITE_PROBES).and_then(boolean);
    if rewrites.unwrap_or_else(|| input.shared.values.is_set("sidecarInjectorWebhook.rewriteAppHTTPProbe")) {
        let port = pod::annotation(merged, STATUS_PORT).and_then(|text| text.trim().parse().ok());
        let port = port.or_else(|| u16::try_from(input.proxy_config.status_port).ok()).unwrap_or_default();
        warnings = probes::rewrite(merged, &user.earlier_proxy, port);
    }
    if let Some(network) = variables.get(NETWORK) {
        pod::marks_mut(merged, "labels").insert(NETWORK_LABEL.to_owned(), network.as_str().into());
    }
    finish::set_status(merged, template, input.shared.revision);
    if !input.by_hand {
        let given = input.shared.config.injected_annotations.iter();
        let given = given.map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        pod::marks_mut(merged, "annotations").extend(given);
    }
    finish::order(merged, render_input(input, &user.pod).holds_application());
    Ok(warnings)
}

/// Cluster and network: the pod's label, the webhook's path, the values; and the path's other variables.
fn variables(input: &InjectionInput<'_>) -> BTreeMap<String, String> {
    let mut variables = input.variables.clone();
    let values = input.shared.values;
    for (name, path) in [(CLUSTER, "global.multiCluster.clusterName"), (NETWORK, "global.network")] {
        if variables.get(name).is_none_or(String::is_empty)
            && let Some(value) = values.given(path)
        {
            variables.insert(name.to_owned(), value);
        }
    }
    if let Some(network) = pod::label(input.pod, NETWORK_LABEL).filter(|network| !network.is_empty()) {
        variables.insert(NETWORK.to_owned(), network.to_owned());
    }
    variables
}
