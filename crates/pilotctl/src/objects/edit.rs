//! `edit`: opens an object in an editor and replaces it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http::Method;
use model::config::read_yaml;

use super::server::ServerOptions;

#[derive(Args)]
pub(crate) struct EditOptions {
    /// Kind: plural, singular or short name, with a group or without
    kind: String,

    /// Name of the object
    name: String,

    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) async fn edit(options: &EditOptions) -> Result<u8> {
    let mut server = options.server.connect().await?;
    let kind = server.kind_named(&options.kind).await?;
    let path = kind.path(&server.namespace, &options.name);
    let failed = |what: &str, message: &str| anyhow!("could not {what} {}: {message}", kind.title(&options.name));
    let mut object = server.get(&path).await?.map_err(|refusal| failed("get", &refusal.message))?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.shift_remove("managedFields");
    }
    let before = serde_saphyr::to_string(&object).context("could not write YAML")?;
    let file = tempfile::Builder::new().prefix("pilotctl-edit-").suffix(".yaml").tempfile()?;
    fs::write(file.path(), &before).context("could not write the file to edit")?;
    let editor = ["KUBE_EDITOR", "VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    let command = format!("{editor} \"$1\"");
    let status = Command::new("/bin/sh").args(["-c", &command, "sh"]).arg(file.path()).status();
    if !status.with_context(|| format!("could not run {editor}"))?.success() {
        bail!("could not edit {}: {editor} failed; the object is unchanged", kind.title(&options.name));
    }
    let after = fs::read_to_string(file.path()).context("could not read the edited file")?;
    if after == before {
        println!("{} unchanged", kind.title(&options.name));
        return Ok(0);
    }
    let kept = |error: anyhow::Error| match file.keep() {
        Ok((_, path)) => error.context(format!("your changes are kept in {}", path.display())),
        Err(_) => error,
    };
    let edited = match read_yaml(&after) {
        Ok(edited) => edited,
        Err(error) => return Err(kept(failed("parse", &error.to_string()))),
    };
    let query = "?fieldManager=pilotctl-edit&fieldValidation=Strict";
    let body = edited.to_string().into_bytes();
    let done = server.send(Method::PUT, &(path + query), "application/json", "application/json", body).await?;
    match done {
        Ok(_) => println!("{} edited", kind.title(&options.name)),
        Err(refusal) => return Err(kept(failed("replace", &refusal.message))),
    }
    Ok(0)
}
