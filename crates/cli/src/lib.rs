//! Command-line code that all programs share: flags of the log and of `version`, Go durations, ignored flags, the log,
//! messages to systemd.

#![forbid(unsafe_code)]

pub mod args;
pub mod flags;
mod json_layout;
pub mod levels;
pub mod log;
pub mod output;
#[cfg(test)]
mod revision;
pub mod scopes;
pub mod systemd;
pub mod version;
