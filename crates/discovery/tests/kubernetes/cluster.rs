//! The API server that the tests share, and helpers to create objects.

use futures_util::future;
use model::config::Kind;
use serde_json::{Value, json};
use testkit::kubernetes::{ApiServer, CrdSpec};
use testkit::servers;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

static SHARED: OnceCell<Mutex<ApiServer>> = OnceCell::const_new();
/// Paths of created objects.
static MADE: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Whether the API server or another server that a test needs is not available on this machine.
pub(crate) fn is_left_out(beside: &[&str]) -> bool {
    ["etcd", "kube-apiserver"].iter().chain(beside).any(|part| servers::without(part))
}

/// The API server with every kind defined and no objects. The guard keeps other tests out.
pub(crate) async fn cluster() -> MutexGuard<'static, ApiServer> {
    let shared = SHARED
        .get_or_init(|| async {
            let server = ApiServer::start().await;
            server.define(&definitions()).await;
            Mutex::new(server)
        })
        .await;
    let server = shared.lock().await;
    wipe(&server).await;
    server
}

/// CustomResourceDefinitions of the model's kinds.
pub(crate) fn definitions() -> Vec<CrdSpec<'static>> {
    let custom = Kind::ALL.iter().filter(|kind| kind.group() != "networking.k8s.io");
    custom.map(|k| (k.group(), k.versions(), k.as_str(), k.plural(), !k.is_cluster_wide())).collect()
}

const BUILT_IN: &[(&str, &str, &str)] = &[
    ("v1", "Service", "services"),
    ("v1", "Pod", "pods"),
    ("v1", "Node", "nodes"),
    ("v1", "Secret", "secrets"),
    ("v1", "ConfigMap", "configmaps"),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    ("networking.k8s.io/v1", "Ingress", "ingresses"),
    ("networking.k8s.io/v1", "IngressClass", "ingressclasses"),
];

/// Collection path and object path of an object.
pub(crate) fn path(object: &Value) -> (String, String) {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let known = BUILT_IN.iter().find(|(v, k, _)| *v == version && *k == kind).map(|(_, _, plural)| *plural);
    let plural =
        known.unwrap_or_else(|| Kind::of(version, kind).unwrap_or_else(|| panic!("{version} {kind}")).plural());
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let collection = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    };
    let own = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
    (collection, own)
}

/// Creates objects with their statuses, and their namespaces. Returns their creation times; they are created in parallel,
/// so on a fast machine all are equal.
pub(crate) async fn create(server: &ApiServer, objects: &[Value]) -> Vec<String> {
    let (namespaces, others): (Vec<Value>, Vec<Value>) =
        objects.iter().map(bare).partition(|object| object["kind"] == "Namespace");
    for object in &namespaces {
        namespace(server, object).await;
    }
    let made = future::join_all(others.iter().map(|object| create_one(server, object))).await;
    let statuses = others.iter().filter(|object| !object["status"].is_null());
    future::join_all(statuses.map(|object| set_status(server, object))).await;
    made
}

/// An object without fields that only an API server sets.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    for drawn in ["creationTimestamp", "resourceVersion"] {
        object["metadata"].as_object_mut().unwrap().remove(drawn);
    }
    object
}

async fn create_one(server: &ApiServer, object: &Value) -> String {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("status");
    let (collection, own) = path(&object);
    let answer = server.create(&collection, &object).await.unwrap();
    made(&own);
    answer["metadata"]["creationTimestamp"].as_str().unwrap().to_owned()
}

async fn set_status(server: &ApiServer, object: &Value) {
    let own = path(object).1;
    server.patch(&format!("{own}/status"), &json!({"status": object["status"]})).await.unwrap();
}

/// Registers an object that was created otherwise for removal.
pub(crate) fn made(path: &str) {
    MADE.lock().unwrap().push(path.to_owned());
}

async fn namespace(server: &ApiServer, object: &Value) {
    let name = object["metadata"]["name"].as_str().unwrap();
    let bare = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    // A previous test may have created it.
    let _ = server.create("/api/v1/namespaces", &bare).await;
    let meta =
        json!({"metadata": {"labels": object["metadata"]["labels"], "annotations": object["metadata"]["annotations"]}});
    let path = format!("/api/v1/namespaces/{name}");
    server.patch(&path, &meta).await.unwrap();
    MADE.lock().unwrap().push(format!("labels of {path}"));
}

/// Removes the objects of previous tests. Namespaces stay, because no controller would finish their deletion.
async fn wipe(server: &ApiServer) {
    let made = std::mem::take(&mut *MADE.lock().unwrap());
    for path in made.iter().rev() {
        match path.strip_prefix("labels of ") {
            Some(namespace) => {
                let bare = json!({"metadata": {"labels": null, "annotations": null}});
                server.patch(namespace, &bare).await.unwrap();
            }
            // Some were deleted with their CustomResourceDefinition.
            None => _ = server.delete(&format!("{path}?gracePeriodSeconds=0")).await,
        }
    }
}
