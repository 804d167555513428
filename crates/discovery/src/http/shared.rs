//! Pages without access control: made once for all concurrent readers, so that many or slow readers cost no more than one.

use std::sync::{Arc, Weak};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::Mutex;

use super::unread::{NoRoom, UnreadPages};
use super::{PageResponse, page_response, too_many_readers};

/// A page whose last text is shared as long as it is being read.
pub(super) struct SharedPage {
    content: &'static str,
    /// The last edition and its text.
    last: Mutex<(u64, Weak<Bytes>)>,
    outgoing: UnreadPages,
}

/// Keeps the shared text alive for one reader.
struct PageReader(Arc<Bytes>);

impl AsRef<[u8]> for PageReader {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SharedPage {
    /// A page of this content type. `bytes` limits the memory of editions that are not read yet.
    pub(super) fn new(content: &'static str, bytes: usize) -> SharedPage {
        SharedPage { content, last: Mutex::default(), outgoing: UnreadPages::new(bytes) }
    }

    /// The page of this edition, made on a blocking thread for its first reader. If there is no room for a new edition,
    /// readers get the previous one.
    pub(super) async fn read(&self, edition: u64, make: impl FnOnce() -> Option<String> + Send + 'static) -> Response {
        let mut last = self.last.lock().await;
        let known = last.1.upgrade();
        if let Some(text) = known.as_ref().filter(|_| last.0 == edition) {
            return self.answer(text.clone());
        }
        let Ok(Some(text)) = tokio::task::spawn_blocking(make).await else {
            return PageResponse::failed("could not make this page").into_response();
        };
        match (self.outgoing.try_hold(text.into()), known) {
            (Ok(text), _) => {
                let text = Arc::new(text);
                *last = (edition, Arc::downgrade(&text));
                self.answer(text)
            }
            (Err(NoRoom), Some(before)) => self.answer(before),
            (Err(NoRoom), None) => too_many_readers(),
        }
    }

    fn answer(&self, text: Arc<Bytes>) -> Response {
        page_response(StatusCode::OK, self.content, Bytes::from_owner(PageReader(text)))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};

    use super::{Response, SharedPage};

    async fn text(response: Response<Body>) -> String {
        String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn hole_12_readers_of_one_edition_share_it_and_without_room_get_the_last() {
        let page = SharedPage::new("text/plain", 1024);
        let first = page.read(1, || Some("one".to_owned())).await;
        let second = page.read(1, || panic!("made again")).await;
        let crowded = page.read(2, || Some("two".to_owned())).await;
        assert_eq!((text(first).await, text(second).await), ("one".to_owned(), "one".to_owned()));
        assert_eq!(text(crowded).await, "one", "no room for a new edition");
        assert_eq!(text(page.read(2, || Some("two".to_owned())).await).await, "two");
        assert_eq!(page.read(3, || None).await.status(), 500);
    }
}
