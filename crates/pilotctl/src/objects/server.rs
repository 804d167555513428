//! Requests to the server: the configuration API, or an API server of Kubernetes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http::header::{ACCEPT, CONTENT_TYPE, WARNING};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use crate::cluster;

/// Which server, and the namespace of objects that name none.
#[derive(Args)]
pub(crate) struct ServerOptions {
    /// Kubeconfig file
    #[arg(short = 'c', long, default_value = "")]
    kubeconfig: String,

    /// Context of the kubeconfig file
    #[arg(long, default_value = "")]
    context: String,

    /// Namespace; default: that of the context
    #[arg(short, long, default_value = "")]
    namespace: String,
}

/// A kind as the server serves it.
#[derive(Clone, Debug)]
pub(crate) struct ServedKind {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    root: String,
    pub(super) plural: String,
    pub(super) group: String,
    pub(super) is_namespaced: bool,
}

impl ServedKind {
    /// The path of an object, or of the collection if the name is empty. An empty namespace means all.
    pub(crate) fn path(&self, namespace: &str, name: &str) -> String {
        let place = match (self.is_namespaced, namespace) {
            (true, namespace) if !namespace.is_empty() => format!("/namespaces/{namespace}"),
            _ => String::new(),
        };
        let name = if name.is_empty() { String::new() } else { format!("/{name}") };
        format!("{}{place}/{}{name}", self.root, self.plural)
    }

    /// The kind in messages, as kubectl names it.
    pub(super) fn title(&self, name: &str) -> String {
        match self.group.as_str() {
            "" => format!("{}/{name}", self.plural),
            group => format!("{}.{group}/{name}", self.plural),
        }
    }
}

/// A failed request.
#[derive(Debug)]
pub(crate) struct ServerRefusal {
    pub(super) code: u16,
    pub(crate) message: String,
}

/// A connection to the server.
pub(crate) struct ObjectServer {
    client: Client,
    /// Of objects that name none.
    pub(super) namespace: String,
    /// Resources by path of their version.
    versions: BTreeMap<String, Vec<Value>>,
}

impl ServerOptions {
    /// The namespace of objects in files that name none.
    pub(crate) fn namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }

    /// The namespace that was given.
    pub(super) fn given_namespace(&self) -> Option<&str> {
        Some(&*self.namespace).filter(|namespace| !namespace.is_empty())
    }

    /// Whether a kubeconfig was given, or kubectl's defaults lead to a server.
    pub(super) async fn is_configured(&self) -> bool {
        let is_given = !self.kubeconfig.is_empty() || !self.context.is_empty();
        is_given || cluster::config("", "").await.is_ok()
    }

    pub(crate) async fn connect(&self) -> Result<ObjectServer> {
        let config = cluster::config(&self.kubeconfig, &self.context).await?;
        let namespace = match self.namespace.as_str() {
            "" => config.default_namespace.clone(),
            given => given.to_owned(),
        };
        Ok(ObjectServer { client: Client::try_from(config)?, namespace, versions: BTreeMap::new() })
    }
}

impl ObjectServer {
    /// Sends a request and prints the server's warnings.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        accept: &str,
        body: Vec<u8>,
    ) -> Result<Result<Value, ServerRefusal>> {
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content_type);
        let request = request.header(ACCEPT, accept).body(Body::from(body))?;
        let response = self.client.send(request).await.context("could not reach the server")?;
        for warning in response.headers().get_all(WARNING).iter().filter_map(|value| value.to_str().ok()) {
            let text = warning.trim_start_matches("299 - ").trim_matches('"').replace("\\\"", "\"");
            eprintln!("Warning: {text}");
        }
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.context("could not read the answer of the server")?.to_bytes();
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if (200..300).contains(&code) {
            return Ok(Ok(value));
        }
        let message = value.get("message").and_then(Value::as_str).map(str::to_owned);
        let message = message.unwrap_or_else(|| format!("status {code}"));
        Ok(Err(ServerRefusal { code, message }))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Result<Value, ServerRefusal>> {
        self.send(Method::GET, path, "application/json", "application/json", Vec::new()).await
    }

    async fn document(&self, path: &str) -> Result<Value> {
        self.get(path).await?.map_err(|refusal| anyhow!("could not get {path}: {}", refusal.message))
    }

    /// All objects of a kind, in all namespaces. None if the server does not have the kind.
    pub(crate) async fn objects_of(&self, api_version: &str, kind: &str) -> Result<Vec<Value>> {
        // Failures other than a missing group must not look like a server without objects.
        let group = self.get(&root(api_version)).await?;
        if group.as_ref().is_err_and(|refusal| refusal.code == 404) {
            return Ok(Vec::new());
        }
        let resources = group.map_err(|refusal| anyhow!("could not get {api_version}: {}", refusal.message))?;
        let resources = resources.get("resources").and_then(Value::as_array).cloned().unwrap_or_default();
        let Some(entry) = resources.iter().find(|entry| entry["kind"] == kind && !is_subresource(entry)) else {
            return Ok(Vec::new());
        };
        let list = self.get(&served(&root(api_version), api_version, entry).path("", "")).await?;
        let list = list.map_err(|refusal| anyhow!("could not list {kind}: {}", refusal.message))?;
        let mut items = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        for item in &mut items {
            (item["apiVersion"], item["kind"]) = (api_version.into(), kind.into());
        }
        Ok(items)
    }

    /// The resources of a version.
    async fn resources(&mut self, root: &str) -> Result<Vec<Value>> {
        if let Some(known) = self.versions.get(root) {
            return Ok(known.clone());
        }
        let list = self.document(root).await?;
        let list = list.get("resources").and_then(Value::as_array).cloned().unwrap_or_default();
        self.versions.insert(root.to_owned(), list.clone());
        Ok(list)
    }

    /// The kind of a document.
    pub(crate) async fn kind_of(&mut self, api_version: &str, kind: &str) -> Result<ServedKind> {
        let root = root(api_version);
        let resources = self.resources(&root).await?;
        let found = resources.iter().find(|entry| entry["kind"] == kind && !is_subresource(entry));
        let Some(entry) = found else { bail!("the server has no kind {kind} in {api_version}") };
        Ok(served(&root, api_version, entry))
    }

    /// Every kind that can be listed, in its preferred version.
    pub(super) async fn all_kinds(&mut self) -> Result<Vec<ServedKind>> {
        let mut kinds = Vec::new();
        for version in self.preferred_versions().await? {
            let root = root(&version);
            let lists = |entry: &&Value| entry["verbs"].as_array().into_iter().flatten().any(|verb| verb == "list");
            let resources = self.resources(&root).await?;
            let listed = resources.iter().filter(|entry| !is_subresource(entry)).filter(lists);
            kinds.extend(listed.map(|entry| served(&root, &version, entry)));
        }
        Ok(kinds)
    }

    /// The preferred version of each group, the core group first.
    async fn preferred_versions(&self) -> Result<Vec<String>> {
        let groups = self.document("/apis").await?;
        let mut versions = vec!["v1".to_owned()];
        for entry in groups["groups"].as_array().into_iter().flatten() {
            versions.extend(entry["preferredVersion"]["groupVersion"].as_str().map(str::to_owned));
        }
        Ok(versions)
    }

    /// The kind with a name as users type it: plural, singular or short, with a group or without.
    pub(super) async fn kind_named(&mut self, name: &str) -> Result<ServedKind> {
        let (word, group) = name.split_once('.').unwrap_or((name, ""));
        let word = word.to_lowercase();
        let versions = self.preferred_versions().await?;
        for version in versions.iter().filter(|version| group.is_empty() || version.starts_with(&format!("{group}/"))) {
            let root = root(version);
            let resources = self.resources(&root).await?;
            let is_it = |entry: &&Value| {
                let short = entry["shortNames"].as_array().into_iter().flatten();
                let names = ["name", "singularName"].map(|key| entry[key].as_str().unwrap_or_default());
                let kind = entry["kind"].as_str().unwrap_or_default().to_lowercase();
                names.contains(&&*word) || kind == word || short.filter_map(Value::as_str).any(|known| known == word)
            };
            if let Some(entry) = resources.iter().filter(|entry| !is_subresource(entry)).find(is_it) {
                return Ok(served(&root, version, entry));
            }
        }
        bail!("the server has no kind {name:?}")
    }
}

/// The path of a version.
fn root(version: &str) -> String {
    if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") }
}

fn is_subresource(entry: &Value) -> bool {
    entry["name"].as_str().is_none_or(|name| name.contains('/'))
}

fn served(root: &str, api_version: &str, entry: &Value) -> ServedKind {
    ServedKind {
        root: root.to_owned(),
        plural: entry["name"].as_str().unwrap_or_default().to_owned(),
        group: api_version.split_once('/').map_or("", |(group, _)| group).to_owned(),
        is_namespaced: entry["namespaced"] == true,
    }
}
