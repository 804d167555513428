//! An interpreter of upstream's template language: Go's `text/template`, the functions of Sprig that need neither clock,
//! network nor random numbers, and the injector's own. Steps, depth and output are limited.
//!
//! `lexer` → `parser` → `exec`; `data` has the values, `builtins`, `strings`, `collections` and `injector` the functions.

mod arguments;
mod builtins;
mod collections;
mod data;
mod exec;
mod format;
mod functions;
mod injector;
mod lexer;
mod limits;
mod parser;
mod schema;
mod strings;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::builtin::RenderInput;
use parser::Node;

/// Most bytes of a template's text.
const MOST_TEXT: usize = 1 << 20;

/// A parsed template.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    main: Vec<Node>,
    defined: BTreeMap<String, Vec<Node>>,
}

/// A template that could not be parsed or run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}: {message}")]
pub(crate) struct TemplateError {
    line: usize,
    message: String,
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Template, TemplateError> {
        if text.len() > MOST_TEXT {
            return Err(TemplateError { line: 1, message: format!("more than {MOST_TEXT} bytes") });
        }
        parser::parse(lexer::tokens(text)?)
    }
}

/// Runs a template.
pub(crate) fn run(template: &Template, input: &RenderInput<'_>) -> Result<String, TemplateError> {
    exec::run(template, injector::root(input), input)
}

#[cfg(test)]
mod tests;
