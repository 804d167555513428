//! Recorded injections of Istio 1.31, run in process. Cases that are not equal are listed in `UNEQUAL.txt`, which can only
//! shrink; `PILOTAGE_CASES=proxy/twice` shows the differences of one case.

#![allow(clippy::unwrap_used)]

mod canonical;
mod reviews;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use inject::{ChartValues, InjectorConfig, MeshInputs, inject_file};
use model::config::mesh::parse_mesh;
use model::settings::Mesh;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inject-cases")
}

/// A case and the settings it meets.
struct InjectCase {
    name: String,
    folder: PathBuf,
    options: Value,
}

impl InjectCase {
    fn all() -> Vec<InjectCase> {
        let mut found = Vec::new();
        for topic in folders(&root()) {
            for folder in folders(&topic).into_iter().filter(|folder| folder.join("input.yaml").exists()) {
                let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
                let name = format!("{}/{}", name(&topic), name(&folder));
                let options = yaml(&folder.join("case.yaml"));
                found.push(InjectCase { name, folder, options });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    fn is_webhook(&self) -> bool {
        self.options["mode"] == "webhook"
    }

    fn revision(&self) -> &str {
        self.options["revision"].as_str().unwrap_or_default()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let given = self.options["env"].as_object().into_iter().flatten();
        given.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    }

    /// Settings, with what the case changes later merged over them in stage 1.
    fn settings(&self, stage: usize) -> CaseSettings {
        let mut values = merged(&yaml(&root().join("base/values.yaml")), &json!({"revision": self.revision()}));
        let mut config = merged(&yaml(&root().join("base/inject.yaml")), &yaml(&self.folder.join("inject.yaml")));
        values = merged(&values, &yaml(&self.folder.join("values.yaml")));
        if stage > 0 {
            values = merged(&values, &self.options["then"]["values"]);
            config = merged(&config, &self.options["then"]["inject"]);
        }
        let (mesh, _) = parse_mesh(&self.text("mesh.yaml"), "mesh.yaml");
        let values = ChartValues::parse(&values.to_string()).unwrap();
        let (config, problems) = InjectorConfig::parse(&config.to_string()).unwrap();
        assert_eq!(problems, Vec::<String>::new(), "{}", self.name);
        CaseSettings { mesh, values, config }
    }

    fn ask(&self) -> Value {
        if self.is_webhook() { reviews::ask(self) } else { self.command() }
    }

    fn command(&self) -> Value {
        let settings = self.settings(0);
        let environment = self.environment();
        let shared = settings.inputs(self.revision(), &environment);
        let native = environment.get("ENABLE_NATIVE_SIDECARS").is_some_and(|value| value == "true");
        let mut file = inject_file(&self.text("input.yaml"), &shared, native);
        if self.options["twice"] == true {
            file = inject_file(&file.text, &shared, native);
        }
        if !file.failures.is_empty() {
            return json!({"error": file.failures.join("\n")});
        }
        documents(&file.text).iter().map(canonical::workload).collect()
    }

    fn differences(&self) -> Vec<String> {
        let expected: Value = serde_json::from_str(&self.text("expected.json")).unwrap();
        let found = self.ask();
        let mut lines = Vec::new();
        canonical::differences(&without_reasons(&expected), &without_reasons(&found), "", &mut lines);
        let text = found.to_string();
        let mentions = self.options["mentions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.extend(
            mentions.filter(|word| !text.contains(word)).map(|word| format!("{word} is not mentioned: {text}")),
        );
        lines
    }
}

struct CaseSettings {
    mesh: Mesh,
    values: ChartValues,
    config: InjectorConfig,
}

impl CaseSettings {
    fn inputs<'a>(&'a self, revision: &'a str, environment: &'a BTreeMap<String, String>) -> MeshInputs<'a> {
        let CaseSettings { mesh, values, config } = self;
        MeshInputs { config, values, mesh, revision, compliance_policy: "", environment }
    }
}

/// Refusals are compared by what they mention, not by their words.
fn without_reasons(value: &Value) -> Value {
    match value {
        Value::Object(map) if map.contains_key("error") => json!({"error": "refused"}),
        Value::Array(list) => list.iter().map(without_reasons).collect(),
        other => other.clone(),
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

fn yaml(file: &Path) -> Value {
    let Ok(text) = std::fs::read_to_string(file) else { return Value::Null };
    serde_saphyr::from_str(&text).unwrap()
}

fn documents(text: &str) -> Vec<Value> {
    let documents = format!("\n{text}");
    let documents = documents.split("\n---").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// Maps are merged, all else is replaced.
fn merged(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (_, Value::Null) => base.clone(),
        (Value::Object(base), Value::Object(over)) => {
            let mut map = base.clone();
            for (key, value) in over {
                let value = match (map.get(key), value) {
                    (Some(known), value) if !value.is_null() => merged(known, value),
                    _ => value.clone(),
                };
                map.insert(key.clone(), value);
            }
            Value::Object(map)
        }
        _ => over.clone(),
    }
}

#[test]
fn recorded_cases_are_equal() {
    let listed = std::fs::read_to_string(root().join("UNEQUAL.txt")).unwrap();
    let listed: BTreeSet<&str> = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let only = std::env::var("PILOTAGE_CASES").ok();
    let mut cases = InjectCase::all();
    assert!(cases.len() >= 81, "{} cases", cases.len());
    cases.retain(|case| only.as_ref().is_none_or(|only| case.name.contains(only)));
    let mut unequal = BTreeMap::new();
    for case in &cases {
        let lines = case.differences();
        if !lines.is_empty() {
            unequal.insert(case.name.as_str(), lines);
        }
    }
    let found: BTreeSet<&str> = unequal.keys().copied().collect();
    if only.is_some() {
        assert!(unequal.is_empty(), "{unequal:#?}");
        return;
    }
    let new: Vec<_> = unequal.iter().filter(|(name, _)| !listed.contains(*name)).collect();
    assert!(new.is_empty(), "cases that are not equal: {new:#?}");
    let equal: Vec<&&str> = listed.difference(&found).collect();
    assert!(equal.is_empty(), "take these out of UNEQUAL.txt: {equal:?}");
}
