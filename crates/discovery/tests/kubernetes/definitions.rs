//! Kinds whose definition is missing, comes later, and goes again.

use std::time::Duration;

use discovery::wire::Server;
use serde_json::json;
use testkit::kubernetes::ApiServer;
use testkit::wait;

use crate::cluster::{cluster, create, definitions};
use crate::serving::{serve, web};

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/destinationrules.networking.istio.io";

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_watched_once_it_is_defined_and_kept_when_it_goes() {
    let api_server = cluster().await;
    api_server.delete(DEFINITION).await.unwrap();
    gone(&api_server).await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    let server = serve(api_server.kubeconfig(), None, &[]).await;
    assert_eq!(rules(&server), 0);

    let known = definitions();
    let rule = known.iter().find(|(_, _, kind, ..)| *kind == "DestinationRule").unwrap();
    api_server.define(&[*rule]).await;
    let object = json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": {"host": "web"}});
    create(&api_server, &[object]).await;
    wait::until("the rule", async || if rules(&server) == 1 { Ok(()) } else { Err("not there".to_owned()) }).await;

    api_server.delete(DEFINITION).await.unwrap();
    gone(&api_server).await;
    // Long enough for the deletion of the object to be heard, if it were listened to.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(rules(&server), 1, "the definition took its objects with it");

    api_server.define(&[*rule]).await;
    wait::until("the new list", async || if rules(&server) == 0 { Ok(()) } else { Err("still there".to_owned()) })
        .await;
    server.stop(Duration::ZERO).await;
}

async fn gone(api_server: &ApiServer) {
    wait::until("the end of the definition", async || match api_server.get(DEFINITION).await {
        Ok(_) => Err("it is still there".to_owned()),
        Err(_) => Ok(()),
    })
    .await;
}

fn rules(server: &Server) -> usize {
    server.pilot.world().now().snapshot.objects.of(model::config::Kind::DestinationRule).count()
}
