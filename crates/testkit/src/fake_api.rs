//! A fake API server with objects in memory, for responses that a real one cannot be made to give. It rejects streaming
//! lists, as old servers do, lists everything in one page, and keeps watches open without events. A test's script can
//! override any response.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::scripted::{ScriptedRequest, ScriptedServer};

/// Response of a script.
pub type FakeResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Objects by the plural of their kind.
type FakeObjects = Arc<Mutex<BTreeMap<String, Vec<Value>>>>;

pub struct FakeApi {
    server: ScriptedServer,
    objects: FakeObjects,
    /// Incremented to expire all watches.
    expiries: watch::Sender<u64>,
    kubeconfig: PathBuf,
    _folder: TempDir,
}

impl FakeApi {
    /// Serves on a free port until dropped. `None` from the script means the default response.
    pub async fn start(script: impl Fn(&ScriptedRequest) -> Option<FakeResponse> + Send + Sync + 'static) -> FakeApi {
        let (objects, expiries) = (FakeObjects::default(), watch::Sender::new(0));
        let (known, expiry) = (objects.clone(), expiries.subscribe());
        let server = ScriptedServer::start(move |asked: ScriptedRequest| {
            let answer = script(&asked).unwrap_or_else(|| answer(&asked, &known, expiry.clone()));
            async move { answer }
        })
        .await;
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let kubeconfig = folder.path().join("kubeconfig");
        let text = text(&server.url(), &json!({"token": "of-the-operator"}));
        std::fs::write(&kubeconfig, text).unwrap_or_else(|e| panic!("could not write a kubeconfig: {e}"));
        FakeApi { server, objects, expiries, kubeconfig, _folder: folder }
    }

    /// Kubeconfig for clients.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<ScriptedRequest> {
        self.server.requests()
    }

    /// Replaces all objects of a kind, given by its plural. Sends no watch events; see `expire_watches`.
    pub fn set(&self, plural: &str, objects: Vec<Value>) {
        self.objects.lock().insert(plural.to_owned(), objects);
    }

    /// Ends all watches with status 410, which makes clients list again.
    pub fn expire_watches(&self) {
        self.expiries.send_modify(|count| *count += 1);
    }
}

/// A kubeconfig for this server and user.
pub fn text(server: &str, user: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": server}}], "users": [{"name": "a", "user": user}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]})
    .to_string()
}

/// The plural of the requested kind.
pub fn plural(asked: &ScriptedRequest) -> &str {
    asked.path.rsplit('/').next().unwrap_or_default()
}

/// A complete response.
pub fn full(text: impl Into<Bytes>) -> FakeResponse {
    Response::new(Full::new(text.into()).boxed_unsync())
}

/// A list object with these items.
pub fn list(plural: &str, items: &[Value]) -> Value {
    let kind = match plural {
        "customresourcedefinitions" => "CustomResourceDefinition",
        "endpointslices" => "EndpointSlice",
        "configmaps" => "ConfigMap",
        "gatewayclasses" => "GatewayClass",
        "ingressclasses" => "IngressClass",
        "ingresses" => "Ingress",
        other => &capitalised(other.trim_end_matches('s')),
    };
    json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items})
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A response whose body repeats a piece `times` times, or until the client disconnects.
pub fn repeated(piece: Bytes, times: Option<usize>) -> FakeResponse {
    let (frames, body) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut sent = 0;
        while times.is_none_or(|times| sent < times) && frames.send(Ok(Frame::data(piece.clone()))).await.is_ok() {
            sent += 1;
        }
    });
    Response::new(StreamBody::new(ReceiverStream::new(body)).boxed_unsync())
}

fn answer(asked: &ScriptedRequest, objects: &FakeObjects, expiry: watch::Receiver<u64>) -> FakeResponse {
    if asked.parameter("sendInitialEvents").is_some() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
            "reason": "Invalid", "message": "sendInitialEvents is forbidden"});
        let mut refusal = full(status.to_string());
        *refusal.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        return refusal;
    }
    if asked.parameter("watch").is_some() {
        return expiring(expiry);
    }
    let known = objects.lock();
    let items: &[Value] = known.get(plural(asked)).map_or(&[], Vec::as_slice);
    let namespace = asked.path.split("/namespaces/").nth(1).and_then(|rest| rest.split_once('/')).map(|(name, _)| name);
    let name = asked.parameter("fieldSelector").and_then(|s| s.strip_prefix("metadata.name%3D"));
    let is_asked_for = |item: &&Value| {
        namespace.is_none_or(|namespace| item["metadata"]["namespace"] == namespace)
            && name.is_none_or(|name| item["metadata"]["name"] == name)
    };
    let items: Vec<Value> = items.iter().filter(is_asked_for).cloned().collect();
    full(list(plural(asked), &items).to_string())
}

/// A watch without events that ends with status 410 on expiry.
fn expiring(mut expiry: watch::Receiver<u64>) -> FakeResponse {
    expiry.mark_unchanged();
    let (frames, body) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            changed = expiry.changed() => if changed.is_err() { return },
            () = frames.closed() => return,
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
            "reason": "Expired", "message": "too old resource version"});
        let event = format!("{}\n", json!({"type": "ERROR", "object": status}));
        // The client may have disconnected.
        let _ = frames.send(Ok::<_, Infallible>(Frame::data(Bytes::from(event)))).await;
    });
    Response::new(StreamBody::new(ReceiverStream::new(body)).boxed_unsync())
}
