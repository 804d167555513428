//! Policies: the sidecar of a workload allows exactly the right requests. This file has the helpers; the other files have
//! tables of requests.

mod fetched;
mod jwt;
mod operations;
mod roles;
mod tokens;

use std::net::SocketAddr;

use testkit::backend::HttpBackend;
use testkit::client;
use testkit::envoy::XdsTransport;
use testkit::wait;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::mesh::{Mesh, service_port};

/// Expected status, method and target as sent, and header lines. The host is `cart.example` unless a header sets it.
type Row<'a> = (u16, &'a str, &'a [&'a str]);

/// A backend whose sidecar has these policies.
struct Guarded {
    mesh: Mesh,
    backend: HttpBackend,
}

impl Guarded {
    async fn start(transport: XdsTransport, policies: &[String], settings: &str) -> Guarded {
        Self::start_with(transport, policies, settings, &[]).await
    }

    /// The same with environment variables of the control plane.
    async fn start_with(transport: XdsTransport, policies: &[String], settings: &str, env: &[(&str, &str)]) -> Guarded {
        let backend = HttpBackend::start("cart").await;
        let port = service_port();
        let mut documents = vec![workload(port, backend.port())];
        documents.extend_from_slice(policies);
        Guarded { mesh: Mesh::server_with(transport, port, &documents, settings, env).await, backend }
    }

    /// Waits until the control plane reports a problem.
    async fn has_problem(&self, part: &str) {
        wait::until(part, async || {
            let page = client::get(self.mesh.discovery.http(), "discovery", "/debug/problems").await?;
            if page.body.contains(part) { Ok(()) } else { Err(page.body) }
        })
        .await;
    }

    /// Sends every row and fails with all unexpected statuses.
    async fn check(&self, rows: &[Row<'_>]) {
        let (mut wrong, reached) = (Vec::new(), self.backend.requests());
        for (number, (wanted, line, headers)) in rows.iter().enumerate() {
            let got = raw_request(self.mesh.address, line, headers).await;
            if got != Ok(*wanted) {
                wrong.push(format!("row {}: {line} {headers:?}: wanted {wanted}, got {got:?}", number + 1));
            }
        }
        assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
        let allowed = rows.iter().filter(|(wanted, ..)| *wanted == 200).count();
        assert_eq!(self.backend.requests() - reached, allowed as u64, "only allowed requests reach the workload");
    }
}

/// The inbound listener in plain text, because there is no SDS server.
pub(crate) fn workload(port: u16, backend: u16) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {{name: plain-text, namespace: istio-system}}\nspec: {{mtls: {{mode: DISABLE}}}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
         workloadSelector: {{labels: {{app: cart}}}}\n  ingress:\n  \
         - port: {{number: {port}, name: http, protocol: HTTP}}\n    bind: 127.0.0.1\n    captureMode: NONE\n    \
         defaultEndpoint: 127.0.0.1:{backend}\n  egress: [{{hosts: ['~/*']}}]\n"
    )
}

/// An AuthorizationPolicy document for the workload; `rules` is a YAML list in braces.
fn policy(name: &str, action: &str, rules: &str) -> String {
    annotated_policy(name, action, "{}", rules)
}

fn annotated_policy(name: &str, action: &str, annotations: &str, rules: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: shop, annotations: {annotations}}}\n\
         spec:\n  selector: {{matchLabels: {{app: cart}}}}\n  action: {action}\n  rules:\n{rules}\n"
    )
}

/// Sends a raw request and returns the status.
async fn raw_request(address: SocketAddr, line: &str, headers: &[&str]) -> Result<u16, String> {
    let names_host = headers.iter().any(|h| h.to_ascii_lowercase().starts_with("host:"));
    let host = if names_host { "" } else { "host: cart.example\r\n" };
    let headers: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\n{host}{headers}connection: close\r\n\r\n");
    let mut stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
    // The connection closes late, so only the first line is read.
    let mut first = String::new();
    BufReader::new(stream).read_line(&mut first).await.map_err(|e| e.to_string())?;
    first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(format!("no status in {first:?}"))
}
