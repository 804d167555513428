//! Waiting for a condition instead of sleeping.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Long enough for a loaded machine; a test that works never waits this long.
pub const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// The first `Ok` of `check`. Panics with `what` and the last error when patience ends.
pub async fn until<T>(what: &str, check: impl AsyncFnMut() -> Result<T, String>) -> T {
    until_within(PATIENCE, what, check).await
}

/// Like `until`, with a limit of its own.
pub async fn until_within<T>(limit: Duration, what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(last) if start.elapsed() > limit => panic!("{what} did not come in {limit:?}: {last}"),
            Err(_) => sleep(PAUSE).await,
        }
    }
}
