//! Two real Eureka servers that copy each other: one that dies, and a split in which each knows what the other does
//! not. The wires between the two can be cut while we reach both.

use std::time::Duration;

use serde_json::json;
use sources::health::SourceState;
use sources::registry::config::GoDuration;
use sources::registry::eureka::EurekaOptions;
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

/// Takes in what comes until the source has asked this many questions more.
async fn after_questions(seen: &mut Follower, more: u64) {
    let enough = seen.report().counts.requests + more;
    seen.until_state("more questions", |report| report.counts.requests >= enough).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_and_a_dead_peer_lose_no_endpoint() {
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

    // Longer than the test, however slow the machine.
    let lease = GoDuration(Duration::from_secs(600));
    let options = EurekaOptions { lease, ..options(vec![a.url(), b.url()]) };
    let mut seen = Follower::synced(adapter(options)).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1"]);
    b.register(&instance(2)).await;
    seen.until("what one peer copies to the other", |f| f.serving(HOST) == ["10.0.0.1", "10.0.0.2"]).await;

    // A split: each takes a registration that the other never hears of.
    to_a.cut();
    to_b.cut();
    a.register(&instance(3)).await;
    b.register(&instance(4)).await;
    b.lists("web-4").await;
    seen.until("the half of the peer that is asked", |f| f.serving(HOST).len() == 3).await;
    let batches = seen.report().counts.batches;
    after_questions(&mut seen, 20).await;
    assert_eq!(seen.serving(HOST), ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "one peer is asked as long as it answers");
    assert_eq!((seen.lost, seen.report().counts.batches - batches), (0, 0), "endpoints lost, changes told in a split");

    // The peer that was asked dies: the other one is asked, and what only the dead one knew stays for a lease.
    let begun = std::time::Instant::now();
    a.kill();
    seen.until("both halves", |f| f.serving(HOST).len() == 4).await;
    println!("the other peer was asked {:?} after one died", begun.elapsed());
    after_questions(&mut seen, 20).await;
    assert_eq!((seen.serving(HOST).len(), seen.lost), (4, 0), "endpoints that serve, endpoints lost");
    assert_eq!(seen.report().state, SourceState::Live);
    println!("split and death of a peer: 0 endpoints lost of {}", seen.serving(HOST).len());
}
