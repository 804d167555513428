//! Exit causes of Envoy and of the agent, with the agent's exit codes.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;

/// Why the agent exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    Signalled,
    Quit,
    EnvoyDone,
    GaveUp,
}

/// Cause, exit code and log message.
const TABLE: &[(ExitCause, u8, &str)] = &[
    (ExitCause::Signalled, 0, "stopped by a signal; Envoy was drained and terminated"),
    (ExitCause::Quit, 0, "quit at once; Envoy was terminated without draining"),
    (ExitCause::EnvoyDone, 0, "Envoy exited by itself with code 0"),
    // Pilot 0.8's os.Exit(-1).
    (ExitCause::GaveUp, 255, "Envoy failed too often; see its log lines above for the reason"),
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

/// How an Envoy process exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvoyExit {
    /// With code 0: through its admin port, or replaced by a newer epoch.
    Normally,
    WithCode(i32),
    BySignal(i32),
    /// Terminated by the agent.
    Aborted,
    /// Could not be started.
    NotStarted(String),
    /// Its bootstrap was checked and is invalid; Envoy logged the reason.
    InvalidBootstrap,
    /// Killed because its admin port was not open after this time.
    NoAdminPort(Duration),
}

impl EnvoyExit {
    pub(super) fn from_status(status: ExitStatus) -> EnvoyExit {
        match (status.code(), status.signal()) {
            (Some(0), _) => EnvoyExit::Normally,
            (Some(code), _) => EnvoyExit::WithCode(code),
            (None, signal) => EnvoyExit::BySignal(signal.unwrap_or_default()),
        }
    }

    /// True if Envoy should be restarted.
    pub fn is_failure(&self) -> bool {
        !matches!(self, EnvoyExit::Normally | EnvoyExit::Aborted)
    }
}

impl fmt::Display for EnvoyExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvoyExit::Normally => f.write_str("exited with code 0"),
            EnvoyExit::WithCode(code) => write!(f, "exited with code {code}"),
            EnvoyExit::BySignal(9) => f.write_str("was killed by SIGKILL, possibly by the OOM killer"),
            EnvoyExit::BySignal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was terminated by {signal}"),
                Err(_) => write!(f, "was terminated by signal {number}"),
            },
            EnvoyExit::Aborted => f.write_str("was terminated by the agent"),
            EnvoyExit::NotStarted(reason) => f.write_str(reason),
            EnvoyExit::InvalidBootstrap => f.write_str("rejected its bootstrap and was not started"),
            EnvoyExit::NoAdminPort(time) => write!(f, "did not open its admin port within {time:?} and was killed"),
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
    fn only_failures_are_restarted() {
        let failures = [
            EnvoyExit::WithCode(1),
            EnvoyExit::BySignal(9),
            EnvoyExit::NotStarted(String::new()),
            EnvoyExit::InvalidBootstrap,
            EnvoyExit::NoAdminPort(std::time::Duration::ZERO),
        ];
        assert!(failures.iter().all(EnvoyExit::is_failure));
        assert!(![EnvoyExit::Normally, EnvoyExit::Aborted].iter().any(EnvoyExit::is_failure));
        assert_eq!(EnvoyExit::BySignal(11).to_string(), "was terminated by SIGSEGV");
    }
}
