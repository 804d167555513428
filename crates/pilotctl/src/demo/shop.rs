//! The workloads of the shop. Their addresses and ports are those of the Sidecar objects in the shop's files.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};
use model::config::{Object, Spec, parse};

/// What runs, and which services it calls.
const WORKLOADS: [(&str, &str, &[&str]); 5] = [
    ("front", "v1", &["catalog", "cart", "reviews"]),
    ("catalog", "v1", &[]),
    ("cart", "v1", &[]),
    ("reviews", "v1", &[]),
    ("reviews", "v2", &[]),
];

/// One workload and the addresses that its Sidecar object gives it.
#[derive(Clone, Debug)]
pub(super) struct DemoWorkload {
    pub(super) app: &'static str,
    pub(super) version: &'static str,
    pub(super) calls: &'static [&'static str],
    /// Where its sidecar accepts calls for the workload.
    pub(super) inbound: SocketAddr,
    /// Where its sidecar accepts the workload's own calls.
    pub(super) outbound: SocketAddr,
    /// Where the workload listens.
    pub(super) backend: SocketAddr,
}

impl DemoWorkload {
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.app, self.version)
    }

    /// Addresses that must be free, and who listens there.
    pub(super) fn addresses(&self) -> [(SocketAddr, String); 3] {
        [
            (self.inbound, format!("the sidecar of {}", self.name())),
            (self.outbound, format!("the sidecar of {}", self.name())),
            (self.backend, self.name()),
        ]
    }
}

/// Reads the workloads from the files of `config`, a folder.
pub(super) fn read(config: &Path) -> Result<Vec<DemoWorkload>> {
    let folder = fs::read_dir(config).with_context(|| {
        format!("could not read {}: run from the project's folder or give --shop", config.display())
    })?;
    let mut objects = Vec::new();
    for entry in folder {
        let path = entry.with_context(|| format!("could not read {}", config.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
            objects.extend(parse::documents(&text, &path.to_string_lossy()).objects);
        }
    }
    WORKLOADS
        .iter()
        .map(|(app, version, calls)| {
            let found = objects.iter().find_map(|object| addresses(object, app, version));
            let missing = || format!("no Sidecar with ingress, egress and defaultEndpoint selects app {app} {version}");
            let (inbound, outbound, backend) =
                found.with_context(missing).with_context(|| format!("could not use {}", config.display()))?;
            Ok(DemoWorkload { app, version, calls, inbound, outbound, backend })
        })
        .collect()
}

/// The addresses of a Sidecar object that selects this workload.
fn addresses(object: &Object, app: &str, version: &str) -> Option<(SocketAddr, SocketAddr, SocketAddr)> {
    let Spec::Sidecar(spec) = &object.spec else { return None };
    let labels = &spec.workload_selector.as_ref()?.labels;
    let is = |key: &str, value: &str| labels.get(key).is_none_or(|wanted| wanted == value);
    if labels.get("app").map(String::as_str) != Some(app) || !is("version", version) {
        return None;
    }
    let (ingress, egress) = (spec.ingress.first()?, spec.egress.first()?);
    let address = |bind: &str, number: u32| {
        let ip: IpAddr = if bind.is_empty() { Ipv4Addr::LOCALHOST.into() } else { bind.parse().ok()? };
        Some(SocketAddr::new(ip, u16::try_from(number).ok()?))
    };
    Some((
        address(&ingress.bind, ingress.port.as_ref()?.number)?,
        address(&egress.bind, egress.port.as_ref()?.number)?,
        ingress.default_endpoint.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::read;

    #[test]
    fn addresses_of_the_sample_are_those_of_its_sidecars() {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/shop/config");
        let shown = |of: super::DemoWorkload| format!("{} {} {} {}", of.name(), of.inbound, of.outbound, of.backend);
        let all: Vec<String> = read(&config).unwrap().into_iter().map(shown).collect();
        assert_eq!(all[0], "front-v1 127.0.80.1:18080 127.0.80.1:19080 127.0.0.1:28081");
        assert_eq!(all[4], "reviews-v2 127.0.80.5:18080 127.0.80.5:19080 127.0.0.1:28085");
    }

    #[test]
    fn folder_without_sidecars_is_an_error_that_names_the_workload() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", read(folder.path()).unwrap_err());
        assert!(error.contains("selects app front v1"), "{error}");
    }
}
