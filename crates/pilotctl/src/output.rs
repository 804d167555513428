//! How lists are printed: tables for people, JSON and YAML for programs. Colours are left out by `anstream` when standard
//! output is no terminal or NO_COLOR is set.

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// Exit status if something was found, such as a proxy that is behind.
pub(crate) const FOUND_SOMETHING: u8 = 1;

#[derive(Args, Clone, Copy)]
pub(crate) struct OutputOptions {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = ListFormat::Table)]
    pub(crate) output: ListFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    Table,
    /// A table with more columns
    Wide,
    Json,
    Yaml,
}

impl OutputOptions {
    /// Prints a value for programs. Returns false if a table is wanted instead.
    pub(crate) fn printed(self, value: &impl Serialize) -> Result<bool> {
        match self.output {
            ListFormat::Json => println!("{}", serde_json::to_string_pretty(value)?),
            ListFormat::Yaml => print!("{}", serde_saphyr::to_string(value)?),
            ListFormat::Table | ListFormat::Wide => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn is_wide(self) -> bool {
        self.output == ListFormat::Wide
    }
}

/// A text in a colour.
fn painted(color: AnsiColor, text: &str) -> String {
    let style = Style::new().fg_color(Some(color.into()));
    format!("{style}{text}{style:#}")
}

pub(crate) fn green(text: &str) -> String {
    painted(AnsiColor::Green, text)
}

pub(crate) fn red(text: &str) -> String {
    painted(AnsiColor::Red, text)
}

pub(crate) fn yellow(text: &str) -> String {
    painted(AnsiColor::Yellow, text)
}

/// A unified difference of two texts, with colours.
pub(crate) fn difference(before: &str, after: &str, names: (&str, &str)) -> String {
    let compared = similar::TextDiff::from_lines(before, after);
    let text = compared.unified_diff().header(names.0, names.1).to_string();
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'+') => green(line),
        Some(b'-') => red(line),
        _ => line.to_owned(),
    };
    text.lines().map(|text| format!("{}\n", line(text))).collect()
}
