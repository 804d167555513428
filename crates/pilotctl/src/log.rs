//! `pilotctl log`: prints or sets the log levels of a running server, by its ControlZ port.

use anyhow::{Context, Result, bail};
use clap::Args;
use http::Method;
use net::http::call;
use serde_json::{Value, json};

use crate::output::OutputOptions;
use crate::table::table;

#[derive(Args)]
pub(crate) struct LogOptions {
    /// Levels to set, SCOPE=LEVEL
    levels: Vec<String>,

    /// ControlZ address of a running pilot-discovery, HOST:PORT
    #[arg(long, default_value = "127.0.0.1:9876")]
    ctrlz: String,

    #[command(flatten)]
    output: OutputOptions,
}

/// Sets levels, then prints all; returns the exit status.
pub(crate) async fn run(options: &LogOptions) -> Result<u8> {
    for level in &options.levels {
        let Some((scope, level)) = level.split_once('=') else { bail!("{level}: expected SCOPE=LEVEL") };
        if scope.is_empty() || scope.contains(['/', '?', '#', ' ']) {
            bail!("{scope}: not the name of a scope");
        }
        let body = json!({"output_level": level}).to_string();
        let set = call(Method::PUT, &options.ctrlz, &format!("/scopej/{scope}"), body).await;
        set.with_context(|| format!("could not set the level of {scope} at {}", options.ctrlz))?;
    }
    let page = call(Method::GET, &options.ctrlz, "/scopej", String::new()).await;
    let page = page.with_context(|| format!("could not read log levels of {}", options.ctrlz))?;
    let page: Value = serde_json::from_slice(&page).context("could not read log levels: not JSON")?;
    if !options.output.printed(&page)? {
        let cell = |scope: &Value, field: &str| scope[field].as_str().unwrap_or_default().to_owned();
        let row = |scope: &Value| vec![cell(scope, "name"), cell(scope, "output_level"), cell(scope, "description")];
        let rows: Vec<Vec<String>> = page.as_array().into_iter().flatten().map(row).collect();
        print!("{}", table(&["SCOPE", "LEVEL", "DESCRIPTION"], &rows));
    }
    Ok(0)
}
