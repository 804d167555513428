//! The configuration kinds that are read, from the table of kinds.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::source::{literals, macro_rows, read};
use super::{head, row};

const TABLE: &str = "crates/model/src/config/mod.rs";

pub(super) fn body(root: &Path) -> Result<String> {
    let text = read(root, TABLE)?;
    let mut kinds = Vec::new();
    for table_row in macro_rows(&text, "kinds").with_context(|| format!("no kinds! in {TABLE}"))? {
        let line = &table_row.text;
        kinds.push(kind(&text, line).with_context(|| format!("could not read the row {line:?}"))?);
    }
    if kinds.is_empty() {
        bail!("no row in {TABLE}");
    }
    kinds.sort();
    let rows = kinds.iter().map(|(group, kind, versions)| row(&[kind, &format!("`{group}`"), versions]));
    Ok(format!(
        "Objects of these kinds are read from files, Kubernetes and other control planes. The first version is preferred; \
         all mean the same.\nKinds of old Istio releases (`config.istio.io`, `authentication.istio.io`, \
         `rbac.istio.io`) are converted to today's kinds, which `pilotctl convert` prints.\n`tests/cases/DIFFERENCES.md` lists fields that are treated differently from \
         upstream.\n\n{}{}",
        head(&["kind", "group", "versions"]),
        rows.collect::<String>()
    ))
}

/// Group, kind and versions of a row.
fn kind(text: &str, line: &str) -> Option<(String, String, String)> {
    let line =
        line.trim_start_matches("messages { ").trim_start_matches("} documents { ").trim_start_matches("} legacy { ");
    let strings = literals(line);
    let group = strings.iter().position(|literal| literal.text.contains('.'))?;
    // A row begins with the variant; the kind's name follows where it differs.
    let name = match group {
        0 => line.split(',').next()?.to_owned(),
        _ => strings[group - 1].text.clone(),
    };
    let plural = strings.get(group + 1)?;
    let rest = line[plural.end..].trim_start_matches([',', ' ']);
    let versions = match rest.strip_prefix("&[") {
        Some(list) => list.split(']').next()?,
        None => {
            let constant = format!("const {}: &[&str] = &[", rest.split(',').next()?);
            text.split(&constant).nth(1)?.split(']').next()?
        }
    };
    Some((strings[group].text.clone(), name, versions.replace('"', "`")))
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn both_forms_of_a_row_are_read() {
        let text = "const V1: &[&str] = &[\"v1\", \"v1beta1\"];";
        let own = ["g.io", "Sidecar", "`v1`, `v1beta1`"].map(str::to_owned);
        assert_eq!(kind(text, "Sidecar, \"g.io\", \"sidecars\", V1, \"a.Sidecar\", X<Y>"), Some(own.into()));
        let foreign = ["h.io", "HTTPRoute", "`v1`"].map(str::to_owned);
        assert_eq!(kind(text, "HttpRoute, \"HTTPRoute\", \"h.io\", \"routes\", &[\"v1\"], X"), Some(foreign.into()));
    }
}
