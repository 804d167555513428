//! Rules of extension providers in MeshConfig. An invalid provider is only a warning, since it may be unused.

use std::collections::BTreeSet;

use api::istio::mesh::v1alpha1::mesh_config::ExtensionProvider;
use api::istio::mesh::v1alpha1::mesh_config::extension_provider::Provider;

use super::names::{self, HostOf};
use super::report::{Report, Rule, Violation};

/// The service of a provider.
struct ProviderService<'a> {
    name: &'a str,
    port: u32,
}

pub(super) fn check(providers: &[ExtensionProvider], report: &mut Report) {
    let mut seen = BTreeSet::new();
    for provider in providers {
        let duplicate = !seen.insert(provider.name.as_str());
        if let Err(message) = one(provider, duplicate) {
            report.warn(format_args!("invalid extension provider {}: {message}", provider.name));
        }
    }
}

fn one(provider: &ExtensionProvider, duplicate: bool) -> Rule {
    if provider.name.is_empty() {
        return Err(Violation::from("empty extension provider name".to_owned()));
    }
    if duplicate {
        return Err(Violation::from(format!("duplicate extension provider name {}", provider.name)));
    }
    if let Some(service) = service_of(provider.provider.as_ref().ok_or("unsupported provider")?) {
        names::port(service.port).map_err(|message| Violation::from(format!("invalid service port: {message}")))?;
        service_name(service.name)?;
    }
    particulars(provider.provider.as_ref())
}

fn service_of(provider: &Provider) -> Option<ProviderService<'_>> {
    let (name, port) = match provider {
        Provider::EnvoyExtAuthzHttp(it) => (&it.service, it.port),
        Provider::EnvoyExtAuthzGrpc(it) => (&it.service, it.port),
        Provider::Zipkin(it) => (&it.service, it.port),
        Provider::Lightstep(it) => (&it.service, it.port),
        Provider::Datadog(it) => (&it.service, it.port),
        Provider::Opencensus(it) => (&it.service, it.port),
        Provider::Skywalking(it) => (&it.service, it.port),
        Provider::EnvoyOtelAls(it) => (&it.service, it.port),
        Provider::Opentelemetry(it) => (&it.service, it.port),
        Provider::EnvoyHttpAls(it) => (&it.service, it.port),
        Provider::EnvoyTcpAls(it) => (&it.service, it.port),
        _ => return None,
    };
    Some(ProviderService { name, port })
}

/// `service` or `namespace/service`.
fn service_name(service: &str) -> Rule {
    if service.is_empty() {
        return Err(Violation::from("service must not be empty".to_owned()));
    }
    if !service.contains('/') {
        return match names::fqdn(service).is_err() && !names::is_ip(service) {
            true => Err(Violation::from(format!("invalid service fmt {service}"))),
            false => Ok(()),
        };
    }
    let mut report = Report::default();
    names::namespaced_host(service, HostOf::Sidecar, &mut report);
    report.into_findings().into_iter().next().map_or(Ok(()), |finding| Err(Violation::from(finding.message)))
}

fn particulars(provider: Option<&Provider>) -> Rule {
    match provider {
        Some(Provider::EnvoyExtAuthzHttp(it)) => {
            status_on_error(&it.status_on_error)?;
            match it.path_prefix.is_empty() || it.path_prefix.starts_with('/') {
                true => Ok(()),
                false => {
                    Err(Violation::from(format!("pathPrefix should begin with `/` but found {:?}", it.path_prefix)))
                }
            }
        }
        Some(Provider::EnvoyExtAuthzGrpc(it)) => status_on_error(&it.status_on_error),
        Some(Provider::Lightstep(it)) if it.access_token.is_empty() => {
            Err(Violation::from("access token is required".to_owned()))
        }
        _ => Ok(()),
    }
}

fn status_on_error(status: &str) -> Rule {
    use api::envoy::r#type::v3::StatusCode;
    if status.is_empty() {
        return Ok(());
    }
    match status.parse::<i32>().ok().and_then(|code| StatusCode::try_from(code).ok()) {
        Some(_) => Ok(()),
        None => Err(Violation::from(format!("unsupported statusOnError value {status}"))),
    }
}
