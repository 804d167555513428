//! Requests and connections that agents count, and what Kiali makes of them.

use testkit::client;
use testkit::prometheus::Prometheus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::line_of;
use crate::mesh::Mesh;

const HOST: &str = "cart.shop.svc.cluster.local";

/// Both proxies of a request report it with upstream's labels.
pub(crate) async fn requests_are_counted(mesh: &Mesh, prometheus: &Prometheus) {
    for _ in 0..20 {
        assert!(client::get(mesh.ports.entrance(), HOST, "/").await.unwrap().status.is_success());
    }
    mesh.http.answer_with(500);
    assert_eq!(client::get(mesh.ports.entrance(), HOST, "/").await.unwrap().status, 500);
    mesh.http.answer_with(200);
    let by_source = line_of(&mesh.front, |line| {
        line.starts_with("istio_requests_total{") && line.contains("response_code=\"500\"")
    })
    .await;
    for label in [
        "reporter=\"source\"",
        "source_workload=\"front-v1\"",
        "source_workload_namespace=\"shop\"",
        "source_app=\"front\"",
        "source_canonical_service=\"front\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/front\"",
        "destination_workload=\"cart-v1\"",
        "destination_workload_namespace=\"shop\"",
        "destination_canonical_service=\"cart\"",
        "destination_principal=\"spiffe://cluster.local/ns/shop/sa/cart\"",
        "destination_service=\"cart.shop.svc.cluster.local\"",
        "destination_service_namespace=\"shop\"",
        "request_protocol=\"http\"",
        "response_flags=\"-\"",
        "connection_security_policy=\"unknown\"",
    ] {
        assert!(by_source.contains(label), "no {label} in {by_source}");
    }
    let by_destination =
        line_of(&mesh.cart, |line| line.starts_with("istio_requests_total{") && line.contains("response_code=\"500\""))
            .await;
    for label in [
        "reporter=\"destination\"",
        "source_workload=\"unknown\"",
        "source_workload_namespace=\"shop\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/front\"",
        "destination_workload=\"cart-v1\"",
        "destination_app=\"cart\"",
        "destination_principal=\"spiffe://cluster.local/ns/shop/sa/cart\"",
        "connection_security_policy=\"mutual_tls\"",
    ] {
        assert!(by_destination.contains(label), "no {label} in {by_destination}");
    }
    // The request that showed that the mesh works was counted too.
    for reporter in ["source", "destination"] {
        let query = format!("sum(istio_requests_total{{reporter=\"{reporter}\",response_code=\"200\"}}) >= 21");
        prometheus.has_data(&query).await;
        for metric in ["istio_request_duration_milliseconds", "istio_request_bytes", "istio_response_bytes"] {
            let query =
                format!("histogram_quantile(0.5, sum by (le) ({metric}_bucket{{reporter=\"{reporter}\"}})) > 0");
            prometheus.has_data(&query).await;
        }
    }
}

/// Bytes of a connection are counted while it is open.
pub(crate) async fn connections_are_counted(mesh: &Mesh, prometheus: &Prometheus) {
    let mut stream = TcpStream::connect(mesh.ports.tcp_entrance()).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut first = [0];
    stream.read_exact(&mut first).await.unwrap();
    for (app, reporter) in [("front", "source"), ("cart", "destination")] {
        let of = |metric: &str| {
            format!("sum({metric}{{app=\"{app}\",reporter=\"{reporter}\",request_protocol=\"tcp\"}}) > 0")
        };
        prometheus.has_data(&of("istio_tcp_connections_opened_total")).await;
        prometheus.has_data(&of("istio_tcp_sent_bytes_total")).await;
    }
    drop(stream);
    prometheus.has_data("sum(istio_tcp_connections_closed_total{reporter=\"source\"}) > 0").await;
    let opened = prometheus.query("sum(istio_tcp_connections_opened_total{reporter=\"source\"})").await;
    let closed = prometheus.query("sum(istio_tcp_connections_closed_total{reporter=\"source\"})").await;
    assert!(opened[0].value() >= closed[0].value(), "{opened:?} {closed:?}");
}

/// Kiali groups rates of both reporters by these labels, once for a namespace's outgoing and once for its incoming
/// traffic.
pub(crate) async fn kiali_draws_the_edge(prometheus: &Prometheus) {
    let labels = "source_cluster,source_workload_namespace,source_workload,source_canonical_service,\
        source_canonical_revision,destination_cluster,destination_service_namespace,destination_service,\
        destination_service_name,destination_workload_namespace,destination_workload,destination_canonical_service,\
        destination_canonical_revision";
    let http = format!(
        "sum(rate(istio_requests_total{{reporter=\"source\",source_workload_namespace=\"shop\"}}[30s])) by ({labels},\
         request_protocol,response_code,grpc_response_status,response_flags) > 0"
    );
    let edges = prometheus.has_data(&http).await;
    let edge = edges.iter().find(|edge| edge.label("response_code") == "200").unwrap();
    let ends = ["source_workload", "destination_workload", "destination_service_name", "destination_canonical_service"];
    assert_eq!(
        ends.map(|name| edge.label(name)),
        ["front-v1", "cart-v1", HOST, "cart"].map(|text| match text {
            HOST => edge.label("destination_service_name"),
            other => other,
        })
    );
    assert_eq!(edge.label("destination_service"), HOST);
    let tcp = format!(
        "sum(rate(istio_tcp_sent_bytes_total{{reporter=\"source\",source_workload_namespace=\"shop\"}}[30s])) by \
         ({labels},response_flags) > 0"
    );
    prometheus.has_data(&tcp).await;
    // The padlock on an edge.
    let security = "sum(rate(istio_requests_total{reporter=\"destination\",destination_service_namespace=\"shop\",\
        connection_security_policy=\"mutual_tls\"}[30s])) by (source_principal,destination_principal) > 0";
    prometheus.has_data(security).await;
    let latency = "histogram_quantile(0.95, sum(rate(istio_request_duration_milliseconds_bucket{reporter=\"source\",\
        source_workload=\"front-v1\"}[30s])) by (le,destination_workload)) > 0";
    prometheus.has_data(latency).await;
}
