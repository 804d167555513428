//! Names of the control plane: its certificate must have one of them. Pilot before 1.6 had a SPIFFE identity, today's
//! control plane has a DNS name; both are accepted unless a name is given.

use std::collections::BTreeSet;

use api::istio::mesh::v1alpha1::ProxyConfig;

use crate::args::ProxyArgs;
use crate::environment::Environment;
use crate::identity::ProxyIdentity;
use crate::settings::discovery_addresses;

/// Service account of Pilot.
const ACCOUNT: &str = "istio-pilot-service-account";
const NAMESPACE: &str = "istio-system";
const TRUST_DOMAIN: &str = "cluster.local";

/// In order of precedence: `$ISTIOD_SAN`, `--pilotIdentity`, else the host of the discovery address and the identity of
/// Pilot in its namespace.
pub(super) fn names(
    args: &ProxyArgs,
    environment: &Environment,
    identity: &ProxyIdentity,
    config: &ProxyConfig,
) -> Vec<String> {
    if let Some(name) = environment.get("ISTIOD_SAN") {
        return vec![name.to_owned()];
    }
    let domain = trust_domain(args, environment, identity);
    if !args.identity.pilot_identity.is_empty() {
        return vec![format!("spiffe://{domain}/{}", args.identity.pilot_identity)];
    }
    let hosts: Vec<&str> = discovery_addresses(config).into_iter().map(host).collect();
    let identity = |host: &&str| format!("spiffe://{domain}/ns/{}/sa/{ACCOUNT}", namespace(host, environment));
    // A control plane on localhost has the certificate of its in-cluster name.
    let name = |host: &&str| if *host == "localhost" { "istiod.istio-system.svc" } else { host }.to_owned();
    let mut names: Vec<String> = hosts.iter().map(name).collect();
    names.extend(hosts.iter().map(identity));
    let mut known = BTreeSet::new();
    names.retain(|name| known.insert(name.clone()));
    names
}

/// The host of `host:port`, without the brackets of an IPv6 address.
pub(super) fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']'])
}

/// From the address, as in `istio-pilot.istio-system:15005`. A single label is in the proxy's own namespace.
fn namespace<'a>(host: &'a str, environment: &'a Environment) -> &'a str {
    let configured = environment.get("ISTIO_NAMESPACE").unwrap_or(NAMESPACE);
    if host.parse::<std::net::IpAddr>().is_ok() || host == "localhost" {
        return configured;
    }
    match host.split('.').collect::<Vec<_>>()[..] {
        [_] => environment.get("POD_NAMESPACE").unwrap_or(configured),
        [_, namespace] | [_, namespace, "svc", ..] => namespace,
        _ => configured,
    }
}

/// `--trust-domain`, `$TRUST_DOMAIN`, else the part of the proxy's domain that all namespaces share.
fn trust_domain(args: &ProxyArgs, environment: &Environment, identity: &ProxyIdentity) -> String {
    let flag = Some(args.identity.trust_domain.as_str()).filter(|domain| !domain.is_empty());
    let shared = || identity.domain.split_once(".svc.").map_or(identity.domain.as_str(), |(_, domain)| domain);
    let domain = flag.or_else(|| environment.get("TRUST_DOMAIN")).unwrap_or_else(shared);
    if domain.is_empty() { TRUST_DOMAIN.to_owned() } else { domain.to_owned() }
}

#[cfg(test)]
mod tests {
    use crate::args::{AgentCommand, Cli};
    use crate::environment::Environment;
    use crate::identity::proxy_identity;
    use crate::settings::{ProxyConfigSources, proxy_config};

    fn names(line: &str, env: &[(&str, &str)]) -> String {
        let words = "pilot-agent proxy sidecar --ip 10.0.0.1".split(' ').chain(line.split_whitespace());
        let AgentCommand::Proxy(args) = Cli::read(words.map(String::from)).unwrap().command else {
            panic!("not proxy")
        };
        let environment: Environment = env.iter().copied().collect();
        let identity = proxy_identity(args.kind, &args.identity, &environment, &[]).unwrap();
        let config = proxy_config(&ProxyConfigSources::default(), &[].into(), &args.settings).unwrap();
        super::names(&args, &environment, &identity, &config).join(" ")
    }

    #[test]
    fn names_follow_upstreams_rules() {
        let pod = [("POD_NAMESPACE", "shop")];
        let pilot = |domain: &str, namespace: &str| format!("spiffe://{domain}/ns/{namespace}/sa/{}", super::ACCOUNT);
        assert_eq!(
            names("--discoveryAddress istio-pilot.mesh:15005", &pod),
            format!("istio-pilot.mesh {}", pilot("cluster.local", "mesh"))
        );
        assert_eq!(
            names("--discoveryAddress istio-pilot:15005 --domain shop.svc.example.org", &pod),
            format!("istio-pilot {}", pilot("example.org", "shop"))
        );
        assert_eq!(
            names("--discoveryAddress istiod.mesh.svc:15012 --trust-domain td", &pod),
            format!("istiod.mesh.svc {}", pilot("td", "mesh"))
        );
        assert_eq!(
            names("--discoveryAddress 10.1.2.3:15012", &[("ISTIO_NAMESPACE", "mesh")]),
            format!("10.1.2.3 {}", pilot("cluster.local", "mesh"))
        );
        assert_eq!(
            names("--discoveryAddress localhost:15012", &pod),
            format!("istiod.istio-system.svc {}", pilot("cluster.local", "istio-system"))
        );
        assert_eq!(
            names("--discoveryAddress a.mesh:15012,b.mesh:15012", &pod),
            format!("a.mesh b.mesh {}", pilot("cluster.local", "mesh"))
        );
        assert_eq!(names("--pilotIdentity pilots/main", &pod), "spiffe://cluster.local/pilots/main");
        assert_eq!(names("--pilotIdentity x", &[("ISTIOD_SAN", "istiod.example.org")]), "istiod.example.org");
    }
}
