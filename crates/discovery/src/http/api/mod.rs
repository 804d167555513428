//! `/api/v1`: what pilotctl and the console ask. JSON, read-only, for callers on the same machine as the debug pages are;
//! `/debug` keeps upstream's formats. `PAGES` is the table of all GET requests; the router and the OpenAPI document
//! (`openapi`) are made from it. `events` is the stream of server-sent events, `plan` and `wait` take a POST.

mod events;
mod explain;
mod history;
mod objects;
mod observer;
mod openapi;
mod plan;
mod policies;
mod proxies;
mod services;
mod status;
mod topology;
mod wait;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, RawPathParams, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use super::debug::loopback_only;
use super::{Layout, PageResponse, Pages};

pub(super) use events::EventHub;
pub(super) use plan::ChangeLimits;

/// One GET request: how it is asked, and how it is answered.
struct ApiPage {
    path: &'static str,
    help: &'static str,
    /// Parameters of the query with their meaning.
    query: &'static [(&'static str, &'static str)],
    schema: fn(&mut SchemaGenerator) -> Schema,
    make: fn(&Pages, &ApiQuery) -> ApiResult,
}

/// The answer, or the error to send.
type ApiResult = Result<Value, PageResponse>;

const LIMIT: (&str, &str) = ("limit", "Most entries to return");
const OFFSET: (&str, &str) = ("offset", "Entries to skip");

/// Every GET request that is answered at once.
const PAGES: &[ApiPage] = &[
    ApiPage {
        path: "/api/v1/proxies",
        help: "Connected proxies, and whether they have the newest configuration",
        query: &[
            ("name", "Part of the proxy's name"),
            ("namespace", "Namespace of the proxy"),
            ("ip", "Address of the proxy, as in its node"),
            ("state", "synced, pending or rejected"),
            LIMIT,
            OFFSET,
        ],
        schema: schema_of::<proxies::ProxyList>,
        make: proxies::list,
    },
    ApiPage {
        path: "/api/v1/proxies/{proxy}",
        help: "One proxy: what it was sent, what it has acknowledged, what it rejected",
        query: &[],
        schema: schema_of::<proxies::ProxyDetail>,
        make: proxies::one,
    },
    ApiPage {
        path: "/api/v1/proxies/{proxy}/config",
        help: "The configuration that a proxy should have, in the format of Envoy's config_dump",
        query: &[],
        schema: free_form,
        make: proxies::config,
    },
    ApiPage {
        path: "/api/v1/proxies/{proxy}/policies",
        help: "Security policies of a proxy's incoming requests, and its identity",
        query: &[],
        schema: schema_of::<policies::ProxyPolicies>,
        make: policies::page,
    },
    ApiPage {
        path: "/api/v1/services",
        help: "Services of all registries",
        query: &[
            ("name", "Part of the host name"),
            ("namespace", "Namespace of the service"),
            ("registry", "Name of the registry"),
            LIMIT,
            OFFSET,
        ],
        schema: schema_of::<services::ServiceList>,
        make: services::list,
    },
    ApiPage {
        path: "/api/v1/objects",
        help: "Configuration objects with the file and line that they were read from",
        query: &[
            ("config", "The path of an object as Envoy's metadata has it"),
            ("kind", "Kind of the objects"),
            ("namespace", "Namespace of the objects"),
            ("name", "Name of the objects"),
            ("spec", "With any value: include the objects themselves"),
            ("lines", "With any value, and config: include the lines of the rules of the object"),
        ],
        schema: schema_of::<Vec<objects::ObjectEntry>>,
        make: objects::list,
    },
    ApiPage {
        path: "/api/v1/problems",
        help: "Mistakes in the configuration, with file and line",
        query: &[],
        schema: schema_of::<Vec<status::ProblemEntry>>,
        make: status::problems,
    },
    ApiPage {
        path: "/api/v1/sources",
        help: "Health of each source of configuration and services",
        query: &[],
        schema: schema_of::<Vec<status::SourceEntry>>,
        make: status::sources,
    },
    ApiPage {
        path: "/api/v1/status",
        help: "Version, snapshot, number of proxies, services, objects and problems",
        query: &[],
        schema: schema_of::<status::ServerStatus>,
        make: status::server,
    },
    ApiPage {
        path: "/api/v1/stats",
        help: "CPU, memory, push latency and convergence over the last hour",
        query: &[],
        schema: schema_of::<Vec<crate::http::stats::StatSample>>,
        make: status::stats,
    },
    ApiPage {
        path: "/api/v1/topology",
        help: "Hosts, the destinations of their routes with weights and faults, and the health of their endpoints",
        query: &[("namespace", "Namespace of the routes")],
        schema: schema_of::<topology::Topology>,
        make: topology::graph,
    },
    ApiPage {
        path: "/api/v1/history",
        help: "The last changes, newest first: objects, sources, files, and when proxies acknowledged them",
        query: &[
            ("object", "KIND/NAMESPACE/NAME"),
            ("proxy", "Only changes that this proxy acknowledged"),
            ("proxies", "With any value: list the proxies that acknowledged"),
            LIMIT,
        ],
        schema: schema_of::<history::HistoryList>,
        make: history::list,
    },
    ApiPage {
        path: "/api/v1/history/objects",
        help: "Configuration objects as they were",
        query: &[("at", "Time in RFC 3339, or the number of a snapshot"), ("object", "KIND/NAMESPACE/NAME")],
        schema: schema_of::<history::PastObjects>,
        make: history::objects,
    },
    ApiPage {
        path: "/api/v1/history/diff",
        help: "Objects that differ between two moments",
        query: &[
            ("from", "Time in RFC 3339, or the number of a snapshot"),
            ("to", "The same; now if missing"),
            ("object", "KIND/NAMESPACE/NAME"),
        ],
        schema: schema_of::<history::HistoryDiff>,
        make: history::diff,
    },
    ApiPage {
        path: "/api/v1/explain",
        help: "Where a request of a proxy goes, and why",
        query: &[
            ("proxy", "A connected proxy"),
            ("method", "Method of the request; GET if missing"),
            ("url", "URL of the request"),
            ("header", "A header, NAME: VALUE; may be repeated"),
        ],
        schema: free_form,
        make: explain::page,
    },
];

/// Parameters of a request.
pub(super) struct ApiQuery {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
}

impl ApiQuery {
    /// A parameter of the query that is not empty.
    fn get(&self, name: &str) -> Option<&str> {
        let named = self.query.iter().find(|(key, value)| key == name && !value.is_empty());
        named.map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that may be repeated.
    fn all<'a>(&'a self, name: &'static str) -> impl Iterator<Item = &'a str> {
        let named = self.query.iter().filter(move |(key, _)| key == name);
        named.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.query.iter().any(|(key, _)| key == name)
    }

    /// A parameter of the path.
    fn part(&self, name: &str) -> &str {
        self.path.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    fn number(&self, name: &str, default: usize) -> Result<usize, PageResponse> {
        match self.get(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| bad_request(&format!("could not read {name}={text}: not a number"))),
        }
    }

    /// Whether a value contains the parameter, or there is none.
    fn is_in(&self, name: &str, value: &str) -> bool {
        self.get(name).is_none_or(|part| value.contains(part))
    }

    /// Whether a value is the parameter, or there is none.
    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name).is_none_or(|wanted| wanted == value)
    }
}

fn bad_request(reason: &str) -> PageResponse {
    PageResponse::refused(StatusCode::BAD_REQUEST, reason)
}

fn not_found(reason: &str) -> PageResponse {
    PageResponse::refused(StatusCode::NOT_FOUND, reason)
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn free_form(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": "object"})
}

/// A value as JSON.
fn json_of(value: &impl Serialize) -> ApiResult {
    serde_json::to_value(value).map_err(|_| PageResponse::failed("could not make this page"))
}

pub(super) fn router() -> Router<Pages> {
    let mut router = Router::new();
    for page in PAGES {
        let answer = move |State(pages): State<Pages>, path: RawPathParams, query: QueryResult| async move {
            answer(pages, page, path, query).await
        };
        router = router.route(page.path, get(answer));
    }
    router
        .route("/api/v1/openapi.json", get(async || PageResponse::json(openapi::document())))
        .route("/api/v1/events", get(events::stream))
        .route("/api/v1/plan", post(plan::page))
        .route("/api/v1/wait", post(wait::page))
        .layer(middleware::from_fn(loopback_only))
}

type QueryResult = Result<Query<Vec<(String, String)>>, QueryRejection>;

async fn answer(pages: Pages, page: &'static ApiPage, path: RawPathParams, query: QueryResult) -> Response {
    let Ok(Query(query)) = query else { return bad_request("could not parse the query").into_response() };
    let path = path.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let layout = if query.iter().any(|(key, _)| key == "pretty") { Layout::Pretty } else { Layout::Compact };
    let query = ApiQuery { path, query };
    let make = move |pages: &Pages| (page.make)(pages, &query).map_or_else(|error| error, PageResponse::json);
    pages.make(layout, make).await
}

/// A time in RFC 3339 with milliseconds.
fn time_text(at: std::time::SystemTime) -> String {
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = model::config::timestamp::format(i64::try_from(since.as_secs()).unwrap_or_default());
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::{PAGES, openapi, time_text};

    #[test]
    fn every_request_is_described() {
        let document = openapi::document();
        for page in PAGES {
            let described = &document["paths"][page.path]["get"];
            assert!(
                described["responses"]["200"]["content"]["application/json"]["schema"].is_object(),
                "{}",
                page.path
            );
            assert_eq!(described["summary"], page.help);
        }
        assert_eq!(document["openapi"], "3.0.3");
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name} is not described");
        }
    }

    #[test]
    fn times_have_milliseconds() {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_500);
        assert_eq!(time_text(at), "1970-01-01T00:00:01.500Z");
    }
}
