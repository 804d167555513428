//! Eureka: registration, status override, all instances down, outage.

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::eureka::{Eureka, Instance};
use testkit::servers;

use crate::fixture::{MeshFixture, backends};

fn instance(name: &str, backend: &HttpBackend) -> Instance {
    Instance {
        app: "cart".to_owned(),
        id: name.to_owned(),
        address: backend.address().ip().to_string(),
        port: backend.port(),
        status: "UP".to_owned(),
        metadata: json!({"istio.protocol": "http"}),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_eureka_instances_that_are_up() {
    if servers::without("eureka.jar") {
        return;
    }
    let mut eureka = Eureka::start().await;
    let (port, all) = backends(["one", "two"]).await;
    eureka.register(&instance("one", &all[0])).await;
    let args = ["--registries=Eureka", "--eurekaserverInterval=500ms", &format!("--eurekaserverURL={}", eureka.url())];
    let fixture = MeshFixture::start(&args.map(str::to_owned), "").await;
    let host = "cart.eureka";
    fixture.answered_by(host, port, &["one"]).await;

    eureka.register(&instance("two", &all[1])).await;
    fixture.answered_by(host, port, &["one", "two"]).await;
    eureka.set_status("cart", "one", "OUT_OF_SERVICE").await;
    fixture.answered_by(host, port, &["two"]).await;
    eureka.set_status("cart", "two", "DOWN").await;
    fixture.answered_by(host, port, &[]).await;
    eureka.set_status("cart", "two", "UP").await;
    fixture.answered_by(host, port, &["two"]).await;

    eureka.kill();
    fixture.until_state("Eureka", "stale").await;
    fixture.answered_by(host, port, &["two"]).await;
    assert_eq!(fixture.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}
