//! Consul services without their own address: the control plane allocates addresses, the agent resolves the names, and
//! Envoy distinguishes two TCP services on one port by address.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::json;
use tempfile::TempDir;
use testkit::backend::HttpBackend;
use testkit::consul::Consul;
use testkit::discovery::DiscoveryProcess;
use testkit::{client, servers, wait};

use crate::WORLD;
use crate::pod::Pod;

/// Port of both services; plain TCP, so Envoy can distinguish them only by address.
const PORT: u16 = 7000;

pub(crate) struct ConsulServices {
    _consul: Consul,
    _backends: Vec<HttpBackend>,
    folder: TempDir,
}

impl ConsulServices {
    /// Two services; `None` where there is no Consul.
    pub(crate) async fn start() -> Option<ConsulServices> {
        if servers::without("consul") {
            return None;
        }
        let (consul, folder) = (Consul::start().await, tempfile::tempdir().expect("a folder"));
        let mut backends = Vec::new();
        for name in ["stock", "prices"] {
            let backend = HttpBackend::start_at(name, (Ipv4Addr::UNSPECIFIED, 0).into()).await;
            let meta = json!({"protocol": "tcp"});
            let service = json!({"ID": name, "Service": name, "Address": WORLD, "Port": backend.port(), "Meta": meta});
            consul.register("outside", &service, "passing").await;
            backends.push(backend);
        }
        let text = format!("registries:\n- consul: {{addresses: ['{}'], servicePort: {PORT}}}\n", consul.url());
        fs::write(folder.path().join("registries.yaml"), text).expect("a file");
        Some(ConsulServices { _consul: consul, _backends: backends, folder })
    }

    pub(crate) fn flag(&self) -> String {
        format!("--registryConfig={}", self.folder.path().join("registries.yaml").display())
    }

    /// Resolves names and connects to the addresses, as a program does. The addresses survive a restart.
    pub(crate) async fn are_reached_by_name(&self, pod: &Pod, discovery: &mut DiscoveryProcess) {
        let [stock, prices] = [address_of(pod, "stock").await, address_of(pod, "prices").await];
        assert_ne!(stock, prices);
        let shown = client::get(discovery.http(), "discovery", "/debug/registryz").await.expect("the services");
        let has = |part: &str| shown.body.contains(part);
        assert!(has(&stock.to_string()) && has("2001:2::f0f0:"), "{}", shown.body);
        for (address, name) in [(stock, "stock"), (prices, "prices")] {
            assert_eq!(address.octets()[..2], [240, 240], "{address}");
            answers(pod, address, name).await;
        }
        discovery.restart().await;
        assert_eq!([address_of(pod, "stock").await, address_of(pod, "prices").await], [stock, prices]);
        answers(pod, stock, "stock").await;
    }
}

/// The address that the agent returns for a query to a server that does not exist.
async fn address_of(pod: &Pod, service: &str) -> Ipv4Addr {
    wait::until(&format!("the address of {service}"), async || {
        match pod.resolve((WORLD, 53).into(), &format!("{service}.service.consul.")).await?[..] {
            [IpAddr::V4(address)] => Ok(address),
            ref other => Err(format!("{other:?}")),
        }
    })
    .await
}

async fn answers(pod: &Pod, address: Ipv4Addr, service: &str) {
    wait::until(&format!("an answer of {service}"), async || {
        let reply = pod.get(SocketAddr::from((address, PORT)), "any").await?;
        if reply.contains(&format!("x-backend: {service}")) { Ok(()) } else { Err(reply) }
    })
    .await;
}
