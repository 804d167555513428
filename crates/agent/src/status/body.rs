//! The body of an answer: pieces of text, and streams of others passed on as they come.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

/// Pieces one after the other.
#[derive(Default)]
pub(super) struct StatusBody(VecDeque<BodyPart>);

enum BodyPart {
    Text(Bytes),
    /// Boxed: most pages have none.
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

    /// What another sends, until it ends or fails: then the rest of the page follows.
    pub(super) fn follow(&mut self, stream: Incoming) {
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
