//! A client that checks the responses for one collection: lists must be well-formed and have a bounded number of pages,
//! and watches that end at once are errors, so that they are retried with backoff.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Either;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use kube::core::ApiResource;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use tokio::sync::watch;
use tokio::time::Instant;

use super::response_limits::{BadResponse, is_watch};

/// A page has up to 500 objects, so this is millions of objects.
const MAX_PAGES: u32 = 10_000;
/// API servers end watches after minutes. A watch that ends sooner than this ended early.
const EARLY: Duration = Duration::from_secs(2);
/// How many watches in a row may end early without an error: one does when an API server stops.
const TOLERATED_EARLY_ENDS: u32 = 1;

/// A client for the lists and watches of one collection, and the count of watch requests that got a response. The count
/// shows that a watch is open even if there are no events.
pub(super) fn checked_client(client: &Client, resource: &ApiResource) -> (Client, watch::Receiver<u64>) {
    let (count, opened) = watch::channel(0);
    let collection = Arc::new(CollectionClient { kind: resource.kind.clone(), opened: count, state: Mutex::default() });
    let inner = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, collection) = (inner.clone(), collection.clone());
        async move {
            match is_watch(&request) {
                true => collection.watch(&inner, request).await.map(|response| response.map(Either::Left)),
                false => collection.list(&inner, request).await.map(|response| response.map(Either::Right)),
            }
        }
    });
    (Client::new(service, client.default_namespace()), opened)
}

struct CollectionClient {
    kind: String,
    opened: watch::Sender<u64>,
    state: Mutex<ListState>,
}

#[derive(Default)]
struct ListState {
    /// Pages read of the current list.
    pages: u32,
    /// The continue token of its next page.
    next_page: Option<String>,
    /// Watches in a row that ended early.
    early_ends: u32,
    /// Whether the last early end has not been reported.
    is_unreported: bool,
}

fn bad(response: BadResponse) -> kube::Error {
    kube::Error::Service(response.into())
}

impl CollectionClient {
    async fn watch(
        self: Arc<Self>,
        client: &Client,
        request: Request<Body>,
    ) -> Result<Response<WatchBody>, kube::Error> {
        self.report_early_end()?;
        let response = client.send(request).await?;
        let since = response.status().is_success().then(Instant::now);
        if since.is_some() {
            self.opened.send_modify(|count| *count += 1);
        }
        Ok(response.map(|inner| WatchBody { inner, since, collection: self }))
    }

    /// Fails once for each watch that ended early, so that the caller backs off.
    fn report_early_end(&self) -> Result<(), kube::Error> {
        let mut state = self.state.lock();
        match std::mem::take(&mut state.is_unreported) {
            true => Err(bad(BadResponse::WatchesEndEarly { count: state.early_ends, within: EARLY })),
            false => Ok(()),
        }
    }

    fn end_watch(&self, lasted: Duration) {
        let mut state = self.state.lock();
        state.early_ends = if lasted < EARLY { state.early_ends.saturating_add(1) } else { 0 };
        state.is_unreported = state.early_ends > TOLERATED_EARLY_ENDS;
    }

    async fn list(&self, client: &Client, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let continues = request.uri().query().is_some_and(|query| query.split('&').any(|p| p.starts_with("continue=")));
        let response = client.send(request).await?;
        if response.status().is_client_error() || response.status().is_server_error() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let bytes = body.collect_bytes().await?;
        let next_page = check(&bytes, &self.kind).map_err(bad)?;
        self.turn_page(continues, next_page).map_err(bad)?;
        Ok(Response::from_parts(head, Body::from(bytes)))
    }

    fn turn_page(&self, continues: bool, next_page: Option<String>) -> Result<(), BadResponse> {
        let mut state = self.state.lock();
        let (pages, before) = if continues { (state.pages, state.next_page.take()) } else { (0, None) };
        if next_page.is_some() && next_page == before {
            return Err(BadResponse::RepeatedPage);
        }
        if pages >= MAX_PAGES {
            return Err(BadResponse::TooManyPages(MAX_PAGES));
        }
        (state.pages, state.next_page) = (pages + 1, next_page);
        Ok(())
    }
}

/// The body of a watch, which records how long the watch lasted unless it is dropped before its end.
struct WatchBody {
    inner: Body,
    /// The start of the watch; `None` once its end is recorded.
    since: Option<Instant>,
    collection: Arc<CollectionClient>,
}

impl hyper::body::Body for WatchBody {
    type Data = Bytes;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if !matches!(frame, Some(Ok(_)))
            && let Some(since) = self.since.take()
        {
            self.collection.end_watch(since.elapsed());
        }
        Poll::Ready(frame)
    }
}

#[derive(Deserialize)]
struct ListBody<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    items: Option<ItemKinds<'a>>,
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListMeta {
    #[serde(rename = "continue")]
    next_page: Option<String>,
}

/// Up to two different kinds found among the items. Items of most lists have no kind.
struct ItemKinds<'a>(Vec<Cow<'a, str>>);

#[derive(Deserialize)]
struct ItemKind<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for ItemKinds<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ItemKinds<'a>, D::Error> {
        struct ItemKindsVisitor;
        impl<'de> Visitor<'de> for ItemKindsVisitor {
            type Value = ItemKinds<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ItemKinds<'de>, A::Error> {
                let mut kinds = Vec::new();
                while let Some(item) = items.next_element::<ItemKind<'de>>()? {
                    kinds.extend(item.kind.filter(|kind| !kinds.contains(kind)));
                    if kinds.len() > 1 {
                        while items.next_element::<IgnoredAny>()?.is_some() {}
                        break;
                    }
                }
                Ok(ItemKinds(kinds))
            }
        }
        deserializer.deserialize_seq(ItemKindsVisitor)
    }
}

/// Checks that a response is a list of this kind, and returns the continue token of its next page. A response without
/// `items`, or with items of another kind, would otherwise look like an empty collection.
fn check(bytes: &[u8], kind: &str) -> Result<Option<String>, BadResponse> {
    let list: ListBody<'_> = serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        if error.is_data() { BadResponse::NotAList { line, column } } else { BadResponse::NotJson { line, column } }
    })?;
    let expected = || kind.to_owned();
    let is_of_kind = list.kind.strip_suffix("List").is_some_and(|of| of.is_empty() || of == kind);
    if !is_of_kind {
        return Err(BadResponse::WrongKind { found: shortened(&list.kind), expected: expected() });
    }
    let Some(ItemKinds(kinds)) = list.items else { return Err(BadResponse::NoItems) };
    if let Some(other) = kinds.iter().find(|found| **found != kind) {
        return Err(BadResponse::WrongItemKind { found: shortened(other), expected: expected() });
    }
    Ok(list.metadata.next_page.filter(|token| !token.is_empty()))
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::watch;

    use super::{CollectionClient, EARLY, MAX_PAGES, check};

    #[test]
    fn hole_07_a_malformed_list_is_an_error_and_not_an_empty_one() {
        let metadata = r#""metadata": {"resourceVersion": "7"}"#;
        let of = |rest: &str| check(format!("{{{metadata}, {rest}}}").as_bytes(), "Service");
        for wrong in [
            r#""kind": "ServiceList""#,
            r#""kind": "ServiceList", "items": null"#,
            r#""kind": "ServiceList", "items": {}"#,
            r#""kind": "ServiceList", "items": 7"#,
            r#""kind": "PodList", "items": []"#,
            r#""kind": "Status", "items": []"#,
            r#""items": []"#,
            r#""kind": "List", "items": [{"kind": "Service"}, {"kind": "Pod"}]"#,
            r#""kind": "ServiceList", "items": [7]"#,
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(
            check(b"<html>", "Service").is_err() && check(b"", "Service").is_err() && check(b"[]", "Service").is_err()
        );
        for right in [
            r#""kind": "ServiceList", "items": []"#,
            r#""kind": "List", "items": [{"kind": "Service"}, {"metadata": {"name": "a"}}]"#,
        ] {
            assert_eq!(of(right), Ok(None), "{right}");
        }
        let page = br#"{"kind": "ServiceList", "metadata": {"continue": "next"}, "items": [{}]}"#;
        assert_eq!(check(page, "Service"), Ok(Some("next".to_owned())));
    }

    fn client() -> CollectionClient {
        CollectionClient { kind: "Service".to_owned(), opened: watch::Sender::new(0), state: Mutex::default() }
    }

    #[test]
    fn hole_07_pages_without_end_are_given_up() {
        let client = client();
        for page in 0..MAX_PAGES {
            assert_eq!(client.turn_page(page > 0, Some(page.to_string())), Ok(()));
        }
        assert!(client.turn_page(true, Some("more".to_owned())).is_err());
        assert_eq!(client.turn_page(false, Some("a".to_owned())), Ok(()), "a new list");
        assert!(client.turn_page(true, Some("a".to_owned())).is_err(), "the same page again");
        assert_eq!(client.turn_page(false, None), Ok(()));
    }

    #[test]
    fn hole_07_watches_that_end_at_once_are_reported_each_but_the_first() {
        let client = client();
        let end = |lasted| {
            client.end_watch(lasted);
            (client.report_early_end().is_err(), client.report_early_end().is_err())
        };
        let early = EARLY / 2;
        assert_eq!([end(early), end(early), end(early)], [(false, false), (true, false), (true, false)]);
        assert_eq!([end(EARLY), end(early), end(early)], [(false, false), (false, false), (true, false)]);
    }
}
