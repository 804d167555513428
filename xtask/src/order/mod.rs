//! `cargo xtask order`: finds the functions that every start of our servers runs and writes them down for the linker
//! (`start.order` of each crate). Needs valgrind and Envoy. Run it before a release, or when the benchmarks `memory`
//! and `idle` tell that a server has grown: names of functions change with the code and its dependencies.

mod agent;
mod discovery;
mod profile;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use profile::Profiler;

/// The build that is released. Its features, and so the names of its functions, are not those of a benchmark.
const RELEASE: &[&str] = &["build", "--release", "-p", "discovery", "-p", "agent", "-p", "ctl"];

/// A server of ours.
struct Program {
    package: &'static str,
    binary: &'static str,
    /// The build that the benchmark measures.
    bench: &'static [&'static str],
    /// What runs, what must always lie in memory first.
    stages: fn(&Profiler) -> Result<Vec<BTreeSet<String>>>,
}

const PROGRAMS: [Program; 2] = [
    Program {
        package: "discovery",
        binary: "pilot-discovery",
        bench: &["bench", "-p", "discovery", "--bench", "memory", "--no-run"],
        stages: discovery::stages,
    },
    Program {
        package: "agent",
        binary: "pilot-agent",
        bench: &["bench", "-p", "agent", "--bench", "idle", "--no-run"],
        stages: agent::stages,
    },
];

pub(crate) fn run(root: &Path) -> Result<()> {
    let mut found: BTreeMap<&str, Vec<BTreeSet<String>>> = BTreeMap::new();
    cargo(root, RELEASE)?;
    for program in &PROGRAMS {
        found.insert(program.package, stages(root, program)?);
    }
    for program in &PROGRAMS {
        cargo(root, program.bench)?;
        let known = found.entry(program.package).or_default();
        for (stage, more) in known.iter_mut().zip(stages(root, program)?) {
            stage.extend(more);
        }
    }
    for (package, stages) in &found {
        let list = list(root, package);
        let names = in_order(stages);
        fs::write(&list, names.join("\n") + "\n").with_context(|| format!("could not write {}", list.display()))?;
        println!("order: {} functions in {}", names.len(), list.display());
    }
    Ok(())
}

fn list(root: &Path, package: &str) -> PathBuf {
    root.join("crates").join(package).join("start.order")
}

/// The functions of each stage of the program as it was built last.
fn stages(root: &Path, program: &Program) -> Result<Vec<BTreeSet<String>>> {
    let release = root.join("target/release");
    let scratch = env::temp_dir().join(format!("pilotage-order-{}-{}", program.package, std::process::id()));
    fs::create_dir_all(&scratch)?;
    let profiler = Profiler {
        binary: release.join(program.binary),
        beside: release,
        samples: root.join("samples"),
        scratch: scratch.clone(),
    };
    let stages = (program.stages)(&profiler).with_context(|| format!("could not watch {}", program.binary));
    fs::remove_dir_all(scratch)?;
    stages
}

/// Every name once, at its first stage.
fn in_order(stages: &[BTreeSet<String>]) -> Vec<&str> {
    let mut known = BTreeSet::new();
    stages.iter().flatten().map(String::as_str).filter(|name| known.insert(*name)).collect()
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).current_dir(root).args(args).status().context("could not run cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn a_function_lies_with_its_first_stage() {
        let stage = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(in_order(&[stage(&["c", "a"]), stage(&["b", "a"])]), ["a", "c", "b"]);
    }
}
