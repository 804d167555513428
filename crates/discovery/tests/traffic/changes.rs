//! Edits under traffic: endpoints come and go, rules change, a bad file has no effect on others.

use testkit::backend::HttpBackend;
use testkit::envoy::XdsTransport;
use testkit::wait;

use crate::mesh::{Mesh, host, http_service, service_port, virtual_service};

testkit::over_both!(endpoints_are_added_and_removed, rule_takes_effect_and_is_withdrawn, bad_file_changes_nothing_else);

async fn endpoints_are_added_and_removed(transport: XdsTransport) {
    let (old, new) = (HttpBackend::start("old").await, HttpBackend::start("new").await);
    let port = service_port();
    let mesh = Mesh::start(transport, port, &[http_service("cart", port, &[&old], &["v1"])]).await;
    mesh.answered_by("cart", "old").await;
    mesh.discovery.write("mesh.yaml", &http_service("cart", port, &[&old, &new], &["v1", "v1"]));
    mesh.answered_by("cart", "new").await;
    mesh.discovery.write("mesh.yaml", &http_service("cart", port, &[&new], &["v1"]));
    wait::until("the old endpoint to be gone", async || {
        let clusters = mesh.envoy.admin().clusters().await?.to_string();
        if clusters.contains(&format!(":{}", old.port()))
            || clusters.contains(&format!("\"port_value\":{}", old.port()))
        {
            return Err("still there".to_owned());
        }
        Ok(())
    })
    .await;
    assert_eq!(mesh.counted("cart", 20).await, [("new".to_owned(), 20)].into());
    mesh.assert_settled().await;
}

async fn rule_takes_effect_and_is_withdrawn(transport: XdsTransport) {
    let backend = HttpBackend::start("v1").await;
    let port = service_port();
    let mesh = Mesh::start(transport, port, &[http_service("cart", port, &[&backend], &["v1"])]).await;
    mesh.answered_by("cart", "v1").await;
    mesh.discovery.write("closed.yaml", &virtual_service("cart", "  http:\n  - directResponse: {status: 418}"));
    let status = async |wanted: u16| {
        wait::until(&format!("status {wanted}"), async || {
            let got = mesh.get("cart", "/").await.status.as_u16();
            if got == wanted { Ok(()) } else { Err(got.to_string()) }
        })
        .await;
    };
    status(418).await;
    mesh.discovery.remove("closed.yaml");
    status(200).await;
    mesh.assert_settled().await;
}

async fn bad_file_changes_nothing_else(transport: XdsTransport) {
    let backend = HttpBackend::start("v1").await;
    let port = service_port();
    let mesh = Mesh::start(transport, port, &[http_service("cart", port, &[&backend], &["v1"])]).await;
    mesh.discovery.write("bad.yaml", "kind: [unclosed\n");
    let half_bad = format!(
        "{}---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: x, namespace: shop}}\nspec: {{hosts: 7}}\n",
        virtual_service(
            "cart",
            &format!(
                "  http:\n  - route: [{{destination: {{host: {}}}}}]\n    headers: {{response: {{add: {{x-seen: good}}}}}}",
                host("cart")
            )
        )
    );
    mesh.discovery.write("half-bad.yaml", &half_bad);
    wait::until("the good half to take effect", async || {
        let reply = mesh.get("cart", "/").await;
        if reply.header("x-seen") == "good" { Ok(()) } else { Err(format!("{reply:?}")) }
    })
    .await;
    let problems = testkit::client::get(mesh.discovery.http(), "pilot", "/debug/problems").await.expect("a page");
    assert!(problems.body.contains("bad.yaml") && problems.body.contains("half-bad.yaml"), "{}", problems.body);
    mesh.assert_settled().await;
}
