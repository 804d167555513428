//! Rules about connection pools and outlier detection.

use api::istio::networking::v1alpha3::connection_pool_settings::http_settings::H2UpgradePolicy;
use api::istio::networking::v1alpha3::connection_pool_settings::{HttpSettings, TcpSettings};
use api::istio::networking::v1alpha3::{ConnectionPoolSettings, OutlierDetection};

use super::names::{self, duration_if_given, nanoseconds};
use super::report::{Report, Rule, Violation};

pub(super) fn check(report: &mut Report, settings: &ConnectionPoolSettings) {
    if settings.http.is_none() && settings.tcp.is_none() {
        return report.error("connection pool must have at least one field");
    }
    report.given("http", settings.http.as_ref(), http);
    report.given("tcp", settings.tcp.as_ref(), tcp);
}

fn http(report: &mut Report, http: &HttpSettings) {
    let counts = [
        (http.http1_max_pending_requests, "http1 max pending requests"),
        (http.http2_max_requests, "http2 max requests"),
        (http.max_requests_per_connection, "max requests per connection"),
        (http.max_retries, "max retries"),
        (http.max_concurrent_streams, "max concurrent streams"),
    ];
    for (count, name) in counts {
        report.error_if(count < 0, format_args!("{name} must be non-negative"));
    }
    duration_if_given(http.idle_timeout.as_ref(), "idleTimeout", report);
    report.error_if(
        http.h2_upgrade_policy() == H2UpgradePolicy::Upgrade && http.use_client_protocol,
        "use client protocol must not be true when H2UpgradePolicy is UPGRADE",
    );
    report.given("http2KeepAlive", http.http2_keep_alive.as_ref(), |report, keepalive| {
        for (name, value) in [("interval", &keepalive.interval), ("timeout", &keepalive.timeout)] {
            match value {
                Some(value) => report.check(names::duration(value)),
                None => report.error(format_args!("http2 keepalive {name} is required")),
            }
        }
    });
}

fn tcp(report: &mut Report, tcp: &TcpSettings) {
    report.error_if(tcp.max_connections < 0, "max connections must be non-negative");
    duration_if_given(tcp.connect_timeout.as_ref(), "connectTimeout", report);
    duration_if_given(tcp.max_connection_duration.as_ref(), "maxConnectionDuration", report);
    // 0s disables the timeout.
    let idle = tcp.idle_timeout.as_ref().filter(|timeout| nanoseconds(timeout) / 1_000_000 != 0);
    duration_if_given(idle, "idleTimeout", report);
    report.given("tcpKeepalive", tcp.tcp_keepalive.as_ref(), |report, keepalive| {
        duration_if_given(keepalive.time.as_ref(), "time", report);
        duration_if_given(keepalive.interval.as_ref(), "interval", report);
    });
}

pub(super) fn outlier_detection(report: &mut Report, outlier: &OutlierDetection) {
    duration_if_given(outlier.base_ejection_time.as_ref(), "baseEjectionTime", report);
    report.warn_if(
        outlier.consecutive_errors != 0,
        "outlier detection consecutive errors is deprecated, use consecutiveGatewayErrors or consecutive5xxErrors instead",
    );
    report.error_if(
        !outlier.split_external_local_origin_errors && outlier.consecutive_local_origin_failures.unwrap_or(0) > 0,
        "outlier detection consecutive local origin failures is specified, but split external local origin errors is set to false",
    );
    duration_if_given(outlier.interval.as_ref(), "interval", report);
    report.check(percent(outlier.max_ejection_percent));
    report.check(percent(outlier.min_health_percent));
}

fn percent(value: i32) -> Rule {
    match value {
        0..=100 => Ok(()),
        _ => Err(Violation::from(format!("percentage {value} is not in range 0..100"))),
    }
}
