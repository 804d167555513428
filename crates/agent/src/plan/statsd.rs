//! The address of statsd. Envoy sends stats over UDP to an IP address only, so a host name is resolved before it starts.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::control_plane::host;

/// Timeout of the lookup. Statsd is optional: Envoy starts without it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The address with an IP address for its host name; empty, so that no stats are sent, if it cannot be resolved.
pub(super) fn resolved(address: &str, prefers_ipv6: bool) -> String {
    let is_literal = |host: &str| host.parse::<IpAddr>().is_ok() || host.starts_with("$(");
    if address.is_empty() || !address.contains(':') || is_literal(host(address)) {
        return address.to_owned();
    }
    match look_up(address, prefers_ipv6) {
        Ok(resolved) => resolved,
        Err(error) => {
            warn!(address, %error, "could not resolve the address of statsd; Envoy sends no stats to it");
            String::new()
        }
    }
}

/// Looks the name up on its own thread, because the resolver has no timeout.
fn look_up(address: &str, prefers_ipv6: bool) -> Result<String, String> {
    let (sender, receiver) = mpsc::channel();
    let name = address.to_owned();
    thread::spawn(move || sender.send(name.to_socket_addrs().map(Vec::from_iter)));
    let found = receiver.recv_timeout(TIMEOUT).map_err(|_| format!("no answer within {TIMEOUT:?}"))?;
    let found = found.map_err(|error| error.to_string())?;
    let preferred = found.iter().find(|address| address.is_ipv6() == prefers_ipv6).or(found.first());
    preferred.map(ToString::to_string).ok_or_else(|| "the name has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::resolved;

    #[test]
    fn only_host_names_are_resolved() {
        assert_eq!(resolved("localhost:8125", false), "127.0.0.1:8125");
        for same in ["10.0.0.1:8125", "[fd00::1]:8125", "$(HOST_IP):8125", "", "no-port"] {
            assert_eq!(resolved(same, false), same);
        }
        assert_eq!(resolved("statsd.invalid:8125", false), "");
    }
}
