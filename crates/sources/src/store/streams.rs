//! What sources of configuration that follow a stream share: one stream after the other, and how each ends.

use tonic::Status;

use crate::registry::pace::Retry;
use crate::source::{Outlet, Stopped};

/// A source that is told over a stream.
pub(super) trait Streamed {
    /// Follows one stream to its end. `retry` is told of success.
    fn follow(&mut self, outlet: &Outlet, retry: &mut Retry) -> impl Future<Output = Result<(), Stopped>> + Send;
}

/// Follows streams until nobody listens. What a failed one told stays.
pub(super) async fn run(source: &mut impl Streamed, outlet: &Outlet) -> Result<(), Stopped> {
    let mut retry = Retry::default();
    loop {
        match source.follow(outlet, &mut retry).await {
            Err(Stopped::Failed(reason)) => outlet.health().lost(reason),
            other => return other,
        }
        retry.wait().await;
    }
}

pub(super) fn failed(status: Status) -> Stopped {
    Stopped::Failed(format!("the stream ended: {}: {}", status.code(), status.message()))
}

pub(super) fn ended() -> Stopped {
    Stopped::Failed("the server ended the stream".to_owned())
}
