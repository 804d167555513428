//! Objects in files, with their lines.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use model::config::parse::documents;
use model::config::read_yaml;
use model::config::validate::validate;
use model::problem::{Problem, Severity, Subject};
use serde_json::Value;

use crate::analyze::gather::{GatheredFiles, parts};

/// An object and its place.
pub(super) struct Document {
    /// `file:line`.
    pub(super) place: String,
    pub(super) object: Value,
}

/// The mistakes that validation finds in all files.
pub(super) fn mistakes(texts: &[(String, String)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, text) in texts {
        let parsed = documents(text, name);
        let mut problems = parsed.problems;
        problems.extend(parsed.objects.iter().flat_map(validate));
        // Documents of other kinds are left to the server.
        let is_ours = |problem: &&Problem| matches!(problem.about, Subject::Object(_) | Subject::File(_));
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).filter(is_ours);
        lines.extend(errors.map(|problem| match &problem.location {
            Some(at) => format!("{}:{}: {}", at.file, at.line, problem.message),
            None => format!("{name}: {}", problem.message),
        }));
    }
    lines
}

/// The mistakes that validation finds in files and folders, with file and line.
pub(crate) fn mistakes_of(paths: &[PathBuf]) -> Result<Vec<String>> {
    Ok(mistakes(&texts(paths)?))
}

/// All files and folders as one text of YAML documents.
pub(crate) fn joined_texts(paths: &[PathBuf]) -> Result<String> {
    let texts: Vec<String> = texts(paths)?.into_iter().map(|(_, text)| text).collect();
    Ok(texts.join("\n---\n"))
}

/// Reads files and folders.
pub(crate) fn texts(paths: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let mut gathered = GatheredFiles::default();
    for path in paths {
        gathered.add(path)?;
    }
    if let Some(problem) = gathered.problems.first() {
        bail!("{}", problem.message);
    }
    Ok(gathered.texts)
}

/// The objects of all texts; those of a List one by one.
pub(super) fn objects(texts: &[(String, String)]) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for (name, text) in texts {
        for (line, part) in parts(text) {
            let place = format!("{name}:{line}");
            let value = read_yaml(part).with_context(|| format!("could not parse {place}"))?;
            match value {
                Value::Null => {}
                Value::Object(mut list) if list.get("kind").and_then(Value::as_str) == Some("List") => {
                    let items = list.shift_remove("items").and_then(|items| items.as_array().cloned());
                    let items = items.unwrap_or_default().into_iter();
                    found.extend(items.map(|object| Document { place: place.clone(), object }));
                }
                object => found.push(Document { place, object }),
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{mistakes, objects};

    #[test]
    fn items_of_lists_are_objects() {
        let text = "kind: List\napiVersion: v1\nitems: [{kind: A}, {kind: B}]\n".to_owned();
        let found = objects(&[("x".to_owned(), text)]).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].place, "x:1");
    }

    #[test]
    fn mistakes_name_file_and_line() {
        let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: networking.istio.io/v1\n\
                    kind: VirtualService\nmetadata: {name: a}\nspec:\n  hosts: [a]\n  http:\n  - route:\n    \
                    - destination: {host: a}\n      weight: -1\n";
        let found = mistakes(&[("a.yaml".to_owned(), text.to_owned())]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.yaml:") && found[0].contains("weight"), "{found:?}");
    }
}
