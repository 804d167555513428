//! Debug pages about connected clients.

use std::net::SocketAddr;

use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use api::{Struct, TypeUrl, Value, value};
use serde_json::json;
use testkit::{client, wait};
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use xds::client::{DeltaClient, Held, SotwClient};

use crate::started::Started;

const NODE: &str = "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local";

fn node() -> Node {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let fields = [("NAMESPACE", "shop"), ("CLUSTER_ID", "Kubernetes"), ("ISTIO_VERSION", "1.29.6")];
    let fields = fields.map(|(key, value)| (key.to_owned(), text(value))).into_iter().collect();
    Node { id: NODE.to_owned(), metadata: Some(Struct { fields }), ..Node::default() }
}

/// A stream of the web proxy, subscribed to all clusters and the endpoints of the web service.
pub(crate) async fn connect(grpc: SocketAddr) -> SotwClient {
    let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
    let mut stream = SotwClient::open(channel, node(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let clusters = stream.next().await.unwrap().unwrap();
    assert!(!clusters.resources.is_empty());
    stream.ack(&clusters);
    stream.subscribe(&TypeUrl::ENDPOINT, &["outbound|80||web.shop.example"]);
    let endpoints = stream.next().await.unwrap().unwrap();
    stream.ack(&endpoints);
    stream
}

#[tokio::test]
async fn a_client_is_shown_with_its_versions_and_subscriptions() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let http = server.port("http").await;
    let _stream = connect(server.port("grpc").await).await;

    let status = wait::until("an accepted answer", async || {
        let page = client::get(http, "discovery", "/debug/syncz?namespace=shop").await?.json();
        let status = &page[0];
        let acked = status["endpoint_acked"].is_string() && status["cluster_acked"].is_string();
        if acked { Ok(status.clone()) } else { Err(page.to_string()) }
    })
    .await;
    assert_eq!((&status["proxy"], &status["proxy_type"]), (&json!("web.shop"), &json!("sidecar")));
    assert_eq!((&status["cluster_id"], &status["istio_version"]), (&json!("Kubernetes"), &json!("1.29.6")));
    assert_eq!(status["cluster_sent"], status["cluster_acked"]);
    assert_eq!(status["resources"][TypeUrl::CLUSTER.as_str()]["sent"], status["cluster_sent"]);
    assert_eq!(server.get("/debug/syncz?namespace=other").await.json(), json!([]));

    let page = server.get("/debug/adsz").await.json();
    assert_eq!(page["totalClients"], 1);
    let watches = &page["clients"][0]["watches"];
    assert_eq!(watches[TypeUrl::CLUSTER.as_str()], json!([]));
    assert_eq!(watches[TypeUrl::ENDPOINT.as_str()], json!(["outbound|80||web.shop.example"]));

    let own = server.get("/debug/instancesz").await.json();
    assert_eq!(own["web.shop"][0]["Service"]["hostname"], "web.shop.example");
    let scope = server.get("/debug/sidecarz?proxyID=web.shop").await.json();
    assert!(scope["servicesByHostname"]["pay.example"].is_object(), "{scope}");
}

#[tokio::test]
async fn a_dump_has_envoys_format_and_the_subscribed_resources() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let mut stream = connect(server.port("grpc").await).await;
    for (kind, names) in [(TypeUrl::LISTENER, &[][..]), (TypeUrl::ROUTE, &["80"])] {
        stream.subscribe(&kind, names);
        let answer = stream.next().await.unwrap().unwrap();
        assert_eq!(answer.type_url, kind.as_str());
        stream.ack(&answer);
    }

    let dump = server.get("/debug/config_dump?proxyID=web.shop&include_eds").await.json();
    let sections: Vec<&str> = dump["configs"].as_array().unwrap().iter().filter_map(|c| c["@type"].as_str()).collect();
    let expected = ["Bootstrap", "Clusters", "Endpoints", "Listeners", "ScopedRoutes", "Routes", "Secrets", "Ecds"];
    assert_eq!(sections, expected.map(|name| format!("type.googleapis.com/envoy.admin.v3.{name}ConfigDump")));
    let clusters = dump["configs"][1]["dynamicActiveClusters"].as_array().unwrap();
    let web = clusters.iter().find(|c| c["cluster"]["name"] == "outbound|80||web.shop.example").unwrap();
    assert_eq!(web["cluster"]["@type"], TypeUrl::CLUSTER.as_str());
    assert_eq!(web["cluster"]["type"], "EDS");
    let listeners = dump["configs"][3]["dynamicListeners"].as_array().unwrap();
    let virtual_outbound = listeners.iter().find(|l| l["name"] == "virtualOutbound").unwrap();
    assert!(virtual_outbound["activeState"]["listener"]["filterChains"].is_array(), "{virtual_outbound:#}");
    assert_eq!(dump["configs"][5]["dynamicRouteConfigs"][0]["routeConfig"]["name"], "80");
    assert!(!dump.to_string().contains("\"error\""), "{dump:#}");

    let endpoints = server.get("/debug/edsz?proxyID=web.shop").await.json();
    let address = &endpoints["configs"][0]["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"];
    assert_eq!(address["socketAddress"]["address"], "10.0.0.1");
}

#[tokio::test]
async fn a_nack_is_shown_and_counted() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let (http, monitoring) = (server.port("http").await, server.port("monitoring").await);
    let channel = Endpoint::from_shared(format!("http://{}", server.port("grpc").await)).unwrap().connect().await;
    let mut stream = SotwClient::open(channel.unwrap(), node(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let clusters = stream.next().await.unwrap().unwrap();
    stream.nack(&clusters, "no such extension");
    wait::until("the refusal", async || {
        let page = client::get(http, "discovery", "/debug/syncz").await?.json();
        let error = &page[0]["resources"][TypeUrl::CLUSTER.as_str()]["lastError"];
        if error == "no such extension" { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    let instead = stream.next().await.unwrap().unwrap();
    assert!(instead.resources.is_empty(), "what was refused is not sent again");
    let metrics = client::get(monitoring, "discovery", "/metrics").await.unwrap().body;
    for line in [
        "pilot_xds_pushes{type=\"cds\"} 2",
        "pilotage_quarantined{what=\"resource\"} 6.0",
        "pilot_total_xds_rejects{type=\"cds\"} 1",
        "pilot_xds{version=\"1.29.6\"} 1.0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "no {line} in\n{metrics}");
    }
    assert!(metrics.contains("pilot_xds_cds_reject{node=\"web.shop\",err="), "{metrics}");
}

const MARKED: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.example]
  http: [{route: [{destination: {host: web.shop.example}}], headers: {request: {set: {x-marked: 'yes'}}}}]
";

/// Whether the next route configuration of a stream contains the marked VirtualService.
async fn is_marked(stream: &mut SotwClient) -> (bool, DiscoveryResponse) {
    let answer = stream.next().await.unwrap().unwrap();
    let table = answer.resources.first().expect("one table is asked for");
    (table.value.windows(8).any(|text| text == b"x-marked"), answer)
}

#[tokio::test]
async fn a_rejected_object_is_withheld_from_its_client_until_it_changes() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let file = server.folder.path().join("config/routes.yaml");
    std::fs::write(&file, MARKED).unwrap();
    wait::until("the object", async || {
        let objects = server.get("/debug/configz").await.body;
        if objects.contains("x-marked") { Ok(()) } else { Err(objects) }
    })
    .await;
    let grpc = server.port("grpc").await;
    let open = async |node: Node| {
        let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        SotwClient::open(channel, node, &TypeUrl::ROUTE, &["80"]).await.unwrap()
    };
    let mut stream = open(node()).await;
    let (marked, first) = is_marked(&mut stream).await;
    assert!(marked);
    stream.nack(&first, "header 'x-marked' is not to my taste");
    let (marked, second) = is_marked(&mut stream).await;
    assert!(!marked, "the object is left out");
    stream.ack(&second);
    let page = server.get("/debug/quarantinez").await.json();
    assert_eq!(page["objects"][0]["object"], "VirtualService shop/web", "{page}");
    assert_eq!(page["objects"][0]["proxies"], json!(["web.shop"]));

    drop(stream);
    let mut stream = open(node()).await;
    let (marked, answer) = is_marked(&mut stream).await;
    assert!(marked, "its name proves nothing: a client that reconnects without a certificate starts fresh");
    stream.nack(&answer, "header 'x-marked' is not to my taste");
    let (marked, answer) = is_marked(&mut stream).await;
    assert!(!marked);
    stream.ack(&answer);
    let other = Node { id: NODE.replace("web.shop", "other.shop"), ..node() };
    assert!(is_marked(&mut open(other).await).await.0, "others are served what they have not refused");

    std::fs::write(&file, MARKED.replace("'yes'", "'new'")).unwrap();
    assert!(is_marked(&mut stream).await.0, "a new version is let through");
}

#[tokio::test]
async fn grpc_health_is_serving_once_ready() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let channel = Endpoint::from_shared(format!("http://{}", server.port("grpc").await)).unwrap();
    let mut health = HealthClient::new(channel.connect().await.unwrap());
    for service in ["", "envoy.service.discovery.v3.AggregatedDiscoveryService"] {
        let asked = HealthCheckRequest { service: service.to_owned() };
        wait::until("a serving server", async || {
            let answer = health.check(asked.clone()).await.map_err(|status| status.to_string())?.into_inner();
            if answer.status() == ServingStatus::Serving { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_rejects_everything_gets_a_bounded_number_of_responses() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let grpc = server.port("grpc").await;
    let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
    let mut stream = SotwClient::open(channel, node(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let mut refused = 0;
    // Listeners are sent after all responses about clusters.
    loop {
        let answer = stream.next().await.unwrap().unwrap();
        if answer.type_url == TypeUrl::LISTENER.as_str() {
            break;
        }
        stream.nack(&answer, "no reason");
        refused += 1;
        assert!(refused < 10, "the server does not stop");
        if answer.resources.is_empty() {
            stream.subscribe(&TypeUrl::LISTENER, &[]);
        }
    }
    assert!((1..=3).contains(&refused), "{refused} refusals");
    let page = server.get("/debug/quarantinez").await.json();
    assert_eq!(page["objects"], json!([]), "no object can be blamed");
    assert!(page["resources"].as_array().is_some_and(|list| !list.is_empty()), "{page}");
    let status = server.get("/debug/syncz").await.json();
    assert_eq!(status[0]["resources"][TypeUrl::CLUSTER.as_str()]["lastError"], "no reason", "{status}");
}

#[tokio::test]
async fn both_reflection_versions_list_every_service() {
    use tonic_reflection::pb::{v1, v1alpha};
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let channel = Endpoint::from_shared(format!("http://{}", server.port("grpc").await)).unwrap().connect().await;
    let channel = channel.unwrap();

    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked = v1::ServerReflectionRequest { message_request: Some(list), ..Default::default() };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::iter([asked])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response;
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(newer)) = answer else {
        panic!("{answer:?}")
    };

    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked = v1alpha::ServerReflectionRequest { message_request: Some(list), ..Default::default() };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::iter([asked])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response;
    let Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(older)) = answer else {
        panic!("{answer:?}")
    };

    let newer: Vec<&str> = newer.service.iter().map(|service| service.name.as_str()).collect();
    let older: Vec<&str> = older.service.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(newer, older);
    for name in ["discovery.v3.Aggregated", "cluster.v3.Cluster", "secret.v3.Secret", "extension.v3.ExtensionConfig"] {
        let name = format!("envoy.service.{name}DiscoveryService");
        assert!(newer.contains(&name.as_str()), "no {name} in {newer:?}");
    }
}

/// The response to one request of istioctl, which opens a stream for each request.
async fn looked_at(grpc: SocketAddr, kind: &TypeUrl, names: &[&str]) -> Vec<api::Any> {
    let istioctl = Node { id: "debug~0.0.0.0~istioctl~cluster.local".to_owned(), ..Node::default() };
    let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
    let mut stream = SotwClient::open(channel, istioctl, kind, names).await.unwrap();
    let answer = tokio::time::timeout(std::time::Duration::from_secs(60), stream.next()).await;
    answer.expect("an answer comes").unwrap().unwrap().resources
}

#[tokio::test]
async fn debug_pages_are_served_over_xds_to_loopback_callers() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let grpc = server.port("grpc").await;
    let _web = connect(grpc).await;
    let page = looked_at(grpc, &TypeUrl::DEBUG, &["syncz"]).await;
    assert_eq!((page.len(), page[0].type_url.as_str()), (1, "istio.io/debug"));
    let shown: serde_json::Value = serde_json::from_slice(&page[0].value).unwrap();
    assert_eq!(shown[0]["proxy"], "web.shop", "{shown:#}");

    let page = looked_at(grpc, &TypeUrl::DEBUG, &["ndsz?proxyID=missing.shop"]).await;
    assert!(String::from_utf8_lossy(&page[0].value).contains("not connected to this Pilot"));

    let page = looked_at(grpc, &TypeUrl::DEBUG, &["nothingz"]).await;
    assert_eq!(page[0].value, b"404 page not found\n", "istioctl then prints the list");

    let status = looked_at(grpc, &TypeUrl::DEBUG_SYNCZ, &[]).await;
    assert_eq!(status.len(), 1, "istioctl itself is no proxy");
    assert_eq!(status[0].type_url, "type.googleapis.com/envoy.service.status.v3.ClientConfig");
    let text = String::from_utf8_lossy(&status[0].value).into_owned();
    assert!(text.contains("web.shop") && text.contains("envoy.config.cluster.v3.Cluster"), "{text:?}");
}

#[tokio::test]
async fn config_dump_over_xds_has_the_sections_of_envoys_dump() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let grpc = server.port("grpc").await;
    let _web = connect(grpc).await;
    let dump = looked_at(grpc, &TypeUrl::DEBUG_CONFIG_DUMP, &["web.shop"]).await;
    let types: Vec<&str> = dump.iter().filter_map(|any| any.type_url.rsplit('.').next()).collect();
    let sections = ["Bootstrap", "Clusters", "Listeners", "ScopedRoutes", "Routes", "Secrets", "Ecds"];
    assert_eq!(types, sections.map(|section| format!("{section}ConfigDump")));
    assert!(String::from_utf8_lossy(&dump[1].value).contains("outbound|80||web.shop.example"));

    let missing = looked_at(grpc, &TypeUrl::DEBUG_CONFIG_DUMP, &["missing.shop"]).await;
    assert!(missing.len() == 1 && String::from_utf8_lossy(&missing[0].value).contains("not connected to this Pilot"));
}

#[tokio::test]
async fn debug_requests_are_answered_whatever_their_nonce_and_unknown_ones_are_rejected() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let channel = Endpoint::from_shared(format!("http://{}", server.port("grpc").await)).unwrap();
    let channel = channel.connect().await.unwrap();
    let node = || Node { id: "sidecar~10.0.0.9~istioctl.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
    let mut stream = SotwClient::open(channel.clone(), node(), &TypeUrl::DEBUG, &["mesh"]).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    stream.ack(&first);
    let request = |nonce: &str, kind: &str| DiscoveryRequest {
        type_url: kind.to_owned(),
        resource_names: vec!["list".to_owned()],
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    };
    stream.send(request("2026-11-16 18:00:00.1 +0000 UTC m=+0.1", "istio.io/debug"));
    let second = stream.next().await.unwrap().unwrap();
    assert_ne!(first.nonce, second.nonce, "the acknowledgement is not answered");
    assert!(second.resources[0].value.starts_with(b"["), "{second:?}");
    stream.send(request("", "istio.io/debug/nothingz"));
    let status = stream.next().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "unknown debug type istio.io/debug/nothingz")
    );
    server.says("stream refused").await;
    let log = server.process.output();
    let line = log.lines().find(|line| line.contains("stream refused")).unwrap_or_default();
    for field in ["warn\t", "peer=\"127.0.0.1:", "code=InvalidArgument", "unknown debug type istio.io/debug/nothingz"] {
        assert!(line.contains(field), "no {field} in {line}");
    }
}

#[tokio::test]
async fn a_client_that_returns_with_everything_is_in_sync() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let (grpc, http) = (server.port("grpc").await, server.port("http").await);
    let endpoints = ["outbound|80||web.shop.example"];
    let mut held = Held::default();
    for round in ["the first stream", "the second stream"] {
        let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        let mut stream = DeltaClient::open(channel, node(), held, &TypeUrl::CLUSTER, &[]).await.unwrap();
        let clusters = stream.next().await.unwrap().unwrap();
        stream.ack(&clusters);
        stream.subscribe(&TypeUrl::ENDPOINT, &endpoints);
        if round == "the first stream" {
            let assignments = stream.next().await.unwrap().unwrap();
            stream.ack(&assignments);
        }
        wait::until(round, async || {
            let page = client::get(http, "discovery", "/debug/syncz").await?.json();
            let is_synced = |name: &str| {
                let sent = &page[0][format!("{name}_sent")];
                sent.is_string() && *sent == page[0][format!("{name}_acked")]
            };
            let is_alone = page.as_array().is_some_and(|all| all.len() == 1);
            if is_alone && is_synced("cluster") && is_synced("endpoint") { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
        held = stream.held.clone();
    }
}
