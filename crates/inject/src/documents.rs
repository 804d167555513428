//! Injection into files of Kubernetes objects, as `kube-inject` does it.

use serde_json::{Value, json};

use crate::decide::{Decision, SkipReason, decide_by_hand};
use crate::injection::{InjectionInput, MeshInputs, inject};
use crate::pod::{self, JsonMap};
use crate::workload::Workload;
use crate::yaml::{self, KeyOrder};
use crate::{error::InjectError, proxy_config};

/// The result of injecting a file.
#[derive(Clone, Debug, Default)]
pub struct InjectedFile {
    /// The documents, each followed by `---`. Workloads that could not be injected are left out.
    pub text: String,
    /// Workloads that were skipped, and warnings about those that were injected.
    pub warnings: Vec<String>,
    /// Workloads that could not be injected, with the reason.
    pub failures: Vec<String>,
}

/// Where a workload keeps its pod, by API version and kind.
const PODS: &[(&str, &str, &[&str])] = &[
    ("v1", "Pod", &[]),
    ("v1", "ReplicationController", &["spec", "template"]),
    ("apps/v1", "Deployment", &["spec", "template"]),
    ("apps/v1", "StatefulSet", &["spec", "template"]),
    ("apps/v1", "DaemonSet", &["spec", "template"]),
    ("apps/v1", "ReplicaSet", &["spec", "template"]),
    ("batch/v1", "Job", &["spec", "template"]),
    ("batch/v1", "CronJob", CRON_JOB_POD),
    ("apps.openshift.io/v1", "DeploymentConfig", &["spec", "template"]),
    ("v1", "DeploymentConfig", &["spec", "template"]),
];

const CRON_JOB_POD: &[&str] = &["spec", "jobTemplate", "spec", "template"];

/// Injects all workloads of a file; other objects are not changed.
pub fn inject_file(text: &str, shared: &MeshInputs<'_>, native: bool) -> InjectedFile {
    let mut file = InjectedFile::default();
    let injector = FileInjector { shared, native };
    for document in yaml::documents(text) {
        match yaml::read(document) {
            Ok(Value::Null) => {}
            Ok(object) => injector.document(document, object, &mut file),
            Err(reason) => file.failures.push(format!("could not parse a document of the file: {reason}")),
        }
    }
    file
}

struct FileInjector<'a> {
    shared: &'a MeshInputs<'a>,
    native: bool,
}

impl FileInjector<'_> {
    fn document(&self, text: &str, object: Value, file: &mut InjectedFile) {
        let written = if is_list(&object) {
            Some(yaml::write(&self.list(object, file), KeyOrder::Kept))
        } else if place(&object).is_some() {
            self.object(object, file).map(|object| yaml::write(&object, KeyOrder::Kept))
        } else {
            Some(text.to_owned())
        };
        if let Some(written) = written {
            file.text.push_str(&written);
            if !written.ends_with('\n') {
                file.text.push('\n');
            }
            file.text.push_str("---\n");
        }
    }

    fn list(&self, mut list: Value, file: &mut InjectedFile) -> Value {
        if let Some(Value::Array(items)) = list.get_mut("items") {
            let injected = std::mem::take(items)
                .into_iter()
                .filter_map(|item| if place(&item).is_some() { self.object(item, file) } else { Some(item) });
            *items = injected.collect();
        }
        list
    }

    /// The injected object; `None` if it could not be injected.
    fn object(&self, object: Value, file: &mut InjectedFile) -> Option<Value> {
        let mut object = object;
        let name = named(&object).display_name();
        match self.inject(&mut object) {
            Ok(Outcome::Injected(warnings)) => {
                file.warnings.extend(warnings.into_iter().map(|warning| format!("{name}: {warning}")));
                Some(object)
            }
            Ok(Outcome::Skipped(reason)) => {
                file.warnings.push(format!("skipping {name}: {}", reason.words()));
                Some(object)
            }
            Err(error) => {
                file.failures.push(format!("could not inject {name}: {error}"));
                None
            }
        }
    }

    fn inject(&self, object: &mut Value) -> Result<Outcome, InjectError> {
        let path = place(object).unwrap_or_default();
        let mut workload = named(object);
        let Some(holder) = at(object, path) else {
            return Err(InjectError::Pod(format!("it has no {}", path.join("."))));
        };
        let job = object.pointer("/spec/jobTemplate/metadata").filter(|_| path == CRON_JOB_POD);
        let mut pod = JsonMap::new();
        if let Some(metadata) = job_metadata(job, holder.get("metadata")) {
            pod.insert("metadata".to_owned(), metadata);
        }
        pod.insert("spec".to_owned(), holder.get("spec").cloned().unwrap_or_default());
        let pod = Value::Object(pod);
        let namespace = pod.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Decision::Skip(reason) = decide_by_hand(&pod, &namespace) {
            return Ok(Outcome::Skipped(reason));
        }
        if path.is_empty() {
            workload = Workload::of_pod(&pod, &namespace);
        }
        let input = InjectionInput {
            shared: *self.shared,
            proxy_config: proxy_config::effective(self.shared.mesh, &[], &pod, &namespace),
            pod: &pod,
            workload,
            native: self.native,
            variables: Default::default(),
            by_hand: true,
        };
        let injection = inject(&input)?;
        if path == CRON_JOB_POD {
            add_marks(pod::object_at(pod::object_at(pod::object(object), "spec"), "jobTemplate"), &pod, &injection.pod);
        }
        store(object, path, &pod, injection.pod);
        Ok(Outcome::Injected(injection.warnings))
    }
}

enum Outcome {
    Injected(Vec<String>),
    Skipped(SkipReason),
}

fn is_list(object: &Value) -> bool {
    pod::text(object, "kind") == "List" && pod::text(object, "apiVersion") == "v1"
}

fn place(object: &Value) -> Option<&'static [&'static str]> {
    let (version, kind) = (pod::text(object, "apiVersion"), pod::text(object, "kind"));
    PODS.iter().find(|(v, k, _)| *v == version && *k == kind).map(|(_, _, path)| *path)
}

fn named(object: &Value) -> Workload {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    let name = match pod::text(metadata, "name") {
        "" => pod::text(metadata, "generateName"),
        name => name,
    };
    Workload {
        api_version: pod::text(object, "apiVersion").to_owned(),
        kind: pod::text(object, "kind").to_owned(),
        name: name.to_owned(),
        namespace: pod::text(metadata, "namespace").to_owned(),
    }
}

fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, key| value.get(key)).filter(|value| value.is_object())
}

/// The metadata of a pod; labels and annotations of a CronJob's job template count too.
fn job_metadata(job: Option<&Value>, own: Option<&Value>) -> Option<Value> {
    let Some(job) = job else { return own.cloned() };
    let mut metadata = own.cloned().unwrap_or_else(|| json!({}));
    for kind in ["labels", "annotations"] {
        let mut marks = job.get(kind).and_then(Value::as_object).cloned().unwrap_or_default();
        marks.extend(own.and_then(|own| own.get(kind)?.as_object().cloned()).unwrap_or_default());
        if !marks.is_empty() {
            pod::object(&mut metadata).insert(kind.to_owned(), Value::Object(marks));
        }
    }
    Some(metadata)
}

/// Adds to `holder` the labels and annotations that the injection added or changed.
fn add_marks(holder: &mut JsonMap, before: &Value, after: &Value) {
    for kind in ["labels", "annotations"] {
        let changed = after.get("metadata").and_then(|metadata| metadata.get(kind)?.as_object()).into_iter().flatten();
        let changed = changed.filter(|(name, value)| {
            let known = before.get("metadata").and_then(|metadata| metadata.get(kind)?.get(name));
            known != Some(*value)
        });
        let changed: Vec<(String, Value)> = changed.map(|(name, value)| (name.clone(), value.clone())).collect();
        if !changed.is_empty() {
            pod::object_at(pod::object_at(holder, "metadata"), kind).extend(changed);
        }
    }
}

/// Writes the injected pod to its place.
fn store(object: &mut Value, path: &[&str], before: &Value, after: Value) {
    let mut holder = pod::object(object);
    for key in path {
        holder = pod::object_at(holder, key);
    }
    if path == CRON_JOB_POD {
        add_marks(holder, before, &after);
    } else if let Some(metadata) = after.get("metadata") {
        holder.insert("metadata".to_owned(), metadata.clone());
    }
    if let Value::Object(mut after) = after
        && let Some(spec) = after.shift_remove("spec")
    {
        holder.insert("spec".to_owned(), spec);
    }
}
