//! What the command lines of all programs share: flags of logging and of `version`, Go's durations, flags that are
//! accepted and have no effect, the log itself.

#![forbid(unsafe_code)]

pub mod args;
pub mod flags;
pub mod log;
pub mod output;
#[cfg(test)]
mod revision;
pub mod version;
