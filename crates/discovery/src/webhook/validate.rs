//! Reviews of configuration objects: rejected with the errors that every other source reports, accepted with the
//! warnings.

use model::config::parse::documents;
use model::config::validate::validate;
use model::problem::{Problem, Severity};
use serde_json::{Value, json};
use sources::kubernetes::webhook_objects::ALWAYS_REJECT;

use super::WebhookMetrics;

const V1: &str = "admission.k8s.io/v1";
const V1_BETA: &str = "admission.k8s.io/v1beta1";
const KIND: &str = "AdmissionReview";

/// The result of validating an object.
struct Verdict {
    /// Why it is rejected, with the reason's name in metrics.
    rejection: Option<(&'static str, String)>,
    warnings: Vec<String>,
}

impl Verdict {
    fn rejected(reason: &'static str, message: impl Into<String>) -> Verdict {
        Verdict { rejection: Some((reason, message.into())), warnings: Vec::new() }
    }
}

/// The answer to a review, as JSON.
pub(super) fn review(body: &[u8], metrics: &WebhookMetrics) -> String {
    let review: Value = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => {
            metrics.bad_requests.add(1);
            return answer(V1, "", Verdict::rejected("", format!("could not parse the review: {error}")));
        }
    };
    let text = |pointer: &str| review.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    if text("/kind") != KIND || ![V1, V1_BETA].contains(&version) || !review["request"].is_object() {
        metrics.bad_requests.add(1);
        return answer(V1, "", Verdict::rejected("", format!("expected an AdmissionReview of {V1} or {V1_BETA}")));
    }
    let verdict = verdict(text("/request/operation"), &review["request"]["object"]);
    match &verdict.rejection {
        None => metrics.validated.add(1),
        Some((reason, _)) => metrics.rejected(
            text("/request/resource/group"),
            text("/request/resource/version"),
            text("/request/resource/resource"),
            reason,
        ),
    }
    answer(version, text("/request/uid"), verdict)
}

fn verdict(operation: &str, object: &Value) -> Verdict {
    if !matches!(operation, "CREATE" | "UPDATE") {
        return Verdict { rejection: None, warnings: Vec::new() };
    }
    if !object.is_object() {
        return Verdict::rejected("yaml_decode_error", "the review has no object");
    }
    if object["metadata"]["annotations"].get(ALWAYS_REJECT).is_some() {
        return Verdict::rejected("invalid_resource", format!("objects with annotation {ALWAYS_REJECT} are rejected"));
    }
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    let unknown = object.as_object().into_iter().flatten().find(|(key, _)| !known.contains(&key.as_str()));
    if let Some((key, _)) = unknown {
        return Verdict::rejected("invalid_resource", format!("unknown field {key:?}"));
    }
    let parsed = documents(&object.to_string(), "");
    let mut problems = parsed.problems;
    problems.extend(parsed.objects.iter().flat_map(validate));
    let messages = |severity: Severity| {
        let found = problems.iter().filter(|problem| problem.severity == severity);
        found.map(|problem: &Problem| problem.message.to_string()).collect::<Vec<_>>()
    };
    let errors = messages(Severity::Error);
    if !errors.is_empty() {
        return Verdict::rejected("invalid_resource", format!("configuration is invalid: {}", errors.join("; ")));
    }
    if parsed.objects.is_empty() {
        let kind = object["kind"].as_str().unwrap_or_default();
        return Verdict::rejected("unknown_type", format!("unknown kind {kind:?}"));
    }
    Verdict { rejection: None, warnings: messages(Severity::Warning) }
}

fn answer(version: &str, uid: &str, verdict: Verdict) -> String {
    let mut response = json!({"uid": uid, "allowed": verdict.rejection.is_none()});
    if let Some((_, message)) = verdict.rejection {
        response["status"] = json!({ "message": message });
    }
    if !verdict.warnings.is_empty() && version == V1 {
        response["warnings"] = verdict.warnings.into();
    }
    json!({"apiVersion": version, "kind": KIND, "response": response}).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};

    use super::{WebhookMetrics, review};

    /// The answer for a route with this regular expression.
    fn answer(regex: &str) -> Value {
        let rule = json!({"match": [{"uri": {"regex": regex}}], "route": [{"destination": {"host": "a"}}]});
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", "object": {
                "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
                "metadata": {"name": "a", "namespace": "shop"}, "spec": {"hosts": ["a"], "http": [rule]}}},
        });
        let begun = Instant::now();
        let answer = review(body.to_string().as_bytes(), &WebhookMetrics::default());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        serde_json::from_str(&answer).unwrap()
    }

    /// Nesting exhausted the stack of the webhook.
    #[test]
    fn cve_2022_24726_deep_expressions_and_documents_are_rejected() {
        let deep = format!("{}a{}", "(".repeat(100_000), ")*".repeat(100_000));
        assert_eq!(answer(&deep)["response"]["allowed"], false);
        let answer = review("[".repeat(100_000).as_bytes(), &WebhookMetrics::default());
        assert!(answer.contains("could not parse the review"), "{answer}");
    }

    /// Compiling a repetition took all memory.
    #[test]
    fn cve_2022_39278_huge_repetitions_are_rejected() {
        for regex in ["(a{1000}){1000}", "((a{100}){100}){100}", "(\\pL{500}){500}", "[\\s\\S]{0,1000}{1000}"] {
            assert_eq!(answer(regex)["response"]["allowed"], false, "{regex}");
        }
        assert_eq!(answer("/cart/[0-9]{1,8}")["response"]["allowed"], true);
    }
}
