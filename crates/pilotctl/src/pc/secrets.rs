//! Secrets of a dump with istioctl's columns. Private keys are never printed: Envoy and the server leave them out of dumps.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::config::timestamp;
use serde_json::Value;
use trust::certificate::Certificate;

pub(super) const HEAD: [&str; 8] =
    ["RESOURCE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE", "TRUST DOMAIN"];

/// Lists of a dump, in Envoy's and in JSON's spelling, with the status of their secrets.
const LISTS: [(&str, &str, &str); 3] = [
    ("static_secrets", "staticSecrets", "ACTIVE"),
    ("dynamic_active_secrets", "dynamicActiveSecrets", "ACTIVE"),
    ("dynamic_warming_secrets", "dynamicWarmingSecrets", "WARMING"),
];

/// One row for each certificate.
pub(super) fn rows(dump: &Value) -> Vec<Vec<String>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let mut rows = Vec::new();
    for section in dump["configs"].as_array().into_iter().flatten() {
        for (snake, camel, status) in LISTS {
            let list = section[snake].as_array().or(section[camel].as_array());
            rows.extend(list.into_iter().flatten().flat_map(|entry| of_secret(entry, status, now)));
        }
    }
    rows
}

fn of_secret(entry: &Value, status: &str, now: i64) -> Vec<Vec<String>> {
    let secret = &entry["secret"];
    let name = entry["name"].as_str().or(secret["name"].as_str()).unwrap_or_default();
    let field = |of: &Value, snake: &str, camel: &str| match &of[snake] {
        Value::Null => of[camel].clone(),
        value => value.clone(),
    };
    let own = field(secret, "tls_certificate", "tlsCertificate");
    let chain = field(&own, "certificate_chain", "certificateChain");
    let trusted = field(secret, "validation_context", "validationContext");
    let trusted = field(&trusted, "trusted_ca", "trustedCa");
    let (kind, source) = if chain.is_null() { ("CA", trusted) } else { ("Cert Chain", chain) };
    let text = field(&source, "inline_bytes", "inlineBytes").as_str().and_then(|text| STANDARD.decode(text).ok());
    let text = text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.or_else(|| Some(field(&source, "inline_string", "inlineString").as_str()?.to_owned()));
    let certificates = text.and_then(|text| Certificate::all_from_pem(&text).ok()).unwrap_or_default();
    // Of a chain the leaf counts; every trusted root has its row.
    let shown = if kind == "CA" { certificates.len() } else { 1 };
    if certificates.is_empty() {
        let empty = ["false", "", "", "", ""].map(str::to_owned);
        return vec![[name, kind, status].map(str::to_owned).into_iter().chain(empty).collect()];
    }
    certificates.iter().take(shown).map(|certificate| row([name, kind, status], certificate, now)).collect()
}

fn row(names: [&str; 3], certificate: &Certificate, now: i64) -> Vec<String> {
    let trust_domain = certificate.uris.iter().find_map(|uri| uri.strip_prefix("spiffe://")?.split('/').next());
    let facts = [
        certificate.is_valid_at(now).to_string(),
        certificate.serial.clone(),
        timestamp::format(certificate.not_after),
        timestamp::format(certificate.not_before),
        trust_domain.unwrap_or_default().to_owned(),
    ];
    names.map(str::to_owned).into_iter().chain(facts).collect()
}
