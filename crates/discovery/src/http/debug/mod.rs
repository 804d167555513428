//! The `/debug` pages: one table of pages, each a function of what is known now.
//! Shapes are upstream's, so that istioctl, Kiali and scripts read them unchanged.

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use serde_json::json;
use tonic::transport::server::TcpConnectInfo;

use super::Pages;
use super::answer::{Answer, Layout};

/// One page.
struct Page {
    name: &'static str,
    help: &'static str,
    make: fn(&Pages, &Asked) -> Answer,
}

/// Every page, by name.
const PAGES: &[Page] = &[
    Page { name: "list", help: "All debug pages by name", make: list },
    Page { name: "problems", help: "What is wrong with the configuration, with file and line", make: problems },
    Page { name: "sources", help: "How each source of configuration and services is doing", make: sources },
];

/// The query of a request.
struct Asked(Vec<(String, String)>);

impl Asked {
    /// The value of a parameter; empty where it has none.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn layout(&self) -> Layout {
        if self.get("pretty").is_some() { Layout::Pretty } else { Layout::Compact }
    }
}

pub(super) fn router() -> Router<Pages> {
    Router::new()
        .route("/debug", get(index))
        .route("/debug/", get(index))
        .route("/debug/{page}", get(page).post(page))
        .layer(middleware::from_fn(loopback_only))
}

/// As in upstream, only the machine itself may look without showing who it is: `kubectl port-forward`
/// and `kubectl exec` arrive from there, and the cluster's own rules say who may use them.
async fn loopback_only(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    if peer.is_some_and(|peer| peer.ip().is_loopback()) {
        return next.run(request).await;
    }
    Answer::refused(StatusCode::UNAUTHORIZED, "debug pages are for callers from the same machine").into_response()
}

async fn page(
    State(pages): State<Pages>,
    Path(name): Path<String>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Answer {
    let Some(page) = PAGES.iter().find(|page| page.name == name) else {
        return Answer::refused(StatusCode::NOT_FOUND, "there is no such page; /debug/list names those there are");
    };
    let asked = match query {
        Ok(Query(query)) => Asked(query),
        Err(_) => return Answer::refused(StatusCode::BAD_REQUEST, "could not read the query"),
    };
    let layout = asked.layout();
    pages.make(move |pages| (page.make)(pages, &asked)).await.laid_out(layout)
}

async fn index() -> Answer {
    let row = |page: &Page| {
        format!("<tr><td><a href=\"/debug/{0}\">/debug/{0}</a></td><td>{1}</td></tr>\n", page.name, page.help)
    };
    let rows: String = PAGES.iter().map(row).collect();
    Answer::Html(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Pilot debug pages</title></head>\n\
         <body><h1>Debug pages</h1><p>Add <code>?pretty</code> for indented JSON.</p>\n\
         <table>\n{rows}</table></body></html>\n"
    ))
}

fn list(_: &Pages, _: &Asked) -> Answer {
    let names = PAGES.iter().map(|page| page.name).filter(|name| *name != "list");
    Answer::json(names.collect())
}

fn problems(pages: &Pages, _: &Asked) -> Answer {
    let epoch = pages.pilot().world().now();
    let of_all = epoch.snapshot.problems.iter().flat_map(|(source, list)| list.iter().map(move |p| (source, p)));
    let found = of_all.map(|(source, problem)| {
        json!({
            "source": &*source.0,
            "severity": format!("{:?}", problem.severity).to_lowercase(),
            "about": &*problem.about,
            "file": problem.place.as_ref().map(|place| &*place.file),
            "line": problem.place.as_ref().map(|place| place.line),
            "message": &*problem.message,
        })
    });
    Answer::json(found.collect())
}

fn sources(pages: &Pages, _: &Asked) -> Answer {
    let reports = pages.sources().iter().map(|health| {
        let report = health.report();
        json!({
            "source": &*report.source.0,
            "state": format!("{:?}", report.state),
            "lastFailure": report.last_failure.map(|failure| failure.message),
            "batches": report.counts.batches,
            "changes": report.counts.changes,
            "problems": report.counts.problems,
            "restarts": report.counts.restarts,
        })
    });
    Answer::json(reports.collect())
}
