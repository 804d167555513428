//! Installs and removes rules with iptables, iptables-restore and ip.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use tracing::{info, warn};

use super::installed::InstalledRules;
use super::options::{InterceptionMode, IptablesOptions};
use super::rule::{self, IptablesArgs, IptablesRule};
use super::rules::{IpFamily, rules};

/// How long legacy iptables waits for its lock.
const WAIT: &str = "--wait=30";

/// Makes the installed rules match the options.
pub(super) fn apply(options: &IptablesOptions) -> Result<()> {
    if let Some(namespace) = &options.action.namespace {
        enter(namespace)?;
    }
    let mut tables = vec![FamilyTables::find(IpFamily::V4, options)?];
    if options.ipv6 {
        tables.push(FamilyTables::find(IpFamily::V6, options)?);
    } else if options.action.cleanup_only {
        // An earlier run may have installed rules for both families.
        tables.extend(FamilyTables::find(IpFamily::V6, options).ok());
    }
    let has_old_rules = tables.iter().any(|t| !t.found.is_clean());
    let is_incomplete = tables.iter().any(|t| !t.is_in_place());
    if options.action.cleanup_only {
        tables.iter().for_each(FamilyTables::remove);
        if options.mode == InterceptionMode::Tproxy {
            unroute(options);
        }
        return Ok(());
    }
    if !is_incomplete && !options.action.force_apply {
        info!("iptables rules are already installed");
        return route(options);
    }
    if has_old_rules && is_incomplete && !options.action.reconcile {
        warn!("different iptables rules of an earlier run are installed; use --reconcile to replace them");
    }
    let guarded = if has_old_rules && is_incomplete && options.action.reconcile {
        Some(TrafficBlock::start(&tables)?)
    } else {
        None
    };
    if guarded.is_some() {
        tables.iter().for_each(FamilyTables::remove);
    }
    for table in &tables {
        table.restore()?;
    }
    drop(guarded);
    route(options)
}

/// Moves this thread, and processes it starts, to another network namespace.
fn enter(namespace: &str) -> Result<()> {
    let file =
        std::fs::File::open(namespace).with_context(|| format!("could not open network namespace {namespace}"))?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("could not enter network namespace {namespace}"))
}

/// The rules of one IP family and the tool that manages them.
struct FamilyTables {
    family: IpFamily,
    binary: String,
    rules: Vec<IptablesRule>,
    found: InstalledRules,
}

impl FamilyTables {
    fn find(family: IpFamily, options: &IptablesOptions) -> Result<FamilyTables> {
        let binary = binary(family, options.action.binary.as_deref())?;
        let found = saved(&binary);
        Ok(FamilyTables { family, binary, rules: rules(options, family), found })
    }

    fn is_in_place(&self) -> bool {
        let expected = InstalledRules::read(&rule::restore(&self.rules));
        self.found.has_chains_of(&expected) && rule::checks(&self.rules).iter().all(|c| self.iptables(c).is_ok())
    }

    fn restore(&self) -> Result<()> {
        let text = rule::restore(&self.rules);
        info!(family = ?self.family, "installing iptables rules\n{}", text.trim_end());
        run(&format!("{}-restore", self.binary), &["--noflush", WAIT], Some(&text)).map(|_| ())
    }

    /// Best effort: an earlier run may have used other flags, so some rules may be missing and others installed.
    fn remove(&self) {
        let attempt = |command: &IptablesArgs| {
            if let Err(error) = self.iptables(command) {
                tracing::debug!("{error:#}");
            }
        };
        rule::removals(&self.rules).iter().for_each(attempt);
        saved(&self.binary).removals().iter().for_each(attempt);
    }

    fn iptables(&self, command: &IptablesArgs) -> Result<()> {
        let mut arguments = vec![WAIT];
        arguments.extend(command.iter().map(String::as_str));
        run(&self.binary, &arguments, None).map(|_| ())
    }
}

/// The rules that are installed now.
fn saved(binary: &str) -> InstalledRules {
    let saved = run(&format!("{binary}-save"), &[], None).unwrap_or_else(|error| {
        warn!("{error:#}; assuming that no rules are installed");
        String::new()
    });
    InstalledRules::read(&saved)
}

/// Blocks all traffic of the pod until dropped.
struct TrafficBlock<'a>(&'a [FamilyTables]);

impl<'a> TrafficBlock<'a> {
    fn start(tables: &'a [FamilyTables]) -> Result<TrafficBlock<'a>> {
        let guard = TrafficBlock(tables);
        for table in tables {
            for command in rule::insertions(&rule::guardrails()) {
                table.iptables(&command)?;
            }
        }
        Ok(guard)
    }
}

impl Drop for TrafficBlock<'_> {
    fn drop(&mut self) {
        for table in self.0 {
            for command in rule::removals(&rule::guardrails()) {
                if let Err(error) = table.iptables(&command) {
                    warn!("{error:#}");
                }
            }
        }
    }
}

/// The iptables variant: legacy if it has rules already, else nft.
fn binary(family: IpFamily, variant: Option<&str>) -> Result<String> {
    let plain = match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    if let Some(variant) = variant {
        let name = format!("{plain}-{variant}");
        return if exists(&name) { Ok(name) } else { bail!("could not run {name}: not found") };
    }
    let legacy = format!("{plain}-legacy");
    let in_use = |saved: String| saved.lines().any(|line| line.starts_with("-A"));
    if run(&format!("{legacy}-save"), &[], None).is_ok_and(in_use) {
        return Ok(legacy);
    }
    let found = [format!("{plain}-nft"), plain.to_owned(), legacy].into_iter().find(|name| exists(name));
    found.with_context(|| format!("could not find the program {plain}, {plain}-nft or {plain}-legacy"))
}

fn exists(program: &str) -> bool {
    run(program, &["--version"], None).is_ok()
}

/// In TPROXY mode marked packets are routed to loopback. IPv6 needs Envoy's source address on loopback.
fn route(options: &IptablesOptions) -> Result<()> {
    if options.ipv6 {
        ip(&["-6", "addr", "add", "::6/128", "dev", "lo"])?;
    }
    if options.mode != InterceptionMode::Tproxy || options.inbound_ports.is_empty() {
        return Ok(());
    }
    let (mark, table) = (options.tproxy_mark.as_str(), options.tproxy_table.as_str());
    for family in families(options) {
        ip(&[family, "rule", "add", "fwmark", mark, "lookup", table])?;
        ip(&[family, "route", "add", "local", "default", "dev", "lo", "table", table])?;
    }
    Ok(())
}

fn unroute(options: &IptablesOptions) {
    let (mark, table) = (options.tproxy_mark.as_str(), options.tproxy_table.as_str());
    for family in families(options) {
        let removed = ip(&[family, "rule", "del", "fwmark", mark, "lookup", table]);
        let removed = removed.and_then(|()| ip(&[family, "route", "flush", "table", table]));
        if let Err(error) = removed {
            tracing::debug!("{error:#}");
        }
    }
}

fn families(options: &IptablesOptions) -> &'static [&'static str] {
    if options.ipv6 { &["-4", "-6"] } else { &["-4"] }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let is_there = |text: &str| text.contains("File exists") || text.contains("already assigned");
    match run("ip", arguments, None) {
        // Left by an earlier run.
        Err(error) if is_there(&format!("{error:#}")) => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Runs a command and returns its standard output. On failure the error contains its standard error.
fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String> {
    let could_not = || format!("could not run {program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(could_not)?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(text.as_bytes()).with_context(could_not)?;
    }
    let output = child.wait_with_output().with_context(could_not)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", could_not(), stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
