//! `pilotctl kube-inject` as a command: all kinds of workloads, files with several documents, its flags, settings from files
//! and from ConfigMaps, and files of which a part cannot be injected. What is injected is compared in the crate `inject`.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::kubernetes::ApiServer;
use testkit::servers;

/// Time for a file of 1,000 Deployments.
const THOUSAND: Duration = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 1 });
const POD: &str = "metadata: {labels: {app: cart}}\nspec: {containers: [{name: cart, image: cart:1}]}\n";
/// Kinds with their API versions, and where their pods are.
const KINDS: [(&str, &str, &str); 10] = [
    ("Pod", "v1", ""),
    ("ReplicationController", "v1", "/spec/template"),
    ("Deployment", "apps/v1", "/spec/template"),
    ("StatefulSet", "apps/v1", "/spec/template"),
    ("DaemonSet", "apps/v1", "/spec/template"),
    ("ReplicaSet", "apps/v1", "/spec/template"),
    ("Job", "batch/v1", "/spec/template"),
    ("CronJob", "batch/v1", "/spec/jobTemplate/spec/template"),
    ("DeploymentConfig", "apps.openshift.io/v1", "/spec/template"),
    ("DeploymentConfig", "v1", "/spec/template"),
];
/// An object that is not a workload, written as no program would.
const OTHER: &str = "# kept as it is\napiVersion:  v1\nkind: ConfigMap\nmetadata: {name: 'other'}\ndata: {a: \"1\" }\n";

/// Files with settings for a run without a cluster.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files { folder: tempfile::tempdir().expect("a folder") };
        files.write("mesh.yaml", "defaultConfig: {concurrency: 3}\n");
        files.write("values.json", &values("1").to_string());
        files.write("inject.yaml", "policy: enabled\n");
        files
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    /// Flags that name all three settings.
    fn settings(&self) -> Vec<String> {
        [("meshConfigFile", "mesh.yaml"), ("valuesFile", "values.json"), ("injectConfigFile", "inject.yaml")]
            .map(|(flag, name)| format!("--{flag}={}", self.folder.path().join(name).display()))
            .to_vec()
    }

    /// Injects a file offline.
    fn inject(&self, input: &str, further: &[&str]) -> Output {
        let input = format!("--filename={}", self.write("input.yaml", input));
        let settings = self.settings();
        let flags = settings.iter().map(String::as_str).chain([input.as_str()]).chain(further.iter().copied());
        run(&flags.collect::<Vec<_>>(), "", &[])
    }
}

fn values(tag: &str) -> Value {
    json!({"global": {"hub": "h", "tag": tag}})
}

fn run(flags: &[&str], input: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
    command.arg("kube-inject").args(flags).env("KUBECONFIG", "/nonexistent").envs(env.iter().copied());
    command.env_remove("KUBERNETES_SERVICE_HOST");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("pilotctl");
    process.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the input");
    process.wait_with_output().expect("an output")
}

/// Standard output of a run that succeeds without a word.
fn printed(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// A workload of a kind with this pod.
fn workload(kind: &str, version: &str, name: &str, pod: &str) -> String {
    let indented =
        |spaces: usize| pod.lines().map(|line| format!("{}{line}\n", " ".repeat(spaces))).collect::<String>();
    let head = format!("apiVersion: {version}\nkind: {kind}\n");
    match kind {
        "Pod" => format!("{head}{}", pod.replace("metadata: {", &format!("metadata: {{name: {name}, "))),
        "CronJob" => format!(
            "{head}metadata: {{name: {name}}}\nspec:\n  schedule: '* * * * *'\n  jobTemplate:\n    spec:\n      template:\n{}",
            indented(8)
        ),
        _ => format!("{head}metadata: {{name: {name}}}\nspec:\n  template:\n{}", indented(4)),
    }
}

fn documents(text: &str) -> Vec<Value> {
    let parts = text.split("---\n").filter(|part| !part.trim().is_empty());
    parts.map(|part| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{error}: {part}"))).collect()
}

/// The container of the proxy in an object whose pod is at a pointer.
fn proxy<'a>(object: &'a Value, pod: &str) -> Option<&'a Value> {
    let spec = object.pointer(pod)?.get("spec")?;
    let lists = ["containers", "initContainers"].map(|list| spec.get(list).and_then(Value::as_array));
    lists.into_iter().flatten().flatten().find(|container| container["name"] == "istio-proxy")
}

#[test]
fn all_kinds_of_workloads_in_one_file_are_injected_and_the_rest_is_kept() {
    let files = Files::new();
    let mut parts: Vec<String> = KINDS.iter().map(|(kind, version, _)| workload(kind, version, "cart", POD)).collect();
    parts.push(OTHER.to_owned());
    let items = [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "listed"}, "spec": {"template": {
            "metadata": {"labels": {"app": "cart"}}, "spec": {"containers": [{"name": "cart", "image": "cart:1"}]}}}}),
    ];
    parts.push(json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string() + "\n");
    let text = printed(files.inject(&parts.join("---\n"), &[]));
    assert!(text.ends_with("---\n") && text.contains(OTHER), "{text}");
    let objects = documents(&text);
    assert_eq!(objects.len(), KINDS.len() + 2);
    for (object, (kind, version, pod)) in objects.iter().zip(KINDS) {
        assert_eq!((&object["kind"], &object["apiVersion"]), (&json!(kind), &json!(version)));
        let proxy = proxy(object, pod).unwrap_or_else(|| panic!("no proxy in {kind}: {object}"));
        assert_eq!(proxy["image"], "h/proxyv2:1", "{kind}");
        assert!(proxy.to_string().contains("\\\"concurrency\\\":3"), "{kind}: the mesh config");
    }
    let listed = &objects[KINDS.len() + 1]["items"];
    assert_eq!(listed[0], items[0]);
    assert!(proxy(&listed[1], "/spec/template").is_some(), "{listed}");
    // Injected again, the file is the same.
    assert_eq!(printed(files.inject(&text, &[])), text);
}

#[test]
fn flags_are_upstreams() {
    let files = Files::new();
    let deployment = workload("Deployment", "apps/v1", "cart", POD);
    let settings = files.settings();
    let flags = |further: &[&'static str]| {
        settings.iter().map(String::clone).chain(further.iter().map(|flag| (*flag).to_owned())).collect::<Vec<_>>()
    };
    let with = |flags: &[String], env: &[(&str, &str)]| {
        run(&flags.iter().map(String::as_str).collect::<Vec<_>>(), &deployment, env)
    };
    let pod = |text: &str| documents(text).remove(0)["spec"]["template"].clone();
    // Standard input, and a revision.
    let text = printed(with(&flags(&["-f", "-", "--revision=canary"]), &[]));
    assert_eq!(pod(&text)["metadata"]["annotations"]["istio.io/rev"], "canary");
    // A native sidecar by the environment.
    let native = printed(with(&flags(&["-f", "-"]), &[("ENABLE_NATIVE_SIDECARS", "true")]));
    let init = pod(&native)["spec"]["initContainers"].clone();
    assert!(init.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "istio-proxy")), "{native}");
    // A file is written, and nothing is printed.
    let target = files.folder.path().join("output.yaml");
    let mut to_file = flags(&["-f", "-", "-o"]);
    to_file.push(target.display().to_string());
    assert_eq!(printed(with(&to_file, &[])), "");
    assert!(proxy(&documents(&fs::read_to_string(&target).expect("the output"))[0], "/spec/template").is_some());
    // One template instead of the injector's configuration.
    let template = "spec:\n  containers:\n  - name: istio-proxy\n    image: {{ .Values.global.hub }}/own\n";
    files.write("inject.yaml", template);
    let text = printed(with(&flags(&["-f", "-"]), &[]));
    assert_eq!(proxy(&documents(&text)[0], "/spec/template").expect("a proxy")["image"], "h/own");
}

#[test]
fn what_cannot_be_read_is_named() {
    let files = Files::new();
    let refused = |flags: &[&str], reason: &str| {
        let output = run(flags, "", &[]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains(reason), "{flags:?}: {errors}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    };
    let settings = files.settings();
    let [mesh, values, _] = [0, 1, 2].map(|at| settings[at].as_str());
    refused(&[mesh, values, "-f", "-", "--injectConfigFile=/nonexistent"], "could not read /nonexistent");
    // Without all three files a cluster is needed.
    refused(&[mesh, values, "-f", "-"], "--injectConfigFile");
}

#[test]
fn a_bad_workload_is_named_and_the_others_are_written() {
    let files = Files::new();
    let with = |annotation: &str| POD.replace("app: cart}", &format!("app: cart}}, annotations: {{{annotation}}}"));
    let parts = [
        workload("Deployment", "apps/v1", "first", POD),
        workload("Deployment", "apps/v1", "bad", &with("sidecar.istio.io/proxyCPU: nonsense")),
        workload("Job", "batch/v1", "hosted", &POD.replace("spec: {", "spec: {hostNetwork: true, ")),
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: empty}\n".to_owned(),
        "a: [\n".to_owned(),
        workload("StatefulSet", "apps/v1", "last", POD),
    ];
    let output = files.inject(&parts.join("---\n"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    for named in ["bad", "proxyCPU", "empty", "could not parse a document", "skipping Job hosted", "host network"] {
        assert!(errors.contains(named), "{named} is not in {errors}");
    }
    let objects = documents(&String::from_utf8_lossy(&output.stdout));
    let names: Vec<&str> = objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["first", "hosted", "last"]);
    let injected: Vec<bool> = objects.iter().map(|object| proxy(object, "/spec/template").is_some()).collect();
    assert_eq!(injected, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_come_from_the_config_maps_of_a_revision() {
    if ["etcd", "kube-apiserver"].iter().any(|part| servers::without(part)) {
        return;
    }
    let api = ApiServer::start().await;
    let map = async |namespace: &str, name: &str, data: Value| {
        let map = json!({"metadata": {"name": name}, "data": data});
        api.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), &map).await.expect("a ConfigMap");
    };
    for namespace in ["istio-system", "mesh"] {
        let namespace = json!({"metadata": {"name": namespace}});
        api.create("/api/v1/namespaces", &namespace).await.expect("a namespace");
    }
    for (namespace, suffix, tag) in
        [("istio-system", "", "plain"), ("istio-system", "-canary", "canary"), ("mesh", "-own", "own")]
    {
        map(namespace, &format!("istio{suffix}"), json!({"mesh": "defaultConfig: {concurrency: 5}"})).await;
        let data = json!({"config": "policy: enabled", "values": values(tag).to_string()});
        map(namespace, &format!("istio-sidecar-injector{suffix}"), data).await;
    }
    let kubeconfig = format!("--kubeconfig={}", api.kubeconfig().display());
    let deployment = workload("Deployment", "apps/v1", "cart", POD);
    let own = ["-i", "mesh", "--meshConfigMapName=istio-own", "--injectConfigMapName=istio-sidecar-injector-own"];
    for (flags, tag) in [(&[][..], "plain"), (&["--revision=canary"], "canary"), (&own, "own")] {
        let all: Vec<&str> = ["-f", "-", &kubeconfig].into_iter().chain(flags.iter().copied()).collect();
        let text = printed(run(&all, &deployment, &[]));
        let objects = documents(&text);
        let proxy = proxy(&objects[0], "/spec/template").expect("a proxy");
        assert_eq!(proxy["image"], format!("h/proxyv2:{tag}"));
        assert!(proxy.to_string().contains("\\\"concurrency\\\":5"), "{tag}: the mesh config");
    }
    // A file takes precedence over its ConfigMap.
    let files = Files::new();
    let values = files.settings().remove(1);
    let text = printed(run(&["-f", "-", &kubeconfig, &values], &deployment, &[]));
    assert!(text.contains("h/proxyv2:1"), "{text}");
    let output = run(&["-f", "-", &kubeconfig, "--revision=none"], &deployment, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("ConfigMap istio-system/istio-none"), "{errors}");
}

#[test]
fn a_thousand_deployments_are_injected_at_once() {
    let files = Files::new();
    let parts: Vec<String> =
        (0..1000).map(|number| workload("Deployment", "apps/v1", &format!("cart-{number}"), POD)).collect();
    let begun = Instant::now();
    let text = printed(files.inject(&parts.join("---\n"), &[]));
    let time = begun.elapsed();
    println!("1,000 Deployments by the command: {time:?} ({} bytes)", text.len());
    assert_eq!(text.matches("name: istio-proxy\n").count(), 1000);
    assert!(time <= THOUSAND, "{time:?}");
}
