//! Response bodies made of text and of other response bodies that are streamed through.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

/// A response body made of parts that are sent one after the other.
#[derive(Default)]
pub(super) struct StatusBody(VecDeque<BodyPart>);

enum BodyPart {
    Text(Bytes),
    /// Boxed because it is rare and large.
    Stream(Box<Incoming>),
}

impl StatusBody {
    pub(super) fn text(text: impl Into<Bytes>) -> StatusBody {
        let mut page = StatusBody::default();
        page.push(text);
        page
    }

    pub(super) fn push(&mut self, text: impl Into<Bytes>) {
        self.0.push_back(BodyPart::Text(text.into()));
    }

    /// Appends a body. If it fails, it ends there and the next part follows.
    pub(super) fn push_stream(&mut self, stream: Incoming) {
        self.0.push_back(BodyPart::Stream(Box::new(stream)));
    }
}

impl Body for StatusBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            match self.0.front_mut() {
                None => return Poll::Ready(None),
                Some(BodyPart::Text(text)) => {
                    let text = std::mem::take(text);
                    self.0.pop_front();
                    if !text.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(text))));
                    }
                }
                Some(BodyPart::Stream(stream)) => match ready!(Pin::new(stream).poll_frame(cx)) {
                    Some(Ok(frame)) if frame.is_data() => return Poll::Ready(Some(Ok(frame))),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => {
                        self.0.pop_front();
                    }
                },
            }
        }
    }
}
