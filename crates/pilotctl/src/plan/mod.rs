//! `pilotctl plan`: what a change would do, before it is made: the proxies and resources that it touches, requests that go
//! another way, and Envoy's verdict. With a server its snapshot and its proxies are used; with `--config` files and a node.
//! Exit status 0 if proxies would accept it, 1 if not, if there is no Envoy to ask, or if the change has mistakes.

mod offline;
mod report;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use explain::ProxyConfig;
use explain::samples::{ChangedWay, changed_ways};
use explain::verdict::validate;
use serde_json::{Value, json};

use crate::control_plane::{ControlPlaneOptions, escaped};
use crate::demo::find_envoy;
use crate::objects::{joined_texts, mistakes_of};
use crate::output::{FOUND_SOMETHING, OutputOptions};
use crate::translate::offline::OfflineNode;

/// Requests that are listed for one proxy.
const MOST_REQUESTS: usize = 50;

#[derive(Args)]
pub(crate) struct PlanOptions {
    /// Files and folders with the change; `-` reads standard input
    #[arg(short = 'f', long = "filename", required = true, value_delimiter = ',')]
    files: Vec<PathBuf>,

    /// The objects are deleted
    #[arg(long)]
    delete: bool,

    /// Namespace of objects that do not name one
    #[arg(short, long, default_value = "default")]
    namespace: String,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// Files and folders with the configuration now, used instead of a server
    #[arg(long, value_delimiter = ',')]
    config: Vec<PathBuf>,

    #[command(flatten)]
    node: OfflineNode,

    /// Most groups of proxies for which requests are compared and Envoy is asked; default: all
    #[arg(long)]
    groups: Option<usize>,

    /// Envoy binary that validates the result
    #[arg(long)]
    envoy: Option<PathBuf>,

    /// Do not ask an Envoy
    #[arg(long)]
    no_validate: bool,

    #[command(flatten)]
    output: OutputOptions,
}

/// What a change does to the proxies of one group.
struct GroupEffect {
    proxy: String,
    requests: Vec<ChangedWay>,
    /// Envoy's message if it rejects the result; `None` if no Envoy was asked.
    verdict: Option<Result<(), String>>,
}

/// The Envoy that gives a verdict.
enum Validator {
    Envoy(PathBuf),
    /// The user wants no verdict.
    Unwanted,
    /// Why there is none.
    Missing(String),
}

impl Validator {
    fn program(&self) -> Option<&Path> {
        match self {
            Validator::Envoy(program) => Some(program),
            Validator::Unwanted | Validator::Missing(_) => None,
        }
    }
}

/// Prints the plan; returns the exit status.
pub(crate) async fn run(options: &PlanOptions) -> Result<u8> {
    let mistakes = if options.delete { Vec::new() } else { mistakes_of(&options.files)? };
    if !mistakes.is_empty() {
        eprintln!("the change has mistakes:\n{}", mistakes.join("\n"));
        return Ok(FOUND_SOMETHING);
    }
    let validator = validator(options);
    let (mut report, effects) = match options.config.is_empty() {
        true => online(options, validator.program()).await?,
        false => offline::plan(options, validator.program()).await?,
    };
    let rejected = effects.iter().any(|effect| matches!(effect.verdict, Some(Err(_))));
    let groups = report["groups"].as_array().map_or(0, Vec::len);
    report["effects"] = effects.iter().map(shown).collect();
    report["uncheckedGroups"] = json!(groups.saturating_sub(effects.len()));
    // Without a difference there is nothing that an Envoy could reject.
    let missing = match &validator {
        Validator::Missing(reason) if groups > 0 => Some(reason),
        _ => None,
    };
    report["verdictMissing"] = json!(missing);
    if !options.output.printed(&report)? {
        report::print(&report, &effects);
    }
    Ok(if rejected || missing.is_some() { FOUND_SOMETHING } else { 0 })
}

/// The Envoy to ask. One that was named and does not exist is an error when it is started.
fn validator(options: &PlanOptions) -> Validator {
    match find_envoy(options.envoy.as_deref()) {
        _ if options.no_validate => Validator::Unwanted,
        Ok(program) => Validator::Envoy(program),
        Err(error) => Validator::Missing(format!("{error:#}")),
    }
}

fn shown(effect: &GroupEffect) -> Value {
    let verdict = match &effect.verdict {
        None => json!(null),
        Some(Ok(())) => json!({"accepted": true}),
        Some(Err(reason)) => json!({"accepted": false, "reason": reason}),
    };
    json!({"proxy": effect.proxy, "requests": effect.requests, "envoy": verdict})
}

async fn online(options: &PlanOptions, envoy: Option<&Path>) -> Result<(Value, Vec<GroupEffect>)> {
    let text = joined_texts(&options.files)?;
    let delete = if options.delete { "&delete" } else { "" };
    let path = format!("/api/v1/plan?namespace={}{delete}", escaped(&options.namespace));
    let report = options.server.post(&path, text.clone()).await?;
    let mut effects = Vec::new();
    for group in report["groups"].as_array().into_iter().flatten().take(options.groups.unwrap_or(usize::MAX)) {
        let Some(proxy) = group["proxies"][0].as_str() else { continue };
        let dumps = options.server.post(&format!("{path}&dump={}", escaped(proxy)), text.clone()).await?;
        effects.push(effect(proxy, &dumps["before"], &dumps["after"], envoy).await?);
    }
    Ok((report, effects))
}

/// Requests that change their way, and Envoy's verdict on the result.
async fn effect(proxy: &str, before: &Value, after: &Value, envoy: Option<&Path>) -> Result<GroupEffect> {
    let read = |dump: &Value| ProxyConfig::from_dump(&dump.to_string());
    // A proxy may have no resources before or after.
    let requests = match (read(before), read(after)) {
        (Ok(before), Ok(after)) => changed_ways(&before, &after, MOST_REQUESTS),
        _ => Vec::new(),
    };
    let verdict = match envoy {
        None => None,
        Some(program) => Some(validate(program, after).await.context("could not ask Envoy")?),
    };
    Ok(GroupEffect { proxy: proxy.to_owned(), requests, verdict })
}
