//! The `/debug` pages: a table of pages, each a function of the current state. Formats are upstream's, so that istioctl,
//! Kiali and scripts work unchanged.

mod clients;
pub(super) mod dump;
mod mesh;
mod objects;
mod over_xds;
mod pilotage;
mod scope;
mod snapshots;
pub(super) mod status;
mod trust;

use api::TypeUrl;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::ALLOW;
use http::{Method, StatusCode};
use model::proxy::ProxyKind;
use serde_json::{Value, json};
use tonic::transport::server::TcpConnectInfo;
use xds::ResourceSet;

use super::Pages;
use super::response::{Layout, PageResponse};
use crate::serve::clients::Connection;

/// One page.
struct DebugPage {
    name: &'static str,
    help: &'static str,
    make: fn(&Pages, &PageQuery) -> PageResponse,
}

/// Every page, by name. `istioctl bug-report` reads most of them and reports a missing page as an error.
const PAGES: &[DebugPage] = &[
    DebugPage {
        name: "adsz",
        help: "Connected clients and their subscriptions; POST with ?push=true recomputes everything",
        make: clients::adsz,
    },
    DebugPage { name: "ambientz", help: "Workloads of ambient mode, which is not supported", make: empty_ambient },
    DebugPage { name: "analyze", help: "Likely mistakes, in the format of istioctl analyze", make: pilotage::analyze },
    DebugPage { name: "authorizationz", help: "Authorization policies by namespace", make: mesh::authorizationz },
    DebugPage { name: "cachez", help: "Number of cached resources and views", make: pilotage::cachez },
    DebugPage { name: "clusterz", help: "Kubernetes clusters and whether they are in sync", make: mesh::clusterz },
    DebugPage {
        name: "config_dump",
        help: "Resources of a proxy in the format of Envoy's config_dump: ?proxyID=",
        make: dump::config_dump,
    },
    DebugPage { name: "configz", help: "Configuration objects", make: mesh::configz },
    DebugPage { name: "connections", help: "Connected clients", make: clients::connections },
    DebugPage { name: "ecdsz", help: "Extension configuration of a proxy: ?proxyID=", make: dump::ecdsz },
    DebugPage { name: "edsz", help: "Endpoints of a proxy: ?proxyID=", make: dump::edsz },
    DebugPage { name: "endpointShardz", help: "Endpoints by service and source", make: mesh::endpoint_shards },
    DebugPage { name: "endpointz", help: "The same under its old name", make: mesh::endpoint_shards },
    DebugPage { name: "inject", help: "Injection templates; always empty", make: empty_map },
    DebugPage { name: "instancesz", help: "Services of each connected proxy", make: clients::instancesz },
    DebugPage { name: "krtz", help: "Internal state of upstream; always empty", make: empty_list },
    DebugPage { name: "list", help: "All debug pages by name", make: list },
    DebugPage { name: "mcsz", help: "Multi-cluster services", make: empty_list },
    DebugPage { name: "mesh", help: "Mesh configuration", make: mesh::mesh },
    DebugPage { name: "ndsz", help: "DNS names of a proxy: ?proxyID=", make: dump::ndsz },
    DebugPage { name: "networkz", help: "Gateways between networks", make: empty_list },
    DebugPage { name: "problems", help: "Mistakes in the configuration, with file and line", make: pilotage::problems },
    DebugPage { name: "push_status", help: "Conflicts and gaps found in the last push", make: status::push_status },
    DebugPage { name: "pushcontext", help: "Inputs of the current push", make: mesh::pushcontext },
    DebugPage {
        name: "quarantinez",
        help: "Objects and resources withheld from clients that rejected them",
        make: pilotage::quarantinez,
    },
    DebugPage {
        name: "registryz",
        help: "Services of all registries; ?health: the health of each registry",
        make: mesh::registryz,
    },
    DebugPage { name: "resourcesz", help: "Kinds of configuration objects that are watched", make: mesh::resourcesz },
    DebugPage {
        name: "settings",
        help: "Flags and environment variables with their values and origins",
        make: pilotage::settings,
    },
    DebugPage {
        name: "sidecarz",
        help: "Services and configuration visible to a proxy: ?proxyID=",
        make: scope::sidecarz,
    },
    DebugPage {
        name: "snapshotz",
        help: "The number of the newest snapshot of the configuration, and of the one that each proxy has",
        make: snapshots::snapshotz,
    },
    DebugPage { name: "sources", help: "Health of each source of configuration and services", make: pilotage::sources },
    DebugPage { name: "syncz", help: "Sent and acknowledged versions of each proxy", make: clients::syncz },
    DebugPage { name: "telemetryz", help: "Telemetry objects by namespace", make: mesh::telemetryz },
    DebugPage {
        name: "trustz",
        help: "The certificate authority, its roots and this server's certificate; POST with ?rotate=true begins to \
               replace a self-signed root",
        make: trust::trustz,
    },
];

/// The query of a request.
struct PageQuery(Vec<(String, String)>);

impl PageQuery {
    /// The value of a parameter; an empty string if it has none.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether the request triggers a push. Over HTTP that needs POST, because any web page can make a browser on this
    /// machine send a GET. Upstream accepts both.
    fn is_push(&self) -> bool {
        self.get("push") == Some("true")
    }

    /// Whether the request changes something.
    fn is_command(&self) -> bool {
        self.is_push() || self.get("rotate") == Some("true")
    }

    fn layout(&self) -> Layout {
        if self.get("pretty").is_some() { Layout::Pretty } else { Layout::Compact }
    }
}

/// Everything that a proxy should have, in the format of Envoy's dump.
pub(super) fn whole_dump(connection: &Connection) -> Value {
    dump::whole(connection, true)
}

/// A kind of proxy in upstream's words.
pub(super) fn proxy_kind(kind: ProxyKind) -> &'static str {
    clients::kind(kind)
}

/// Resources for xDS requests of debug types.
pub(super) fn resources(pages: &Pages, kind: &TypeUrl) -> Option<ResourceSet> {
    over_xds::set(pages, kind)
}

pub(super) fn router() -> Router<Pages> {
    Router::new()
        .route("/debug", get(index))
        .route("/debug/", get(index))
        .route("/debug/{page}", get(page).post(page))
        .layer(middleware::from_fn(loopback_only))
}

/// As in upstream, only callers on loopback need no authentication: `kubectl port-forward` and `kubectl exec` connect
/// from there, and RBAC of the cluster decides who may use them.
pub(super) async fn loopback_only(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    if peer.is_some_and(|peer| peer.ip().is_loopback()) {
        return next.run(request).await;
    }
    PageResponse::refused(StatusCode::UNAUTHORIZED, "debug pages are served to callers on loopback only")
        .into_response()
}

async fn page(
    State(pages): State<Pages>,
    Path(name): Path<String>,
    method: Method,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let Some(page) = PAGES.iter().find(|page| page.name == name) else {
        let reason = "no such page; /debug/list names all pages";
        return PageResponse::refused(StatusCode::NOT_FOUND, reason).into_response();
    };
    let query = match query {
        Ok(Query(query)) => PageQuery(query),
        Err(_) => return PageResponse::refused(StatusCode::BAD_REQUEST, "could not parse the query").into_response(),
    };
    if query.is_command() && method != Method::POST {
        let refused = PageResponse::refused(StatusCode::METHOD_NOT_ALLOWED, "could not do this by GET; use POST");
        return ([(ALLOW, "POST")], refused).into_response();
    }
    let layout = query.layout();
    pages.make(layout, move |pages| (page.make)(pages, &query)).await
}

async fn index() -> PageResponse {
    let row = |page: &DebugPage| {
        format!("<tr><td><a href=\"/debug/{0}\">/debug/{0}</a></td><td>{1}</td></tr>\n", page.name, page.help)
    };
    let rows: String = PAGES.iter().map(row).collect();
    PageResponse::Html(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Pilot debug pages</title></head>\n\
         <body><h1>Debug pages</h1><p>Add <code>?pretty</code> for indented JSON.</p>\n\
         <table>\n{rows}</table></body></html>\n"
    ))
}

fn list(_: &Pages, _: &PageQuery) -> PageResponse {
    let names = PAGES.iter().map(|page| page.name).filter(|name| *name != "list");
    PageResponse::json(names.collect())
}

fn empty_list(_: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(json!([]))
}

fn empty_map(_: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(json!({}))
}

fn empty_ambient(_: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(json!({"workloads": null, "services": null, "policies": null}))
}

/// A time in upstream's format.
fn time(at: std::time::SystemTime) -> Value {
    let seconds = at.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    json!(model::config::timestamp::format(i64::try_from(seconds).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use axum::body::Body;
    use axum::extract::Request;
    use http::StatusCode;

    use model::settings::Settings;

    use sources::source_set::SourceSet;
    use tokio_util::sync::CancellationToken;
    use tonic::transport::server::TcpConnectInfo;
    use tower::ServiceExt;

    use super::{PAGES, Pages, router};
    use crate::http::AllowedHosts;
    use crate::serve::session::ControlPlane;
    use crate::serve::snapshot_writer::SnapshotWriter;

    async fn status_for(caller: Option<&str>) -> StatusCode {
        let stop = CancellationToken::new();
        let pilot = ControlPlane::new(
            SnapshotWriter::start(Settings::default(), Arc::default(), stop.clone()),
            SourceSet::default(),
        );
        let pages = Pages::new(Arc::new(pilot), AllowedHosts::default(), Vec::new(), stop);
        let mut request = Request::get("/debug/mesh").body(Body::empty()).unwrap();
        if let Some(caller) = caller {
            let remote_addr = Some(caller.parse::<SocketAddr>().unwrap());
            request.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr });
        }
        router().with_state(pages).oneshot(request).await.unwrap().status()
    }

    /// Any workload could read debug pages about other namespaces.
    #[tokio::test]
    async fn cve_2026_31838_only_loopback_callers_are_allowed() {
        for (caller, expected) in [
            (Some("127.0.0.1:1000"), StatusCode::OK),
            (Some("[::1]:1000"), StatusCode::OK),
            (Some("10.0.0.1:1000"), StatusCode::UNAUTHORIZED),
            (Some("[2001:db8::1]:1000"), StatusCode::UNAUTHORIZED),
            (None, StatusCode::UNAUTHORIZED),
        ] {
            assert_eq!(status_for(caller).await, expected, "{caller:?}");
        }
    }

    #[test]
    fn pages_are_sorted_and_unique() {
        assert!(PAGES.is_sorted_by(|one, next| one.name < next.name));
    }
}
