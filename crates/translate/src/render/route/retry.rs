//! Retry policies.

use api::envoy::config::route::v3::RetryPolicy;
use api::envoy::config::route::v3::retry_policy::{
    RetryBackOff, RetryHostPredicate, RetryPriority, retry_host_predicate, retry_priority,
};
use api::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use api::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use api::istio::networking::v1alpha3::HttpRetry;

const RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
const BY_STATUS: &str = "retriable-status-codes";
const ATTEMPTS: u32 = 2;
/// How often Envoy reselects a host to avoid hosts that were already tried.
const HOST_SELECTIONS: i64 = 5;
/// Number of attempts before Envoy switches to another priority.
const PRIORITY_UPDATES: i32 = 2;

/// Hosts that a retry may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryHosts {
    /// Prefers hosts that were not tried.
    Any,
    /// The host is fixed by consistent hashing.
    Same,
}

/// The configured policy, or the default. `None` if retries are disabled.
pub(super) fn policy(written: Option<&HttpRetry>, hosts: RetryHosts) -> Option<RetryPolicy> {
    let mut out = RetryPolicy {
        num_retries: Some(ATTEMPTS),
        retry_on: RETRY_ON.into(),
        host_selection_retry_max_attempts: HOST_SELECTIONS,
        retry_host_predicate: if hosts == RetryHosts::Any { vec![previous_hosts()] } else { Vec::new() },
        ..RetryPolicy::default()
    };
    let Some(written) = written else { return Some(out) };
    out.num_retries = Some(u32::try_from(written.attempts).ok().filter(|n| *n > 0)?);
    if !written.retry_on.is_empty() {
        (out.retry_on, out.retriable_status_codes) = retry_on(&written.retry_on);
    }
    out.per_try_timeout = written.per_try_timeout;
    if let Some(other_hosts) = written.retry_ignore_previous_hosts {
        out.retry_host_predicate = if other_hosts { vec![previous_hosts()] } else { Vec::new() };
    }
    if written.retry_remote_localities == Some(true) {
        out.retry_priority = Some(previous_priorities());
    }
    out.retry_back_off =
        written.backoff.map(|base| RetryBackOff { base_interval: Some(base), ..RetryBackOff::default() });
    Some(out)
}

/// Splits Envoy's retry conditions from status codes.
fn retry_on(text: &str) -> (String, Vec<u32>) {
    let (mut conditions, mut codes) = (Vec::new(), Vec::new());
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        match part.parse::<u32>().ok().filter(|code| is_status(*code)) {
            Some(code) => codes.push(code),
            None => conditions.push(part),
        }
    }
    let mut joined = conditions.join(",");
    if !codes.is_empty() && !joined.contains(BY_STATUS) {
        joined.push(',');
        joined.push_str(BY_STATUS);
    }
    (joined, codes)
}

/// Whether the code is a registered HTTP status.
fn is_status(code: u32) -> bool {
    matches!(
        code,
        100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451
            | 500..=508 | 510 | 511
    )
}

fn previous_hosts() -> RetryHostPredicate {
    let config = api::any(&PreviousHostsPredicate::default());
    RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".into(),
        config_type: Some(retry_host_predicate::ConfigType::TypedConfig(config)),
    }
}

fn previous_priorities() -> RetryPriority {
    let config = api::any(&PreviousPrioritiesConfig { update_frequency: PRIORITY_UPDATES });
    RetryPriority {
        name: "envoy.retry_priorities.previous_priorities".into(),
        config_type: Some(retry_priority::ConfigType::TypedConfig(config)),
    }
}

#[cfg(test)]
mod tests {
    use super::{HttpRetry, RetryHosts, policy, retry_on};

    #[test]
    fn status_codes_are_split_off_and_enabled() {
        assert_eq!(retry_on("5xx, 503"), ("5xx,retriable-status-codes".into(), vec![503]));
        assert_eq!(retry_on("gateway-error,retriable-status-codes,404").1, vec![404]);
        assert_eq!(retry_on("599"), ("599".into(), vec![]));
    }

    #[test]
    fn zero_attempts_disable_retries() {
        assert_eq!(policy(Some(&HttpRetry::default()), RetryHosts::Any), None);
        assert!(policy(None, RetryHosts::Same).is_some_and(|p| p.retry_host_predicate.is_empty()));
    }
}
