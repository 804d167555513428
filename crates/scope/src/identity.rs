//! The proxy as its platform knows it: the pod of its name, if there is one.

use std::borrow::Cow;
use std::sync::Arc;

use model::proxy::Proxy;
use model::snapshot::Snapshot;
use model::workload::Workload;

/// The workload of a proxy: `name.namespace` in its node id.
pub fn workload<'a>(world: &'a Snapshot, proxy: &Proxy) -> Option<&'a Arc<Workload>> {
    let (name, namespace) = proxy.id.split_once('.')?;
    if proxy.namespace != namespace {
        return None;
    }
    world.workloads.named(&proxy.namespace, name, &proxy.cluster)
}

/// The proxy with the properties of its workload. The workload's labels take precedence over those the proxy sent.
pub fn resolved<'a>(world: &Snapshot, proxy: &'a Proxy) -> Cow<'a, Proxy> {
    match workload(world, proxy) {
        Some(workload) => Cow::Owned(proxy.running_as(workload)),
        None => Cow::Borrowed(proxy),
    }
}
