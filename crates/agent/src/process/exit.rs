//! Why an Envoy ended, and why the agent ends: the one table of exit causes.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

/// Why the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Signalled,
    Quit,
    EnvoyDone,
    GaveUp,
}

/// Cause, exit code, and what the log says.
const TABLE: &[(Cause, u8, &str)] = &[
    (Cause::Signalled, 0, "asked to stop by a signal; Envoy was drained and ended"),
    (Cause::Quit, 0, "asked to quit at once; Envoy was ended without draining"),
    (Cause::EnvoyDone, 0, "Envoy ended by itself with success"),
    // Pilot 0.8's os.Exit(-1).
    (Cause::GaveUp, 255, "Envoy ended too often; see its own lines above for the reason"),
];

impl Cause {
    /// The agent's exit code.
    pub fn code(self) -> u8 {
        self.row().1
    }

    fn row(self) -> &'static (Cause, u8, &'static str) {
        TABLE.iter().find(|row| row.0 == self).expect("a test finds every cause in the table")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().2)
    }
}

/// How one Envoy ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With success: told to through its admin port, or replaced by a newer epoch.
    Normally,
    WithCode(i32),
    BySignal(i32),
    /// By the agent.
    Aborted,
    /// It could not even be started.
    NotStarted(String),
}

impl Ended {
    pub(super) fn from_status(status: ExitStatus) -> Ended {
        match (status.code(), status.signal()) {
            (Some(0), _) => Ended::Normally,
            (Some(code), _) => Ended::WithCode(code),
            (None, signal) => Ended::BySignal(signal.unwrap_or_default()),
        }
    }

    /// Does it call for a restart?
    pub fn is_failure(&self) -> bool {
        matches!(self, Ended::WithCode(_) | Ended::BySignal(_) | Ended::NotStarted(_))
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Normally => f.write_str("ended normally"),
            Ended::WithCode(code) => write!(f, "ended with code {code}"),
            Ended::BySignal(9) => f.write_str("was killed; perhaps for want of memory"),
            Ended::BySignal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {number}"),
            },
            Ended::Aborted => f.write_str("was ended by the agent"),
            Ended::NotStarted(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, Ended};

    #[test]
    fn every_cause_has_a_row() {
        let codes = [Cause::Signalled, Cause::Quit, Cause::EnvoyDone, Cause::GaveUp].map(Cause::code);
        assert_eq!(codes, [0, 0, 0, 255]);
    }

    #[test]
    fn only_failures_call_for_a_restart() {
        let failures = [Ended::WithCode(1), Ended::BySignal(9), Ended::NotStarted(String::new())];
        assert!(failures.iter().all(Ended::is_failure));
        assert!(![Ended::Normally, Ended::Aborted].iter().any(Ended::is_failure));
        assert_eq!(Ended::BySignal(11).to_string(), "was ended by SIGSEGV");
    }
}
