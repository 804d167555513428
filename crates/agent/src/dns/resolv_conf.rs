//! Parses resolv.conf: name servers and search domains.

use std::net::IpAddr;

/// The relevant settings of resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub servers: Vec<IpAddr>,
    /// Without trailing dots.
    pub search: Vec<String>,
}

impl ResolvConf {
    /// Parses the text. Other lines are ignored, as in every resolver.
    pub fn parse(text: &str) -> ResolvConf {
        let mut config = ResolvConf::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // A link-local address may have an interface suffix.
                    let address: Option<IpAddr> = words.next().and_then(|word| word.split('%').next()?.parse().ok());
                    config.servers.extend(address);
                }
                // The last `search` or `domain` line wins.
                Some("search" | "domain") => {
                    config.search = words.map(|domain| domain.trim_end_matches('.').to_owned()).collect();
                }
                _ => {}
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::ResolvConf;

    #[test]
    fn servers_and_search_domains_are_read() {
        let config = ResolvConf::parse(
            "# made by kubelet\nsearch first.local\nnameserver 10.0.0.10\nnameserver fe80::1%eth0\nnameserver junk\n\
             search shop.svc.cluster.local. svc.cluster.local ; more\noptions ndots:5\n",
        );
        assert_eq!(config.servers.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.10", "fe80::1"]);
        assert_eq!(config.search, ["shop.svc.cluster.local", "svc.cluster.local"]);
    }
}
