//! DestinationPolicy becomes a DestinationRule, with a subset if it has labels.

use serde_json::{Map, Value, json};

use super::super::fields::LegacyFields;
use super::super::{LegacyConversion, LegacyError, LegacyObject};
use super::service::{self, ServiceRef};

pub(super) fn convert(source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    let mut notes = Vec::new();
    let mut fields = source.fields();
    let destination = service::required(&mut fields, "destination", &mut notes)?;
    let mut spec = json!({"host": destination.host});
    if let Some(callers) = fields.message("source")? {
        let callers = ServiceRef::read(callers, &mut notes)?;
        if callers.labels.is_empty() {
            let path = fields.path("source");
            return Err(LegacyError::NoEquivalent {
                path,
                reason: "callers are selected by labels in current kinds; without labels the policy would apply to all",
            });
        }
        spec["workloadSelector"] = json!({"matchLabels": callers.labels});
    }
    let mut policy = Map::new();
    if let Some(mut balancing) = fields.message("loadBalancing")? {
        let name = match balancing.text("name")? {
            "LEAST_CONN" => "LEAST_REQUEST",
            name => name,
        };
        if !name.is_empty() {
            policy.insert("loadBalancer".to_owned(), json!({"simple": name}));
        }
        balancing.finish(&mut notes);
    }
    if let Some(mut breaker) = fields.message("circuitBreaker")? {
        if let Some(simple) = breaker.message("simpleCb")? {
            circuit_breaker(simple, &mut policy, &mut notes);
        }
        breaker.finish(&mut notes);
    }
    fields.finish(&mut notes);
    match destination.subset() {
        Some(subset) => {
            spec["subsets"] = json!([{"name": subset, "labels": destination.labels, "trafficPolicy": policy}]);
        }
        None => spec["trafficPolicy"] = policy.into(),
    }
    Ok(LegacyConversion { documents: vec![source.networking("DestinationRule", source.name, spec)], notes })
}

fn circuit_breaker(mut fields: LegacyFields<'_>, policy: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let mut moved = |pairs: &[(&'static str, &str)]| -> Map<String, Value> {
        let found = pairs.iter().filter_map(|(old, new)| Some(((*new).to_owned(), fields.value(old)?.clone())));
        found.collect()
    };
    let tcp = moved(&[("maxConnections", "maxConnections")]);
    let http = moved(&[
        ("httpMaxPendingRequests", "http1MaxPendingRequests"),
        ("httpMaxRequests", "http2MaxRequests"),
        ("httpMaxRequestsPerConnection", "maxRequestsPerConnection"),
        ("httpMaxRetries", "maxRetries"),
    ]);
    let outliers = moved(&[
        ("httpConsecutiveErrors", "consecutive5xxErrors"),
        ("httpDetectionInterval", "interval"),
        ("sleepWindow", "baseEjectionTime"),
        ("httpMaxEjectionPercent", "maxEjectionPercent"),
    ]);
    let pool: Map<String, Value> = [("tcp", tcp), ("http", http)]
        .into_iter()
        .filter(|(_, part)| !part.is_empty())
        .map(|(name, part)| (name.to_owned(), part.into()))
        .collect();
    for (name, part) in [("connectionPool", pool), ("outlierDetection", outliers)] {
        if !part.is_empty() {
            policy.insert(name.to_owned(), part.into());
        }
    }
    fields.finish(notes);
}
