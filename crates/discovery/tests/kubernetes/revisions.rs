//! Two revisions on one API server: each deploys the Gateways that it owns and writes the statuses of its objects only. An
//! object without a label belongs to the revision of its namespace, else to the default one.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;
use testkit::wait;

use crate::cluster::{definitions, is_left_out};
use crate::election::{Replica, accepted, create, route};
use crate::managed_gateways::{DEPLOYMENTS, GATEWAYS, create_injector_named, gateway};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const SHOP: &str = "/api/v1/namespaces/shop";
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the proxies of a Gateway are deployed by a revision.
async fn deployed_by(api: &ApiServer, name: &str, revision: &str) {
    wait::until_within(PATIENCE, "a Deployment of the revision", async || {
        let object = api.get(&format!("{DEPLOYMENTS}/{name}-istio")).await?;
        let found = object.pointer("/spec/template/metadata/annotations/istio.io~1rev");
        if found == Some(&json!(revision)) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

async fn gateway_accepted(api: &ApiServer, name: &str) {
    wait::until_within(PATIENCE, "an accepted Gateway", async || {
        let object = api.get(&format!("{GATEWAYS}/{name}")).await?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_met = |c: &Value| c["type"] == "Accepted" && c["reason"] == "Accepted" && c["status"] == "True";
        if conditions.iter().any(is_met) { Ok(()) } else { Err(object["status"].to_string()) }
    })
    .await;
}

/// Writes of a replica that concern an object of this name.
fn writes(replica: &Replica, name: &str) -> Vec<String> {
    let concerns = |request: &String| {
        let path = request.split(['?', ' ']).nth(1).unwrap_or_default();
        path.split('/').any(|part| part == name || part.strip_suffix("-istio") == Some(name))
    };
    replica.written().into_iter().filter(concerns).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_revision_deploys_and_reports_its_own_gateways() {
    if is_left_out(&[]) {
        return;
    }
    let api = ApiServer::start().await;
    api.define(&definitions()).await;
    for name in ["istio-system", "shop"] {
        create(&api, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    for name in ["istio-sidecar-injector", "istio-sidecar-injector-next"] {
        create_injector_named(&api, name).await;
    }
    api.create(GATEWAYS, &gateway("front", &[80])).await.unwrap();
    create(&api, &route("first")).await;
    let stable = Replica::of_revision(&api, "stable", "default").await;
    deployed_by(&api, "front", "default").await;
    accepted(&api, "first").await;

    // A second revision leads its own elections, and leaves alone what has no label.
    let mut labelled = gateway("labelled", &[80]);
    labelled["metadata"]["labels"] = json!({"istio.io/rev": "next"});
    api.create(GATEWAYS, &labelled).await.unwrap();
    let next = Replica::of_revision(&api, "next", "next").await;
    deployed_by(&api, "labelled", "next").await;
    gateway_accepted(&api, "labelled").await;
    for lease in ["istio-gateway-status-leader", "istio-gateway-deployment"] {
        for (name, holder) in [(lease.to_owned(), "stable-"), (format!("{lease}-next"), "next-")] {
            let found = api.get(&format!("{LEASES}/{name}")).await.unwrap()["spec"]["holderIdentity"].clone();
            assert!(found.as_str().is_some_and(|found| found.starts_with(holder)), "{name}: {found}");
        }
    }
    for name in ["front", "first"] {
        assert_eq!(writes(&next, name), [""; 0], "the new revision wrote an object of the default one");
    }
    assert_eq!(writes(&stable, "labelled"), [""; 0], "the default revision wrote an object of the new one");

    // The label of the namespace moves what has none itself.
    api.patch(SHOP, &json!({"metadata": {"labels": {"istio.io/rev": "next"}}})).await.unwrap();
    deployed_by(&api, "front", "next").await;
    create(&api, &route("second")).await;
    accepted(&api, "second").await;
    assert_eq!(writes(&stable, "second"), [""; 0], "the default revision wrote an object of the new one");
    assert!(!writes(&next, "second").is_empty());

    // A tag without a revision has no owner. When it refers to one, that one takes over.
    api.patch(SHOP, &json!({"metadata": {"labels": {"istio.io/rev": "prod"}}})).await.unwrap();
    let tagged = gateway("tagged", &[80]);
    api.create(GATEWAYS, &tagged).await.unwrap();
    let tag = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "istio-revision-tag-prod",
            "labels": {"istio.io/tag": "prod", "istio.io/rev": "default"}}});
    api.create(HOOKS, &tag).await.unwrap();
    deployed_by(&api, "tagged", "default").await;
    assert_eq!(writes(&next, "tagged"), [""; 0], "the new revision wrote an object of the default one");
    println!("{} writes by one revision, {} by the other", stable.written().len(), next.written().len());
}
