//! `pilotctl ps`: connected proxies, and for each type whether the proxy has accepted what it was sent last.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::control_plane::{ControlPlaneOptions, UNREACHABLE, is_unreachable};
use crate::table::table;

/// Exit status if a proxy has not accepted what it was sent.
const FOUND_SOMETHING: u8 = 1;

/// Columns for types, with their names in the page.
const TYPES: [(&str, &str); 5] =
    [("CDS", "cluster"), ("LDS", "listener"), ("EDS", "endpoint"), ("RDS", "route"), ("ECDS", "extensionconfig")];

#[derive(Args)]
pub(crate) struct PsOptions {
    /// Show only proxies whose name starts with this
    proxy: Option<String>,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// How to print the list
    #[arg(short, long, value_enum, default_value_t = PsFormat::Table)]
    output: PsFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PsFormat {
    Table,
    Json,
}

/// Prints the list; returns the exit status.
pub(crate) async fn run(options: &PsOptions) -> Result<u8> {
    let page = match options.server.page("/debug/syncz").await {
        Err(error) if is_unreachable(&error) => {
            eprintln!("pilotctl: {error:#}");
            return Ok(UNREACHABLE);
        }
        page => page?,
    };
    let wanted = options.proxy.as_deref().unwrap_or_default();
    let all = page.as_array().cloned().unwrap_or_default();
    let proxies: Vec<Value> = all.into_iter().filter(|proxy| text(proxy, "proxy").starts_with(wanted)).collect();
    let rows: Vec<Vec<String>> = proxies.iter().map(row).collect();
    match options.output {
        PsFormat::Json => println!("{}", serde_json::to_string_pretty(&proxies)?),
        PsFormat::Table if rows.is_empty() => eprintln!("no proxy is connected"),
        PsFormat::Table => print!("{}", table(&head(), &rows)),
    }
    let is_behind = rows.iter().flatten().any(|cell| cell == STALE);
    Ok(if is_behind { FOUND_SOMETHING } else { 0 })
}

const STALE: &str = "STALE";

fn text<'a>(proxy: &'a Value, field: &str) -> &'a str {
    proxy[field].as_str().unwrap_or_default()
}

fn row(proxy: &Value) -> Vec<String> {
    let mut cells = vec![text(proxy, "proxy").to_owned(), text(proxy, "cluster_id").to_owned()];
    cells.extend(TYPES.iter().map(|(_, name)| state(proxy, name).to_owned()));
    cells.push(text(proxy, "istio_version").to_owned());
    cells
}

/// The state of one type, in istioctl's words.
fn state(proxy: &Value, name: &str) -> &'static str {
    let (sent, acked) = (text(proxy, &format!("{name}_sent")), text(proxy, &format!("{name}_acked")));
    match (sent, acked) {
        ("", _) => "NOT SENT",
        (sent, acked) if sent == acked => "SYNCED",
        _ => STALE,
    }
}

fn head() -> Vec<&'static str> {
    ["NAME", "CLUSTER"].into_iter().chain(TYPES.map(|(title, _)| title)).chain(["VERSION"]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{head, row, table};

    #[test]
    fn states_are_those_of_istioctl() {
        let proxy = json!({
            "proxy": "cart-1.shop", "cluster_id": "Kubernetes", "istio_version": "1.31.0",
            "cluster_sent": "a-1", "cluster_acked": "a-1", "listener_sent": "a-2", "listener_acked": "a-1",
        });
        assert_eq!(
            table(&head(), &[row(&proxy)]),
            "NAME          CLUSTER      CDS      LDS     EDS        RDS        ECDS       VERSION\n\
             cart-1.shop   Kubernetes   SYNCED   STALE   NOT SENT   NOT SENT   NOT SENT   1.31.0\n"
        );
    }
}
