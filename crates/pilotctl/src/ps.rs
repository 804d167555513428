//! `pilotctl ps`: connected proxies, and for each type whether the proxy has accepted what it was sent last.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::control_plane::ControlPlaneOptions;
use crate::output::{FOUND_SOMETHING, OutputOptions};
use crate::table::table;

/// Columns for types.
const TYPES: [&str; 5] = ["CDS", "LDS", "EDS", "RDS", "ECDS"];

#[derive(Args)]
pub(crate) struct PsOptions {
    /// Show only proxies whose name starts with this
    proxy: Option<String>,

    #[command(flatten)]
    server: ControlPlaneOptions,

    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the list; returns the exit status.
pub(crate) async fn run(options: &PsOptions) -> Result<u8> {
    let page = options.server.page("/api/v1/proxies").await?;
    let wanted = options.proxy.as_deref().unwrap_or_default();
    let all = page["proxies"].as_array().cloned().unwrap_or_default();
    let proxies: Vec<Value> = all.into_iter().filter(|proxy| text(proxy, "proxy").starts_with(wanted)).collect();
    if !options.output.printed(&json!(proxies))? {
        let rows: Vec<Vec<String>> = proxies.iter().map(|proxy| row(proxy, options.output.is_wide())).collect();
        match rows.is_empty() {
            true => eprintln!("no proxy is connected"),
            false => print!("{}", table(&head(options.output.is_wide()), &rows)),
        }
    }
    let is_behind = proxies.iter().any(|proxy| text(proxy, "state") != "synced");
    Ok(if is_behind { FOUND_SOMETHING } else { 0 })
}

fn text<'a>(proxy: &'a Value, field: &str) -> &'a str {
    proxy[field].as_str().unwrap_or_default()
}

fn row(proxy: &Value, is_wide: bool) -> Vec<String> {
    let mut cells = vec![text(proxy, "proxy").to_owned(), text(proxy, "cluster").to_owned()];
    cells.extend(TYPES.iter().map(|name| proxy["types"][name].as_str().unwrap_or("NOT SENT").to_owned()));
    cells.push(text(proxy, "version").to_owned());
    if is_wide {
        cells.extend(["type", "state", "address", "connectedAt"].map(|field| text(proxy, field).to_owned()));
        cells.push(proxy["holds"].to_string());
    }
    cells
}

fn head(is_wide: bool) -> Vec<&'static str> {
    let more = ["TYPE", "STATE", "ADDRESS", "CONNECTED", "SNAPSHOT"];
    let usual = ["NAME", "CLUSTER"].into_iter().chain(TYPES).chain(["VERSION"]);
    usual.chain(more.into_iter().filter(|_| is_wide)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{head, row, table};

    #[test]
    fn states_are_those_of_istioctl() {
        let proxy = json!({
            "proxy": "cart-1.shop", "cluster": "Kubernetes", "version": "1.31.0",
            "types": {"CDS": "SYNCED", "LDS": "STALE"},
        });
        assert_eq!(
            table(&head(false), &[row(&proxy, false)]),
            "NAME          CLUSTER      CDS      LDS     EDS        RDS        ECDS       VERSION\n\
             cart-1.shop   Kubernetes   SYNCED   STALE   NOT SENT   NOT SENT   NOT SENT   1.31.0\n"
        );
        assert_eq!(head(true).len(), row(&proxy, true).len());
    }
}
