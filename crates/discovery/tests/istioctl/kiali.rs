//! How Kiali finds the control plane and the state of proxies: pods of label `istio.io/rev`, then `/version` and
//! `/debug/syncz` of each through a port-forward.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use testkit::process::Process;
use testkit::{client, ports, servers, wait};

use crate::mesh::{CONTROL_PLANE, Mesh};

/// The control plane is found, and every proxy is in sync.
pub(crate) async fn proxies_are_in_sync(mesh: &Mesh) {
    let selector = "labelSelector=app%3Distiod,istio.io%2Frev%3Ddefault";
    let pods = mesh.api_server.get(&format!("/api/v1/namespaces/istio-system/pods?{selector}")).await.unwrap();
    let names: Vec<&str> =
        pods["items"].as_array().unwrap().iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names, [CONTROL_PLANE]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
    let kubeconfig = mesh.api_server.kubeconfig().display().to_string();
    let forwarded = format!("{}:15014", address.port());
    let args = ["--kubeconfig", &kubeconfig, "-n", "istio-system", "port-forward", CONTROL_PLANE, &forwarded];
    let mut forward = Process::start("kubectl port-forward", &servers::binary("kubectl"), &args, &[]);
    let version = wait::until("the version through a port-forward", async || {
        forward.check_alive();
        Ok(client::get(address, "localhost", "/version").await?.body)
    })
    .await;
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    let syncz = client::get(address, "localhost", "/debug/syncz").await.unwrap().json();
    let proxies = syncz.as_array().unwrap();
    assert_eq!(proxies.len(), 1, "{syncz}");
    for proxy in proxies {
        assert_eq!(proxy["proxy"], "web.shop");
        for kind in ["cluster", "listener", "route", "endpoint"] {
            assert_eq!(state(proxy, kind), "Synced", "{kind}: {proxy}");
        }
    }
}

/// Kiali's rule for the state of one type.
fn state(proxy: &Value, kind: &str) -> &'static str {
    let [sent, acked] = ["sent", "acked"].map(|step| proxy[format!("{kind}_{step}")].as_str().unwrap_or_default());
    match (sent, acked) {
        ("", _) => "NOT_SENT",
        (sent, acked) if sent == acked => "Synced",
        (_, "") => "Stale (Never Acknowledged)",
        _ => "Stale",
    }
}
