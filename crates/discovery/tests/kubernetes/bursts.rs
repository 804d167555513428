//! An API server that rejects most requests and cuts watches in the middle of a line: known objects stay, changes arrive,
//! and no client gets an incomplete mesh.

use std::time::{Duration, Instant};

use testkit::faulty::FaultyProxy;
use testkit::kubernetes::ApiServer;

use crate::cluster::{cluster, create, is_left_out};
use crate::push_recorder::PushRecorder;
use crate::serving::{CLUSTER, SLICE, endpoints, serve, web};

/// Error statuses of an API server or its load balancer. 410 is sent in the watch stream, where client-go expects it.
const STATUSES: &[u16] = &[429, 500, 503, 410, 504];
const EDITS: u8 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn rejected_requests_and_cut_watches_lose_nothing() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.0", "10.4.0.1"])).await;
    let proxy = api_server.faulty().await;
    // The first lists already fail.
    proxy.refuse(1, 2, &[500, 429]);
    let begun = Instant::now();
    let server = serve(proxy.kubeconfig(), None, &[]).await;
    let started = begun.elapsed();
    let at_start = proxy.figures();
    let recorder = PushRecorder::of(server.addresses.grpc.unwrap(), &[CLUSTER]).await;
    recorder.until_addresses(CLUSTER, &["10.4.0.0", "10.4.0.1"]).await;

    let slowest = edit_in_faults(&api_server, &proxy, &recorder).await;
    // A load balancer may respond 410 without opening a stream.
    proxy.refuse_to_resume();
    proxy.cut_watches();
    for edit in 0..2 {
        let new = format!("10.4.2.{edit}");
        api_server.patch(SLICE, &endpoints(&[&new])).await.unwrap();
        recorder.until_addresses(CLUSTER, &[&new]).await;
    }
    proxy.heal();
    let figures = proxy.figures();
    println!(
        "in sync after {started:?} with {:?} refusals; {EDITS} edits with {} watches cut and {:?} refusals of {} \
         requests: slowest pushed after {slowest:?}; {} sets emptied, {} endpoints or names that flapped",
        at_start.refused,
        figures.cut,
        figures.refused,
        figures.requests,
        recorder.emptied().len(),
        recorder.flapped().len(),
    );
    recorder.assert_calm();
    for status in STATUSES {
        assert!(figures.refused.contains_key(status), "no {status} was given: {figures:?}");
    }
    let stale: Vec<String> =
        proxy.requests().into_iter().filter(|asked| asked.ends_with("resourceVersion=0")).collect();
    assert!(stale.is_empty(), "lists that may be of any age: {stale:?}");
    assert!(figures.cut >= 5, "few watches were cut: {figures:?}");
    server.stop(Duration::ZERO).await;
}

/// Edits endpoints while two of three requests are rejected and watches are cut. Returns the longest time from an edit to
/// its push.
async fn edit_in_faults(api_server: &ApiServer, proxy: &FaultyProxy, recorder: &PushRecorder) -> Duration {
    proxy.refuse(2, 3, STATUSES);
    let mut slowest = Duration::ZERO;
    for edit in 2..=EDITS + 1 {
        if edit % 8 == 0 {
            proxy.cut_watches();
        }
        let (kept, new) = (format!("10.4.0.{}", edit - 1), format!("10.4.0.{edit}"));
        let at = Instant::now();
        api_server.patch(SLICE, &endpoints(&[&kept, &new])).await.unwrap();
        recorder.until_addresses(CLUSTER, &[&kept, &new]).await;
        slowest = slowest.max(at.elapsed());
    }
    proxy.heal();
    slowest
}
