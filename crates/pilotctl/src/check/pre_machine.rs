//! Whether this machine is ready for a mesh without Kubernetes: free ports, an Envoy, and enough open files.

use std::net::{Ipv4Addr, TcpListener};

use nix::sys::resource::{Resource, getrlimit};

use super::pre_finding::{PreFinding, PreLevel};
use crate::demo::find_envoy;

/// Ports of pilot-discovery with its default flags, and what they are for.
const PORTS: [(u16, &str); 6] = [
    (8080, "debug pages and readiness (--httpAddr)"),
    (15010, "configuration in plain text (--grpcAddr)"),
    (15012, "configuration over TLS (--secureGRPCAddr)"),
    (15014, "metrics and pilotctl (--monitoringAddr)"),
    (15017, "webhooks (--httpsAddr)"),
    (9876, "log levels (--ctrlz_port)"),
];

/// Each connected Envoy takes one file.
const OPEN_FILES: u64 = 4096;

pub(super) fn findings() -> Vec<PreFinding> {
    let mut found: Vec<PreFinding> = PORTS.iter().map(|(port, purpose)| port_finding(*port, purpose)).collect();
    found.push(match find_envoy(None) {
        Ok(path) => PreFinding::new(PreLevel::Ok, "Envoy", path.display().to_string()),
        Err(error) => {
            PreFinding::new(PreLevel::Warning, "Envoy", format!("{error:#}; agents need one, the server does not"))
        }
    });
    found.extend(getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(_, most)| match most {
        most if most < OPEN_FILES => PreFinding::new(
            PreLevel::Warning,
            "open files",
            format!("the limit is {most}; every Envoy takes one: raise it with `ulimit -n` or LimitNOFILE"),
        ),
        most => PreFinding::new(PreLevel::Ok, "open files", format!("the limit is {most}")),
    }));
    found
}

fn port_finding(port: u16, purpose: &str) -> PreFinding {
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => PreFinding::new(PreLevel::Ok, "port", format!("{port} is free: {purpose}")),
        Err(error) => {
            PreFinding::new(PreLevel::Error, "port", format!("could not listen on {port}, {purpose}: {error}"))
        }
    }
}
