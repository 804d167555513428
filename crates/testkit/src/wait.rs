//! Waits for a condition instead of sleeping.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Long enough for a busy machine; a test that passes never waits this long.
pub const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats `check` until it returns `Ok`. Panics with `what` and the last error after `PATIENCE`.
pub async fn until<T>(what: &str, check: impl AsyncFnMut() -> Result<T, String>) -> T {
    until_within(PATIENCE, what, check).await
}

/// Like `until`, with another time limit.
pub async fn until_within<T>(limit: Duration, what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(last) if start.elapsed() > limit => panic!("timed out after {limit:?} waiting for {what}: {last}"),
            Err(_) => sleep(PAUSE).await,
        }
    }
}
