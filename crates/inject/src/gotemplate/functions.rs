//! The table of functions.

use super::arguments::{Arguments, Outcome, Row};
use super::{builtins, collections, injector, strings};
use crate::builtin::RenderInput;

const TABLES: [&[Row]; 4] = [injector::TABLE, builtins::TABLE, strings::TABLE, collections::TABLE];

pub(super) fn exists(name: &str) -> bool {
    matches!(name, "and" | "or") || injector::WITH_INPUT.contains(&name) || row(name).is_some()
}

fn row(name: &str) -> Option<&'static Row> {
    // The injector's own functions replace those of Sprig that have the same name.
    TABLES.iter().flat_map(|table| table.iter()).find(|(known, ..)| *known == name)
}

/// Steps of a call without its arguments: regular expressions are compiled each time.
pub(super) fn cost(name: &str) -> u64 {
    if name.to_ascii_lowercase().contains("regex") { 10_000 } else { 1 }
}

pub(super) fn call(name: &str, arguments: Arguments<'_>, input: &RenderInput<'_>) -> Outcome {
    if injector::WITH_INPUT.contains(&name) {
        return injector::call(name, arguments, input);
    }
    let Some((_, least, most, function)) = row(name) else { return Err("not known".to_owned()) };
    if arguments.len() < *least || arguments.len() > *most {
        return Err(format!("wrong number of arguments: {}", arguments.len()));
    }
    function(arguments)
}
