//! Lays out a release binary, of this crate and of `agent`: functions that every start runs lie together
//! (`start.order`, written by `cargo xtask order`), so that pages of the rest are not brought into memory beside them.
//! A stale list costs memory, never correctness.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=start.order");
    println!("cargo::rerun-if-env-changed=PILOTAGE_PLAIN_LINK");
    let set = |name: &str| env::var(name).unwrap_or_default();
    // The flags are those of LLD, which is this target's linker unless somebody chose another.
    let is_lld = set("TARGET") == "x86_64-unknown-linux-gnu" && env::var_os("PILOTAGE_PLAIN_LINK").is_none();
    if !is_lld || set("PROFILE") != "release" {
        return Ok(());
    }
    let script = PathBuf::from(set("OUT_DIR")).join("start.ld");
    fs::write(&script, layout(&fs::read_to_string(Path::new(&set("CARGO_MANIFEST_DIR")).join("start.order"))?))?;
    println!("cargo::rustc-link-arg-bins=-Wl,--script={}", script.display());
    // The loader reads every relocation at every start; packed, they are few pages.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    Ok(())
}

/// A linker script that puts the functions of these patterns before all others. The compiler gives each function a
/// section of its own, and those that it takes for rare ones a longer name.
fn layout(patterns: &str) -> String {
    let sections = patterns.lines().map(|pattern| format!("*(.text.{pattern} .text.unlikely.{pattern})\n"));
    format!("SECTIONS {{ .text.start : {{\n{}}} }} INSERT BEFORE .text;\n", sections.collect::<String>())
}
