//! Each role of the installation but the one for reading can be left out: what needs it is off and named, and everything else
//! works.

use std::time::Duration;

use serde_json::json;
use testkit::ca_client::CaClient;
use testkit::{client, wait};
use tokio::net::TcpStream;
use tonic::Code;

use crate::kubernetes::{KEEPER, SECRET, cluster, replica, roots, token};
use crate::streams::open;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Roles of the cluster. The manifest has no role `definitions`, so that it is always left out here.
const OPTIONAL_ROLES: [&str; 8] =
    ["secrets", "roots", "tokens", "registration", "webhooks", "status", "classes", "gateways"];
/// Roles of the server's namespace: for its leases and for the Secret of the CA.
const LOCAL_ROLES: [&str; 2] = ["lease", "ca"];

/// Collection and name of the binding of a role.
fn binding(role: &str) -> (String, String) {
    match LOCAL_ROLES.contains(&role) {
        true => (format!("{RBAC}/namespaces/istio-system/rolebindings"), format!("istiod-{role}")),
        false => (format!("{RBAC}/clusterrolebindings"), format!("istiod-{role}-istio-system")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_optional_permissions_everything_else_works() {
    let Some((api, account)) = cluster().await else { return };
    for role in OPTIONAL_ROLES.iter().chain(&["lease"]) {
        let (collection, name) = binding(role);
        api.delete(&format!("{collection}/{name}")).await.unwrap();
    }
    let (mut server, address) = replica(&account, "one").await;
    let (roots, good) = (roots(&api).await, token(&api, "keeper", Some("istio-ca")).await);
    // Without reviews no token is accepted.
    wait::until_within(Duration::from_secs(60), "a refusal", async || {
        let client = CaClient::new(address, &roots, None, Some(&good));
        match client.certificate(KEEPER, 0).await {
            Err((code, _)) if code == Code::Unauthenticated as i32 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    wait::until_within(Duration::from_secs(60), "a problem", async || {
        let page = client::get(server.monitoring(), "discovery", "/debug/problems").await?.body;
        if page.contains("could not write the ConfigMaps istio-ca-root-cert") { Ok(()) } else { Err(page) }
    })
    .await;
    // Everything else works.
    let plain = TcpStream::connect(server.grpc()).await.unwrap();
    assert_eq!(open(plain, None, "shop").await.end(Duration::from_secs(2)).await, (true, None));
    server.process().check_alive();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_optional_role_can_be_left_out() {
    let Some((api, account)) = cluster().await else { return };
    let good = token(&api, "keeper", Some("istio-ca")).await;
    for role in OPTIONAL_ROLES.iter().chain(&LOCAL_ROLES) {
        let (collection, name) = binding(role);
        let path = format!("{collection}/{name}");
        let mut removed = api.get(&path).await.unwrap();
        api.delete(&path).await.unwrap();
        if *role == "ca" {
            // An existing root is read with the permissions of the role for Secrets.
            api.delete(SECRET).await.unwrap();
        }
        let (mut server, address) = replica(&account, role).await;
        let page = async |name: &str| client::get(server.monitoring(), "discovery", name).await.map(|reply| reply.body);
        if *role == "ca" {
            wait::until_within(Duration::from_secs(60), "the missing CA", async || {
                let problems = page("/debug/problems").await?;
                if problems.contains("istio-ca-secret") { Ok(()) } else { Err(problems) }
            })
            .await;
        } else {
            let client = CaClient::new(address, &roots(&api).await, None, Some(&good));
            // Only the role for token reviews decides on certificates.
            wait::until_within(Duration::from_secs(60), role, async || match client.certificate(KEEPER, 0).await {
                Ok(_) if *role != "tokens" => Ok(()),
                Err((code, _)) if *role == "tokens" && code == Code::Unauthenticated as i32 => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
        }
        // All sources have synced, also those that may not list Secrets.
        server.ready().await;
        let is_refused = server.output().contains("collection is not watched (forbidden or unknown)");
        assert_eq!(is_refused, *role == "secrets", "{role}: {}", server.output());
        let plain = TcpStream::connect(server.grpc()).await.unwrap();
        assert_eq!(open(plain, None, "shop").await.end(Duration::from_secs(1)).await, (true, None), "{role}");
        server.process().check_alive();
        removed["metadata"] = json!({"name": removed["metadata"]["name"]});
        api.create(&collection, &removed).await.unwrap();
    }
}
