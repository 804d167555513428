//! The environment variables that the programs read: those that change what proxies are served, from the table of
//! settings; all others from `described.txt`, which must name every variable that the code looks up, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::source::{TableRow, literals, macro_rows, read};
use super::{head, row};
use crate::workspace;

const TABLE: &str = "crates/model/src/settings.rs";
const DESCRIBED: &str = include_str!("described.txt");

/// A program, the folder with its code, and the calls in it that look up a variable.
const PROGRAMS: &[(&str, &str, &[&str])] = &[
    ("pilot-discovery", "crates/discovery/src", &["environment("]),
    (
        "pilot-agent",
        "crates/agent/src",
        &[
            "environment.get(",
            "environment.flag(",
            "environment.number(",
            "environment.duration(",
            "env_or(",
            "or_env(&[",
        ],
    ),
    ("pilotctl", "crates/pilotctl/src", &["set("]),
];

pub(super) fn body(root: &Path) -> Result<String> {
    let table = read(root, TABLE)?;
    let rows = macro_rows(&table, "knobs").with_context(|| format!("could not find the table knobs! in {TABLE}"))?;
    let mut settings = BTreeMap::new();
    for table_row in &rows {
        let (name, default) = setting(table_row).with_context(|| format!("could not read {:?}", table_row.text))?;
        if table_row.doc.is_empty() {
            bail!("{name} has no doc comment in {TABLE}");
        }
        settings.insert(name, (default, table_row.doc.clone()));
    }
    let cells = settings.iter().map(|(name, (default, doc))| row(&[&format!("`{name}`"), default, doc]));
    let mut text = format!(
        "Names and defaults are upstream's, but for those that begin with `PILOTAGE_`. A value that cannot be read is \
         logged and the default is used.\n\n## Settings of the mesh\n\nRead by `pilot-discovery`; they change what proxies are \
         served.\n\n{}{}",
        head(&["variable", "default", "meaning"]),
        cells.collect::<String>()
    );
    for (program, folder, calls) in PROGRAMS {
        text += &format!("\n## {program}\n\n{}", of_program(root, program, folder, calls)?);
    }
    Ok(text)
}

/// The name and default of a row such as `field: u32 = 100, "NAME"`.
fn setting(row: &TableRow) -> Option<(String, String)> {
    let (_, value) = row.text.split_once(" = ")?;
    let name = literals(&row.text).pop()?;
    let default = value[..value.rfind(", \"")?].trim();
    Some((name.text, shown(default)))
}

/// A default as a user writes it.
fn shown(default: &str) -> String {
    let inside = |kind: &str| default.strip_prefix(kind)?.strip_prefix('(')?.strip_suffix(')').and_then(product);
    let text = if let Some(days) = inside("Milliseconds::days") {
        format!("{}h", 24 * days)
    } else if let Some(millis) = inside("Milliseconds") {
        match millis {
            0 => "0s".to_owned(),
            millis if millis % 60_000 == 0 => format!("{}m", millis / 60_000),
            millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
            millis => format!("{millis}ms"),
        }
    } else if let Some(hundredths) = inside("Percent") {
        format!("{}", hundredths as f64 / 100.0)
    } else if let Some(number) = product(default) {
        number.to_string()
    } else if default == "\"\".into()" || default.ends_with("::default()") {
        return "none".to_owned();
    } else {
        let text = default.strip_prefix("NameList::of(").and_then(|text| text.strip_suffix(')')).unwrap_or(default);
        text.trim_end_matches(".into()").trim_matches('"').to_owned()
    };
    format!("`{text}`")
}

/// The value of `20 * 60 * 1000` or `10_000`.
fn product(text: &str) -> Option<u64> {
    text.split(" * ").map(|factor| factor.replace('_', "").parse::<u64>().ok()).product()
}

fn of_program(root: &Path, program: &str, folder: &str, calls: &[&str]) -> Result<String> {
    let mut read_names = BTreeSet::new();
    for path in workspace::files(&root.join(folder))? {
        let text = fs::read_to_string(&path)?;
        let text = &text[..text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len())];
        read_names.extend(looked_up(text, calls));
    }
    let described = described(program)?;
    let missing: Vec<&String> = read_names.iter().filter(|name| !described.contains_key(name.as_str())).collect();
    if !missing.is_empty() {
        bail!("{program} reads {missing:?}, which xtask/src/reference/described.txt does not describe");
    }
    let rows = described.iter().map(|(name, meaning)| row(&[&format!("`{name}`"), meaning]));
    Ok(format!("{}{}", head(&["variable", "meaning"]), rows.collect::<String>()))
}

fn looked_up(text: &str, calls: &[&str]) -> Vec<String> {
    let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let is_lookup = |start: usize| {
        let before: String = text[start.saturating_sub(60)..start].split_whitespace().collect();
        calls.iter().any(|call| before.ends_with(call))
    };
    let names =
        literals(text).into_iter().filter(|l| l.text.len() > 3 && l.text.chars().all(fits) && is_lookup(l.start));
    names.map(|literal| literal.text).collect()
}

/// Name to meaning: the lines `NAME: meaning` below `[program]`.
fn described(program: &str) -> Result<BTreeMap<&'static str, &'static str>> {
    let section = DESCRIBED.split(&format!("[{program}]\n")).nth(1).with_context(|| format!("no section {program}"))?;
    let lines = section.lines().take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once(": ").with_context(|| format!("could not read {line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_shown_as_users_write_them() {
        let shown = |text| super::shown(text);
        assert_eq!(shown("Milliseconds(20 * 60 * 1000)"), "`20m`");
        assert_eq!(shown("Milliseconds(100)"), "`100ms`");
        assert_eq!(shown("Milliseconds::days(90)"), "`2160h`");
        assert_eq!(shown("NameList::of(\"istio-ca\")"), "`istio-ca`");
        assert_eq!(shown("Percent(100)"), "`1`");
        assert_eq!(shown("8 * 1024"), "`8192`");
        assert_eq!(shown("\"istio\".into()"), "`istio`");
        assert_eq!(shown("Blocks::default()"), "none");
        assert_eq!(shown("true"), "`true`");
    }

    #[test]
    fn look_ups_are_found_across_lines() {
        let text =
            "let a = environment\n    .get(\"POD_NAME\"); json(\"CLUSTER_ID\"); environment.flag(\"X_Y_Z\", true)";
        let calls = ["environment.get(", "environment.flag("];
        assert_eq!(looked_up(text, &calls), ["POD_NAME", "X_Y_Z"]);
    }
}
