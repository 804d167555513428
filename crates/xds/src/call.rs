//! A gRPC call of the small services: requests in, answers from a task, a status at the end.

use std::future::Future;

use http::{HeaderValue, Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::{Status, Streaming};

use crate::body::{MessageBody, Reader, Sender};

/// Answers a call from a task of its own; what the task returns is the call's status.
pub(crate) fn spawn<R, F, T>(request: Request<Body>, most_bytes: usize, task: F) -> Response<Body>
where
    R: Message + Default + 'static,
    F: FnOnce(Streaming<R>, Sender) -> T,
    T: Future<Output = Status> + Send + 'static,
{
    let requests = Streaming::new_request(Reader::<R>::default(), request.into_body(), None, Some(most_bytes));
    let (responses, body) = MessageBody::new();
    let task = task(requests, responses.clone());
    tokio::spawn(async move {
        let status = task.await;
        // The client may be gone; then nobody asks how its call ended.
        let _ = responses.send(Err(status)).await;
    });
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
