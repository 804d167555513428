//! The client that API servers are asked by. It repeats nothing by itself, as every caller knows better when to ask
//! again, and its lists do not go back in time.

use http::{Request, Uri};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use super::rate_limit::TokenBucket;
use super::response_limits::{BadResponse, ResponseLimits};

/// Characters of a reason that are kept: the API server decides what it says.
const MAX_REASON: usize = 300;

/// A client by its configuration, which takes from the bucket. The error says what cannot be used.
pub(super) fn client(mut config: Config, bucket: &TokenBucket) -> Result<Client, String> {
    // kube's own repetitions wait twice as long each time, up to minutes: an API server that was away for one would be
    // noticed half a minute late.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config).map_err(|error| error.to_string())?;
    let builder = builder.with_layer(&MapRequestLayer::new(of_now)).with_layer(&ResponseLimits::default());
    // Outside of the limits: requests may wait for their turn as long as they must.
    Ok(builder.with_layer(bucket).build())
}

/// What an API server or the way to it says, without what the library says around it.
pub(crate) fn reason(error: &kube::Error) -> String {
    match (error, BadResponse::in_chain(error)) {
        (_, Some(wrong)) => shortened(&wrong.0),
        (kube::Error::Api(status), _) => shortened(&status.message),
        (other, _) => shortened(&other.to_string()),
    }
}

/// A text of the API server on one line of bounded length.
pub(super) fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
}

/// Makes a streaming list one of what is there now. kube asks for version 0, which is whatever an API server has in
/// memory: of several, one may be behind what another told before, and endpoints that went would come back.
fn of_now(mut request: Request<Body>) -> Request<Body> {
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
