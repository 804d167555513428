//! What pilot-agent runs from its plan on, beside an Envoy that becomes ready and is asked about it.
//! What makes the plan is gone from memory by then.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::Result;

use super::discovery;
use super::profile::{Profiler, answers};
use crate::setup;

pub(super) fn stages(profiler: &Profiler) -> Result<Vec<BTreeSet<String>>> {
    let envoy = setup::path("envoy")?;
    let (control_plane, address) = discovery::serving(profiler)?;
    let (status, admin) = (free_port()?, free_port()?);
    let mut command = profiler.watched();
    command
        .args(["proxy", "sidecar", "--ip=127.0.0.1", "--id=a-1.shop", "--serviceCluster=a", "--concurrency=1"])
        .args(["--controlPlaneAuthPolicy=NONE", "--domain=shop.svc.cluster.local"])
        .arg(format!("--discoveryAddress={address}"))
        .arg(format!("--configPath={}", profiler.scratch.join("agent").display()))
        .arg(format!("--binaryPath={}", envoy.display()))
        .arg(format!("--proxyAdminPort={admin}"))
        .arg(format!("--statusPort={status}"))
        .envs([("ENVOY_STATUS_PORT", "0"), ("ENVOY_PROMETHEUS_PORT", "0"), ("ISTIO_META_INTERCEPTION_MODE", "NONE")])
        .env("PROXY_CONFIG", "terminationDrainDuration: 0s");
    let mut agent = profiler.start(&mut command, "log")?;
    let page = format!("127.0.0.1:{status}");
    agent.wait_for("ready Envoy", |_| answers(&page, "/healthz/ready").then_some(()))?;
    agent.stop()?;
    control_plane.stop()?;
    Ok(vec![profiler.functions()?])
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
