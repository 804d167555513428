//! Answers requests: `path` finds out what a request is about, `read` gets, lists and watches, `write` creates, updates,
//! patches and applies, `delete` deletes. `reply` renders objects.

mod body;
mod delete;
mod garbage;
mod path;
mod read;
mod reply;
mod seed;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use crate::admission::ConfigValidation;
use crate::discovery;
use crate::error::ApiError;
use crate::openapi;
use crate::output::{JSON, OutputForm};
use crate::query::Query;
use crate::resource::ResourceInfo;
use crate::store::{ObjectKey, Storage};
use crate::users::{AccessRequest, Caller, Role, Users};
pub use crate::watch::WatchStream;
use path::{ObjectPath, RequestPath};
pub use seed::SeedError;

/// Settings of the API.
#[derive(Clone, Debug, Default)]
pub struct ApiOptions {
    pub validation: ConfigValidation,
    pub users: Arc<Users>,
    /// The version of the program.
    pub version: String,
    /// Namespaces that always exist.
    pub namespaces: Vec<String>,
}

/// The configuration API.
pub struct Api {
    storage: Arc<dyn Storage>,
    options: ApiOptions,
    stop: CancellationToken,
}

/// A request without its connection.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    pub method: http::Method,
    /// The path and the query of the address.
    pub path: String,
    pub query: String,
    pub content_type: String,
    pub accept: String,
    pub user_agent: String,
    pub body: Bytes,
    pub caller: Caller,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResponse {
    pub code: u16,
    pub content_type: &'static str,
    pub body: Bytes,
    /// For the `Warning` header.
    pub warnings: Vec<String>,
}

/// An answer, or a stream of events.
pub enum ApiReply {
    Complete(ApiResponse),
    Watch(Box<WatchStream>),
}

impl ApiResponse {
    pub(crate) fn json(code: u16, body: &Value) -> ApiResponse {
        ApiResponse { code, content_type: JSON, body: body.to_string().into(), warnings: Vec::new() }
    }

    fn text(text: &str) -> ApiResponse {
        let body = Bytes::from(text.to_owned());
        ApiResponse { code: 200, content_type: "text/plain; charset=utf-8", body, warnings: Vec::new() }
    }

    pub(crate) fn of_error(error: &ApiError) -> ApiResponse {
        ApiResponse::json(error.code, &error.to_json())
    }
}

/// A request for objects, parsed.
pub(crate) struct ObjectRequest<'a> {
    pub(crate) request: &'a ApiRequest,
    pub(crate) query: Query,
    pub(crate) form: OutputForm,
    pub(crate) resource: &'static ResourceInfo,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) is_status: bool,
}

impl ObjectRequest<'_> {
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.resource.id, &self.namespace, &self.name)
    }

    pub(crate) fn api_version(&self) -> String {
        self.resource.api_version(&self.version)
    }
}

impl Api {
    pub fn new(storage: Arc<dyn Storage>, options: ApiOptions, stop: CancellationToken) -> Api {
        Api { storage, options, stop }
    }

    pub(crate) fn users(&self) -> &Users {
        &self.options.users
    }

    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Answers a request. Every failure is a `Status` too.
    pub async fn respond(&self, request: &ApiRequest) -> ApiReply {
        match self.route(request).await {
            Ok(reply) => reply,
            Err(error) => ApiReply::Complete(ApiResponse::of_error(&error)),
        }
    }

    async fn route(&self, request: &ApiRequest) -> Result<ApiReply, ApiError> {
        let path = match RequestPath::parse(&request.path).ok_or_else(ApiError::no_such_path)? {
            RequestPath::Object(path) => path,
            other => return self.document(&other, request).map(ApiReply::Complete),
        };
        let asked = self.object_request(request, path)?;
        self.check_access(&asked)?;
        let stale = self.freshen(&asked).await?;
        let mut response = match (&request.method, asked.name.as_str()) {
            (&http::Method::GET, "") if asked.query.is_watch => {
                return self.watch(&asked).map(|stream| ApiReply::Watch(Box::new(stream)));
            }
            (&http::Method::GET, "") => self.list(&asked).await,
            (&http::Method::GET, _) => self.get(&asked).await,
            (&http::Method::POST, "") => self.create(&asked).await,
            (&http::Method::PUT, name) if !name.is_empty() => self.update(&asked).await,
            (&http::Method::PATCH, name) if !name.is_empty() => self.patch(&asked).await,
            (&http::Method::DELETE, "") => self.delete_collection(&asked).await,
            (&http::Method::DELETE, _) if !asked.is_status => self.delete(&asked).await,
            _ => Err(ApiError::method_not_allowed()),
        }?;
        response.warnings.extend(stale);
        Ok(ApiReply::Complete(response))
    }

    fn object_request<'a>(&self, request: &'a ApiRequest, path: ObjectPath) -> Result<ObjectRequest<'a>, ApiError> {
        let ObjectPath { resource, version, namespace, name, is_status } = path;
        Ok(ObjectRequest {
            request,
            query: Query::parse(&request.query)?,
            form: OutputForm::of_accept(&request.accept)?,
            resource,
            version,
            namespace,
            name,
            is_status,
        })
    }

    fn check_access(&self, asked: &ObjectRequest<'_>) -> Result<(), ApiError> {
        let is_read = [http::Method::GET, http::Method::HEAD].contains(&asked.request.method);
        let access = AccessRequest {
            role: if is_read { Role::Read } else { Role::Write },
            namespace: &asked.namespace,
            is_namespaced: asked.resource.is_namespaced,
            is_secret: asked.resource.id == "secrets",
        };
        let caller = &asked.request.caller;
        if self.options.users.current().roles.allow(caller, access) {
            return Ok(());
        }
        let verb = match (&asked.request.method, asked.name.is_empty()) {
            (&http::Method::GET, true) if asked.query.is_watch => "watch",
            (&http::Method::GET, true) => "list",
            (&http::Method::GET, false) => "get",
            (&http::Method::POST, _) => "create",
            (&http::Method::PUT, _) => "update",
            (&http::Method::PATCH, _) => "patch",
            (_, true) => "deletecollection",
            _ => "delete",
        };
        let place = match asked.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let name = if asked.name.is_empty() { String::new() } else { format!(" {:?}", asked.name) };
        let message = format!(
            "{}{name} is forbidden: User {:?} cannot {verb} resource {:?} in API group {:?} {place}",
            asked.resource.id, caller.user, asked.resource.plural, asked.resource.group
        );
        Err(ApiError::forbidden(asked.resource, &asked.name, message))
    }

    /// Documents that do not depend on stored objects.
    fn document(&self, path: &RequestPath, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        if request.method == http::Method::POST
            && let RequestPath::AccessReview = path
        {
            return self.review_access(request);
        }
        if ![http::Method::GET, http::Method::HEAD].contains(&request.method) {
            return Err(ApiError::method_not_allowed());
        }
        let is_aggregated = discovery::wants_aggregated(&request.accept);
        let aggregated = |is_core: bool| ApiResponse {
            content_type: discovery::AGGREGATED,
            ..ApiResponse::json(200, &discovery::aggregated(is_core))
        };
        let found = |document: Option<Value>| document.ok_or_else(ApiError::no_such_path);
        let json = match path {
            RequestPath::Health => return Ok(ApiResponse::text("ok")),
            RequestPath::Core | RequestPath::Groups if is_aggregated => {
                return Ok(aggregated(matches!(path, RequestPath::Core)));
            }
            RequestPath::Core => discovery::core_versions(""),
            RequestPath::Groups => discovery::groups(),
            RequestPath::Group(name) => found(discovery::group(name))?,
            RequestPath::Version(group, version) => found(discovery::resources(group, version))?,
            RequestPath::OpenApi => openapi::index(&self.options.version),
            RequestPath::OpenApiVersion(group, version) => found(openapi::document(group, version))?,
            RequestPath::ServerVersion => self.server_version(),
            RequestPath::AccessReview | RequestPath::Object(_) => return Err(ApiError::method_not_allowed()),
        };
        Ok(ApiResponse::json(200, &json))
    }

    /// The version that clients compare with their own. It is that of the conventions that are served.
    fn server_version(&self) -> Value {
        json!({
            "major": "1", "minor": "35",
            "gitVersion": format!("v1.35.0+pilotage-{}", self.options.version),
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "", "goVersion": "", "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        })
    }

    /// `kubectl auth can-i`.
    fn review_access(&self, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let mut review = body::decode(request)?;
        let text = |key: &str| {
            let pointer = format!("/spec/resourceAttributes/{key}");
            review.pointer(&pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let table = crate::resource::ResourceTable::get();
        let (group, plural) = (text("group"), text("resource"));
        let resource = table.all().find(|r| r.plural == plural && (r.group == group || group == "*"));
        let is_read = ["get", "list", "watch"].contains(&text("verb").as_str());
        let namespace = text("namespace");
        let is_allowed = resource.is_some_and(|resource| {
            let access = AccessRequest {
                role: if is_read { Role::Read } else { Role::Write },
                namespace: &namespace,
                is_namespaced: resource.is_namespaced,
                is_secret: resource.id == "secrets",
            };
            self.options.users.current().roles.allow(&request.caller, access)
        });
        review["status"] = json!({ "allowed": is_allowed });
        Ok(ApiResponse::json(201, &review))
    }
}
