//! The debug pages, from the table that serves them.

use std::path::Path;

use anyhow::{Result, bail};

use super::source::{literals, read};
use super::{head, row};

const TABLE: &str = "crates/discovery/src/http/debug/mod.rs";

pub(super) fn body(root: &Path) -> Result<String> {
    let text = read(root, TABLE)?;
    let literals = literals(&text);
    let field = |at: usize, name: &str| {
        let literal = literals.get(at)?;
        text[..literal.start].trim_end().ends_with(name).then_some(literal.text.as_str())
    };
    let pages = (0..literals.len()).filter_map(|at| Some((field(at, "name:")?, field(at + 1, "help:")?)));
    let rows: Vec<String> = pages.map(|(name, help)| row(&[&format!("`/debug/{name}`"), help])).collect();
    if rows.is_empty() {
        bail!("could not find a debug page in {TABLE}");
    }
    Ok(format!(
        "`pilot-discovery` serves these pages on the ports of `--httpAddr` and `--monitoringAddr`, to callers of the same \
         machine only, and as\nresources of type `istio.io/debug` over xDS. Names and JSON are upstream's where upstream \
         has the page. `?pretty` indents the JSON.\n\n{}{}",
        head(&["page", "content"]),
        rows.concat()
    ))
}
