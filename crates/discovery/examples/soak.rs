//! A long mixed load on one server. Prints the growth of its memory and failed requests, draws `target/soak.svg`, and exits
//! with 1 if the goals are missed. `cargo xtask soak [--minutes N] [--proxies N]` provides Envoy and runs this. It measures
//! the binary in the folder that `$PILOTAGE_PROGRAMS` names, else the release build if there is one of these sources, else
//! the debug build.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use testkit::programs;
use testkit::soak::{self, SoakOptions};
use tokio::runtime::Runtime;

const PICTURE: &str = "target/soak.svg";

fn main() -> ExitCode {
    let options = options(std::env::args().skip(1));
    let binary = programs::measured_binary("discovery", "pilot-discovery");
    println!("measuring {}", binary.display());
    let runtime = Runtime::new().expect("a runtime");
    let report = runtime.block_on(soak::run(&binary, options));
    println!("{report}");
    match fs::write(PICTURE, report.plot()) {
        Ok(()) => println!("drawn in {PICTURE}"),
        Err(error) => println!("could not write {PICTURE}: {error}"),
    }
    match report.goals() {
        Ok(()) => ExitCode::SUCCESS,
        Err(missed) => {
            eprintln!("{missed}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> SoakOptions {
    let mut options = SoakOptions { time: Duration::from_secs(3600), proxies: 100, seed: 1 };
    while let Some(name) = args.next() {
        let value = args.next().and_then(|value| value.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--minutes", Some(minutes)) => options.time = Duration::from_secs(minutes * 60),
            ("--proxies", Some(proxies)) => options.proxies = proxies as usize,
            ("--seed", Some(seed)) => options.seed = seed,
            _ => panic!("usage: soak [--minutes N] [--proxies N] [--seed N]"),
        }
    }
    options
}
