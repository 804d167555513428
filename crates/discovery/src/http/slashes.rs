//! Repeated slashes in a path count as one, as in Go's HTTP servers: istioctl asks for `//version`.

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use http::Uri;

/// A router that gets each path with single slashes.
pub(super) fn joined(router: Router) -> Router {
    // The middleware of a router runs after it has chosen a route, so it is that of an outer router without routes.
    Router::new().fallback_service(router).layer(middleware::map_request(with_single_slashes))
}

async fn with_single_slashes(mut request: Request) -> Request {
    if let Some(uri) = single(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// The address with single slashes; `None` if it has no others.
fn single(uri: &Uri) -> Option<Uri> {
    if !uri.path().contains("//") {
        return None;
    }
    let mut path = String::with_capacity(uri.path().len());
    for letter in uri.path().chars() {
        if letter != '/' || !path.ends_with('/') {
            path.push(letter);
        }
    }
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::{Uri, single};

    #[test]
    fn repeated_slashes_of_the_path_count_as_one() {
        let check = |given: &str, expected: &str| {
            let given: Uri = given.parse().unwrap();
            assert_eq!(single(&given).unwrap_or(given).to_string(), expected);
        };
        check("/version", "/version");
        check("//version", "/version");
        check("/debug///syncz//?a=//b", "/debug/syncz/?a=//b");
        check("http://x:1//debug", "http://x:1/debug");
    }
}
