//! What is wrong, where and how badly. User mistakes are values, not failures.

use std::fmt;

use crate::names::Str;

/// One finding about one object or source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub severity: Severity,
    /// What it is about: an object (`VirtualService shop/cart`), a file or a source.
    pub about: Str,
    pub location: Option<FileLocation>,
    /// Completes "could not …" or states the fact: lower case, no full stop.
    pub message: Str,
}

/// Where in a file something stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileLocation {
    pub file: Str,
    /// Counted from 1; 0 where unknown.
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; the object works as written.
    Info,
    /// Part of the object has no effect.
    Warning,
    /// The object, or a file, is not used.
    Error,
}

impl Problem {
    pub fn error(about: impl Into<Str>, message: impl Into<Str>) -> Problem {
        Problem { severity: Severity::Error, about: about.into(), location: None, message: message.into() }
    }

    pub fn warning(about: impl Into<Str>, message: impl Into<Str>) -> Problem {
        Problem { severity: Severity::Warning, about: about.into(), location: None, message: message.into() }
    }

    #[must_use]
    pub fn at(mut self, location: Option<FileLocation>) -> Problem {
        self.location = location;
        self
    }
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}: {}", self.about, self.message)
    }
}
