//! RouteRule becomes one route of a VirtualService, and a DestinationRule with subsets for its labels.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::fields::LegacyFields;
use super::super::{LegacyConversion, LegacyError, LegacyObject, marks};
use super::matches;
use super::service::{self, ServiceRef};

pub(super) fn convert(source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    let mut notes = Vec::new();
    let mut fields = source.fields();
    let destination = service::required(&mut fields, "destination", &mut notes)?;
    let precedence = fields.value("precedence").and_then(Value::as_i64).unwrap_or_default();
    let mut named = Vec::new();
    let mut route = Map::new();
    if let Some(condition) = fields.message("match")? {
        let condition = matches::http(condition, &mut notes)?;
        if !condition.is_empty() {
            route.insert("match".to_owned(), json!([condition]));
        }
    }
    action(&mut fields, &destination, &mut route, &mut named, &mut notes)?;
    treatment(&mut fields, &mut route, &mut named, &mut notes)?;
    // WebSocket upgrades are now allowed on every route.
    fields.flag("websocketUpgrade")?;
    fields.finish(&mut notes);
    let spec = json!({"hosts": [destination.host], "http": [route]});
    let mut documents =
        vec![marks::with_precedence(source.networking("VirtualService", source.name, spec), precedence)];
    documents.extend(subsets(source, &named));
    Ok(LegacyConversion { documents, notes })
}

/// The weighted destinations, or the redirect.
fn action(
    fields: &mut LegacyFields<'_>,
    whole: &ServiceRef,
    route: &mut Map<String, Value>,
    named: &mut Vec<ServiceRef>,
    notes: &mut Vec<String>,
) -> Result<(), LegacyError> {
    if let Some(redirect) = fields.value("redirect") {
        route.insert("redirect".to_owned(), redirect.clone());
        return Ok(());
    }
    let mut weighted = Vec::new();
    for mut item in fields.messages("route")? {
        let given = item.message("destination")?.map(|d| ServiceRef::read(d, notes)).transpose()?;
        let mut target = given.unwrap_or_else(|| ServiceRef { labels: Map::new(), ..whole.clone() });
        target.labels.extend(service::labels(&mut item)?);
        let weight = item.value("weight").cloned();
        let mut entry = json!({"destination": target.destination()});
        if let Some(weight) = weight.filter(|weight| *weight != json!(0)) {
            entry["weight"] = weight;
        }
        weighted.push(entry);
        named.push(target);
        item.finish(notes);
    }
    if weighted.is_empty() {
        weighted.push(json!({"destination": whole.destination()}));
        named.push(whole.clone());
    }
    route.insert("route".to_owned(), weighted.into());
    Ok(())
}

/// Timeouts, retries, rewrites, faults and other settings of the route.
fn treatment(
    fields: &mut LegacyFields<'_>,
    route: &mut Map<String, Value>,
    named: &mut Vec<ServiceRef>,
    notes: &mut Vec<String>,
) -> Result<(), LegacyError> {
    let mut put = |name: &str, value: Option<Value>| value.and_then(|value| route.insert(name.to_owned(), value));
    put("rewrite", fields.value("rewrite").cloned());
    put("timeout", simple(fields, "httpReqTimeout", "simpleTimeout", notes, |f| f.value("timeout").cloned())?);
    put("retries", simple(fields, "httpReqRetries", "simpleRetry", notes, retries)?);
    if let Some(mirror) = fields.message("mirror")? {
        let mirror = ServiceRef::read(mirror, notes)?;
        put("mirror", Some(mirror.destination()));
        named.push(mirror);
    }
    if let Some(fault) = fields.message("httpFault")? {
        put("fault", Some(faults(fault, notes)?));
    }
    if let Some(Value::Object(cors)) = fields.value("corsPolicy") {
        put("corsPolicy", Some(cors_policy(cors.clone())));
    }
    put("headers", fields.value("appendHeaders").map(|added| json!({"request": {"add": added}})));
    Ok(())
}

/// The simple form of a setting; the custom form was never implemented.
fn simple(
    fields: &mut LegacyFields<'_>,
    name: &'static str,
    inner: &'static str,
    notes: &mut Vec<String>,
    read: impl Fn(&mut LegacyFields<'_>) -> Option<Value>,
) -> Result<Option<Value>, LegacyError> {
    let Some(mut outer) = fields.message(name)? else { return Ok(None) };
    let mut found = None;
    if let Some(mut settings) = outer.message(inner)? {
        found = read(&mut settings);
        settings.finish(notes);
    }
    outer.finish(notes);
    Ok(found)
}

fn retries(fields: &mut LegacyFields<'_>) -> Option<Value> {
    let mut retries = json!({"attempts": fields.value("attempts")?});
    if let Some(timeout) = fields.value("perTryTimeout") {
        retries["perTryTimeout"] = timeout.clone();
    }
    Some(retries)
}

fn faults(mut fields: LegacyFields<'_>, notes: &mut Vec<String>) -> Result<Value, LegacyError> {
    let mut faults = Map::new();
    for (name, effect) in [("delay", "fixedDelay"), ("abort", "httpStatus")] {
        let Some(mut fault) = fields.message(name)? else { continue };
        let mut converted = Map::new();
        if let Some(share) = fault.value("percent") {
            converted.insert("percentage".to_owned(), json!({"value": share}));
        }
        if let Some(value) = fault.value(effect) {
            converted.insert(effect.to_owned(), value.clone());
        }
        fault.finish(notes);
        faults.insert(name.to_owned(), converted.into());
    }
    fields.finish(notes);
    Ok(faults.into())
}

fn cors_policy(mut cors: Map<String, Value>) -> Value {
    if let Some(Value::Array(origins)) = cors.remove("allowOrigin") {
        let matcher = |origin: Value| if origin == "*" { json!({"regex": ".*"}) } else { json!({"exact": origin}) };
        cors.insert("allowOrigins".to_owned(), origins.into_iter().map(matcher).collect());
    }
    cors.into()
}

/// DestinationRules with the subsets that the rule uses, one per host. Their names differ from the rule's, which a
/// DestinationPolicy may have too.
fn subsets(source: &LegacyObject<'_>, named: &[ServiceRef]) -> Vec<Value> {
    let mut by_host: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    for service in named {
        if let Some(subset) = service.subset() {
            let entry = json!({"name": subset, "labels": service.labels});
            by_host.entry(&service.host).or_default().insert(subset, entry);
        }
    }
    let rules = by_host.into_iter().enumerate().map(|(index, (host, subsets))| {
        let number = if index == 0 { String::new() } else { format!("-{}", index + 1) };
        let subsets: Vec<Value> = subsets.into_values().collect();
        let (name, spec) = (format!("{}-subsets{number}", source.name), json!({"host": host, "subsets": subsets}));
        marks::with_subsets_only(source.networking("DestinationRule", &name, spec))
    });
    rules.collect()
}
