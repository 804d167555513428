//! What simulated proxies read in resources: names, the route tables of listeners, and the numbers of changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use parking_lot::Mutex;
use prost::Message;
use prost::encoding::{decode_key, decode_varint};

use super::mesh::service_of;
use super::staleness::change_in;

/// The name of an encoded resource, which is the first field of every type.
pub(super) fn name_of(body: &[u8]) -> String {
    let mut rest = body;
    let Ok((1, _)) = decode_key(&mut rest) else { return String::new() };
    let len = decode_varint(&mut rest).unwrap_or_default() as usize;
    String::from_utf8_lossy(rest.get(..len).unwrap_or_default()).into_owned()
}

/// The route tables that listeners refer to. Decoding costs the simulator more than sending costs the server, so equal
/// responses are decoded once.
pub(super) fn route_names<'a>(listeners: impl Iterator<Item = &'a [u8]> + Clone) -> Arc<BTreeSet<String>> {
    type BySize = HashMap<(usize, usize), Arc<BTreeSet<String>>>;
    static DECODED: LazyLock<Mutex<BySize>> = LazyLock::new(Mutex::default);
    let key = (listeners.clone().map(<[u8]>::len).sum(), listeners.clone().count());
    if let Some(known) = DECODED.lock().get(&key) {
        return known.clone();
    }
    let names = listeners.flat_map(route_names_in).collect();
    DECODED.lock().entry(key).or_insert(Arc::new(names)).clone()
}

/// The route tables that an encoded listener refers to.
pub(crate) fn route_names_in(body: &[u8]) -> Vec<String> {
    routes_of(&Listener::decode(body).unwrap_or_default())
}

pub(crate) fn routes_of(listener: &Listener) -> Vec<String> {
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let configs = chains.flat_map(|chain| &chain.filters).filter_map(|filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(any)) if any.type_url.ends_with("HttpConnectionManager") => Some(&any.value),
        _ => None,
    });
    let name = |body: &Vec<u8>| match HttpConnectionManager::decode(&**body).unwrap_or_default().route_specifier {
        Some(RouteSpecifier::Rds(rds)) => Some(rds.route_config_name),
        _ => None,
    };
    configs.filter_map(name).collect()
}

/// The service of a load assignment and the change that one of its endpoints carries.
pub(super) fn change_of(name: &str, body: &[u8]) -> Option<(usize, u32)> {
    use api::envoy::config::core::v3::address::Address;
    use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    let service = service_of(name)?;
    let assignment = ClusterLoadAssignment::decode(body).ok()?;
    let endpoints = assignment.endpoints.into_iter().flat_map(|locality| locality.lb_endpoints);
    let addresses = endpoints.filter_map(|endpoint| match endpoint.host_identifier? {
        HostIdentifier::Endpoint(endpoint) => endpoint.address?.address,
        HostIdentifier::EndpointName(_) => None,
    });
    let mut changes = addresses.filter_map(|address| match address {
        Address::SocketAddress(socket) => change_in(&socket.address),
        _ => None,
    });
    Some((service, changes.next()?))
}

#[cfg(test)]
mod tests {
    use super::{ClusterLoadAssignment, Message, name_of};

    #[test]
    fn name_is_the_first_field() {
        let assignment = ClusterLoadAssignment { cluster_name: "outbound|80||a".to_owned(), ..Default::default() };
        assert_eq!(name_of(&assignment.encode_to_vec()), "outbound|80||a");
        assert_eq!(name_of(&[]), "");
    }
}
