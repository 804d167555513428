//! The project's chores, run as `cargo xtask COMMAND`. This file has the command line; each command has its own module.

#![forbid(unsafe_code)]

mod cases;
mod checks;
mod compare;
mod dependencies;
mod image;
mod reference;
mod release;
mod setup;
mod tidy;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  compare [--services N] [--seed N]
            istiod and ours side by side on one API server, differences printed
  cases import DIR [TOPIC...]
            copy recorded cases into tests/cases
  image [--hub HUB] [--tag TAG] [--debug] [--rootfs] [NAME...]
            assemble the images pilot, proxyv2 and proxy_init in target/images, without a container builder
  reference [--check]
            write docs/reference from the code, or fail where it is out of date
  release [--dry-run] VERSION
            set the version, close the changelog, commit, tag, and pack target/dist
  setup [NAME...]
            obtain the real servers that tests run against, or those named
  test      everything that CI checks
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
        ["compare", options @ ..] => compare::run(&workspace::root(), options),
        ["image", options @ ..] => image::run(&workspace::root(), options),
        ["reference"] => reference::run(&workspace::root(), reference::ReferenceMode::Write),
        ["reference", "--check"] => reference::run(&workspace::root(), reference::ReferenceMode::Check),
        ["release", "--dry-run", version] => release::run(&workspace::root(), version, release::ReleaseMode::DryRun),
        ["release", version] => release::run(&workspace::root(), version, release::ReleaseMode::Real),
        ["setup", names @ ..] => setup::run(&workspace::root(), names).map(|_| ()),
        ["test"] => checks::run(&workspace::root()),
        ["tidy"] => tidy::run(&workspace::root()),
        _ => bail!("unknown command\n{USAGE}"),
    }
}
