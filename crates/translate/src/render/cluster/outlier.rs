//! Outlier detection and the panic threshold.

use api::envoy::config::cluster::v3::OutlierDetection;
use api::istio::networking::v1alpha3 as istio;

/// Outlier detection. Success rate detection is disabled: it needs more endpoints than most services have.
pub(super) fn detection(settings: &istio::OutlierDetection) -> OutlierDetection {
    let enforced = |count: u32| if count > 0 { 100 } else { 0 };
    let local = settings.consecutive_local_origin_failures.filter(|n| *n > 0);
    let split = settings.split_external_local_origin_errors;
    OutlierDetection {
        enforcing_success_rate: Some(0),
        consecutive_5xx: settings.consecutive_5xx_errors,
        enforcing_consecutive_5xx: settings.consecutive_5xx_errors.map(enforced),
        consecutive_gateway_failure: settings.consecutive_gateway_errors,
        enforcing_consecutive_gateway_failure: settings.consecutive_gateway_errors.map(enforced),
        interval: settings.interval,
        base_ejection_time: settings.base_ejection_time,
        max_ejection_percent: u32::try_from(settings.max_ejection_percent).ok().filter(|p| *p > 0),
        split_external_local_origin_errors: split,
        consecutive_local_origin_failure: local.filter(|_| split),
        enforcing_consecutive_local_origin_failure: local.filter(|_| split).map(enforced),
        enforcing_local_origin_success_rate: split.then_some(0),
        ..OutlierDetection::default()
    }
}

/// Below this percentage of healthy endpoints Envoy uses all of them; 0 means never. `None` keeps Envoy's default.
pub(super) fn panic_threshold(settings: &istio::OutlierDetection, always_sends_unhealthy: bool) -> Option<f64> {
    if settings.min_health_percent < 0 {
        return None;
    }
    Some(if always_sends_unhealthy { 0.0 } else { f64::from(settings.min_health_percent) })
}
