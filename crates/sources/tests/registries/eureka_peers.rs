//! Two real Eureka peers: the death of one, and a network partition in which each has an instance that the other lacks.
//! The connection between them can be cut while both stay reachable.

use std::time::Duration;

use serde_json::json;
use sources::health::SourceState;
use sources::registry::eureka::EurekaOptions;
use sources::registry::shared_options::GoDuration;
use testkit::eureka::{Eureka, Instance};
use testkit::forwarder::TcpForwarder;
use testkit::servers;

use crate::eureka::{adapter, options};
use crate::follower::Follower;

const HOST: &str = "web.eureka";

fn instance(number: usize) -> Instance {
    Instance {
        app: "web".to_owned(),
        id: format!("web-{number}"),
        address: format!("10.0.0.{number}"),
        port: 8080,
        status: "UP".to_owned(),
        metadata: json!({"istio.protocol": "http"}),
    }
}

/// Follows the source until it has made this many more requests.
async fn after_requests(seen: &mut Follower, more: u64) {
    let enough = seen.report().counts.requests + more;
    seen.until_state("more requests", |report| report.counts.requests >= enough).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_and_a_dead_peer_lose_no_endpoint() {
    if servers::without("eureka.jar") {
        return;
    }
    let [to_a, to_b] = [TcpForwarder::start().await, TcpForwarder::start().await];
    let (url_of_a, url_of_b) = (to_a.url(), to_b.url());
    let (mut a, b) = tokio::join!(Eureka::start_beside("a", &url_of_b), Eureka::start_beside("b", &url_of_a));
    to_a.forward_to(a.address());
    to_b.forward_to(b.address());
    a.register(&instance(1)).await;
    b.lists("web-1").await;

    // Longer than the test.
    let lease = GoDuration(Duration::from_secs(600));
    let options = EurekaOptions { lease, ..options(vec![a.url(), b.url()]) };
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1"]);
    b.register(&instance(2)).await;
    seen.until("the replicated instance", |f| f.serving(HOST) == ["10.0.0.1", "10.0.0.2"]).await;

    // A partition: each peer gets a registration that is not replicated.
    to_a.cut();
    to_b.cut();
    a.register(&instance(3)).await;
    b.register(&instance(4)).await;
    b.lists("web-4").await;
    seen.until("the instance of the current peer", |f| f.serving(HOST).len() == 3).await;
    let batches = seen.report().counts.batches;
    after_requests(&mut seen, 20).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "one peer is used until it fails");
    assert_eq!(
        (seen.lost, seen.report().counts.batches - batches),
        (0, 0),
        "endpoints lost, changes sent in a partition"
    );

    // The current peer dies: the other one is used, and the instance that it lacks is kept for a lease.
    let started = std::time::Instant::now();
    a.kill();
    seen.until("the instances of both", |f| f.serving(HOST).len() == 4).await;
    println!("the other peer was used {:?} after one died", started.elapsed());
    after_requests(&mut seen, 20).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (4, 0), "healthy endpoints, endpoints lost");
    assert_eq!(seen.report().state, SourceState::Live);
    println!("partition and death of a peer: 0 endpoints lost of {}", seen.serving(HOST).len());
}
