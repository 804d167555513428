//! Edits that mean nothing to the mesh: nobody is told anything.

use std::time::Duration;

use serde_json::json;

use crate::cluster::{cluster, create};
use crate::serving::{CLUSTER, SLICE, endpoints, follow, serve, web};

const EDITS: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn annotations_and_leases_push_nothing() {
    let api_server = cluster().await;
    let mut objects = web(&["10.4.0.1"]);
    objects.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    create(&api_server, &objects).await;
    let server = serve(api_server.kubeconfig(), None, &[]).await;
    let told = follow(server.addresses.grpc.unwrap(), CLUSTER).await;
    told.until(&["10.4.0.1"]).await;
    let before = server.pilot.world().now().number;
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for i in 0..EDITS {
        pace.tick().await;
        let path = [SLICE, "/api/v1/namespaces/shop/services/web", "/api/v1/nodes/n1"][i % 3];
        let noise = json!({"metadata": {"annotations": {"example.com/noise": i.to_string()}}});
        api_server.patch(path, &noise).await.unwrap();
    }
    // A change that counts comes after all the noise.
    api_server.patch(SLICE, &endpoints(&["10.4.0.2"])).await.unwrap();
    told.until(&["10.4.0.2"]).await;
    let epochs = server.pilot.world().now().number - before;
    println!("{EDITS} edits without meaning: {} pushes, {epochs} epochs", told.all().len() - 2);
    assert_eq!(told.all(), [["10.4.0.1"], ["10.4.0.2"]]);
    assert_eq!(epochs, 1, "noise reached the model");
    server.stop(Duration::ZERO).await;
}
