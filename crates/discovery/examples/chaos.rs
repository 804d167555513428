//! Injects faults for some minutes and checks the eight promises; prints faults against promises, and exits with 1 if one is
//! broken or was never examined, or if a proxy did not get everything after a repair. `cargo xtask chaos [--minutes N] [--seed N]` provides the servers and runs this.

use std::process::ExitCode;
use std::time::Duration;

use testkit::chaos::{self, ChaosLength, ChaosOptions};
use testkit::programs;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let (minutes, seed) = options(std::env::args().skip(1));
    let binary = programs::binary("discovery", "pilot-discovery");
    let runtime = Runtime::new().expect("a runtime");
    let length = ChaosLength::Time(Duration::from_secs(minutes * 60));
    let report = runtime.block_on(chaos::run(&binary, ChaosOptions { seed, length }));
    println!("{report}");
    match report.kept() {
        Ok(()) => ExitCode::SUCCESS,
        Err(broken) => {
            eprintln!("{broken}");
            ExitCode::FAILURE
        }
    }
}

/// Minutes, and seed.
fn options(mut args: impl Iterator<Item = String>) -> (u64, u64) {
    let (mut minutes, mut seed) = (60, 1);
    while let Some(name) = args.next() {
        match (name.as_str(), args.next().and_then(|value| value.parse().ok())) {
            ("--minutes", Some(value)) => minutes = value,
            ("--seed", Some(value)) => seed = value,
            _ => panic!("usage: chaos [--minutes N] [--seed N]"),
        }
    }
    (minutes, seed)
}
