//! Policy and MeshPolicy become a PeerAuthentication. If end users need a token, also a RequestAuthentication and an
//! AuthorizationPolicy that denies requests without one.

use serde_json::{Map, Value, json};

use super::super::fields::LegacyFields;
use super::super::{LegacyConversion, LegacyError, LegacyObject};
use super::service;

pub(super) fn mesh_policy(source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    let mut metadata = source.metadata.clone();
    metadata.insert("namespace".to_owned(), json!(source.mesh.root_namespace));
    policy(&LegacyObject { metadata, ..*source })
}

pub(super) fn policy(source: &LegacyObject<'_>) -> Result<LegacyConversion, LegacyError> {
    let mut notes = Vec::new();
    let mut fields = source.fields();
    let targets = targets(source, &mut fields, &mut notes)?;
    let mode = peer_mode(&mut fields, &mut notes)?;
    let (rules, optional) = (jwt_rules(&mut fields, &mut notes)?, fields.flag("originIsOptional")?);
    fields.text("principalBinding")?;
    fields.finish(&mut notes);
    let mut documents = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let name = if index == 0 { source.name.to_owned() } else { format!("{}-{}", source.name, index + 1) };
        documents.push(source.security("PeerAuthentication", &name, target.peers(mode)));
        if !rules.is_empty() {
            documents.push(source.security("RequestAuthentication", &name, target.with("jwtRules", json!(rules))));
            if !optional {
                documents.push(source.security("AuthorizationPolicy", &name, target.needs_token()));
            }
        }
    }
    Ok(LegacyConversion { documents, notes })
}

/// Labels and ports of the workloads that a policy applies to; empty means all.
#[derive(Default)]
struct PolicyScope {
    labels: Map<String, Value>,
    ports: Vec<String>,
}

impl PolicyScope {
    fn with(&self, name: &str, value: Value) -> Value {
        let mut spec = Map::from_iter([(name.to_owned(), value)]);
        if !self.labels.is_empty() {
            spec.insert("selector".to_owned(), json!({"matchLabels": self.labels}));
        }
        spec.into()
    }

    fn peers(&self, mode: &str) -> Value {
        let mode = json!({"mode": mode});
        if self.ports.is_empty() {
            return self.with("mtls", mode);
        }
        let by_port: Map<String, Value> = self.ports.iter().map(|port| (port.clone(), mode.clone())).collect();
        self.with("portLevelMtls", by_port.into())
    }

    fn needs_token(&self) -> Value {
        let mut rule = json!({"from": [{"source": {"notRequestPrincipals": ["*"]}}]});
        if !self.ports.is_empty() {
            rule["to"] = json!([{"operation": {"ports": self.ports}}]);
        }
        let mut spec = self.with("rules", json!([rule]));
        spec["action"] = json!("DENY");
        spec
    }
}

fn targets(
    source: &LegacyObject<'_>,
    fields: &mut LegacyFields<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<PolicyScope>, LegacyError> {
    let mut targets = Vec::new();
    for mut item in fields.messages("targets")? {
        let name = item.text("name")?;
        let mut labels = service::labels(&mut item)?;
        if labels.is_empty() {
            if name.is_empty() {
                return Err(LegacyError::Incomplete { path: item.path("name"), flaw: "it is empty" });
            }
            labels = (source.mesh.workloads_of)(source.namespace, name).unwrap_or_default();
            let path = item.path("name");
            notes.extend(labels.is_empty().then(|| without_service(&path, name)));
            if labels.is_empty() {
                labels.insert("app".to_owned(), json!(name));
            }
        }
        let mut ports = Vec::new();
        for mut port in item.messages("ports")? {
            let path = port.path("number");
            let number = port.value("number").and_then(Value::as_u64);
            // Without its port the policy would apply to the whole workload.
            let number =
                number.ok_or(LegacyError::NoEquivalent { path, reason: "current kinds identify ports by number" })?;
            ports.push(number.to_string());
            port.finish(notes);
        }
        item.finish(notes);
        targets.push(PolicyScope { labels, ports });
    }
    Ok(if targets.is_empty() { vec![PolicyScope::default()] } else { targets })
}

/// Policies choose workloads by labels today, and the labels of an unknown service are a guess.
fn without_service(path: &str, name: &str) -> String {
    format!(
        "{path} names a service, and policies choose workloads by labels today: those of the service are used, or app: \
         {name} while it is unknown"
    )
}

/// A policy without peers meant plain text.
fn peer_mode(fields: &mut LegacyFields<'_>, notes: &mut Vec<String>) -> Result<&'static str, LegacyError> {
    let optional = fields.flag("peerIsOptional")?;
    let mut mode = "DISABLE";
    // `- mtls:` is valid without a value, so only the key counts.
    for mut peer in fields.messages("peers")? {
        if !peer.has("mtls") {
            return Err(LegacyError::NoEquivalent { path: peer.path("mtls"), reason: "only mtls is read" });
        }
        mode = if optional { "PERMISSIVE" } else { "STRICT" };
        if let Some(mut mtls) = peer.message("mtls")? {
            let asked = (mtls.text("mode")?, mtls.flag("allowTls")?);
            match asked {
                ("PERMISSIVE", _) | (_, true) => mode = "PERMISSIVE",
                ("" | "STRICT", false) => {}
                _ => {
                    return Err(LegacyError::WrongType { path: mtls.path("mode"), expected: "STRICT or PERMISSIVE" });
                }
            }
            mtls.finish(notes);
        }
        peer.finish(notes);
    }
    Ok(mode)
}

fn jwt_rules(fields: &mut LegacyFields<'_>, notes: &mut Vec<String>) -> Result<Vec<Value>, LegacyError> {
    let mut rules = Vec::new();
    for mut origin in fields.messages("origins")? {
        let Some(mut jwt) = origin.message("jwt")? else {
            return Err(LegacyError::Incomplete { path: origin.path("jwt"), flaw: "it is missing" });
        };
        let mut rule = Map::new();
        for (old, new) in [
            ("issuer", "issuer"),
            ("audiences", "audiences"),
            ("jwks", "jwks"),
            ("jwksUri", "jwksUri"),
            ("jwtParams", "fromParams"),
        ] {
            if let Some(value) = jwt.value(old) {
                rule.insert(new.to_owned(), value.clone());
            }
        }
        if let Some(Value::Array(headers)) = jwt.value("jwtHeaders") {
            let headers: Vec<Value> = headers.iter().map(|name| json!({"name": name})).collect();
            rule.insert("fromHeaders".to_owned(), headers.into());
        }
        if jwt.value("triggerRules").is_some() {
            notes.push(format!("{} has no effect: every path needs a token", jwt.path("triggerRules")));
        }
        jwt.finish(notes);
        origin.finish(notes);
        rules.push(rule.into());
    }
    Ok(rules)
}
