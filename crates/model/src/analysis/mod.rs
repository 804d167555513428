//! Likely mistakes in valid objects: missing references and conflicts between objects. Codes and messages are those of
//! `istioctl analyze`. To add a check: a function over the snapshot in one of the files, and a row in `CHECKS`.

mod accounts;
mod clashes;
mod destinations;
mod findings;
mod gateway_ports;
mod gateways;
mod identities;
mod injection;
mod mesh;
mod ownership;
mod patches;
mod routes;
mod schema;
mod selectors;
mod services;
mod spellings;

use std::fmt;

use api::istio::networking::v1alpha3::VirtualService;
use serde_json::{Value, json};

use self::findings::{Findings, joined};
use crate::config::problem::{FileLocation, Problem, ProblemCode, Severity, Subject};
use crate::config::{Kind, Meta, Object, Spec};
use crate::snapshot::Snapshot;
use crate::suggest;

/// The source of problems that are findings of a running server.
pub const SOURCE: &str = "analysis";

/// One likely mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Upstream's code, such as `IST0101`, or `PIL0001` for checks that upstream does not have.
    pub code: ProblemCode,
    pub severity: Severity,
    pub location: Option<FileLocation>,
    /// The path of the value in the object, such as `spec.http[0].timeout`; empty if it is about the whole object.
    pub field: String,
    pub about: Subject,
    pub message: String,
}

type AnalysisCheck = fn(&Snapshot, &mut Findings);

/// What a check needs to know. A check whose inputs are not known is left out: it would call everything missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckInput {
    /// Configuration objects only.
    Objects,
    /// All services.
    Services,
    /// All workloads.
    Workloads,
    /// The problems that sources reported.
    Problems,
}

use CheckInput::{Objects, Problems, Services, Workloads};

/// Name, description, inputs and function of each check: those of upstream in its order, then ours.
pub const CHECKS: &[(&str, &str, CheckInput, AnalysisCheck)] = &[
    (
        "auth.AuthorizationPoliciesAnalyzer",
        "Policies for missing workloads, from missing namespaces and service accounts",
        Workloads,
        |snapshot, found| {
            accounts::policy_workloads(snapshot, found);
            accounts::policy_sources(snapshot, found);
        },
    ),
    (
        "deployment.MultiServiceAnalyzer",
        "Services of one workload that disagree",
        Workloads,
        services::shared_workloads,
    ),
    (
        "destinationrule.CaCertificateAnalyzer",
        "Server certificates that are not verified",
        Objects,
        destinations::certificates,
    ),
    ("destinationrule.SubsetSelectPodAnalyzer", "Subsets without a workload", Workloads, selectors::subsets),
    ("destinationrule.UnknownHostAnalyzer", "DestinationRules for missing hosts", Services, destinations::hosts),
    ("envoyfilter.EnvoyPatchAnalyzer", "EnvoyFilter patches that may not be applied", Objects, patches::operations),
    ("gateway.CertificateAnalyzer", "Gateways that share a certificate", Objects, gateways::certificates),
    ("gateway.ConflictingGatewayAnalyzer", "Gateways with the same port and hosts", Objects, clashes::gateways),
    (
        "gateway.IngressGatewayPortAnalyzer",
        "Gateways without workloads, or without a Service port",
        Workloads,
        gateways::ports,
    ),
    ("gateway.SecretAnalyzer", "Gateways with missing or invalid Secrets", Workloads, gateways::secrets),
    ("injection.Analyzer", "Namespaces and pods without a sidecar", Workloads, injection::sidecars),
    ("meshnetworks.MeshNetworksAnalyzer", "Networks of unknown registries", Services, mesh::networks),
    ("schema.ValidationAnalyzer", "Objects that are invalid", Problems, schema::problems),
    ("service.PortNameAnalyzer", "Service ports whose names have no protocol", Services, services::port_names),
    ("serviceentry.Analyzer", "TCP ports of ServiceEntries without an address", Services, services::addresses),
    ("serviceentry.ConflictingProtocolAnalyzer", "Ports with several protocols", Objects, clashes::protocols),
    ("sidecar.SelectorAnalyzer", "Several Sidecars for the same workloads", Workloads, clashes::sidecars),
    ("telemetry.DefaultSelectorAnalyzer", "Several Telemetries for a whole namespace", Objects, clashes::telemetries),
    ("telemetry.ProviderAnalyzer", "Access logs without a provider", Objects, mesh::providers),
    (
        "telemetry.SelectorAnalyzer",
        "Telemetries without a workload, or for the same one",
        Workloads,
        selectors::telemetries,
    ),
    (
        "virtualservice.ConflictingMeshGatewayHostsAnalyzer",
        "Several VirtualServices for the same host",
        Objects,
        clashes::mesh_hosts,
    ),
    ("virtualservice.DestinationHostAnalyzer", "Routes to missing hosts and ports", Services, routes::destinations),
    ("virtualservice.DestinationRuleAnalyzer", "Routes to missing subsets", Objects, routes::subsets),
    ("virtualservice.GatewayAnalyzer", "VirtualServices of missing gateways", Objects, routes::gateways),
    (
        "virtualservice.JWTClaimRouteAnalyzer",
        "Routes by claims that no gateway checks",
        Workloads,
        accounts::claim_routes,
    ),
    ("authorizationpolicy.PathSpellingAnalyzer", "Denied paths that other spellings bypass", Objects, spellings::paths),
    ("authorizationpolicy.HostSpellingAnalyzer", "Denied hosts that other spellings bypass", Objects, spellings::hosts),
    (
        "authorizationpolicy.GatewayPortAnalyzer",
        "Policies about ports that the gateway does not listen on",
        Services,
        gateway_ports::listeners,
    ),
    (
        "authorizationpolicy.PlainTextIdentityAnalyzer",
        "Identities denied where plain text is accepted",
        Objects,
        identities::in_plain_text,
    ),
    (
        "virtualservice.ForeignHostAnalyzer",
        "VirtualServices for hosts of other namespaces",
        Services,
        ownership::foreign_hosts,
    ),
];

/// All findings, most severe first, then by code and object.
pub fn analyze(snapshot: &Snapshot) -> Vec<Finding> {
    analyze_with(snapshot, |_| true)
}

/// The findings of checks whose inputs are known, within limits that `findings` sets.
pub fn analyze_with(snapshot: &Snapshot, is_known: impl Fn(CheckInput) -> bool) -> Vec<Finding> {
    let mut found = Findings::default();
    for (name, _, _, check) in CHECKS.iter().filter(|(_, _, input, _)| is_known(*input)) {
        found.begin(name);
        check(snapshot, &mut found);
    }
    found.sorted()
}

impl Finding {
    fn new(code: ProblemCode, severity: Severity, object: &Object, message: String) -> Finding {
        let (location, field, about) = (object.meta.location.clone(), String::new(), object.key().into());
        Finding { code, severity, location, field, about, message }
    }

    fn error(code: ProblemCode, object: &Object, message: String) -> Finding {
        Finding::new(code, Severity::Error, object, message)
    }

    fn warning(code: ProblemCode, object: &Object, message: String) -> Finding {
        Finding::new(code, Severity::Warning, object, message)
    }

    /// Sets the path of the value.
    fn at(mut self, field: impl Into<String>) -> Finding {
        self.field = field.into();
        self
    }

    /// The object, such as `VirtualService shop/cart`, or the file.
    pub fn origin(&self) -> String {
        self.about.to_string()
    }

    /// The finding as a problem of its object.
    pub fn into_problem(self) -> Problem {
        Problem::new(self.severity, self.about, self.message.into()).coded(self.code).at(self.location)
    }

    /// Upstream's name of the severity.
    pub fn level(&self) -> &'static str {
        match self.severity {
            Severity::Info => "Info",
            Severity::Warning => "Warning",
            Severity::Error => "Error",
        }
    }

    /// The finding as JSON, in upstream's format.
    pub fn to_json(&self) -> Value {
        let address = "https://istio.io/latest/docs/reference/config/analysis";
        let code = self.code.as_str();
        let mut fields = json!({"code": code});
        if code.starts_with("IST") {
            fields["documentationUrl"] = json!(format!("{address}/{}/", code.to_ascii_lowercase()));
        }
        fields["level"] = json!(self.level());
        fields["message"] = json!(self.message);
        fields["origin"] = json!(self.origin());
        if let Some(location) = &self.location {
            fields["reference"] = json!(location.to_string());
        }
        fields
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match (&self.location, &self.about) {
            (Some(location), Subject::File(file)) if location.file == *file => location.to_string(),
            (Some(location), about) => format!("{about} {location}"),
            (None, about) => about.to_string(),
        };
        write!(f, "{} [{}] ({place}) {}", self.level(), self.code, self.message)
    }
}

fn virtual_services(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &VirtualService)> {
    snapshot.objects.of(Kind::VirtualService).filter_map(|object| match &object.spec {
        Spec::VirtualService(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// The end of a message: the known host that a missing one resembles, in its short form or completed.
fn similar_host(snapshot: &Snapshot, written: &str, completed: &str) -> String {
    let known = snapshot.services.iter().map(|service| service.hostname.as_str());
    let meant = match written.contains('.') {
        true => suggest::similar(completed, known),
        false => suggest::similar(written, known.filter_map(|host| host.split('.').next())),
    };
    meant.map_or_else(String::new, |meant| format!(" Did you mean {meant:?}?"))
}

/// `namespace/name`.
fn full_name(meta: &Meta) -> String {
    format!("{}/{}", meta.namespace, meta.name)
}

/// A list in Go's format, of its first items.
fn listed<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", joined(items, " "))
}

#[cfg(test)]
mod tests;
