//! AdmissionReviews of pods: the request as bytes, the answer as JSON.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::decide::{Decision, SkipReason, decide};
use crate::injection::{InjectionInput, MeshInputs, check_annotations, inject};
use crate::native::NativeMode;
use crate::patch::difference;
use crate::pod;
use crate::proxy_config::{NamespacedProxyConfig, effective};
use crate::workload::Workload;

/// What a review needs in addition to the request.
#[derive(Clone, Copy, Debug)]
pub struct ReviewInputs<'a> {
    /// Settings of the mesh.
    pub shared: MeshInputs<'a>,
    /// ProxyConfig objects, sorted by age.
    pub proxy_configs: &'a [NamespacedProxyConfig<'a>],
    /// `ENABLE_NATIVE_SIDECARS`.
    pub native: NativeMode,
    /// Names and kubelet versions of the nodes; `None` if they are not known.
    pub nodes: Option<&'a [(String, String)]>,
}

/// The answer to a review, and its meaning.
#[derive(Clone, Debug)]
pub struct ReviewAnswer {
    /// The AdmissionReview to send back.
    pub body: Value,
    /// Namespace and name of the pod; empty if the request has none.
    pub pod: String,
    /// Whether the pod is injected.
    pub outcome: ReviewOutcome,
}

/// Whether the pod of a review is injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewOutcome {
    /// It is injected; warnings about parts of it.
    Injected(Vec<String>),
    /// It is left alone.
    Skipped(SkipReason),
    /// It is refused, or the request is no review of a pod.
    Refused(String),
}

/// Answers a request. `path` is the path of the URL, which may name variables of the proxy.
pub fn review(body: &[u8], path: &str, inputs: &ReviewInputs<'_>) -> ReviewAnswer {
    let request = match AdmissionRequest::parse(body) {
        Ok(request) => request,
        Err(reason) => {
            let body = json!({
                "apiVersion": V1, "kind": KIND,
                "response": {"uid": "", "allowed": false, "status": {"message": reason}},
            });
            return ReviewAnswer { body, pod: String::new(), outcome: ReviewOutcome::Refused(reason) };
        }
    };
    let (outcome, patch) = request.outcome(path, inputs);
    let mut response = json!({"uid": request.uid, "allowed": true});
    match &outcome {
        ReviewOutcome::Refused(reason) => {
            response["allowed"] = false.into();
            response["status"] = json!({ "message": reason });
        }
        ReviewOutcome::Injected(warnings) if !warnings.is_empty() && request.api_version == V1 => {
            response["warnings"] = json!(warnings);
        }
        _ => {}
    }
    // A pod that was injected before gets an empty patch.
    if let Some(patch) = patch {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(Value::Array(patch).to_string()).into();
    }
    let body = json!({"apiVersion": request.api_version, "kind": KIND, "response": response});
    ReviewAnswer { body, pod: request.display_name(), outcome }
}

/// The answer that refuses a request for this reason.
pub fn refuse(body: &[u8], reason: &str) -> Value {
    let request = AdmissionRequest::parse(body).ok();
    let (version, uid) = request.map_or((V1.to_owned(), String::new()), |request| (request.api_version, request.uid));
    let response = json!({"uid": uid, "allowed": false, "status": {"message": reason}});
    json!({"apiVersion": version, "kind": KIND, "response": response})
}

const V1: &str = "admission.k8s.io/v1";
const V1_BETA: &str = "admission.k8s.io/v1beta1";
const KIND: &str = "AdmissionReview";

struct AdmissionRequest {
    api_version: String,
    uid: String,
    namespace: String,
    object: Value,
}

impl AdmissionRequest {
    fn parse(body: &[u8]) -> Result<AdmissionRequest, String> {
        let mut review: Value =
            serde_json::from_slice(body).map_err(|error| format!("could not parse the review: {error}"))?;
        let api_version = pod::text(&review, "apiVersion").to_owned();
        if pod::text(&review, "kind") != KIND || ![V1, V1_BETA].contains(&api_version.as_str()) {
            return Err(format!("expected an AdmissionReview of {V1} or {V1_BETA}"));
        }
        let Some(Value::Object(request)) = review.get_mut("request") else {
            return Err("the review has no request".to_owned());
        };
        let object = request.get_mut("object").map(Value::take).unwrap_or_default();
        let text = |name: &str| request.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(AdmissionRequest { api_version, uid: text("uid"), namespace: text("namespace"), object })
    }

    fn namespace(&self) -> &str {
        match self.object.pointer("/metadata/namespace").and_then(Value::as_str) {
            None | Some("") => &self.namespace,
            Some(own) => own,
        }
    }

    fn display_name(&self) -> String {
        let metadata = self.object.get("metadata").unwrap_or(&Value::Null);
        let name = match (pod::text(metadata, "name"), pod::text(metadata, "generateName")) {
            ("", "") => "(unnamed)".to_owned(),
            ("", prefix) => format!("{prefix}*"),
            (name, _) => name.to_owned(),
        };
        format!("{}/{name}", self.namespace())
    }

    fn outcome(&self, path: &str, inputs: &ReviewInputs<'_>) -> (ReviewOutcome, Option<Vec<Value>>) {
        if !self.object.get("spec").is_some_and(Value::is_object) {
            return (ReviewOutcome::Refused("could not read the pod: it has no spec".to_owned()), None);
        }
        let namespace = self.namespace();
        if let Decision::Skip(reason) = decide(inputs.shared.config, &self.object, namespace) {
            return (ReviewOutcome::Skipped(reason), None);
        }
        // First, so that a hostile annotation is not parsed a second time.
        if let Err(error) = check_annotations(&self.object) {
            return (ReviewOutcome::Refused(error.to_string()), None);
        }
        let node = self.object.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        let input = InjectionInput {
            shared: inputs.shared,
            pod: &self.object,
            workload: Workload::of_pod(&self.object, namespace),
            proxy_config: effective(inputs.shared.mesh, inputs.proxy_configs, &self.object, namespace),
            native: inputs.native.is_native(inputs.nodes, node),
            variables: path_variables(path),
            by_hand: false,
        };
        match inject(&input) {
            Ok(injection) => {
                let patch = difference(&self.object, &injection.pod);
                (ReviewOutcome::Injected(injection.warnings), Some(patch))
            }
            Err(error) => (ReviewOutcome::Refused(error.to_string()), None),
        }
    }
}

/// Variables of the proxy in a path such as `/inject/cluster/east/net/one`, or in its old form
/// `/inject/:ENV:cluster=east:ENV:net=one`.
fn path_variables(path: &str) -> BTreeMap<String, String> {
    let path = path.trim_end_matches('/');
    let Some(rest) = path.trim_start_matches('/').split_once('/').map(|(_, rest)| rest) else {
        return BTreeMap::new();
    };
    let pairs: Vec<(String, String)> = if let Some(old) = rest.strip_prefix(":ENV:") {
        let pairs = old.split(":ENV:").filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| !name.is_empty()).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    } else {
        let parts: Vec<&str> = rest.split('/').collect();
        let pairs = parts.chunks_exact(2);
        pairs.map(|pair| (pair[0].to_owned(), pair[1].replace("--slash--", "/"))).collect()
    };
    let variable = |name: String| match name.as_str() {
        "cluster" => "ISTIO_META_CLUSTER_ID".to_owned(),
        "net" => "ISTIO_META_NETWORK".to_owned(),
        _ => name.to_uppercase(),
    };
    pairs.into_iter().map(|(name, value)| (variable(name), value)).filter(|(name, _)| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::path_variables;

    #[test]
    fn variables_are_read_from_the_path() {
        for (path, expected) in [
            ("/inject", &[][..]),
            ("/inject/", &[]),
            ("/inject/cluster/east", &[("ISTIO_META_CLUSTER_ID", "east")]),
            ("/inject/cluster/east/net/one/", &[("ISTIO_META_CLUSTER_ID", "east"), ("ISTIO_META_NETWORK", "one")]),
            ("/inject/key/a--slash--b/last", &[("KEY", "a/b")]),
            ("/inject/:ENV:cluster=east:ENV:=x:ENV:other=a=b", &[("ISTIO_META_CLUSTER_ID", "east"), ("OTHER", "a=b")]),
        ] {
            let found = path_variables(path);
            let found: Vec<(&str, &str)> = found.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(found, expected, "{path}");
        }
    }
}
