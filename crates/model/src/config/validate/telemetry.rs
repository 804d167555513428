//! Rules of Telemetry and ProxyConfig. Envoy checks filter expressions (CEL).

use api::istio::networking::v1beta1::ProxyConfig;
use api::istio::telemetry::v1alpha1::metric_selector::MetricMatch;
use api::istio::telemetry::v1alpha1::metrics_overrides::tag_override::Operation;
use api::istio::telemetry::v1alpha1::tracing::custom_tag::Type;
use api::istio::telemetry::v1alpha1::{MetricsOverrides, ProviderRef, Telemetry, Tracing};

use super::report::{Report, Rule, Violation};
use super::selector;

pub(super) fn check(telemetry: &Telemetry, report: &mut Report) {
    selector::policy(telemetry.selector.as_ref(), telemetry.target_ref.as_ref(), &telemetry.target_refs, report);
    report.each("metrics", &telemetry.metrics, |report, metrics| {
        report.check(providers(&metrics.providers));
        report.each("overrides", &metrics.overrides, overrides);
    });
    report.warn_if(telemetry.tracing.len() > 1, "multiple tracing is not currently supported");
    report.each("tracing", &telemetry.tracing, tracing);
    report.each("accessLogging", &telemetry.access_logging, |report, logging| {
        report.check(providers(&logging.providers));
    });
}

pub(super) fn proxy_config(config: &ProxyConfig, report: &mut Report) {
    selector::workload(config.selector.as_ref(), report);
    let negative = config.concurrency.is_some_and(|concurrency| concurrency < 0);
    report.error_if(negative, "concurrency must be greater than or equal to 0");
}

fn providers(providers: &[ProviderRef]) -> Rule {
    match providers.iter().any(|provider| provider.name.is_empty()) {
        true => Err(Violation::from("providers.name may not be empty".to_owned())),
        false => Ok(()),
    }
}

fn tracing(report: &mut Report, tracing: &Tracing) {
    report.warn_if(tracing.providers.len() > 1, "multiple providers is not currently supported");
    report.check(providers(&tracing.providers));
    let out_of_range = tracing.random_sampling_percentage.is_some_and(|percent| !(0.0..=100.0).contains(&percent));
    report.error_if(out_of_range, "randomSamplingPercentage must be in range [0.0, 100.0]");
    for (name, tag) in &tracing.custom_tags {
        report.error_if(name.is_empty(), "tag name may not be empty");
        match &tag.r#type {
            Some(Type::Literal(tag)) => report.error_if(tag.value.is_empty(), "literal tag value may not be empty"),
            Some(Type::Header(tag)) => report.error_if(tag.name.is_empty(), "header tag name may not be empty"),
            Some(Type::Environment(tag)) => {
                report.error_if(tag.name.is_empty(), "environment tag name may not be empty")
            }
            Some(Type::Formatter(_)) | None => {}
        }
    }
}

fn overrides(report: &mut Report, overrides: &MetricsOverrides) {
    for (name, tag) in &overrides.tag_overrides {
        report.warn_if(name.is_empty(), "tagOverrides.name may not be empty");
        match tag.operation() {
            Operation::Upsert => {
                report.error_if(tag.value.is_empty(), "tagOverrides.value must be set when operation is UPSERT");
            }
            Operation::Remove => {
                report.error_if(!tag.value.is_empty(), "tagOverrides.value may only be set when operation is UPSERT");
            }
        }
    }
    let metric = overrides.r#match.as_ref().and_then(|one| one.metric_match.as_ref());
    let nameless = matches!(metric, Some(MetricMatch::CustomMetric(name)) if name.is_empty());
    report.error_if(nameless, "customMetric may not be empty");
}
