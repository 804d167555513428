//! The requests of `/api/v1` and the console's paths, from the table and the router that serve them.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::source::{Literal, literals, read};
use super::{head, row};

const TABLE: &str = "crates/discovery/src/http/api/mod.rs";
const CONSOLE: &str = "crates/discovery/src/http/console/mod.rs";
/// Routes outside the table, and what they do. One that is missing here is an error.
const FURTHER: &[(&str, &str, &str)] = &[
    ("GET", "/api/v1/openapi.json", "This page as an OpenAPI document, with the schemas of all answers"),
    (
        "GET",
        "/api/v1/events",
        "Server-sent events: changes, acknowledgements, rejections, problems; `pilotctl events` prints them",
    ),
    ("POST", "/api/v1/plan", "What objects would change, before they are applied; `pilotctl plan` sends it"),
    ("POST", "/api/v1/wait", "Waits until proxies have objects; `pilotctl wait` sends it"),
    ("GET", "/ui", "The console"),
    ("GET", "/ui/", "The console"),
    ("GET", "/ui/{*path}", "The console's files"),
];

pub(super) fn body(root: &Path) -> Result<String> {
    let text = read(root, TABLE)?;
    let start = text.find("const PAGES").context("could not find the table of requests")?;
    let end = start + text[start..].find("\n];").context("could not find the end of the table of requests")?;
    let mut rows: Vec<String> =
        pages(&text[start..end]).iter().map(|page| row(&["GET", &page.0, &page.1, &page.2])).collect();
    if rows.is_empty() {
        bail!("could not find a request in {TABLE}");
    }
    for path in routes(&text[end..]).into_iter().chain(routes(&read(root, CONSOLE)?)) {
        let known = FURTHER.iter().find(|(_, known, _)| *known == path);
        let (method, _, help) =
            known.with_context(|| format!("no description of {path} in xtask/src/reference/api.rs"))?;
        rows.push(row(&[method, &format!("`{path}`"), help, ""]));
    }
    Ok(format!(
        "`pilot-discovery` answers these requests on the port of `--monitoringAddr` (15014), to callers of the same machine only.\n\
         Answers are JSON; lists have at most `limit` entries, from `offset` on.\n\n{}{}",
        head(&["method", "path", "answer", "parameters"]),
        rows.concat()
    ))
}

/// Path, help and parameters of each row.
fn pages(table: &str) -> Vec<(String, String, String)> {
    let literals = literals(table);
    let follows = |literal: &Literal, field: &str| table[..literal.start].trim_end().ends_with(field);
    let starts: Vec<usize> = (0..literals.len()).filter(|at| follows(&literals[*at], "path:")).collect();
    let page = |(number, at): (usize, &usize)| {
        let next = starts.get(number + 1).copied().unwrap_or(literals.len());
        let help = literals[*at..next].iter().find(|literal| follows(literal, "help:"));
        let mut names: Vec<&str> =
            literals[*at..next].iter().filter(|literal| follows(literal, "(")).map(|literal| &*literal.text).collect();
        let code = &table[literals[*at].start..literals.get(next).map_or(table.len(), |literal| literal.start)];
        names.extend(
            [("LIMIT", "limit"), ("OFFSET", "offset")]
                .iter()
                .filter(|(word, _)| code.contains(word))
                .map(|(_, name)| *name),
        );
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let help = help.map_or_else(String::new, |help| help.text.clone());
        (format!("`{}`", literals[*at].text), help, names.join(", "))
    };
    starts.iter().enumerate().map(page).collect()
}

/// The paths of a router.
fn routes(text: &str) -> Vec<String> {
    let is_route = |literal: &Literal| text[..literal.start].trim_end().ends_with(".route(");
    literals(text).into_iter().filter(is_route).map(|literal| literal.text).collect()
}

#[cfg(test)]
mod tests {
    use super::pages;

    #[test]
    fn a_row_has_its_own_parameters() {
        let table = "P { path: \"/a\", help: \"A b\", query: &[(\"x\", \"An x\"), LIMIT], },\nP { path: \"/b\", help: \"C d\", query: &[] },";
        let expected = [("`/a`", "A b", "`x`, `limit`"), ("`/b`", "C d", "")];
        assert_eq!(pages(table), expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    }
}
