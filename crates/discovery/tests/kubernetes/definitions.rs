//! A kind whose CustomResourceDefinition is created later and deleted again: its objects take effect, and stay known
//! after the deletion.

use std::time::Duration;

use discovery::startup::Server;
use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;
use testkit::wait;

use crate::cluster::{cluster, create, definitions, is_left_out};
use crate::push_recorder::{CLUSTERS, PushRecorder};
use crate::serving::{CLUSTER, SLICE, endpoints, serve, web};

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/destinationrules.networking.istio.io";

fn rule(name: &str) -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"host": "web", "subsets": [{"name": name, "labels": {"version": name}}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_watched_once_defined_and_kept_after_its_definition_is_deleted() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    api_server.delete(DEFINITION).await.unwrap();
    gone(&api_server).await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    let server = serve(api_server.kubeconfig(), None, &[]).await;
    let recorder = PushRecorder::of(server.addresses.grpc.unwrap(), &[CLUSTER]).await;
    assert_eq!(rules(&server), 0);

    let known = definitions();
    let definition = known.iter().find(|(_, _, kind, ..)| *kind == "DestinationRule").unwrap();
    api_server.define(&[*definition]).await;
    create(&api_server, &[rule("v1"), rule("v2")]).await;
    let has = |subset: &str| format!("outbound|80|{subset}|web.shop.svc.cluster.local");
    recorder.until(CLUSTERS, |names| names.contains(&has("v1")) && names.contains(&has("v2"))).await;
    wait::until("both rules", async || if rules(&server) == 2 { Ok(()) } else { Err("not both".to_owned()) }).await;
    // Responses of other types for the same change may still arrive.
    let (before, published) = (recorder.changed().len(), server.pilot.world().now().number);

    api_server.delete(DEFINITION).await.unwrap();
    gone(&api_server).await;
    // The API server has deleted its objects by now. The next change arrives, and only that.
    api_server.patch(SLICE, &endpoints(&["10.4.0.1", "10.4.0.2"])).await.unwrap();
    recorder.until_addresses(CLUSTER, &["10.4.0.1", "10.4.0.2"]).await;
    let snapshots = server.pilot.world().now().number - published;
    assert_eq!((rules(&server), snapshots), (2, 1), "the definition took its objects with it");
    assert_eq!(recorder.changed()[before..], [CLUSTER], "something else was pushed");

    api_server.define(&[*definition]).await;
    recorder.until(CLUSTERS, |names| !names.contains(&has("v1")) && !names.contains(&has("v2"))).await;
    println!(
        "a definition that went with 2 objects: 2 kept, {} pushes in addition to an endpoint's; {} sets emptied, {} names that \
         went and came back",
        snapshots - 1,
        recorder.emptied().len(),
        recorder.flapped().len(),
    );
    recorder.assert_calm();
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
