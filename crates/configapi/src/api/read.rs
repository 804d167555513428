//! Get, list and watch.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::reply::object_response;
use super::{Api, ApiResponse, ObjectRequest};
use crate::error::ApiError;
use crate::object::{self, DocumentWriter};
use crate::output::{JSON, OutputForm};
use crate::query::VersionMatch;
use crate::selector::{FieldSelector, LabelConditions};
use crate::store::cache::Objects;
use crate::store::{ObjectKey, Revision, StoredObject};
use crate::table;
use crate::watch::{ObjectFilter, WatchPlan, WatchStream};

/// The least time a watch is open if the client names none; it is up to twice as long, as in upstream.
const WATCH_TIME: u64 = 1800;

impl Api {
    /// Waits until the cache is as new as the request demands. Returns a warning if that could not be confirmed: then the
    /// last known objects are served.
    pub(super) async fn freshen(&self, asked: &ObjectRequest<'_>) -> Result<Option<String>, ApiError> {
        let page = ListPage::parse(&asked.query.continue_token)?;
        match page.map(|page| page.revision).or(asked.query.revision) {
            Some(0) => {}
            Some(revision) => self.storage.reach(revision).await,
            None => return Ok(self.storage.refresh().await.err().map(|stale| format!("{stale}; it is shown"))),
        }
        Ok(None)
    }

    pub(super) async fn get(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let key = asked.key();
        let missing = || ApiError::not_found(asked.resource, &asked.name);
        let stored = match (asked.query.revision, asked.query.version_match) {
            (Some(revision), Some(VersionMatch::Exact)) => {
                let objects = self.storage.objects_at(revision, Some(&key)).await.map_err(ApiError::of_revision)?;
                objects.get(&key).cloned().ok_or_else(missing)?
            }
            _ => self.storage.cache().get(&key).ok_or_else(missing)?,
        };
        let object = object::value(&stored, asked.resource, &asked.version);
        Ok(object_response(200, &object, asked, Vec::new()))
    }

    fn filter(asked: &ObjectRequest<'_>) -> Result<ObjectFilter, ApiError> {
        Ok(ObjectFilter {
            resource: asked.resource,
            namespace: asked.namespace.clone(),
            labels: LabelConditions::parse(&asked.query.label_selector)?,
            fields: FieldSelector::parse(&asked.query.field_selector, &asked.resource.selectable)?,
        })
    }

    pub(super) async fn list(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let filter = Api::filter(asked)?;
        let page = ListPage::parse(&asked.query.continue_token)?;
        let (objects, revision) = self.objects_of(asked, page.as_ref()).await?;
        let after = page.as_ref().map(|page| ObjectKey::new(&asked.resource.id, &page.namespace, &page.name));
        let limit = if asked.query.limit == 0 { usize::MAX } else { asked.query.limit };
        let mut matching = filter.select(&objects, after.as_ref());
        let items: Vec<Arc<StoredObject>> = matching.by_ref().take(limit).cloned().collect();
        let mut meta = json!({"resourceVersion": revision.to_string()});
        let left = matching.count();
        if left > 0
            && let Some(last) = items.last()
        {
            let (namespace, name) = (last.key.namespace.to_string(), last.key.name.to_string());
            meta["continue"] = ListPage { revision, namespace, name }.to_text().into();
            if filter.labels.is_empty() && filter.fields.is_empty() {
                meta["remainingItemCount"] = left.into();
            }
        }
        Ok(list_response(&items, asked, &meta))
    }

    /// The objects that a list is made of, and their revision.
    async fn objects_of(
        &self,
        asked: &ObjectRequest<'_>,
        page: Option<&ListPage>,
    ) -> Result<(Objects, Revision), ApiError> {
        let cache = self.storage.cache();
        if let Some(page) = page {
            // The following pages show the same moment as the first.
            let objects = self.storage.objects_at(page.revision, None).await.map_err(|_| {
                ApiError::expired(
                    "The provided continue parameter is too old to display a consistent list result. You must start a \
                     new list without the continue parameter.",
                )
            })?;
            return Ok((objects, page.revision));
        }
        match (asked.query.revision, asked.query.version_match) {
            (Some(revision), Some(VersionMatch::Exact)) if revision > 0 => {
                let objects = self.storage.objects_at(revision, None).await;
                objects.map(|objects| (objects, revision)).map_err(ApiError::of_revision)
            }
            (_, Some(VersionMatch::Exact)) => {
                Err(ApiError::bad_request("resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\""))
            }
            (Some(revision), _) if revision > cache.revision() => {
                let current = cache.revision();
                let error = crate::store::cache::RevisionError::Future { asked: revision, current };
                Err(ApiError::of_revision(error))
            }
            _ => Ok(cache.current()),
        }
    }

    pub(super) fn watch(&self, asked: &ObjectRequest<'_>) -> Result<WatchStream, ApiError> {
        let query = &asked.query;
        if query.sends_initial_events && query.version_match != Some(VersionMatch::NotOlderThan) {
            return Err(ApiError::new(
                422,
                "Invalid",
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires \
                 setting resourceVersionMatch to NotOlderThan",
            ));
        }
        let after = match query.revision {
            _ if query.sends_initial_events => None,
            None | Some(0) => None,
            known => known,
        };
        let random = Duration::from_secs(fastrand::u64(WATCH_TIME..2 * WATCH_TIME));
        let plan = WatchPlan {
            filter: Api::filter(asked)?,
            version: asked.version.clone(),
            form: asked.form,
            after,
            marks_initial_end: query.sends_initial_events && query.allows_bookmarks,
            sends_bookmarks: query.allows_bookmarks,
            ends: Instant::now() + query.timeout.unwrap_or(random),
        };
        Ok(WatchStream::new(plan, self.storage.cache().clone(), self.stop.clone()))
    }
}

fn list_response(items: &[Arc<StoredObject>], asked: &ObjectRequest<'_>, meta: &Value) -> ApiResponse {
    let resource = asked.resource;
    let values = || -> Vec<Value> { items.iter().map(|item| object::value(item, resource, &asked.version)).collect() };
    match asked.form {
        OutputForm::Table => {
            ApiResponse::json(200, &table::table(&values(), resource, meta, &asked.query.include_object))
        }
        OutputForm::Metadata => {
            let items: Vec<Value> = values().iter().map(table::partial).collect();
            let list = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items,
            });
            ApiResponse::json(200, &list)
        }
        OutputForm::Json => {
            let writer = DocumentWriter::new(resource, &asked.version);
            let mut body = format!(
                "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{meta},\"items\":[",
                resource.kind,
                asked.api_version()
            );
            body.reserve(items.iter().map(|item| writer.size(item) + 1).sum::<usize>() + 3);
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    body.push(',');
                }
                writer.push(&mut body, item);
            }
            body.push_str("]}\n");
            ApiResponse { code: 200, content_type: JSON, body: body.into(), warnings: Vec::new() }
        }
    }
}

/// Where the next page of a list begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListPage {
    revision: Revision,
    /// The last object of the page before.
    namespace: String,
    name: String,
}

impl ListPage {
    fn parse(token: &str) -> Result<Option<ListPage>, ApiError> {
        if token.is_empty() {
            return Ok(None);
        }
        let bad = || ApiError::bad_request("continue key is not valid: could not decode it");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
        let text = String::from_utf8(bytes).map_err(|_| bad())?;
        let mut parts = text.split('/');
        let mut part = || parts.next().map(str::to_owned).ok_or_else(bad);
        let revision = part()?.parse().map_err(|_| bad())?;
        Ok(Some(ListPage { revision, namespace: part()?, name: part()? }))
    }

    fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}/{}/{}", self.revision, self.namespace, self.name))
    }
}
