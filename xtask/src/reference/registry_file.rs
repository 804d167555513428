//! The file of `--registryConfig`, from the types that read it: fields with their doc comments.

use std::path::Path;

use anyhow::{Result, bail};

use super::source::read;
use super::{head, row};

/// Title and source file of each part.
const PARTS: &[(&str, &str)] = &[
    ("The file", "config.rs"),
    ("Consul", "consul/options.rs"),
    ("Eureka", "eureka/options.rs"),
    ("Cloud Foundry", "cloudfoundry/options.rs"),
    ("etcd", "etcd/options.rs"),
    ("ZooKeeper", "zookeeper/options.rs"),
    ("DNS", "dns/options.rs"),
    ("Parts of several", "shared_options.rs"),
];
const FOLDER: &str = "crates/sources/src/registry";
/// Fields of an entry of `registries`, which is read by hand: all but its options.
const ENTRY: &[(&str, &str)] = &[
    ("name", "Distinguishes registries of one kind"),
    (
        "required",
        "No client is served before a required registry is in sync; others are waited for until their deadline",
    ),
    ("startupDeadline", "How long the start waits for the registry"),
    ("emptyProtection", "Holds back the sudden loss of nearly all services, see `MassLossOptions`"),
];

pub(super) fn body(root: &Path) -> Result<String> {
    let config = read(root, &format!("{FOLDER}/config.rs"))?;
    if let Some((missing, _)) = ENTRY.iter().find(|(name, _)| !config.contains(&format!("\"{name}\""))) {
        bail!("{FOLDER}/config.rs reads no {missing:?}: correct the list in xtask/src/reference/registry_file.rs");
    }
    let rows: String = ENTRY.iter().map(|(name, help)| row(&[&format!("`{name}`"), help])).collect();
    let mut text = format!(
        "`--registryConfig=FILE` describes any number of registries with all their options; [registries.md](../registries.md) \
         has examples.\nUnknown fields are refused. Durations are written as in `1m30s`.\n\n## An entry of `registries`\n\nBeside \
         these it has one field with the options of its registry, by the registry's name.\n\n{}{rows}",
        head(&["field", "meaning"])
    );
    for (title, file) in PARTS {
        text += &format!("\n## {title}\n");
        let structs = structs(&read(root, &format!("{FOLDER}/{file}"))?);
        if structs.is_empty() {
            bail!("{FOLDER}/{file} has no type that is read from the file");
        }
        for (name, fields) in structs {
            let rows: String =
                fields.iter().map(|(name, of, doc)| row(&[&format!("`{name}`"), &format!("`{of}`"), doc])).collect();
            text += &format!("\n### {name}\n\n{}{rows}", head(&["field", "type", "meaning"]));
        }
    }
    Ok(text)
}

type OptionField = (String, String, String);

/// The structs whose fields are read in camel case, with name, type and documentation of each field.
fn structs(text: &str) -> Vec<(String, Vec<OptionField>)> {
    let mut found: Vec<(String, Vec<OptionField>)> = Vec::new();
    let (mut is_read, mut is_inside, mut doc) = (false, false, String::new());
    for line in text.lines() {
        let code = line.trim();
        let bare = code.strip_prefix("pub(crate) ").or_else(|| code.strip_prefix("pub ")).unwrap_or(code);
        if code.starts_with("#[serde(") && line.starts_with('#') {
            is_read = code.contains("camelCase");
        } else if let Some(name) = bare.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            is_inside = is_read;
            if is_read {
                found.push((name.to_owned(), Vec::new()));
            }
            (is_read, doc) = (false, String::new());
        } else if line.starts_with('}') {
            is_inside = false;
        } else if let Some(part) = code.strip_prefix("///") {
            doc = format!("{doc}{part}").trim().to_owned();
        } else if let Some((name, of)) = bare.split_once(": ").filter(|_| is_inside && !code.starts_with('#')) {
            let of = of.trim_end_matches(',');
            if let Some((_, fields)) = found.last_mut() {
                fields.push((camel(name), of.to_owned(), std::mem::take(&mut doc)));
            }
        }
        if !is_inside && !code.starts_with("///") {
            doc.clear();
        }
    }
    found
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| {
        let mut letters = word.chars();
        text + &letters.next().map(|c| c.to_ascii_uppercase().to_string()).unwrap_or_default() + letters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::structs;

    #[test]
    fn fields_have_the_names_of_the_file() {
        let text = "/// A file.\n#[derive(X)]\n#[serde(rename_all = \"camelCase\")]\npub struct A {\n    /// One\n    /// two.\n    \
                    pub max_stale: Str,\n    #[serde(default)]\n    b: u8,\n}\nstruct B {\n    c: u8,\n}\n";
        let field = |name: &str, of: &str, doc: &str| (name.to_owned(), of.to_owned(), doc.to_owned());
        let expected = vec![field("maxStale", "Str", "One two."), field("b", "u8", "")];
        assert_eq!(structs(text), [("A".to_owned(), expected)]);
    }
}
