//! `cargo xtask order`: finds the functions that every start of our servers runs and writes patterns of their names
//! down for the linker (`start.order` of each crate). Needs valgrind and Envoy. Run it before a release, or when the
//! benchmarks `memory` and `idle` tell that a server has grown: what a start runs changes with the code.

mod agent;
mod discovery;
mod pattern;
mod profile;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use profile::Profiler;

/// The build that is released.
const RELEASE: &[&str] = &["build", "--release", "-p", "discovery", "-p", "agent", "-p", "ctl"];

/// A server of ours.
struct Program {
    package: &'static str,
    binary: &'static str,
    /// The build that the benchmark measures. Its features are others, and so the compiler inlines other functions.
    bench: &'static [&'static str],
    /// The functions that run, those that must always lie in memory first.
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
    // A list that is written has its program built anew.
    let lists: Vec<_> = PROGRAMS.iter().map(|program| patterns(root, program)).collect::<Result<_>>()?;
    for (program, patterns) in PROGRAMS.iter().zip(lists) {
        let list = root.join("crates").join(program.package).join("start.order");
        fs::write(&list, patterns.join("\n") + "\n").with_context(|| format!("could not write {}", list.display()))?;
        println!("order: {} functions in {}", patterns.len(), list.display());
    }
    Ok(())
}

/// What either build of a program runs.
fn patterns(root: &Path, program: &Program) -> Result<Vec<String>> {
    cargo(root, RELEASE)?;
    let mut found = stages(root, program)?;
    cargo(root, program.bench)?;
    for (stage, more) in found.iter_mut().zip(stages(root, program)?) {
        stage.extend(more);
    }
    Ok(in_order(&found))
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

/// A pattern for every function, each once, at its first stage.
fn in_order(stages: &[BTreeSet<String>]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let patterns = stages.iter().flatten().map(|name| pattern::of(name));
    patterns.filter(|pattern| known.insert(pattern.clone())).collect()
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
