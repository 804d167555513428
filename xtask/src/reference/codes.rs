//! The codes of problems, from their table.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::source::{literals, macro_rows, read};

const TABLE: &str = "crates/model/src/config/codes.rs";

pub(super) fn body(root: &Path) -> Result<String> {
    let text = read(root, TABLE)?;
    let mut sections = Vec::new();
    for table_row in macro_rows(&text, "codes").with_context(|| format!("no codes! in {TABLE}"))? {
        let texts: Vec<String> = literals(&table_row.text).into_iter().map(|literal| literal.text).collect();
        let [code, title, meaning, remedy] = texts.as_slice() else {
            bail!("could not read the row {:?}", table_row.text);
        };
        sections.push(format!("## {code}: {title}\n\n{meaning}\n\nWhat to do: {remedy}\n"));
    }
    sections.sort();
    Ok(format!(
        "Every problem has a code, which `pilotctl check`, the log (field `code`), `/debug/problems` and `pilotctl analyze` \
         show with the same\nmessage. `pilotctl help CODE` prints the section of this page. Codes that begin with `IST` are \
         those of `istioctl analyze`.\n\n{}",
        sections.join("\n")
    ))
}
