//! The command lines, as the programs themselves print them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::source::{literals, read};

/// A program, and its command with flags that are accepted only because upstream's charts pass them, with their file.
const PROGRAMS: &[(&str, Option<(&str, &str)>)] = &[
    ("pilot-discovery", Some(("discovery", "crates/discovery/src/flags.rs"))),
    ("pilot-agent", Some(("proxy", "crates/agent/src/flags.rs"))),
    ("pilotctl", None),
];
const OF_LIBRARIES: &str = "crates/cli/src/flags.rs";

pub(super) fn body(root: &Path) -> Result<String> {
    // As tests build them: another selection of packages would select other features and build everything again.
    let build = ["build", "--quiet", "--locked", "--workspace", "--bins"];
    let status = Command::new(env!("CARGO")).current_dir(root).args(build).status();
    if !status.context("could not run cargo")?.success() {
        bail!("cargo build failed");
    }
    printed(root)
}

/// The page, from programs that were built.
pub(super) fn printed(root: &Path) -> Result<String> {
    let mut text = "What `--help` prints. Flags that no version of upstream has are logged and ignored.\n".to_owned();
    for (program, accepted) in PROGRAMS {
        text += &format!("\n## {program}\n");
        let top = help(root, program, None)?;
        for command in commands(&top) {
            text += &format!("\n### {program} {command}\n\n```text\n{}```\n", help(root, program, Some(command))?);
        }
        if let Some((command, file)) = accepted {
            let own = help(root, program, Some(command))?;
            let mut names: Vec<String> = flag_names(&read(root, file)?);
            names.extend(flag_names(&read(root, OF_LIBRARIES)?));
            names.sort();
            // A program may give a meaning to a flag that others ignore.
            names.retain(|name| !has_flag(&own, name));
            let names: Vec<String> = names.iter().map(|name| format!("`--{name}`")).collect();
            text += &format!("\nFlags of upstream that are accepted and have no effect: {}.\n", names.join(", "));
        }
    }
    Ok(text)
}

/// What a program prints, with no blanks at line ends and a line break at the end.
fn help(root: &Path, program: &str, command: Option<&str>) -> Result<String> {
    let mut run = Command::new(root.join("target/debug").join(program));
    let output = run.args(command).arg("--help").output().with_context(|| format!("could not run {program}"))?;
    if !output.status.success() {
        bail!("{program} {} --help failed", command.unwrap_or_default());
    }
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    Ok(lines.join("\n") + "\n")
}

/// The names in the list "Commands:" of a help text.
fn commands(help: &str) -> Vec<&str> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let rows = list.lines().take_while(|line| line.starts_with("  "));
    let names = rows.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// Whether a help text describes a flag.
fn has_flag(help: &str, name: &str) -> bool {
    let words = help.lines().flat_map(str::split_whitespace);
    words.filter_map(|word| word.strip_prefix("--")).any(|word| word == name)
}

fn flag_names(text: &str) -> Vec<String> {
    let list = text.split("&[&str] = &[").nth(1).unwrap_or_default();
    let list = list.split("];").next().unwrap_or_default();
    literals(list).into_iter().map(|literal| literal.text).collect()
}

#[cfg(test)]
mod tests {
    use super::{commands, has_flag};

    #[test]
    fn a_flag_is_in_a_help_text_by_its_whole_name() {
        let help = "Options:\n      --ctrlz_port <PORT>\n          As `--other` of upstream\n";
        assert!(has_flag(help, "ctrlz_port") && !has_flag(help, "ctrlz") && !has_flag(help, "other"));
    }

    #[test]
    fn commands_are_read_from_help() {
        let help =
            "About\n\nCommands:\n  one    First\n         more\n  two    Second\n  help   Print\n\nOptions:\n  -h\n";
        assert_eq!(commands(help), ["one", "two"]);
    }
}
