//! `export`: writes all objects of the server to a folder, a file each, without the fields that the server sets. `apply -f`
//! of that folder makes them again, and `--configDir` can read it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::Value;

use super::server::{ObjectServer, ServedKind, ServerOptions};

/// Objects of one request.
const PAGE: usize = 500;
/// The folder of objects without a namespace.
const CLUSTER: &str = "_cluster";
/// Kinds that a server makes itself.
const OWN_KINDS: [&str; 2] = ["customresourcedefinitions", "leases"];
/// Metadata that the server sets.
const SERVER_FIELDS: [&str; 6] =
    ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"];

#[derive(Args)]
pub(crate) struct ExportOptions {
    /// Folder to write; it must be empty or not exist
    folder: PathBuf,

    /// Leave out Secrets
    #[arg(long)]
    no_secrets: bool,

    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) async fn export(options: &ExportOptions) -> Result<u8> {
    let folder = &options.folder;
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("could not export to {}: the folder is not empty", folder.display());
    }
    let mut server = options.server.connect().await?;
    let mut count = 0;
    for kind in server.all_kinds().await? {
        if OWN_KINDS.contains(&kind.plural.as_str()) || (options.no_secrets && kind.plural == "secrets") {
            continue;
        }
        for object in all_objects(&server, &kind).await? {
            write_object(folder, &kind, object)?;
            count += 1;
        }
    }
    println!("{count} objects written to {}", folder.display());
    Ok(0)
}

/// All objects of a kind, as they were at one moment.
async fn all_objects(server: &ObjectServer, kind: &ServedKind) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!("{}?limit={PAGE}&continue={next}", kind.path("", ""));
        let list = server.get(&path).await?;
        let mut list = list.map_err(|refusal| anyhow!("could not list {}: {}", kind.title("*"), refusal.message))?;
        let (api_version, item_kind) = (list["apiVersion"].clone(), list["kind"].as_str().unwrap_or_default());
        let item_kind: Value = item_kind.strip_suffix("List").unwrap_or(item_kind).into();
        for mut object in list["items"].as_array_mut().map(std::mem::take).unwrap_or_default() {
            // Items of a list of Kubernetes do not repeat their kind.
            for (field, value) in [("apiVersion", &api_version), ("kind", &item_kind)] {
                if object.get(field).is_none() {
                    object[field] = value.clone();
                }
            }
            objects.push(object);
        }
        next = list.pointer("/metadata/continue").and_then(Value::as_str).unwrap_or_default().to_owned();
        if next.is_empty() {
            return Ok(objects);
        }
    }
}

fn write_object(folder: &Path, kind: &ServedKind, object: Value) -> Result<()> {
    let text = |field: &str| object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name").to_owned());
    let place = folder.join(if namespace.is_empty() { CLUSTER } else { namespace });
    let file = place.join(format!("{}.{name}.yaml", kind.title("").trim_end_matches('/')));
    let failed = || format!("could not write {}", file.display());
    fs::create_dir_all(&place).with_context(failed)?;
    let document = serde_saphyr::to_string(&cleaned(object)).with_context(failed)?;
    let mode = if kind.plural == "secrets" { 0o600 } else { 0o644 };
    let mut out = OpenOptions::new().write(true).create_new(true).mode(mode).open(&file).with_context(failed)?;
    out.write_all(document.as_bytes()).with_context(failed)
}

/// The object without what the server sets.
fn cleaned(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in SERVER_FIELDS {
            metadata.shift_remove(field);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::cleaned;

    #[test]
    fn fields_of_the_server_are_dropped() {
        let object = json!({
            "apiVersion": "v1", "kind": "Service", "status": {"a": 1}, "spec": {"ports": []},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "managedFields": [], "labels": {"x": "y"}},
        });
        let expected = json!({
            "apiVersion": "v1", "kind": "Service", "spec": {"ports": []}, "metadata": {"name": "a", "labels": {"x": "y"}},
        });
        assert_eq!(cleaned(object), expected);
    }
}
