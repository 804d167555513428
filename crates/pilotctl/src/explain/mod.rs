//! `pilotctl explain`: where a request of a proxy goes, and why. The configuration comes from the server, or from a file
//! with a config dump. `--verify` asks a private Envoy as well.

mod addresses;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use explain::private_envoy::PrivateEnvoy;
use explain::{Explanation, ProxyConfig, Request, RequestOutcome, explain};
use serde_json::{Value, json};

use crate::bundle::dump_path;
use crate::control_plane::ControlPlaneOptions;
use crate::demo::find_envoy;

/// Exit status if the request is not served, or Envoy disagrees.
const FOUND_SOMETHING: u8 = 1;

#[derive(Args)]
pub(crate) struct ExplainOptions {
    /// Method and URL of the request, or only the URL
    #[arg(required = true, num_args = 1..=2, value_name = "METHOD URL")]
    request: Vec<String>,

    /// Proxy that the request goes through, NAME.NAMESPACE
    #[arg(long, required_unless_present = "dump")]
    from: Option<String>,

    /// Header of the request, `NAME: VALUE`
    #[arg(short = 'H', long = "header")]
    headers: Vec<String>,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// File with a config dump of the proxy, used instead of the server
    #[arg(long, conflicts_with = "from")]
    dump: Option<PathBuf>,

    /// Ask a private Envoy with the same routes too
    #[arg(long)]
    verify: bool,

    /// Envoy binary for `--verify`
    #[arg(long)]
    envoy: Option<PathBuf>,

    /// How to print the explanation
    #[arg(short, long, value_enum, default_value_t = ExplainFormat::Text)]
    output: ExplainFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExplainFormat {
    Text,
    Json,
    Yaml,
}

/// Prints the explanation; returns the exit status.
pub(crate) async fn run(options: &ExplainOptions) -> Result<u8> {
    let mut request = request(options)?;
    let config = config(options, &mut request).await?;
    let explanation = explain(&config, &request);
    let files = files(options, &explanation).await;
    let verified = match options.verify {
        true => Some(verified(options, &config, &request, &explanation).await?),
        false => None,
    };
    print(options.output, &explanation, &files, verified.as_ref())?;
    let is_served = !matches!(explanation.outcome, RequestOutcome::NotServed(_));
    Ok(if is_served && !matches!(verified, Some(Err(_))) { 0 } else { FOUND_SOMETHING })
}

fn request(options: &ExplainOptions) -> Result<Request> {
    let (method, url) = match options.request.as_slice() {
        [method, url] => (method.as_str(), url),
        [url] => ("GET", url),
        _ => bail!("give a method and a URL"),
    };
    let mut request = Request::new(method, url)?;
    for header in &options.headers {
        request.header(header)?;
    }
    Ok(request)
}

/// The proxy's configuration. Completes the request with the addresses of its host.
async fn config(options: &ExplainOptions, request: &mut Request) -> Result<ProxyConfig> {
    if let Some(file) = &options.dump {
        let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
        return ProxyConfig::from_dump(&text).with_context(|| format!("could not use {}", file.display()));
    }
    let proxy = options.from.as_deref().unwrap_or_default();
    let dump = options.server.text(&dump_path(proxy)).await?;
    if request.addresses.is_empty() {
        let namespace = proxy.rsplit('.').next().unwrap_or_default();
        let services = options.server.page("/debug/registryz").await?;
        request.addresses = addresses::of(&services, request.host(), namespace);
    }
    ProxyConfig::from_dump(&dump).with_context(|| format!("could not use the configuration of {proxy}"))
}

/// File and line of each object that is named. Without a server, or for objects that are in no file, none.
async fn files(options: &ExplainOptions, explanation: &Explanation) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    if options.dump.is_some() {
        return files;
    }
    let configs = explanation.configs();
    let Ok(Value::Array(objects)) = options.server.page("/api/v1/objects").await else { return files };
    for object in &objects {
        let Some(config) = object["config"].as_str().filter(|config| configs.contains(config)) else { continue };
        if let Some(file) = object["file"].as_str() {
            let line = object["line"].as_u64().map_or(String::new(), |line| format!(":{line}"));
            files.insert(config.to_owned(), format!("{file}{line}"));
        }
    }
    files
}

/// Asks a private Envoy. The inner error says how it disagrees.
async fn verified(
    options: &ExplainOptions,
    config: &ProxyConfig,
    request: &Request,
    explanation: &Explanation,
) -> Result<Result<String, String>> {
    let table = explanation.route_configuration.as_ref().and_then(|name| config.routes.get(name));
    let Some(table) = table else { return Ok(Ok("there are no routes to verify".to_owned())) };
    let envoy = PrivateEnvoy::start(&find_envoy(options.envoy.as_deref())?, table).await?;
    let authority = explanation.virtual_host.as_ref().map_or(&request.authority, |host| &host.authority);
    let sent = Request { authority: authority.clone(), ..request.clone() };
    let observed = envoy.ask(&sent).await?;
    Ok(match observed.disagreement(explanation) {
        None => Ok("a private Envoy with these routes does the same".to_owned()),
        Some(text) if !explanation.conditions.is_empty() => Ok(format!("{text}; the route depends on chance")),
        Some(text) => Err(format!("this explanation is wrong: {text}")),
    })
}

fn print(
    format: ExplainFormat,
    explanation: &Explanation,
    files: &BTreeMap<String, String>,
    verified: Option<&Result<String, String>>,
) -> Result<()> {
    let verdict = verified.map(|verdict| verdict.as_ref().unwrap_or_else(|text| text));
    if format == ExplainFormat::Text {
        let mut text = explanation.to_string();
        for (config, file) in files {
            text = text.replace(&format!("from {config}"), &format!("from {config} ({file})"));
        }
        print!("{text}");
        verdict.iter().for_each(|verdict| println!("  {verdict}"));
        return Ok(());
    }
    let mut value = serde_json::to_value(explanation)?;
    value["files"] = json!(files);
    if let Some(verdict) = verdict {
        value["verified"] = json!({"agrees": verified.is_some_and(Result::is_ok), "text": verdict});
    }
    match format {
        ExplainFormat::Yaml => print!("{}", serde_saphyr::to_string(&value)?),
        _ => println!("{}", serde_json::to_string_pretty(&value)?),
    }
    Ok(())
}
