//! The project's chores, run as `cargo xtask COMMAND`. This file has the command line; each command has its own module.

#![forbid(unsafe_code)]

mod cases;
mod checks;
mod cluster;
mod conformance;
mod dependencies;
mod examples;
mod fuzz;
mod image;
mod package;
mod reference;
mod release;
mod setup;
mod smoke;
mod stories;
mod tidy;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  chaos [--minutes N] [--seed N]
            inject faults into two replicas on real sources, and check what is promised
  cluster up|down|status [--name NAME] [--block N] [--nodes N] [--peer NAME] [--empty]
            a Kubernetes cluster on this machine with Pilotage in it; needs root
  cluster check
            the short test of a whole mesh in such a cluster
  compare [--services N] [--seed N]
            istiod and ours side by side on one API server, differences printed
  conformance [--test NAME] [--only REGEX] [--profiles LIST] [--report DIR] [--cluster NAME] [--server pilotage|istiod]
            the published suite of the Gateway API in such a cluster, with a report; needs root
  cases import DIR [TOPIC...]
            copy recorded cases into tests/cases
  docs      fail if a flag, variable, metric, page or code is missing in docs/reference: `reference --check`
  fuzz [--seconds N] [--keep] [TARGET...]
            search for inputs that do harm, 60 s a target; --keep adds inputs that reach new code to the corpora
  image [--hub HUB] [--tag TAG] [--debug] [--rootfs] [NAME...]
            assemble the images pilot, proxyv2 and proxy_init in target/images, without a container builder
  package [--debug]
            pack the programs into target/dist: archive, Debian package, bill of materials, checksums
  reference [--check]
            write docs/reference from the code, or fail where it is out of date
  release [--dry-run] VERSION
            set the version, close the changelog, commit, tag, and pack target/dist
  setup [NAME...]
            obtain the real servers that tests run against, or those named
  stories [--cluster NAME] [--server pilotage|istiod] [NAME...]
            end-to-end stories in such a cluster, under load; needs root
  soak [--minutes N] [--proxies N]
            a mixed load on one server for an hour; prints the growth of its memory and draws it
  test [--no-rerun]
            everything that CI checks; up to three failed tests are run once more, unless --no-rerun makes any failure final
  tidy      check the project's invariants";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Result<()> {
    match args {
        ["cases", "import", from, topics @ ..] => cases::import(&workspace::root(), Path::new(from), topics),
        ["cluster", "check"] => smoke::run(&workspace::root()),
        ["cluster", options @ ..] => cluster::run(&workspace::root(), options),
        ["conformance", options @ ..] => conformance::run(&workspace::root(), options),
        ["chaos", options @ ..] => examples::chaos(&workspace::root(), options),
        ["compare", options @ ..] => examples::compare(&workspace::root(), options),
        ["fuzz", options @ ..] => fuzz::run(&workspace::root(), options),
        ["image", options @ ..] => image::run(&workspace::root(), options),
        ["package"] => package::run(&workspace::root(), package::PackedBuild::Release),
        ["package", "--debug"] => package::run(&workspace::root(), package::PackedBuild::Debug),
        ["reference"] => reference::run(&workspace::root(), reference::ReferenceMode::Write),
        ["docs"] | ["reference", "--check"] => reference::run(&workspace::root(), reference::ReferenceMode::Check),
        ["release", "--dry-run", version] => release::run(&workspace::root(), version, release::ReleaseMode::DryRun),
        ["release", version] => release::run(&workspace::root(), version, release::ReleaseMode::Real),
        ["setup", names @ ..] => setup::run(&workspace::root(), names).map(|_| ()),
        ["stories", names @ ..] => stories::run(&workspace::root(), names),
        ["soak", options @ ..] => examples::soak(&workspace::root(), options),
        ["test"] => checks::run(&workspace::root(), checks::FailedTests::Rerun),
        ["test", "--no-rerun"] => checks::run(&workspace::root(), checks::FailedTests::Final),
        ["tidy"] => tidy::run(&workspace::root()),
        _ => bail!("unknown command\n{USAGE}"),
    }
}
