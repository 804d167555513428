//! The API server goes away and things change meanwhile: nothing is emptied, nothing is lost.

use std::time::Duration;

use crate::cluster::{cluster, create};
use crate::serving::{CLUSTER, SLICE, endpoints, follow, serve, web};

#[tokio::test(flavor = "multi_thread")]
async fn changes_during_an_outage_come_and_nothing_is_emptied() {
    let mut api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.1", "10.4.0.2"])).await;
    let server = serve(api_server.kubeconfig(), None, &[]).await;
    let told = follow(server.addresses.grpc.unwrap(), CLUSTER).await;
    told.until(&["10.4.0.1", "10.4.0.2"]).await;

    let sibling = api_server.sibling().await;
    api_server.stop();
    sibling.patch(SLICE, &endpoints(&["10.4.0.2", "10.4.0.3"])).await.unwrap();
    // An outage that every watch notices and retries in.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(told.all().len(), 1, "something was told while nothing could be seen: {:?}", told.all());
    api_server.resume().await;
    told.until(&["10.4.0.2", "10.4.0.3"]).await;
    assert!(told.all().iter().all(|addresses| addresses.len() == 2), "{:?}", told.all());
    println!("told in all: {:?}", told.all());
    server.stop(Duration::ZERO).await;
}
