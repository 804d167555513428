//! Why an Envoy ended, and why the agent ends: the one table of exit causes.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

/// Why the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    Signalled,
    Quit,
    EnvoyDone,
    GaveUp,
}

/// Cause, exit code, and what the log says.
const TABLE: &[(ExitCause, u8, &str)] = &[
    (ExitCause::Signalled, 0, "asked to stop by a signal; Envoy was drained and ended"),
    (ExitCause::Quit, 0, "asked to quit at once; Envoy was ended without draining"),
    (ExitCause::EnvoyDone, 0, "Envoy ended by itself with success"),
    // Pilot 0.8's os.Exit(-1).
    (ExitCause::GaveUp, 255, "Envoy ended too often; see its own lines above for the reason"),
];

impl ExitCause {
    /// The agent's exit code.
    pub fn code(self) -> u8 {
        self.row().1
    }

    fn row(self) -> &'static (ExitCause, u8, &'static str) {
        TABLE.iter().find(|row| row.0 == self).expect("a test finds every cause in the table")
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().2)
    }
}

/// How one Envoy ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvoyExit {
    /// With success: told to through its admin port, or replaced by a newer epoch.
    Normally,
    WithCode(i32),
    BySignal(i32),
    /// By the agent.
    Aborted,
    /// It could not even be started.
    NotStarted(String),
}

impl EnvoyExit {
    pub(super) fn from_status(status: ExitStatus) -> EnvoyExit {
        match (status.code(), status.signal()) {
            (Some(0), _) => EnvoyExit::Normally,
            (Some(code), _) => EnvoyExit::WithCode(code),
            (None, signal) => EnvoyExit::BySignal(signal.unwrap_or_default()),
        }
    }

    /// Does it call for a restart?
    pub fn is_failure(&self) -> bool {
        matches!(self, EnvoyExit::WithCode(_) | EnvoyExit::BySignal(_) | EnvoyExit::NotStarted(_))
    }
}

impl fmt::Display for EnvoyExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvoyExit::Normally => f.write_str("ended normally"),
            EnvoyExit::WithCode(code) => write!(f, "ended with code {code}"),
            EnvoyExit::BySignal(9) => f.write_str("was killed; perhaps for want of memory"),
            EnvoyExit::BySignal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {number}"),
            },
            EnvoyExit::Aborted => f.write_str("was ended by the agent"),
            EnvoyExit::NotStarted(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EnvoyExit, ExitCause};

    #[test]
    fn every_cause_has_a_row() {
        let codes =
            [ExitCause::Signalled, ExitCause::Quit, ExitCause::EnvoyDone, ExitCause::GaveUp].map(ExitCause::code);
        assert_eq!(codes, [0, 0, 0, 255]);
    }

    #[test]
    fn only_failures_call_for_a_restart() {
        let failures = [EnvoyExit::WithCode(1), EnvoyExit::BySignal(9), EnvoyExit::NotStarted(String::new())];
        assert!(failures.iter().all(EnvoyExit::is_failure));
        assert!(![EnvoyExit::Normally, EnvoyExit::Aborted].iter().any(EnvoyExit::is_failure));
        assert_eq!(EnvoyExit::BySignal(11).to_string(), "was ended by SIGSEGV");
    }
}
