//! The HTTP client for API servers. It does not retry: each caller has its own backoff. Its lists never return an older
//! state than one that was seen before.

use http::{Request, Uri};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use super::rate_limit::TokenBucket;
use super::response_limits::{BadResponse, ResponseLimits};

/// The longest error text of an API server that is kept.
const MAX_REASON: usize = 300;

/// A client whose requests take tokens from the bucket.
pub(super) fn client(mut config: Config, bucket: &TokenBucket) -> Result<Client, kube::Error> {
    // kube's retries double their wait up to minutes: after an outage of one minute the API server would be noticed
    // half a minute late.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    let builder = builder.with_layer(&MapRequestLayer::new(require_latest)).with_layer(&ResponseLimits::default());
    // Outside of the response limits: the time that a request waits for a token does not count.
    Ok(builder.with_layer(bucket).build())
}

/// The message of an API server or of a connection error, without the text that kube adds.
pub(crate) fn reason(error: &kube::Error) -> String {
    match (error, BadResponse::in_chain(error)) {
        (_, Some(bad)) => shortened(&bad.to_string()),
        (kube::Error::Api(status), _) => shortened(&status.message),
        (other, _) => shortened(&other.to_string()),
    }
}

/// A text of the API server, on one line and cut to `MAX_REASON`.
pub(super) fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
}

/// Makes a streaming list return the latest state. kube requests resource version 0, which is the cache of that API
/// server: it may be behind another replica, and deleted endpoints would come back.
fn require_latest(mut request: Request<Body>) -> Request<Body> {
    if let Some(uri) = without_version_0(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

fn without_version_0(uri: &Uri) -> Option<Uri> {
    let query = uri.query().filter(|query| query.contains("sendInitialEvents=true"))?;
    let rest = query.split('&').filter(|pair| *pair != "resourceVersion=0").collect::<Vec<_>>().join("&");
    format!("{}?{rest}", uri.path()).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::without_version_0;

    #[test]
    fn only_streaming_lists_lose_their_version() {
        let of = |uri: &str| without_version_0(&uri.parse().unwrap()).map(|uri| uri.to_string());
        let list = "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(of(&format!("{list}&resourceVersion=0")).as_deref(), Some(list));
        assert_eq!(of("/api/v1/pods?watch=true&resourceVersion=0"), None);
        assert_eq!(of("/api/v1/pods"), None);
    }
}
