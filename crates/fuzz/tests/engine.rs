//! One target under libFuzzer: `FUZZ_TARGET` names it. Built and started by `cargo xtask fuzz`.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    match fuzz::target(&name) {
        Some(target) => target.run,
        None => panic!("FUZZ_TARGET must be one of {:?}", fuzz::TARGETS.iter().map(|t| t.name).collect::<Vec<_>>()),
    }
}

fuzz_target!(|data: &[u8]| RUN.get_or_init(chosen)(data));
