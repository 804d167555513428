//! `pilotctl explain`: where a request of a proxy goes, and why. The configuration comes from the server, or from a file
//! with a config dump. `--verify` asks a private Envoy as well.

mod addresses;
mod destinations;
mod places;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use explain::private_envoy::PrivateEnvoy;
use explain::{Explanation, ProxyConfig, Request, explain};
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
    let mut explanation = explain(&config.proxy, &request);
    if let Some(from) = &options.from {
        explanation.arrivals = destinations::arrivals(&options.server, from, &config.proxy, &explanation).await?;
    }
    let places = match options.dump {
        Some(_) => BTreeMap::new(),
        None => places::of(&options.server, &explanation).await,
    };
    let unknown = config.services.as_ref().and_then(|services| addresses::unknown(services, &request, &explanation));
    let verified = match options.verify {
        true => Some(verified(options, &config.proxy, &request, &explanation).await?),
        false => None,
    };
    let report = ExplainReport { explanation: &explanation, places, verified, unknown };
    report.print(options.output)?;
    let is_good = explanation.is_served() && report.unknown.is_none() && !matches!(report.verified, Some(Err(_)));
    Ok(if is_good { 0 } else { FOUND_SOMETHING })
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

/// What is known of the proxy and its mesh.
struct KnownMesh {
    proxy: ProxyConfig,
    /// Services of all registries; `None` without a server.
    services: Option<Value>,
}

/// The proxy's configuration. Completes the request with the addresses of its host.
async fn config(options: &ExplainOptions, request: &mut Request) -> Result<KnownMesh> {
    if let Some(file) = &options.dump {
        let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
        let proxy = ProxyConfig::from_dump(&text).with_context(|| format!("could not use {}", file.display()))?;
        return Ok(KnownMesh { proxy, services: None });
    }
    let proxy = options.from.as_deref().unwrap_or_default();
    let dump = options.server.text(&dump_path(proxy)).await?;
    let services = options.server.page("/debug/registryz").await?;
    if request.addresses.is_empty() {
        let namespace = proxy.rsplit('.').next().unwrap_or_default();
        request.addresses = addresses::of(&services, request.host(), namespace);
    }
    let config =
        ProxyConfig::from_dump(&dump).with_context(|| format!("could not use the configuration of {proxy}"))?;
    Ok(KnownMesh { proxy: config, services: Some(services) })
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

/// Everything that is printed.
struct ExplainReport<'a> {
    explanation: &'a Explanation,
    /// File and line by object and rule.
    places: BTreeMap<String, String>,
    verified: Option<Result<String, String>>,
    /// That no service has the host.
    unknown: Option<String>,
}

impl ExplainReport<'_> {
    fn print(&self, format: ExplainFormat) -> Result<()> {
        let verdict = self.verified.as_ref().map(|verdict| verdict.as_ref().unwrap_or_else(|text| text));
        if format == ExplainFormat::Text {
            print!("{}", places::text(self.explanation, &self.places));
            verdict.into_iter().chain(&self.unknown).for_each(|line| println!("  {line}"));
            return Ok(());
        }
        let mut value = serde_json::to_value(self.explanation)?;
        value["files"] = json!(self.places);
        if let Some(verdict) = verdict {
            value["verified"] = json!({"agrees": self.verified.as_ref().is_some_and(Result::is_ok), "text": verdict});
        }
        if let Some(unknown) = &self.unknown {
            value["unknownHost"] = json!(unknown);
        }
        match format {
            ExplainFormat::Yaml => print!("{}", serde_saphyr::to_string(&value)?),
            _ => println!("{}", serde_json::to_string_pretty(&value)?),
        }
        Ok(())
    }
}
