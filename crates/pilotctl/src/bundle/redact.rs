//! Takes secrets out of pages: values of fields whose name says so, private keys, tokens.

use serde_json::Value;

const REDACTED: &str = "[redacted]";

/// Parts of field names whose values are secrets.
const SECRET_NAMES: [&str; 9] =
    ["password", "passwd", "token", "secretkey", "privatekey", "private_key", "authorization", "apikey", "api_key"];

/// The value without secrets.
pub(super) fn redacted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let named = is_header_with_secret(&fields);
            let field = |(key, value): (String, Value)| {
                let is_value = named && matches!(key.as_str(), "value" | "exact" | "rawValue");
                let value = if (is_value || is_secret_name(&key)) && !value.is_object() && !value.is_array() {
                    Value::from(REDACTED)
                } else {
                    redacted(value)
                };
                (key, value)
            };
            fields.into_iter().map(field).collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(items) => items.into_iter().map(redacted).collect(),
        Value::String(text) if is_secret_text(&text) => Value::from(REDACTED),
        other => other,
    }
}

/// A header that is set or matched, as `{"name": "authorization", "value": …}`.
fn is_header_with_secret(fields: &serde_json::Map<String, Value>) -> bool {
    let name = fields.get("key").or_else(|| fields.get("name")).and_then(Value::as_str);
    name.is_some_and(|name| ["authorization", "cookie", "x-api-key"].contains(&&*name.to_lowercase()))
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// A private key in PEM, or a signed token.
fn is_secret_text(text: &str) -> bool {
    let is_token = text.starts_with("eyJ") && text.split('.').count() == 3 && !text.contains(' ');
    let is_bearer = text.len() > 7 && text[..text.floor_char_boundary(7)].eq_ignore_ascii_case("bearer ");
    is_token || is_bearer || text.contains("PRIVATE KEY-----")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::redacted;

    #[test]
    fn secrets_are_taken_out_and_nothing_else() {
        let page = json!({
            "host": "cart", "password": "p1", "nested": [{"apiKey": 7, "port": 80}],
            "privateKey": {"inlineBytes": "-----BEGIN PRIVATE KEY-----\nabc"},
            "header": {"key": "Authorization", "value": "Basic abc"},
            "jwt": "eyJhbGci.eyJpc3Mi.c2ln", "text": "bearer abc", "fine": "eyJ is not a token",
        });
        let expected = json!({
            "host": "cart", "password": "[redacted]", "nested": [{"apiKey": "[redacted]", "port": 80}],
            "privateKey": {"inlineBytes": "[redacted]"},
            "header": {"key": "Authorization", "value": "[redacted]"},
            "jwt": "[redacted]", "text": "[redacted]", "fine": "eyJ is not a token",
        });
        assert_eq!(redacted(page), expected);
    }
}
