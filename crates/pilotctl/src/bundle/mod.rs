//! `pilotctl bundle`: the state of a server in one file, without secrets, for those who cannot reach it. Commands with
//! `--bundle FILE` read it instead of a server.

mod redact;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::bundle_file::{BundleFile, FORMAT};
use crate::control_plane::{ControlPlaneOptions, escaped};
use redact::redacted;

/// Pages that every bundle has.
const PAGES: [&str; 13] = [
    "/api/v1/status",
    "/api/v1/proxies",
    "/api/v1/services",
    "/api/v1/objects?spec",
    "/api/v1/problems",
    "/api/v1/sources",
    "/api/v1/stats",
    "/api/v1/history?limit=1000&proxies",
    "/debug/problems",
    "/debug/sources",
    "/debug/registryz",
    "/debug/quarantinez",
    "/metrics",
];

#[derive(Args)]
pub(crate) struct BundleOptions {
    /// File to write
    file: PathBuf,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// Proxies whose configuration is included; those that are not in sync come first
    #[arg(long, default_value_t = 20)]
    proxies: usize,

    /// A proxy whose configuration is included in any case
    #[arg(long)]
    proxy: Vec<String>,
}

/// Path of a proxy's dump.
pub(crate) fn dump_path(proxy: &str) -> String {
    format!("/debug/config_dump?include_eds&proxyID={}", escaped(proxy))
}

/// Writes a bundle; returns the exit status.
pub(crate) async fn run(options: &BundleOptions) -> Result<u8> {
    options.server.live("/debug/config_dump")?;
    let mut pages = BTreeMap::new();
    for path in PAGES {
        pages.insert(path.to_owned(), cleaned(&options.server.text(path).await?));
    }
    let listed: Value =
        serde_json::from_str(&pages["/api/v1/proxies"]).context("could not read the list of proxies")?;
    let mut proxies: Vec<(bool, String)> = listed["proxies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|proxy| Some((proxy["state"] == "synced", proxy["proxy"].as_str()?.to_owned())))
        .collect();
    proxies.sort();
    let chosen = proxies.into_iter().map(|(_, name)| name).take(options.proxies);
    let mut missing = 0;
    for proxy in options.proxy.iter().cloned().chain(chosen) {
        for path in [dump_path(&proxy), format!("/api/v1/proxies/{}", escaped(&proxy))] {
            match options.server.text(&path).await {
                Ok(page) => _ = pages.insert(path, cleaned(&page)),
                // It may have disconnected meanwhile.
                Err(error) => {
                    missing += 1;
                    eprintln!("left out: {error:#}");
                }
            }
        }
    }
    let bundle = BundleFile {
        pilotage_bundle: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server: options.server.address().to_owned(),
        pages,
    };
    let text = serde_json::to_string(&bundle)?;
    let part = options.file.with_extension("part");
    fs::write(&part, &text)
        .and_then(|()| fs::rename(&part, &options.file))
        .with_context(|| format!("could not write {}", options.file.display()))?;
    println!("{}: {} pages, {} bytes", options.file.display(), bundle.pages.len(), text.len());
    Ok(u8::from(missing > 0))
}

/// The text of a page without secrets.
fn cleaned(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => redacted(value).to_string(),
        Err(_) => text.to_owned(),
    }
}
