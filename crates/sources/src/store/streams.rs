//! What sources of configuration that follow a stream share: one stream after the other, and how each ends.

use tonic::Status;

use crate::backoff::Backoff;
use crate::source::{ChangeSender, SourceError};

/// A source that is told over a stream.
pub(super) trait StreamSource {
    /// Follows one stream to its end. `backoff` is told of success.
    fn follow(
        &mut self,
        sender: &ChangeSender,
        backoff: &mut Backoff,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Follows streams until nobody listens. What a failed one told stays.
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
    SourceError::Failed(format!("the stream ended: {}: {}", status.code(), status.message()))
}

pub(super) fn ended() -> SourceError {
    SourceError::Failed("the server ended the stream".to_owned())
}
