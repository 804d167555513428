//! Lays out a release binary, of this crate and of `agent`: functions that every start runs lie together
//! (`start.order`, written by `cargo xtask order`), so that pages of the rest are not brought into memory beside them.
//! A stale list costs memory, never correctness.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=start.order");
    println!("cargo::rerun-if-env-changed=PILOTAGE_PLAIN_LINK");
    let set = |name: &str| env::var(name).unwrap_or_default();
    // The flags are those of LLD, which is this target's linker unless somebody chose another.
    let is_lld = set("TARGET") == "x86_64-unknown-linux-gnu" && env::var_os("PILOTAGE_PLAIN_LINK").is_none();
    if !is_lld || set("PROFILE") != "release" {
        return;
    }
    let order = Path::new(&set("CARGO_MANIFEST_DIR")).join("start.order");
    println!("cargo::rustc-link-arg-bins=-Wl,--symbol-ordering-file={}", order.display());
    println!("cargo::rustc-link-arg-bins=-Wl,--no-warn-symbol-ordering");
    // The loader reads every relocation at every start; packed, they are few pages.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
