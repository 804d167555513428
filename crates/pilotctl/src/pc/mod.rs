//! `pilotctl pc`: the clusters, listeners, routes and endpoints that a proxy is served, with istioctl's columns.

mod rows;
mod secrets;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use explain::ProxyConfig;
use serde_json::Value;

use crate::bundle::dump_path;
use crate::control_plane::ControlPlaneOptions;
use crate::output::{FOUND_SOMETHING, ListFormat, OutputOptions, difference};
use crate::table::table;

#[derive(Args)]
pub(crate) struct PcOptions {
    /// What to print
    #[arg(value_enum)]
    part: ConfigPart,

    /// A connected proxy, NAME.NAMESPACE
    #[arg(required_unless_present = "dump")]
    proxy: Option<String>,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// File with a config dump of the proxy, used instead of the server
    #[arg(long, conflicts_with = "proxy")]
    dump: Option<PathBuf>,

    /// What the proxy should have, as the server knows it; the default
    #[arg(long, conflicts_with_all = ["actual", "diff"])]
    intended: bool,

    /// What the proxy has, read from the admin port of its Envoy
    #[arg(long, requires = "admin")]
    actual: bool,

    /// The difference between what the proxy should have and what it has; exit status 1 if there is any
    #[arg(long, requires = "admin")]
    diff: bool,

    /// Admin address of the proxy's Envoy, HOST:PORT
    #[arg(long)]
    admin: Option<String>,

    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConfigPart {
    #[value(alias = "clusters")]
    Cluster,
    #[value(alias = "listeners")]
    Listener,
    #[value(alias = "routes")]
    Route,
    #[value(alias = "endpoints")]
    Endpoint,
    #[value(alias = "secrets")]
    Secret,
    Bootstrap,
    All,
}

/// Prints the configuration; returns the exit status.
pub(crate) async fn run(options: &PcOptions) -> Result<u8> {
    if options.diff {
        return compare(options).await;
    }
    let dump = if options.actual { actual(options).await? } else { intended(options).await? };
    let is_raw = matches!(options.part, ConfigPart::Secret | ConfigPart::Bootstrap);
    if is_raw || matches!(options.output.output, ListFormat::Json | ListFormat::Yaml) {
        let value: Value = serde_json::from_str(&dump).context("could not read the dump as JSON")?;
        let value = part_of(options.part, value);
        if options.output.printed(&value)? {
            return Ok(0);
        }
        match options.part {
            ConfigPart::Secret => print!("{}", table(&secrets::HEAD, &secrets::rows(&value))),
            // As istioctl: a bootstrap has no columns.
            _ => println!("{value:#}"),
        }
        return Ok(0);
    }
    print!("{}", printed(options.part, &ProxyConfig::from_dump(&dump)?));
    Ok(0)
}

/// Prints how the proxy's Envoy differs from what it should have.
async fn compare(options: &PcOptions) -> Result<u8> {
    let [intended, actual] = [intended(options).await?, without_static(&actual(options).await?)?];
    let read = |text: &str| ProxyConfig::from_dump(text).map(|config| printed(options.part, &config));
    let (intended, actual) = (read(&intended)?, read(&actual)?);
    // Envoy prints resources in another order.
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        lines
            .iter()
            .map(|line| format!("{}\n", line.split_whitespace().collect::<Vec<_>>().join(" ")))
            .collect::<String>()
    };
    let (intended, actual) = (sorted(&intended), sorted(&actual));
    anstream::print!("{}", difference(&intended, &actual, ("intended", "actual")));
    Ok(if intended == actual { 0 } else { FOUND_SOMETHING })
}

/// The dump of an Envoy without what its bootstrap has. It lists the route tables inside listeners as static too, but they
/// are read from the listeners.
fn without_static(dump: &str) -> Result<String> {
    let mut dump: Value = serde_json::from_str(dump).context("could not read the dump as JSON")?;
    for section in dump["configs"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        section.retain(|field, _| !field.starts_with("static"));
    }
    Ok(dump.to_string())
}

async fn intended(options: &PcOptions) -> Result<String> {
    if let Some(file) = &options.dump {
        return fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()));
    }
    options.server.text(&dump_path(options.proxy.as_deref().unwrap_or_default())).await
}

/// The dump of the proxy's Envoy.
async fn actual(options: &PcOptions) -> Result<String> {
    let admin = options.admin.as_deref().unwrap_or_default();
    ControlPlaneOptions::at(admin).text("/config_dump?include_eds").await
}

/// All tables of a configuration.
pub(crate) fn tables(config: &ProxyConfig) -> String {
    let parts = [ConfigPart::Cluster, ConfigPart::Listener, ConfigPart::Route, ConfigPart::Endpoint];
    parts.map(|part| printed(part, config)).join("\n")
}

fn printed(part: ConfigPart, config: &ProxyConfig) -> String {
    match part {
        ConfigPart::Cluster => table(&rows::CLUSTER, &rows::clusters(config)),
        ConfigPart::Listener => table(&rows::LISTENER, &rows::listeners(config)),
        ConfigPart::Route => table(&rows::ROUTE, &rows::routes(config)),
        ConfigPart::Endpoint => table(&rows::ENDPOINT, &rows::endpoints(config)),
        ConfigPart::All | ConfigPart::Secret | ConfigPart::Bootstrap => tables(config),
    }
}

/// The sections of a dump for one part.
fn part_of(part: ConfigPart, mut dump: Value) -> Value {
    let section = match part {
        ConfigPart::Cluster => "ClustersConfigDump",
        ConfigPart::Listener => "ListenersConfigDump",
        ConfigPart::Route => "RoutesConfigDump",
        ConfigPart::Endpoint => "EndpointsConfigDump",
        ConfigPart::Secret => "SecretsConfigDump",
        ConfigPart::Bootstrap => "BootstrapConfigDump",
        ConfigPart::All => return dump,
    };
    if let Some(sections) = dump["configs"].as_array_mut() {
        sections.retain(|of| of["@type"].as_str().is_some_and(|kind| kind.ends_with(section)));
    }
    dump
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ConfigPart, ProxyConfig, printed, without_static};

    fn table(name: &str) -> Value {
        json!({"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": name, "virtual_hosts": [
            {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": name}}]}]})
    }

    fn listener(routes: &[&str]) -> Value {
        let manager =
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let chain = |name: &&str| {
            let mut inline = table(name);
            inline.as_object_mut().unwrap().shift_remove("@type");
            json!({"filters": [{"name": "http", "typed_config": {"@type": manager, "route_config": inline}}]})
        };
        let chains: Vec<Value> = routes.iter().map(chain).collect();
        json!({"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "in", "filter_chains": chains})
    }

    #[test]
    fn route_tables_inside_listeners_are_the_same_in_both_dumps() {
        let server = json!({"configs": [{"listener": listener(&["in|80", "in|80"])}, {"route_config": table("80")}]});
        let routes = |inline: &[&str]| {
            let envoy = json!({"configs": [
                {"static_listeners": [listener(&["probes"])], "dynamic_listeners": [listener(inline)]},
                {"static_route_configs": [table("probes"), table(inline[0])], "dynamic_route_configs": [table("80")]},
            ]});
            let config = ProxyConfig::from_dump(&without_static(&envoy.to_string()).unwrap()).unwrap();
            printed(ConfigPart::Route, &config)
        };
        let intended = printed(ConfigPart::Route, &ProxyConfig::from_dump(&server.to_string()).unwrap());
        assert!(intended.contains("in|80") && intended.lines().count() == 3, "{intended}");
        assert_eq!(routes(&["in|80"]), intended);
        assert_ne!(routes(&["in|81"]), intended);
    }
}
