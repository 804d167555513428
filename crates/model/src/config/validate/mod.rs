//! Validates objects by upstream's rules, with upstream's messages where users know them. An error means that upstream's
//! admission webhook and file store reject the object. Upstream uses objects that a Kubernetes API server already stores
//! without these checks, so sources decide what to do with invalid objects.

mod authentication;
mod authorization_policy;
mod connection_pool;
mod destination_rule;
mod envoy_filter;
mod extension_provider;
mod extensions;
mod gateway;
mod headers;
mod http_route;
mod http_status;
mod legacy;
mod load_balancer;
mod mesh;
mod names;
mod report;
mod route_parts;
mod selector;
mod service_entry;
mod sidecar;
mod telemetry;
pub mod tls;
mod unreachable;
mod virtual_service;
mod workload;

use api::istio::mesh::v1alpha1::{MeshConfig, MeshNetworks, ProxyConfig};
use api::istio::security::v1beta1::authorization_policy::Action;

use self::report::{Report, Rule, RuleFinding, Violation};
use super::legacy::LegacyMesh;
use super::{Object, Spec};
use crate::config::problem::{FileLocation, Problem, ProblemCode, Severity, Subject};

/// Problems of a mesh config. If there is an error, upstream keeps its previous config.
pub fn validate_mesh(mesh: &MeshConfig, location: Option<FileLocation>) -> Vec<Problem> {
    let mut report = Report::default();
    mesh::config(mesh, &mut report);
    problems(report, &Subject::Setting("MeshConfig".into()), location.as_ref())
}

/// Problems of a ProxyConfig.
pub fn validate_proxy_config(config: &ProxyConfig, location: Option<FileLocation>) -> Vec<Problem> {
    let mut report = Report::default();
    mesh::proxy_config(config, &mut report);
    problems(report, &Subject::Setting("ProxyConfig".into()), location.as_ref())
}

/// Problems of mesh networks.
pub fn validate_networks(networks: &MeshNetworks, location: Option<FileLocation>) -> Vec<Problem> {
    let mut report = Report::default();
    mesh::networks(networks, &mut report);
    problems(report, &Subject::Setting("MeshNetworks".into()), location.as_ref())
}

/// Problems of an object: errors if it cannot be used, warnings if part of it has no effect.
pub fn validate(object: &Object) -> Vec<Problem> {
    validate_fields(object).into_iter().map(|(problem, _)| problem).collect()
}

/// Problems of an object of a kind of `config/legacy`, in a mesh whose services may be known.
pub fn validate_legacy(object: &Object, mesh: LegacyMesh<'_>) -> Vec<Problem> {
    let mut report = Report::default();
    match annotations(object) {
        Err(message) => report.error(message),
        Ok(()) => legacy::check(object, mesh, &mut report),
    }
    problems(report, &object.key().into(), object.meta.location.as_ref())
}

/// The same with the path of each problem's field, such as `spec.http[0]`.
pub(super) fn validate_fields(object: &Object) -> Vec<(Problem, String)> {
    let mut report = Report::default();
    match annotations(object) {
        Err(message) => report.error(message),
        Ok(()) => spec(object, &mut report),
    }
    let about = object.key().into();
    let problem = |finding: RuleFinding| {
        let path = match finding.path.as_str() {
            "" => "spec".to_owned(),
            path => format!("spec.{path}"),
        };
        (problem(finding, &about, object.meta.location.as_ref()), path)
    };
    report.into_findings().into_iter().map(problem).collect()
}

fn problems(report: Report, about: &Subject, location: Option<&FileLocation>) -> Vec<Problem> {
    report.into_findings().into_iter().map(|finding| problem(finding, about, location)).collect()
}

fn problem(finding: RuleFinding, about: &Subject, location: Option<&FileLocation>) -> Problem {
    let problem = Problem::new(finding.severity, about.clone(), finding.message.into()).at(location.cloned());
    if let Some(code) = finding.code {
        return problem.coded(code);
    }
    // All that is worth knowing about a valid object is that its kind is old.
    if problem.severity == Severity::Info { problem.coded(ProblemCode::Deprecated) } else { problem }
}

fn spec(object: &Object, report: &mut Report) {
    let meta = &object.meta;
    match &object.spec {
        Spec::VirtualService(it) => virtual_service::check(meta, it, report),
        Spec::DestinationRule(it) => destination_rule::check(meta, it, report),
        Spec::Gateway(it) => gateway::check(meta, it, report),
        Spec::ServiceEntry(it) => service_entry::check(meta, &it.open(), report),
        Spec::WorkloadEntry(it) => workload::entry(&it.open(), report),
        Spec::WorkloadGroup(it) => workload::group(it, report),
        Spec::Sidecar(it) => sidecar::check(meta, it, report),
        Spec::EnvoyFilter(it) => envoy_filter::check(it, report),
        Spec::ProxyConfig(it) => telemetry::proxy_config(it, report),
        Spec::PeerAuthentication(it) => authentication::peer(it, report),
        Spec::RequestAuthentication(it) => authentication::request(it, report),
        Spec::AuthorizationPolicy(it) => authorization_policy::check(it, report),
        Spec::Telemetry(it) => telemetry::check(it, report),
        Spec::WasmPlugin(it) => extensions::wasm_plugin(it, report),
        Spec::TrafficExtension(it) => extensions::traffic_extension(it, report),
        // Their conversion reports problems in their status.
        Spec::GatewayClass(_)
        | Spec::KubernetesGateway(_)
        | Spec::ListenerSet(_)
        | Spec::HttpRoute(_)
        | Spec::GrpcRoute(_)
        | Spec::TcpRoute(_)
        | Spec::TlsRoute(_)
        | Spec::ReferenceGrant(_)
        | Spec::BackendTlsPolicy(_)
        | Spec::BackendTrafficPolicy(_)
        | Spec::Ingress(_)
        | Spec::IngressClass(_)
        | Spec::ServiceRole(_)
        | Spec::ServiceRoleBinding(_)
        | Spec::RbacConfig(_)
        | Spec::ClusterRbacConfig(_) => {}
        Spec::RouteRule(_)
        | Spec::EgressRule(_)
        | Spec::DestinationPolicy(_)
        | Spec::IngressRule(_)
        | Spec::AuthenticationPolicy(_)
        | Spec::AuthenticationMeshPolicy(_)
        | Spec::HttpApiSpec(_)
        | Spec::HttpApiSpecBinding(_)
        | Spec::QuotaSpec(_)
        | Spec::QuotaSpecBinding(_)
        | Spec::MixerRule(_)
        | Spec::MixerHandler(_)
        | Spec::MixerInstance(_)
        | Spec::MixerAdapter(_)
        | Spec::MixerTemplate(_)
        | Spec::AttributeManifest(_) => legacy::check(object, LegacyMesh::default(), report),
    }
}

/// Reserved annotations, and the value of the dry-run annotation.
fn annotations(object: &Object) -> Rule {
    let meta = &object.meta;
    const ALWAYS_REJECT: &str = "internal.istio.io/webhook-always-reject";
    if let Some(value) = meta.annotations.get("istio.io/dry-run") {
        dry_run(object, value)?;
    }
    if meta.annotations.contains_key(ALWAYS_REJECT) {
        return Err(Violation::from(format!("{ALWAYS_REJECT:?} annotation found, rejecting")));
    }
    for internal in ["internal.istio.io/parent-namespace", "internal.istio.io/parents"] {
        if meta.annotations.contains_key(internal) {
            return Err(Violation::from(format!("{internal:?} annotation found, this may not be set by users")));
        }
    }
    Ok(())
}

fn dry_run(object: &Object, value: &str) -> Rule {
    const NAME: &str = "istio.io/dry-run";
    let name = format!("{}/{}", object.meta.namespace, object.meta.name);
    let Spec::AuthorizationPolicy(policy) = &object.spec else {
        return Err(Violation::from(format!("{name} has unsupported annotation {NAME}, please remove the annotation")));
    };
    let action = policy.action();
    if !matches!(action, Action::Allow | Action::Deny) {
        let found = action.as_str_name();
        return Err(Violation::from(format!(
            "the annotation {NAME} currently only supports action ALLOW/DENY, found action {found} in {name}"
        )));
    }
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(()),
        _ => Err(Violation::from(format!("{name} has annotation {NAME} with invalid value ({value})"))),
    }
}

#[cfg(test)]
mod tests;
