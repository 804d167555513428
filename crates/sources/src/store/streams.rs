//! Reconnects config sources that read from a gRPC stream.

use tonic::Status;

use crate::backoff::Backoff;
use crate::source::{ChangeSender, SourceError};

/// A source that reads from a stream.
pub(super) trait StreamSource {
    /// Reads one stream to its end. Resets `backoff` after a response.
    fn follow(
        &mut self,
        sender: &ChangeSender,
        backoff: &mut Backoff,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Opens one stream after another until the change channel is closed. Objects of a failed stream are kept.
pub(super) async fn run(source: &mut impl StreamSource, sender: &ChangeSender) -> Result<(), SourceError> {
    let mut backoff = Backoff::default();
    loop {
        match source.follow(sender, &mut backoff).await {
            Err(SourceError::Failed(reason)) => sender.health().mark_unreachable(reason),
            other => return other,
        }
        backoff.wait().await;
    }
}

pub(super) fn failed(status: Status) -> SourceError {
    SourceError::Failed(format!("the stream failed: {}: {}", status.code(), status.message()))
}

pub(super) fn ended() -> SourceError {
    SourceError::Failed("the server closed the stream".to_owned())
}
