//! Recorded cases of Kubernetes mode over the configuration API: what is served, and the statuses that are written, equal
//! the recordings. Every eighth case; `CONFIG_API_CASES=all` runs all, or names topics and cases as `PILOTAGE_CASES` does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::TypeUrl;
use configapi::resource::ResourceTable;
use discovery::args::{Cli, DiscoveryCommand};
use discovery::offline::Offline;
use discovery::startup::{self, Server};
use model::config::timestamp;
use model::settings::Knobs;
use model::snapshot::Snapshot;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sources::status::{Controllers, merged};
use tempfile::TempDir;
use testkit::cases::{Case, CaseInput, CaseProxy, CaseServer, StatusLookup, differences, objects};
use testkit::wait;
use tokio::runtime::{Handle, Runtime};

use super::socket_request_as;

/// Written last: when the mesh has it, it has everything before.
const SENTINEL: &str = "oracle-sentinel";
/// As the recorded server was started.
const ENV: &[(&str, &str)] = &[
    ("ENABLE_LEADER_ELECTION", "false"),
    ("INJECT_ENABLED", "false"),
    ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
    ("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", "false"),
];
/// Kinds of the recordings that the API does not have; their objects are left out. Istio does not read UDPRoutes either:
/// they have no effect and no status.
const ABSENT: &[&str] = &["UDPRoute"];
const PATIENCE: Duration = Duration::from_secs(60);

fn is_chosen(case: &Case) -> bool {
    if !matches!(case.world, CaseInput::Kubernetes(_)) {
        return false;
    }
    match std::env::var("CONFIG_API_CASES").as_deref() {
        Ok("all") => true,
        Ok(words) => words.split(',').any(|word| word == case.topic || word == case.label()),
        Err(_) => case.label().bytes().map(usize::from).sum::<usize>() % 8 == 0,
    }
}

#[test]
fn recorded_cases_are_equal_over_the_api() {
    let runtime = Runtime::new().expect("a runtime");
    let handle = runtime.handle().clone();
    let found = differences(is_chosen, |case| runtime_server(case, &handle));
    println!("{} cases over the configuration API, {} resources and statuses", found.cases, found.resources);
    assert!(found.lines.is_empty(), "{} differ:\n{}", found.lines.len(), found.lines.join("\n"));
    assert!(found.cases >= 20 || std::env::var("CONFIG_API_CASES").is_ok(), "only {} cases", found.cases);
}

/// A server whose objects were written through its socket.
struct CaseMesh {
    server: Option<Server>,
    runtime: Handle,
    folder: TempDir,
    /// Statuses that objects got when they were made, by path: API servers have defaults for some kinds.
    first_statuses: Mutex<BTreeMap<String, Value>>,
}

impl Drop for CaseMesh {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop(Duration::ZERO));
        }
    }
}

fn runtime_server(case: &Case, runtime: &Handle) -> CaseServer {
    let CaseInput::Kubernetes(text) = &case.world else { panic!("{} is no Kubernetes case", case.label()) };
    let written: Vec<Value> =
        objects(text).into_iter().filter(|object| !ABSENT.iter().any(|kind| object["kind"] == *kind)).collect();
    let mesh = written_mesh(case, &written, runtime);
    let offline = Offline::of(Snapshot::clone(&mesh.snapshot()));
    let answers = move |proxy: &CaseProxy, kind: &TypeUrl, names: &[String]| {
        offline.resources(&proxy.node(), kind, names).expect("recorded nodes are good")
    };
    let statuses: StatusLookup = Box::new(move |object| {
        if ABSENT.iter().any(|kind| object["kind"] == *kind) {
            return None;
        }
        let own = path(object).1;
        let found = mesh.runtime.block_on(mesh.request("GET", &own, ""));
        let is_written = |status: &Value| !status.is_null() && mesh.first_statuses.lock().get(&own) != Some(status);
        found.get("status").cloned().filter(is_written)
    });
    CaseServer { answers: Box::new(answers), statuses: Some(statuses) }
}

/// Age decides conflicts: objects of one time in the recording must be made in one second.
fn written_mesh(case: &Case, objects: &[Value], runtime: &Handle) -> CaseMesh {
    for _ in 0..20 {
        let mesh = runtime.block_on(CaseMesh::start(case, runtime.clone()));
        if runtime.block_on(mesh.create(objects)) {
            runtime.block_on(mesh.settled(&case.label(), &controllers(case)));
            return mesh;
        }
    }
    panic!("{}: its objects could not be made in one second", case.label())
}

fn controllers(case: &Case) -> Controllers {
    let (knobs, _) = Knobs::read(|name| case.env.get(name).cloned());
    Controllers::new(&knobs.gateway_controller)
}

/// Collection path and path of an object.
fn path(object: &Value) -> (String, String) {
    let (version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let found = ResourceTable::get().by_kind(version, kind).unwrap_or_else(|| panic!("no kind {kind} in {version}"));
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let place = match text(object, "/metadata/namespace") {
        namespace if found.is_namespaced => format!("/namespaces/{namespace}"),
        _ => String::new(),
    };
    let collection = format!("{root}{place}/{}", found.plural);
    let own = format!("{collection}/{}", text(object, "/metadata/name"));
    (collection, own)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl CaseMesh {
    async fn start(case: &Case, runtime: Handle) -> CaseMesh {
        // Not synced to a disk, which this test is not about.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.expect("a folder");
        let put = |name: &str, text: &str| -> PathBuf {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("a file");
            path
        };
        let mesh = put("mesh.yaml", case.mesh.as_deref().unwrap_or("{}\n"));
        let networks = put("networks.yaml", case.networks.as_deref().unwrap_or("networks: {}\n"));
        let mut line: Vec<String> = ["pilot-discovery", "discovery", "--registries="].map(String::from).to_vec();
        line.push(format!("--meshConfig={}", mesh.display()));
        line.push(format!("--networksConfig={}", networks.display()));
        line.push(format!("--configAPI=unix://{}", folder.path().join("config.sock").display()));
        line.push(format!("--configStorage={}", folder.path().join("config.redb").display()));
        // The recorded API server had no validation either.
        line.push("--configAPIValidation=warn".to_owned());
        let off = ["--httpAddr=", "--monitoringAddr=", "--secureGRPCAddr=", "--httpsAddr=", "--grpcAddr=127.0.0.1:0"];
        line.extend(off.map(String::from));
        let DiscoveryCommand::Discovery(args) = Cli::read(line).expect("a line").command else { unreachable!() };
        let env = |name: &str| {
            let fixed = ENV.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            case.env.get(name).cloned().or(fixed)
        };
        let server = startup::start(&args, &env, None).await.expect("a server");
        wait::until_within(PATIENCE, "a server in sync", async || match server.pilot.missing_sources() {
            missing if missing.is_empty() => Ok(()),
            missing => Err(format!("{missing:?} are not")),
        })
        .await;
        CaseMesh { server: Some(server), runtime, folder, first_statuses: Mutex::default() }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        let server = self.server.as_ref().expect("running");
        server.pilot.world().now().snapshot.clone()
    }

    /// The body of the answer.
    async fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let socket = self.folder.path().join("config.sock");
        let stream = tokio::net::UnixStream::connect(&socket).await.expect("a connection");
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let reply = socket_request_as(stream, method, path, kind, body).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
        assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {head}\n{body}");
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{method} {path}: {e}: {body}"))
    }

    /// Creates the objects with their statuses. False if objects of one time got different ones.
    async fn create(&self, objects: &[Value]) -> bool {
        let mut recorded: Vec<(String, String)> = Vec::new();
        for object in objects {
            let time = text(object, "/metadata/creationTimestamp").to_owned();
            if let Some((_, made)) = recorded.last().filter(|(last, _)| *last < time) {
                next_second(made).await;
            }
            let made = self.put(object).await;
            if !time.is_empty() && object["kind"] != "Namespace" {
                if recorded.iter().any(|(then, second)| *then == time && *second != made) {
                    return false;
                }
                recorded.push((time, made));
            }
        }
        let sentinel = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SENTINEL}});
        self.put(&sentinel).await;
        true
    }

    /// Creates an object, or replaces what every server has. Returns its creation time.
    async fn put(&self, object: &Value) -> String {
        let mut object = object.clone();
        let status = object.as_object_mut().and_then(|fields| fields.shift_remove("status"));
        if let Some(meta) = object["metadata"].as_object_mut() {
            ["creationTimestamp", "resourceVersion", "generation"].iter().for_each(|key| _ = meta.shift_remove(*key));
        }
        let (collection, own) = path(&object);
        // Server-side apply creates, and changes the namespaces that exist from the start.
        let made = match text(&object, "/kind") {
            "Namespace" => self.apply(&own, &object).await,
            _ => self.request("POST", &collection, &object.to_string()).await,
        };
        let made = match status.filter(|status| !status.is_null()) {
            Some(status) => {
                self.request("PATCH", &format!("{own}/status"), &json!({"status": status}).to_string()).await
            }
            None => made,
        };
        self.first_statuses.lock().insert(own, made["status"].clone());
        text(&made, "/metadata/creationTimestamp").to_owned()
    }

    async fn apply(&self, own: &str, object: &Value) -> Value {
        let socket = self.folder.path().join("config.sock");
        let stream = tokio::net::UnixStream::connect(&socket).await.expect("a connection");
        let path = format!("{own}?fieldManager=cases&force=true");
        let reply =
            socket_request_as(stream, "PATCH", &path, "application/apply-patch+yaml", &object.to_string()).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
        assert!(head.starts_with("HTTP/1.1 2"), "{own}: {head}\n{body}");
        serde_json::from_str(body).expect("an object")
    }

    /// Waits until the mesh has the sentinel, and the stored statuses are those that the mesh wants.
    async fn settled(&self, case: &str, controllers: &Controllers) {
        wait::until_within(PATIENCE, &format!("{case}: the sentinel"), async || {
            if self.snapshot().namespaces.labels(SENTINEL).is_some() { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        wait::until_within(PATIENCE, &format!("{case}: the statuses"), async || {
            let snapshot = self.snapshot();
            for (key, wanted) in &snapshot.converted.statuses {
                let kind = format!("{}/{}", key.kind.group(), key.kind.versions().first().copied().unwrap_or_default());
                let object = json!({"apiVersion": kind, "kind": key.kind.as_str(),
                    "metadata": {"namespace": key.namespace.as_str(), "name": &*key.name}});
                let stored = self.request("GET", &path(&object).1, "").await;
                let merged = merged(stored.get("status"), wanted, controllers, "now");
                if without_times(&merged) != without_times(&stored["status"]) {
                    return Err(format!("{key}: {}, expected {merged}", stored["status"]));
                }
            }
            Ok(())
        })
        .await;
    }
}

fn without_times(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| *key != "lastTransitionTime");
            kept.map(|(key, value)| (key.clone(), without_times(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_times).collect(),
        other => other.clone(),
    }
}

/// Waits until objects get another creation time than this one.
async fn next_second(made: &str) {
    let made = timestamp::parse(made).map_or(0, |(second, _)| second);
    wait::until_within(PATIENCE, "the next second", async || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| e.to_string())?.as_secs();
        if now.cast_signed() > made { Ok(()) } else { Err(format!("{now}")) }
    })
    .await;
}
