//! What sources of configuration that follow a stream share: one stream after the other, and how each ends.

use tonic::Status;

use crate::registry::pace::Retry;
use crate::source::{ChangeSender, SourceError};

/// A source that is told over a stream.
pub(super) trait StreamSource {
    /// Follows one stream to its end. `retry` is told of success.
    fn follow(
        &mut self,
        sender: &ChangeSender,
        retry: &mut Retry,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Follows streams until nobody listens. What a failed one told stays.
pub(super) async fn run(source: &mut impl StreamSource, sender: &ChangeSender) -> Result<(), SourceError> {
    let mut retry = Retry::default();
    loop {
        match source.follow(sender, &mut retry).await {
            Err(SourceError::Failed(reason)) => sender.health().lost(reason),
            other => return other,
        }
        retry.wait().await;
    }
}

pub(super) fn failed(status: Status) -> SourceError {
    SourceError::Failed(format!("the stream ended: {}: {}", status.code(), status.message()))
}

pub(super) fn ended() -> SourceError {
    SourceError::Failed("the server ended the stream".to_owned())
}
