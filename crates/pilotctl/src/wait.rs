//! `pilotctl wait`: until every proxy that the objects of files concern has them, or is without them. Exit status 1 if a
//! proxy or the server rejects them, or if the time is over.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::control_plane::{ControlPlaneOptions, escaped};
use crate::history::parsed_duration;
use crate::objects::joined_texts;
use crate::output::{FOUND_SOMETHING, OutputOptions};

/// How long one request may wait.
const ROUND: u64 = 5;

#[derive(Args)]
pub(crate) struct WaitOptions {
    /// Files and folders with the objects; `-` reads standard input
    #[arg(short = 'f', long = "filename", required = true, value_delimiter = ',')]
    files: Vec<PathBuf>,

    /// Wait until the objects are gone
    #[arg(long)]
    delete: bool,

    /// Namespace of objects that do not name one
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// How long to wait, as in 30s or 5m
    #[arg(long, default_value = "60s", value_parser = parsed_duration)]
    timeout: Duration,

    /// Print nothing
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    server: ControlPlaneOptions,

    #[command(flatten)]
    output: OutputOptions,
}

fn reasons(report: &Value) -> Vec<&str> {
    report["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Waits; returns the exit status.
pub(crate) async fn run(options: &WaitOptions) -> Result<u8> {
    let text = joined_texts(&options.files)?;
    let (begun, end) = (Instant::now(), Instant::now() + options.timeout);
    let delete = if options.delete { "&delete" } else { "" };
    loop {
        let left = end.saturating_duration_since(Instant::now()).as_secs().min(ROUND);
        let path = format!("/api/v1/wait?timeout={left}&namespace={}{delete}", escaped(&options.namespace));
        let report = options.server.post(&path, text.clone()).await?;
        let count = |field: &str| report[field].as_u64().unwrap_or_default();
        let is_done = report["state"] == "done";
        let is_late = Instant::now() >= end;
        if is_done || is_late || report["state"] == "rejected" {
            clear(options);
            if options.output.printed(&report)? {
                return Ok(if is_done { 0 } else { FOUND_SOMETHING });
            }
        }
        match report["state"].as_str().unwrap_or_default() {
            "done" => {
                if !options.quiet {
                    let took = begun.elapsed().as_millis();
                    println!("{} proxies have it (snapshot {}, {took} ms)", count("proxies"), report["snapshot"]);
                }
                return Ok(0);
            }
            "rejected" => {
                reasons(&report).iter().for_each(|reason| eprintln!("rejected: {reason}"));
                return Ok(FOUND_SOMETHING);
            }
            _ if is_late => {
                eprintln!("not all proxies have it after {:?}:", options.timeout);
                reasons(&report).iter().for_each(|reason| eprintln!("  {reason}"));
                return Ok(FOUND_SOMETHING);
            }
            _ => progress(options, &format!("{} of {} proxies; {}", count("synced"), count("proxies"), first(&report))),
        }
    }
}

fn first(report: &Value) -> String {
    reasons(report).first().map_or(String::new(), |reason| (*reason).to_owned())
}

/// Shows what is waited for, on a terminal only.
fn progress(options: &WaitOptions, text: &str) {
    if !options.quiet && stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        let _ = stderr().flush();
    }
}

fn clear(options: &WaitOptions) {
    if !options.quiet && stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}
