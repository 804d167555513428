//! Listener filters of inbound listeners: the inspectors that their filter chain matches need, per port.
//! Other ports are not inspected, because inspection blocks protocols where the server sends first.

use std::collections::BTreeMap;

use model::proxy::Interception;
use scope::ReadProxy;

use super::{Binding, ChainPlan, InspectedPorts, ListenerFilter, TransportProtocol};

#[derive(Clone, Copy, Default)]
struct InspectorNeeds {
    tls: bool,
    http: bool,
}

/// The listener filters for these chains.
pub(super) fn listener_filters(proxy: &ReadProxy, chains: &[ChainPlan], binding: Binding) -> Vec<ListenerFilter> {
    let mut filters = Vec::new();
    if binding == Binding::Virtual {
        filters.push(ListenerFilter::OriginalDst);
        if proxy.interception == Interception::Tproxy {
            filters.push(ListenerFilter::OriginalSrc);
        }
    }
    let needs = needs(chains);
    if needs.values().any(|n| n.tls) {
        filters.push(ListenerFilter::TlsInspector(tls_ports(&needs)));
    }
    // After the TLS inspector, because it skips connections detected as TLS.
    if needs.values().any(|n| n.http) {
        let without: Vec<u32> = needs.iter().filter(|(_, n)| !n.http).map(|(port, _)| *port).collect();
        filters.push(ListenerFilter::HttpInspector(all_but(without)));
    }
    filters
}

/// Inspectors needed by each port's chains; 0 represents ports without their own chains.
fn needs(chains: &[ChainPlan]) -> BTreeMap<u32, InspectorNeeds> {
    let mut needs: BTreeMap<u32, InspectorNeeds> = BTreeMap::new();
    for matching in chains.iter().filter_map(|c| c.matching.as_ref()) {
        let port = needs.entry(matching.port.unwrap_or_default()).or_default();
        port.tls |= matching.transport == Some(TransportProtocol::Tls);
        port.http |= matching.alpn.iter().any(|a| matches!(&**a, "http/1.1" | "h2c"));
    }
    needs
}

fn tls_ports(needs: &BTreeMap<u32, InspectorNeeds>) -> InspectedPorts {
    let by_default = needs.get(&0).is_some_and(|n| n.tls);
    let exceptions = needs.iter().filter(|(port, n)| **port != 0 && n.tls != by_default);
    let exceptions: Vec<u32> = exceptions.map(|(port, _)| *port).collect();
    if by_default || exceptions.is_empty() { all_but(exceptions) } else { InspectedPorts::Only(exceptions) }
}

fn all_but(ports: Vec<u32>) -> InspectedPorts {
    if ports.is_empty() { InspectedPorts::All } else { InspectedPorts::AllBut(ports) }
}
