//! `get`: prints objects as a table, as YAML or JSON, or by name. `running` reads them from a pilot-discovery where there is no
//! API server.

use anyhow::{Result, anyhow};
use http::Method;
use serde_json::Value;

use super::get_options::{GetOptions, ObjectFormat};
use super::running;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// Prints objects; returns the exit status.
pub(crate) async fn get(options: &GetOptions) -> Result<u8> {
    if let Some(server) = options.running().await {
        return running::get(options, &server).await;
    }
    let mut server = options.server.connect().await?;
    let kind = server.kind_named(&options.kind).await?;
    let namespace = if options.all_namespaces { String::new() } else { server.namespace.clone() };
    let mut query = Vec::new();
    if !options.selector.is_empty() {
        query.push(format!("labelSelector={}", encoded(&options.selector)));
    }
    if !options.at.is_empty() {
        query.push(format!("resourceVersion={}&resourceVersionMatch=Exact", encoded(&options.at)));
    }
    let path = format!("{}?{}", kind.path(&namespace, &options.name), query.join("&"));
    let is_table = matches!(options.output, ObjectFormat::Table | ObjectFormat::Wide);
    let accept = if is_table { TABLE } else { "application/json" };
    let answer = server.send(Method::GET, &path, "application/json", accept, Vec::new()).await?;
    let answer = answer.map_err(|refusal| anyhow!("could not get {}: {}", options.kind, refusal.message))?;
    match options.output {
        ObjectFormat::Table | ObjectFormat::Wide => {
            print!("{}", table(&answer, options.all_namespaces, options.output == ObjectFormat::Wide));
        }
        ObjectFormat::Yaml | ObjectFormat::Json => options.output.print(&answer)?,
        ObjectFormat::Name => {
            let one = std::slice::from_ref(&answer);
            for object in answer.get("items").and_then(Value::as_array).map_or(one, Vec::as_slice) {
                let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                println!("{}", kind.title(name));
            }
        }
    }
    Ok(0)
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A table with aligned columns.
fn table(answer: &Value, has_namespace: bool, is_wide: bool) -> String {
    let columns: Vec<&Value> = answer["columnDefinitions"].as_array().into_iter().flatten().collect();
    let is_narrow = |at: &usize| columns[*at]["priority"].as_i64().unwrap_or(0) == 0;
    let shown: Vec<usize> = (0..columns.len()).filter(|at| is_wide || is_narrow(at)).collect();
    let title = |at: &usize| columns[*at]["name"].as_str().unwrap_or_default().to_uppercase();
    let mut lines: Vec<Vec<String>> = vec![shown.iter().map(title).collect()];
    if has_namespace {
        lines[0].insert(0, "NAMESPACE".to_owned());
    }
    for row in answer["rows"].as_array().into_iter().flatten() {
        let cell = |at: &usize| match &row["cells"][*at] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let mut cells: Vec<String> = shown.iter().map(cell).collect();
        if has_namespace {
            let namespace = row.pointer("/object/metadata/namespace").and_then(Value::as_str);
            cells.insert(0, namespace.unwrap_or_default().to_owned());
        }
        lines.push(cells);
    }
    let widths: Vec<usize> =
        (0..lines[0].len()).map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{encoded, table};

    #[test]
    fn columns_are_aligned() {
        let answer = json!({
            "columnDefinitions": [{"name": "Name", "priority": 0}, {"name": "More", "priority": 1}, {"name": "Age"}],
            "rows": [{"cells": ["cart", "x", "5m"]}, {"cells": ["catalog", "x", "2d"]}],
        });
        assert_eq!(table(&answer, false, false), "NAME      AGE\ncart      5m\ncatalog   2d\n");
        assert_eq!(table(&answer, false, true), "NAME      MORE   AGE\ncart      x      5m\ncatalog   x      2d\n");
    }

    #[test]
    fn selectors_are_encoded() {
        assert_eq!(encoded("a in (b,c)"), "a%20in%20%28b%2Cc%29");
    }
}
