//! The API over HTTP: who calls, the limit of the body, streams of events. TLS and sockets are the caller's.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT, WARNING};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};

use crate::api::{Api, ApiReply, ApiRequest, ApiResponse, WatchStream};
use crate::error::ApiError;
use crate::users::Caller;

/// The longest body of a request, as in upstream.
pub const MAX_BODY: usize = 3 << 20;
/// A body longer than this is not read to its end.
const MAX_DROPPED: usize = 64 << 20;
/// The longest warning.
const MAX_WARNING: usize = 256;
/// The most warnings of one response.
const MAX_WARNINGS: usize = 20;

/// The body of responses.
pub type ApiBody = UnsyncBoxBody<Bytes, Infallible>;

/// The API as a service of HTTP.
#[derive(Clone)]
pub struct ApiService {
    api: Arc<Api>,
}

impl ApiService {
    pub fn new(api: Arc<Api>) -> ApiService {
        ApiService { api }
    }

    /// Answers a request. `peer` is the caller that the connection proves: by its certificate, or by its socket.
    pub async fn respond<B>(&self, request: Request<B>, peer: Option<Caller>) -> Response<ApiBody>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send,
    {
        let (parts, body) = request.into_parts();
        let header = |name: HeaderName| {
            let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let path = parts.uri.path();
        let is_open = ["/healthz", "/livez", "/readyz"].contains(&path);
        let caller = match self.caller(&header(AUTHORIZATION), peer) {
            Some(caller) => caller,
            None if is_open => Caller { user: "system:anonymous".to_owned(), groups: Vec::new() },
            None => return complete(ApiResponse::of_error(&ApiError::unauthorized())),
        };
        let body = match read(body).await {
            Ok(Some(body)) => body,
            Ok(None) => return complete(ApiResponse::of_error(&ApiError::too_large(path, MAX_BODY))),
            Err(error) => {
                let error = ApiError::bad_request(format!("could not read the body of the request: {error}"));
                return complete(ApiResponse::of_error(&error));
            }
        };
        let request = ApiRequest {
            method: parts.method.clone(),
            path: path.to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            content_type: header(CONTENT_TYPE),
            accept: header(ACCEPT),
            user_agent: header(USER_AGENT),
            body,
            caller,
        };
        match self.api.respond(&request).await {
            ApiReply::Complete(response) => complete(response),
            ApiReply::Watch(stream) => events(*stream),
        }
    }

    /// The caller of a request. A token that is not known is refused, whatever the connection proves.
    fn caller(&self, authorization: &str, peer: Option<Caller>) -> Option<Caller> {
        match authorization.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                self.api.users().current().tokens.caller(token.trim()).cloned()
            }
            _ => peer,
        }
    }
}

/// The body of a request; `None` if it is too long. The rest of a long one is read and dropped: a client that is still
/// sending when the connection closes does not see the response.
async fn read<B>(body: B) -> Result<Option<Bytes>, Box<dyn Error + Send + Sync>>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send,
{
    let (mut body, mut read, mut length) = (pin!(body), BytesMut::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Into::into)?.into_data() else { continue };
        length = length.saturating_add(data.remaining());
        if length > MAX_DROPPED {
            break;
        }
        if length <= MAX_BODY {
            read.put(data);
        }
    }
    Ok((length <= MAX_BODY).then(|| read.freeze()))
}

fn complete(answer: ApiResponse) -> Response<ApiBody> {
    let mut response = Response::new(Full::new(answer.body).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    for warning in answer.warnings.iter().take(MAX_WARNINGS) {
        if let Ok(value) = HeaderValue::from_bytes(warning_value(warning).as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// The value of a `Warning` header.
fn warning_value(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WARNING) {
        if ['"', '\\'].contains(&c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    format!("299 - \"{quoted}\"")
}

fn events(stream: WatchStream) -> Response<ApiBody> {
    let lines = stream::unfold(stream, async |mut stream| {
        let line = stream.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), stream))
    });
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(lines)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::warning_value;

    #[test]
    fn warnings_are_quoted() {
        assert_eq!(warning_value("unknown field \"a\"\n"), "299 - \"unknown field \\\"a\\\" \"");
    }
}
