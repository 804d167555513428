//! Errors of requests. A caller must know whether a failed write may have been done.

use std::error::Error;
use std::io;

use tonic::{Code, Status};

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// The request was not done, and would fail again.
    #[error("etcd refused the request: {0}")]
    Refused(String),
    /// The request or its result is larger than etcd allows.
    #[error("etcd refused the request: {0}")]
    TooLarge(String),
    /// No member could do the request. It was not done.
    #[error("etcd is not available: {0}")]
    Unavailable(String),
    /// The request was sent and not answered. It may have been done.
    #[error("etcd did not answer: {0}")]
    Unanswered(String),
    /// The revision was compacted.
    #[error("the revision is compacted in etcd")]
    Compacted,
    /// The token is not valid any more. The client gets another one itself.
    #[error("etcd refused the user: {0}")]
    Unauthenticated(String),
}

impl EtcdError {
    pub(crate) fn of_status(status: &Status, member: &str) -> EtcdError {
        let text = format!("{} ({member})", text(status));
        let message = status.message();
        match status.code() {
            Code::OutOfRange if message.contains("compacted") => EtcdError::Compacted,
            Code::InvalidArgument | Code::ResourceExhausted
                if message.contains("too large") || message.contains("larger than max") =>
            {
                EtcdError::TooLarge(text)
            }
            Code::Unauthenticated => EtcdError::Unauthenticated(text),
            // An expired revision of the permissions has this code.
            Code::InvalidArgument if message.contains("revision of auth store is old") => {
                EtcdError::Unauthenticated(text)
            }
            Code::Unavailable if message.contains("no leader") || is_unsent(status) => EtcdError::Unavailable(text),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                EtcdError::Unanswered(text)
            }
            _ => EtcdError::Refused(text),
        }
    }

    /// Whether another member may do the request.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, EtcdError::Unavailable(_) | EtcdError::Unanswered(_))
    }
}

/// Whether the connection could not be made.
fn is_unsent(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
            return [AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable].contains(&error.kind())
                || error.get_ref().is_some_and(|inner| inner.is::<crate::connect::HandshakeError>());
        }
        cause = error.source();
    }
    false
}

/// The message, with the innermost cause.
fn text(status: &Status) -> String {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    let mut innermost = None;
    while let Some(error) = cause {
        innermost = Some(error.to_string());
        cause = error.source();
    }
    match innermost {
        Some(inner) if inner != status.message() => inner,
        _ => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::EtcdError;

    #[test]
    fn errors_say_whether_a_write_may_have_been_done() {
        let of = |code: Code, message: &str| EtcdError::of_status(&Status::new(code, message), "a:1");
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), EtcdError::Unavailable(_)));
        assert!(matches!(of(Code::Unavailable, "etcdserver: request timed out"), EtcdError::Unanswered(_)));
        assert_eq!(
            of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            EtcdError::Compacted
        );
        let large = of(Code::InvalidArgument, "etcdserver: request is too large");
        assert_eq!(large.to_string(), "etcd refused the request: etcdserver: request is too large (a:1)");
        assert!(matches!(large, EtcdError::TooLarge(_)) && !large.is_temporary());
        assert!(matches!(
            of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            EtcdError::Refused(_)
        ));
    }
}
