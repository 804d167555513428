//! Readiness, version, metrics and debug pages, and hostile requests.

use http::Request;
use serde_json::{Value, json};
use testkit::{client, wait};

use crate::started::{Started, folder};

#[tokio::test]
async fn every_port_is_logged_and_an_empty_address_turns_it_off() {
    let mut server = Started::new(&["--registries=", "--grpcAddr=", "--monitoringAddr="]);
    server.ready().await;
    let log = server.process.output();
    assert!(log.contains("listening port=\"http\""), "{log}");
    assert!(!log.contains("port=\"grpc\"") && !log.contains("port=\"monitoring\""), "{log}");
}

#[tokio::test]
async fn not_ready_until_every_source_is_synced() {
    let folder = folder();
    std::fs::remove_dir(folder.path().join("config")).unwrap();
    let mut server = Started::on(folder, &["--registries="]);
    let http = server.port("http").await;
    wait::until("the reason", async || {
        let reply = client::get(http, "discovery", "/ready").await?;
        let is_waiting = reply.status == 503 && reply.body.contains("waiting for files");
        if is_waiting { Ok(()) } else { Err(format!("{} {}", reply.status, reply.body)) }
    })
    .await;
    std::fs::create_dir(server.path("config")).unwrap();
    server.ready().await;
}

#[tokio::test]
async fn version_page_is_what_the_command_prints() {
    let mut server = Started::new(&["--registries="]);
    let monitoring = server.port("monitoring").await;
    let reply = client::get(monitoring, "discovery", "/version").await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(reply.body.starts_with(env!("CARGO_PKG_VERSION")), "{}", reply.body);
    let asked_by_istioctl = client::get(monitoring, "discovery", "//version").await.unwrap();
    assert_eq!((asked_by_istioctl.status, asked_by_istioctl.body), (reply.status, reply.body));
    assert_eq!(server.get("//debug///mesh").await.json()["rootNamespace"], "istio-system");
}

#[tokio::test]
async fn metrics_are_prometheus_text_with_upstreams_names() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let monitoring = server.port("monitoring").await;
    let reply = client::get(monitoring, "discovery", "/metrics").await.unwrap();
    assert!(reply.header("content-type").starts_with("text/plain; version=0.0.4"));
    let version = env!("CARGO_PKG_VERSION");
    for line in [
        "pilot_services 2.0",
        "pilot_virt_services 0.0",
        &format!("istio_build{{component=\"pilot\",tag=\"{version}\"}} 1.0"),
        "pilot_k8s_cfg_events{type=\"ServiceEntry\",event=\"add\"} 2",
        "# TYPE pilot_xds gauge",
        "# TYPE pilot_push_triggers counter",
        "# TYPE pilot_proxy_convergence_time histogram",
        "# TYPE process_cpu_seconds_total counter",
        "# TYPE pilot_total_xds_internal_errors counter",
        "# TYPE pilot_k8s_reg_events counter",
        "# TYPE pilotage_source_requests counter",
        "# TYPE pilot_xds_send_time histogram",
        "pilot_no_ip 0.0",
        "pilot_eds_no_instances 0.0",
        "pilot_vservice_dup_domain 0.0",
        "pilot_destrule_subsets 0.0",
        "pilot_endpoint_not_ready 0.0",
        "istiod_managed_clusters{cluster_type=\"local\"} 0.0",
        "pilot_jwks_resolver_network_fetch_success_total 0.0",
        "pilotage_problems{severity=\"error\"} 0.0",
    ] {
        assert!(reply.body.lines().any(|l| l == line), "no {line} in\n{}", reply.body);
    }
    for name in [
        "pilot_info{",
        "pilot_debounce_time_bucket{le=\"1\"} ",
        "istiod_uptime_seconds ",
        "process_resident_memory_bytes ",
        "process_open_fds ",
        "process_max_fds ",
    ] {
        assert!(reply.body.lines().any(|l| l.starts_with(name)), "no {name} in\n{}", reply.body);
    }
}

#[tokio::test]
async fn every_listed_page_returns_json() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let list = server.get("/debug/list").await.json();
    let names: Vec<String> = list.as_array().unwrap().iter().filter_map(|n| n.as_str().map(str::to_owned)).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let reply = server.get(&format!("/debug/{name}")).await;
        let needs_proxy = reply.status == 400 && reply.body == "You must provide a proxyID in the query string\n";
        assert!(needs_proxy || (reply.status == 200 && reply.json() != Value::Null), "{name}: {reply:?}");
    }
    let index = server.get("/debug").await;
    assert!(index.header("content-type").starts_with("text/html") && index.body.contains("/debug/syncz"));
}

#[tokio::test]
async fn pages_about_the_mesh_have_upstreams_format() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let objects = server.get("/debug/configz").await.json();
    let names: Vec<&str> = objects.as_array().unwrap().iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["pay", "web"]);
    assert_eq!(objects[1]["spec"]["endpoints"][0]["address"], "10.0.0.1");

    let services = server.get("/debug/registryz").await.json();
    let web = services.as_array().unwrap().iter().find(|s| s["hostname"] == "web.shop.example").unwrap();
    assert_eq!(web["Attributes"]["ServiceRegistry"], "External");
    assert_eq!(web["ports"], json!([{"name": "http", "port": 80, "protocol": "HTTP"}]));
    assert_eq!((&web["defaultAddress"], &web["Resolution"]), (&json!("10.9.0.1"), &json!(0)));

    let shards = server.get("/debug/endpointShardz").await.json();
    let of_web = shards["web.shop.example"]["shop"]["Shards"].as_object().unwrap();
    let addresses: Vec<&Value> =
        of_web.values().flat_map(|l| l.as_array().unwrap()).map(|e| &e["Addresses"][0]).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.2"]);

    assert_eq!(server.get("/debug/mesh").await.json()["rootNamespace"], "istio-system");
    let pretty = server.get("/debug/mesh?pretty").await;
    assert!(pretty.body.contains("\n  \"") && pretty.json()["rootNamespace"] == "istio-system");
    assert_eq!(server.get("/debug/syncz").await.json(), json!([]));
    assert_eq!(server.get("/debug/connections").await.json(), json!({"totalClients": 0}));
}

#[tokio::test]
async fn problems_name_file_and_line() {
    let mut server = Started::new(&["--registries="]);
    let bad = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: shop}\nspec:\n  hosts: 7\n";
    std::fs::write(server.path("config/bad.yaml"), bad).unwrap();
    let http = server.port("http").await;
    let problem = wait::until("the problem", async || {
        let found = client::get(http, "discovery", "/debug/problems").await?.json();
        let of_file = |p: &&Value| p["file"].as_str().is_some_and(|file| file.ends_with("bad.yaml"));
        found.as_array().and_then(|list| list.iter().find(of_file)).cloned().ok_or(found.to_string())
    })
    .await;
    assert_eq!((&problem["severity"], &problem["source"]), (&json!("error"), &json!("files")));
    assert!(problem["line"].as_u64().is_some_and(|line| line >= 1), "{problem}");
}

#[tokio::test]
async fn registration_is_the_list_of_pilot_0_8() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let expected = json!([{"service-key": "web.shop.example|http", "hosts": [
        {"ip_address": "10.0.0.1", "port": 80}, {"ip_address": "10.0.0.2", "port": 80}]}]);
    assert_eq!(server.get("/v1/registration").await.json(), expected);
}

#[tokio::test]
async fn hostile_requests_are_rejected_without_harm() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let http = server.port("http").await;
    let long = "x".repeat(1 << 20);
    for (path, status) in [
        ("/debug/config_dump".to_owned(), 400),
        ("/debug/config_dump?proxyID=".to_owned(), 400),
        ("/debug/config_dump?proxyID=missing.nowhere".to_owned(), 404),
        ("/debug/sidecarz?proxyID=%00%ff%fe".to_owned(), 404),
        ("/debug/edsz?proxyID=..%2f..%2fetc".to_owned(), 404),
        ("/debug/nothing".to_owned(), 404),
        ("/debug/../../etc/passwd".to_owned(), 404),
        ("/debug/%2e%2e".to_owned(), 404),
        ("/%00".to_owned(), 404),
        ("/debug/syncz?namespace=&namespace=&&&===&%".to_owned(), 200),
        (format!("/debug/adsz?proxyID={}", &long[..10_000]), 404),
    ] {
        let reply = client::get(http, "discovery", &path).await.unwrap();
        assert_eq!(reply.status, status, "{} {}", &path[..path.len().min(80)], reply.body);
    }
    // Too long for a request head: the connection may fail, the server must not.
    let huge = client::get(http, "discovery", &format!("/debug/config_dump?proxyID={long}")).await;
    assert!(huge.is_err() || huge.is_ok_and(|reply| reply.status.is_client_error()));
    server.ready().await;
    server.process.check_alive();
}

#[tokio::test]
async fn an_unknown_proxy_gets_the_text_that_istioctl_looks_for() {
    let mut server = Started::new(&["--registries="]);
    let reply = server.get("/debug/config_dump?proxyID=missing.nowhere").await;
    let sentence = "Proxy not connected to this Pilot instance. It may be connected to another instance.\n";
    assert_eq!((reply.status.as_u16(), reply.body.as_str()), (404, sentence));
}

#[tokio::test]
async fn findings_and_push_status_are_shown_and_a_push_can_be_triggered() {
    let folder = folder();
    let route = |name: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{hosts: [same.example], http: [{{route: [{{destination: {{host: missing.example}}}}]}}]}}\n"
        )
    };
    std::fs::write(folder.path().join("config/routes.yaml"), format!("{}---\n{}", route("a"), route("b"))).unwrap();
    let mut server = Started::on(folder, &["--registries="]);
    server.ready().await;
    let http = server.port("http").await;
    let found = client::get(http, "discovery", "/debug/analyze").await.unwrap().json();
    let codes: Vec<&str> = found.as_array().unwrap().iter().filter_map(|f| f["code"].as_str()).collect();
    assert_eq!(codes, ["IST0101", "IST0101", "IST0109", "IST0109"], "{found:#}");
    let status = client::get(http, "discovery", "/debug/push_status").await.unwrap().json();
    let message = status["pilot_vservice_dup_domain"]["same.example"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("shop/b") && message.contains("shop/a"), "{status:#}");
    let push = Request::post("/debug/adsz?push=true").header("host", "discovery").body(String::new()).unwrap();
    let pushed = client::send(http, push).await.unwrap();
    assert_eq!((pushed.status.as_u16(), pushed.body.as_str()), (200, "Pushed to 0 servers\n"));
}
