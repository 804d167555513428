//! `apply`, `create`, `replace`, `delete` and `diff` of files.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::Value;

use super::FileOptions;
use super::documents::{self, Document};
use super::server::{ObjectServer, ServedKind, ServerRefusal};

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";

/// What to do with the objects of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteCommand {
    Apply,
    Create,
    Replace,
    Delete,
    Diff,
}

/// An object, its kind and its name.
struct Target {
    document: Document,
    kind: ServedKind,
    namespace: String,
    name: String,
}

impl Target {
    fn path(&self) -> String {
        self.kind.path(&self.namespace, &self.name)
    }

    fn body(&self) -> Vec<u8> {
        self.document.object.to_string().into_bytes()
    }
}

/// Runs a command on all objects. Returns the exit status: 1 if an object failed, or differs in `diff`.
pub(crate) async fn write(command: WriteCommand, options: &FileOptions) -> Result<u8> {
    let texts = documents::texts(&options.files)?;
    if command != WriteCommand::Delete && !options.no_validate {
        let mistakes = documents::mistakes(&texts);
        if !mistakes.is_empty() {
            bail!("could not {} anything: the files have mistakes\n{}", verb(command), mistakes.join("\n"));
        }
    }
    let mut server = options.server.connect().await?;
    let mut status = 0;
    let mut documents = documents::objects(&texts)?;
    // Objects need their namespace; a deleted namespace takes them with it.
    let is_namespace = |document: &Document| document.object["kind"] == "Namespace";
    documents.sort_by_key(|document| is_namespace(document) == (command == WriteCommand::Delete));
    for document in documents {
        let place = document.place.clone();
        let done = match target(document, &mut server).await {
            Ok(target) => one(command, options, &server, &target).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(found) => status = status.max(found),
            Err(error) => {
                eprintln!("{place}: {error:#}");
                status = 1;
            }
        }
    }
    Ok(status)
}

fn verb(command: WriteCommand) -> &'static str {
    match command {
        WriteCommand::Apply => "apply",
        WriteCommand::Create => "create",
        WriteCommand::Replace => "replace",
        WriteCommand::Delete => "delete",
        WriteCommand::Diff => "compare",
    }
}

/// Finds out what a document is, and puts it into its namespace.
async fn target(mut document: Document, server: &mut ObjectServer) -> Result<Target> {
    let text = |pointer: &str| document.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let mut namespace = text("/metadata/namespace");
    if api_version.is_empty() || kind.is_empty() || !document.object["metadata"].is_object() {
        bail!("not an object: apiVersion, kind and metadata are needed");
    }
    let kind = server.kind_of(&api_version, &kind).await?;
    if !kind.is_namespaced {
        namespace = String::new();
    } else if namespace.is_empty() {
        namespace.clone_from(&server.namespace);
        document.object["metadata"]["namespace"] = namespace.clone().into();
    }
    Ok(Target { document, kind, namespace, name })
}

async fn one(command: WriteCommand, options: &FileOptions, server: &ObjectServer, target: &Target) -> Result<u8> {
    let done = match command {
        WriteCommand::Diff => return difference(options, server, target).await,
        WriteCommand::Apply => apply(options, server, target, false).await?,
        WriteCommand::Create => {
            let path = target.kind.path(&target.namespace, "") + &query(options, options.dry_run);
            server.send(Method::POST, &path, JSON, JSON, target.body()).await?
        }
        WriteCommand::Replace => replace(options, server, target).await?,
        WriteCommand::Delete => {
            let path = target.path() + if options.dry_run { "?dryRun=All" } else { "" };
            server.send(Method::DELETE, &path, JSON, JSON, Vec::new()).await?
        }
    };
    let object = done.map_err(|refusal| anyhow::anyhow!("could not {}: {}", verb(command), refusal.message))?;
    // The name of an object may be made by the server.
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(&target.name);
    let suffix = if options.dry_run { " (dry run)" } else { "" };
    let past = match command {
        WriteCommand::Apply | WriteCommand::Diff => "applied",
        WriteCommand::Create => "created",
        WriteCommand::Replace => "replaced",
        WriteCommand::Delete => "deleted",
    };
    println!("{} {past}{suffix}", target.kind.title(name));
    Ok(0)
}

fn query(options: &FileOptions, is_dry_run: bool) -> String {
    let validation = if options.no_validate { "Ignore" } else { "Strict" };
    let dry_run = if is_dry_run { "&dryRun=All" } else { "" };
    format!("?fieldManager={}&fieldValidation={validation}{dry_run}", options.field_manager)
}

async fn apply(
    options: &FileOptions,
    server: &ObjectServer,
    target: &Target,
    is_comparison: bool,
) -> Result<Result<Value, ServerRefusal>> {
    // A comparison stores nothing, so it may take all fields.
    let force = if options.force_conflicts || is_comparison { "&force=true" } else { "" };
    let path = target.path() + &query(options, options.dry_run || is_comparison) + force;
    server.send(Method::PATCH, &path, APPLY, JSON, target.body()).await
}

/// Replaces an object. Without a resourceVersion in the file the current version is replaced, whatever it is.
async fn replace(
    options: &FileOptions,
    server: &ObjectServer,
    target: &Target,
) -> Result<Result<Value, ServerRefusal>> {
    let mut object = target.document.object.clone();
    if object.pointer("/metadata/resourceVersion").is_none() {
        match server.get(&target.path()).await? {
            Ok(current) => object["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone(),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    let path = target.path() + &query(options, options.dry_run);
    server.send(Method::PUT, &path, JSON, JSON, object.to_string().into_bytes()).await
}

/// Prints the difference between an object and what applying the file would make of it.
async fn difference(options: &FileOptions, server: &ObjectServer, target: &Target) -> Result<u8> {
    let before = match server.get(&target.path()).await? {
        Ok(current) => current,
        Err(ServerRefusal { code: 404, .. }) => Value::Null,
        Err(refusal) => bail!("could not get the object: {}", refusal.message),
    };
    let after = apply(options, server, target, true).await?;
    let after = after.map_err(|refusal| anyhow::anyhow!("could not compare: {}", refusal.message))?;
    let folder = tempfile::tempdir().context("could not make a folder")?;
    let name = target.kind.title(&target.name).replace('/', "-");
    let mut paths = Vec::new();
    for (side, object) in [("live", &before), ("applied", &after)] {
        let path = folder.path().join(side).join(&name);
        fs::create_dir_all(folder.path().join(side))
            .and_then(|()| fs::write(&path, shown(object)?))
            .context("could not write a file to compare")?;
        paths.push(format!("{side}/{name}"));
    }
    let compared = Command::new("diff").current_dir(folder.path()).arg("-u").args(&paths).status();
    let status = compared.context("could not run diff")?;
    match status.code() {
        Some(code @ (0 | 1)) => Ok(u8::try_from(code).unwrap_or(1)),
        _ => bail!("diff failed: {status}"),
    }
}

/// The YAML of an object without what every write changes.
fn shown(object: &Value) -> std::io::Result<String> {
    if object.is_null() {
        return Ok(String::new());
    }
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"] {
            metadata.shift_remove(field);
        }
    }
    serde_saphyr::to_string(&object).map_err(std::io::Error::other)
}
