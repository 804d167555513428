//! Listener filters of inbound listeners: what their chains need to be told apart, port by port.
//! Ports that need no inspection are left out, since servers that speak first would wait for it.

use std::collections::BTreeMap;

use model::proxy::{Interception, Proxy};

use super::{Binding, ChainPlan, ListenerFilter, Ports, Transport};

#[derive(Clone, Copy, Default)]
struct Needs {
    tls: bool,
    http: bool,
}

/// The listener filters for these chains.
pub(super) fn listener_filters(proxy: &Proxy, chains: &[ChainPlan], binding: Binding) -> Vec<ListenerFilter> {
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
    // Comes second, since it leaves connections alone that the first found to be TLS.
    if needs.values().any(|n| n.http) {
        let without: Vec<u32> = needs.iter().filter(|(_, n)| !n.http).map(|(port, _)| *port).collect();
        filters.push(ListenerFilter::HttpInspector(all_but(without)));
    }
    filters
}

/// What each port's chains look at; 0 stands for ports without chains of their own.
fn needs(chains: &[ChainPlan]) -> BTreeMap<u32, Needs> {
    let mut needs: BTreeMap<u32, Needs> = BTreeMap::new();
    for matching in chains.iter().filter_map(|c| c.matching.as_ref()) {
        let port = needs.entry(matching.port.unwrap_or_default()).or_default();
        port.tls |= matching.transport == Some(Transport::Tls);
        port.http |= matching.alpn.iter().any(|a| matches!(&**a, "http/1.1" | "h2c"));
    }
    needs
}

fn tls_ports(needs: &BTreeMap<u32, Needs>) -> Ports {
    let by_default = needs.get(&0).is_some_and(|n| n.tls);
    let exceptions = needs.iter().filter(|(port, n)| **port != 0 && n.tls != by_default);
    let exceptions: Vec<u32> = exceptions.map(|(port, _)| *port).collect();
    if by_default || exceptions.is_empty() { all_but(exceptions) } else { Ports::Only(exceptions) }
}

fn all_but(ports: Vec<u32>) -> Ports {
    if ports.is_empty() { Ports::All } else { Ports::AllBut(ports) }
}
