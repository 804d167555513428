//! A mesh of files, and what proxies in it would get: the same functions as when serving.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use api::envoy::config::core::v3::Node;
use api::{Resource, Struct, TypeUrl, Value as ProtoValue, value};
use clap::Args;
use model::problem::Severity;
use model::proxy::Proxy;
use model::snapshot::Snapshot;
use prost_reflect::DynamicMessage;
use scope::{View, identity, inbound};
use serde_json::{Value, json};
use translate::whole::whole;

use crate::analyze::world_of_files;

/// A proxy that is not connected.
#[derive(Args, Clone)]
pub(crate) struct OfflineNode {
    /// Node id of the proxy, TYPE~ADDRESS~NAME.NAMESPACE~DOMAIN
    #[arg(long, value_name = "ID", default_value = "sidecar~127.0.0.1~any.default~default.svc.cluster.local")]
    pub(crate) node: String,

    /// Label of the proxy's workload, KEY=VALUE
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,

    /// Metadata of the node, KEY=VALUE
    #[arg(long = "metadata", value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<String>,
}

impl OfflineNode {
    fn proxy(&self) -> Result<Proxy> {
        let text = |text: &str| ProtoValue { kind: Some(value::Kind::StringValue(text.to_owned())) };
        let pair = |pair: &String| match pair.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), text(value))),
            None => bail!("{pair}: expected KEY=VALUE"),
        };
        let labels = self.labels.iter().map(pair).collect::<Result<_>>()?;
        let mut fields: std::collections::BTreeMap<String, ProtoValue> =
            self.metadata.iter().map(pair).collect::<Result<_>>()?;
        let namespace = self.node.split('~').nth(2).and_then(|id| id.rsplit('.').next()).unwrap_or_default();
        fields.entry("NAMESPACE".to_owned()).or_insert_with(|| text(namespace));
        fields.insert(
            "LABELS".to_owned(),
            ProtoValue { kind: Some(value::Kind::StructValue(Struct { fields: labels })) },
        );
        let node = Node { id: self.node.clone(), metadata: Some(Struct { fields }), ..Node::default() };
        Proxy::from_node(&node).map_err(|error| anyhow::anyhow!("{}", error.0))
    }
}

/// A mesh of files.
pub(crate) struct OfflineMesh {
    world: Snapshot,
}

impl OfflineMesh {
    pub(crate) fn read(paths: &[PathBuf], namespace: &str, mesh_config: Option<&Path>) -> Result<OfflineMesh> {
        Ok(OfflineMesh { world: world_of_files(paths, namespace, mesh_config)? })
    }

    pub(crate) fn world(&self) -> &Snapshot {
        &self.world
    }

    pub(crate) fn of(world: Snapshot) -> OfflineMesh {
        OfflineMesh { world }
    }

    /// Errors in the files, with file and line.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        let problems = self.world.problems.values().flatten();
        problems.filter(|problem| problem.severity == Severity::Error).map(ToString::to_string).collect()
    }

    /// What a proxy would get, as a list of Envoy's messages.
    pub(crate) fn dump(&self, node: &OfflineNode) -> Result<Value> {
        let mut configs = Vec::new();
        for (kind, resource) in self.resources(node)? {
            configs.push(shown(&kind, &resource)?);
        }
        Ok(json!({ "configs": configs }))
    }

    /// What a proxy would get.
    pub(crate) fn resources(&self, node: &OfflineNode) -> Result<Vec<(TypeUrl, Resource)>> {
        let proxy = node.proxy()?;
        let proxy = Arc::new(identity::resolved(&self.world, &proxy).into_owned());
        let inbound = inbound::targets(&self.world, &proxy);
        let view = View::new(&self.world, &proxy, inbound);
        let found = whole(&view, &mut Vec::new());
        Ok(found.into_iter().flat_map(|(kind, list)| list.into_iter().map(move |of| (kind.clone(), of))).collect())
    }
}

fn shown(kind: &TypeUrl, resource: &Resource) -> Result<Value> {
    let name = kind.as_str().rsplit('/').next().unwrap_or_default();
    let descriptor = api::reflect::envoy().get_message_by_name(name);
    let descriptor = descriptor.with_context(|| format!("could not show {}: unknown type {name}", resource.name))?;
    let message = DynamicMessage::decode(descriptor, resource.body.joined())
        .with_context(|| format!("could not show {}", resource.name))?;
    let mut value = serde_json::to_value(&message)?;
    if let Some(fields) = value.as_object_mut() {
        fields.shift_insert(0, "@type".to_owned(), json!(kind.as_str()));
    }
    Ok(value)
}
