//! Annotations that injection reads: their names, and the rules for their values. A bad value refuses the pod.

use std::net::IpAddr;

use ipnet::IpNet;
use model::config::mesh::{default_proxy_config, parse_proxy_config};
use model::problem::Severity;
use serde_json::Value;

use crate::pod::JsonMap;

pub(crate) const INJECT: &str = "sidecar.istio.io/inject";
pub(crate) const TEMPLATES: &str = "inject.istio.io/templates";
pub(crate) const STATUS: &str = "sidecar.istio.io/status";
pub(crate) const OVERRIDES: &str = "proxy.istio.io/overrides";
pub(crate) const PROXY_CONFIG: &str = "proxy.istio.io/config";
pub(crate) const NATIVE: &str = "sidecar.istio.io/nativeSidecar";
pub(crate) const REWRITE_PROBES: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
pub(crate) const STATUS_PORT: &str = "status.sidecar.istio.io/port";
pub(crate) const MERGE_METRICS: &str = "prometheus.istio.io/merge-metrics";
pub(crate) const INTERCEPTION_MODE: &str = "sidecar.istio.io/interceptionMode";
pub(crate) const IMAGE_TYPE: &str = "sidecar.istio.io/proxyImageType";
pub(crate) const INITIAL_DELAY: &str = "readiness.status.sidecar.istio.io/initialDelaySeconds";
pub(crate) const PERIOD: &str = "readiness.status.sidecar.istio.io/periodSeconds";
pub(crate) const FAILURE_THRESHOLD: &str = "readiness.status.sidecar.istio.io/failureThreshold";
pub(crate) const INCLUDE_OUTBOUND_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
pub(crate) const EXCLUDE_OUTBOUND_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
pub(crate) const INCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";
pub(crate) const EXCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
pub(crate) const INCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
pub(crate) const EXCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
pub(crate) const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
pub(crate) const KUBEVIRT_INTERFACES: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";
pub(crate) const REROUTE_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
pub(crate) const USER_VOLUME: &str = "sidecar.istio.io/userVolume";
pub(crate) const USER_VOLUME_MOUNT: &str = "sidecar.istio.io/userVolumeMount";
pub(crate) const PROXY_CPU: &str = "sidecar.istio.io/proxyCPU";
pub(crate) const PROXY_MEMORY: &str = "sidecar.istio.io/proxyMemory";
pub(crate) const PROXY_CPU_LIMIT: &str = "sidecar.istio.io/proxyCPULimit";
pub(crate) const PROXY_MEMORY_LIMIT: &str = "sidecar.istio.io/proxyMemoryLimit";

type Check = fn(&str) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    (INTERCEPTION_MODE, interception_mode),
    (STATUS_PORT, port),
    (INITIAL_DELAY, unsigned),
    (PERIOD, unsigned),
    (FAILURE_THRESHOLD, unsigned),
    (INCLUDE_OUTBOUND_RANGES, |text| if text == "*" { Ok(()) } else { ranges(text) }),
    (EXCLUDE_OUTBOUND_RANGES, ranges),
    (INCLUDE_INBOUND_PORTS, |text| if text == "*" { Ok(()) } else { ports(text) }),
    (EXCLUDE_INBOUND_PORTS, ports),
    (EXCLUDE_OUTBOUND_PORTS, ports),
    (EXCLUDE_INTERFACES, interfaces),
    (KUBEVIRT_INTERFACES, interfaces),
    (REROUTE_INTERFACES, interfaces),
    (MERGE_METRICS, |text| boolean(text).map(drop).ok_or_else(|| format!("expected true or false, found {text:?}"))),
    (PROXY_CONFIG, proxy_config),
    (USER_VOLUME, json_map),
    (USER_VOLUME_MOUNT, json_map),
    (PROXY_CPU, quantity),
    (PROXY_MEMORY, quantity),
    (PROXY_CPU_LIMIT, quantity),
    (PROXY_MEMORY_LIMIT, quantity),
];

/// All bad values, each with its annotation.
pub(crate) fn problems(annotations: &JsonMap) -> Vec<String> {
    let given = |name: &str| annotations.get(name).and_then(Value::as_str);
    let checked = CHECKS.iter().filter_map(|(name, check)| Some((name, check(given(name)?).err()?)));
    checked.map(|(name, problem)| format!("annotation {name}: {problem}")).collect()
}

/// A boolean as Go parses it.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn interception_mode(text: &str) -> Result<(), String> {
    match text {
        "REDIRECT" | "TPROXY" | "NONE" => Ok(()),
        _ => Err(format!("expected REDIRECT, TPROXY or NONE, found {text:?}")),
    }
}

fn port(text: &str) -> Result<(), String> {
    let digits = text.trim();
    match digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u16>()) {
        Some(Ok(_)) => Ok(()),
        _ => Err(format!("{text:?} is not a port number")),
    }
}

fn ports(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Ok(());
    }
    text.split(',').try_for_each(port)
}

fn unsigned(text: &str) -> Result<(), String> {
    match text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>()) {
        Some(Ok(_)) => Ok(()),
        _ => Err(format!("{text:?} is not an unsigned number")),
    }
}

fn ranges(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    text.split(',').try_for_each(|range| {
        let valid = range.contains('/') && range.parse::<IpNet>().is_ok();
        let zoned = range.parse::<IpAddr>().is_ok();
        if valid {
            Ok(())
        } else if zoned {
            Err(format!("{range:?} is an address: add its prefix length"))
        } else {
            Err(format!("{range:?} is not an address range"))
        }
    })
}

fn interfaces(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    text.split(',').map(str::trim).try_for_each(|name| {
        if name.len() > 15 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(allowed) {
            return Err(format!("{name:?} is not the name of a network interface"));
        }
        Ok(())
    })
}

fn proxy_config(text: &str) -> Result<(), String> {
    let (_, problems) = parse_proxy_config(&default_proxy_config(), text, PROXY_CONFIG);
    match problems.into_iter().find(|problem| problem.severity == Severity::Error) {
        Some(problem) => Err(problem.message.to_string()),
        None => Ok(()),
    }
}

/// Volumes or mounts by name.
fn json_map(text: &str) -> Result<(), String> {
    let read = serde_json::from_str::<std::collections::BTreeMap<String, JsonMap>>(text);
    read.map(drop).map_err(|error| format!("expected a JSON map by name: {error}"))
}

/// A Kubernetes quantity: a decimal number with a suffix or an exponent.
fn quantity(text: &str) -> Result<(), String> {
    let bad = || format!("{text:?} is not a quantity");
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(end);
    if !number.bytes().any(|b| b.is_ascii_digit()) || number.matches('.').count() > 1 {
        return Err(bad());
    }
    let exponent = |text: &str| text.strip_prefix(['+', '-']).unwrap_or(text).parse::<u8>().is_ok();
    match suffix {
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => Ok(()),
        _ if suffix.strip_prefix(['e', 'E']).is_some_and(exponent) => Ok(()),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::problems;

    fn check(name: &str, good: &[&str], bad: &[&str]) {
        for (texts, accepted) in [(good, true), (bad, false)] {
            for text in texts {
                let Value::Object(annotations) = json!({ name: text }) else { panic!("an object") };
                let found = problems(&annotations);
                assert_eq!(found.is_empty(), accepted, "{name}={text:?}: {found:?}");
                assert!(found.iter().all(|problem| problem.contains(name)), "{found:?}");
            }
        }
    }

    #[test]
    fn values_are_checked_by_annotation() {
        use super::*;
        check(INTERCEPTION_MODE, &["REDIRECT", "TPROXY", "NONE"], &["", "redirect", "X"]);
        check(STATUS_PORT, &["0", "15020", " 7 "], &["", "-1", "65536", "http", "+5"]);
        check(PERIOD, &["0", "4294967295"], &["", "-1", "4294967296", "1.5", " 1"]);
        check(INCLUDE_OUTBOUND_RANGES, &["*", "", "10.0.0.0/8,fd00::/8"], &["10.0.0.1", "x", "10.0.0.0/8,*"]);
        check(EXCLUDE_OUTBOUND_RANGES, &["", "10.0.0.0/8"], &["*", "10.0.0.0/33", "10.0.0.0/8, 10.1.0.0/16"]);
        check(INCLUDE_INBOUND_PORTS, &["*", "", "80, 81"], &["80,http", "70000", ","]);
        check(EXCLUDE_INBOUND_PORTS, &["", "80"], &["*"]);
        check(
            EXCLUDE_INTERFACES,
            &["", "eth0, net1", "a.b_c-d"],
            &["eth0,", "a-name-that-is-too-long", "eth 0", "0eth"],
        );
        check(MERGE_METRICS, &["true", "F", "0"], &["yes", ""]);
        check(PROXY_CPU, &["1", "0.5", "100m", "1e3", "2Gi", ".5"], &["", "x", "1x", "1\n", "--1", "1e", "1.2.3"]);
        check(USER_VOLUME, &["{}", r#"{"v": {"emptyDir": {}}}"#], &["", "x", "[]", r#"{"v": 1}"#]);
        check(PROXY_CONFIG, &["", "concurrency: 2"], &["concurrency: many", "[", "statusPort: 99999"]);
    }
}
