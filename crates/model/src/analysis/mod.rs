//! Likely mistakes in valid objects: missing references and conflicts between objects. Codes and messages are those of
//! `istioctl analyze`. To add a check: a function over the snapshot in one of the files, and a row in `CHECKS`.

mod clashes;
mod destinations;
mod ownership;
mod patches;
mod routes;
mod schema;
mod spellings;

use std::fmt;

use api::istio::networking::v1alpha3::VirtualService;
use serde_json::{Value, json};

use crate::config::problem::{FileLocation, Severity};
use crate::config::{Kind, Meta, Object, Spec};
use crate::names::Str;
use crate::snapshot::Snapshot;

/// One likely mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Upstream's code, such as `IST0101`, or `PIL0001` for checks that upstream does not have.
    pub code: &'static str,
    pub severity: Severity,
    /// The object, such as `VirtualService shop/cart`, or the file.
    pub origin: Str,
    pub location: Option<FileLocation>,
    pub message: String,
}

type AnalysisCheck = fn(&Snapshot, &mut Vec<Finding>);

/// Name, description and function of each check: those of upstream in its order, then ours.
pub const CHECKS: &[(&str, &str, AnalysisCheck)] = &[
    ("destinationrule.CaCertificateAnalyzer", "Server certificates that are not verified", destinations::certificates),
    ("destinationrule.UnknownHostAnalyzer", "DestinationRules for missing hosts", destinations::hosts),
    ("envoyfilter.EnvoyPatchAnalyzer", "EnvoyFilter patches that may not be applied", patches::operations),
    ("gateway.ConflictingGatewayAnalyzer", "Gateways with the same port and hosts", clashes::gateways),
    ("schema.ValidationAnalyzer", "Objects that are invalid", schema::problems),
    ("serviceentry.ConflictingProtocolAnalyzer", "Ports with several protocols", clashes::protocols),
    ("sidecar.SelectorAnalyzer", "Several Sidecars for the same workloads", clashes::sidecars),
    ("telemetry.DefaultSelectorAnalyzer", "Several Telemetries for a whole namespace", clashes::telemetries),
    (
        "virtualservice.ConflictingMeshGatewayHostsAnalyzer",
        "Several VirtualServices for the same host",
        clashes::mesh_hosts,
    ),
    ("virtualservice.DestinationHostAnalyzer", "Routes to missing hosts and ports", routes::destinations),
    ("virtualservice.DestinationRuleAnalyzer", "Routes to missing subsets", routes::subsets),
    ("virtualservice.GatewayAnalyzer", "VirtualServices of missing gateways", routes::gateways),
    ("authorizationpolicy.PathSpellingAnalyzer", "Denied paths that other spellings bypass", spellings::paths),
    ("authorizationpolicy.HostSpellingAnalyzer", "Denied hosts that other spellings bypass", spellings::hosts),
    ("virtualservice.ForeignHostAnalyzer", "VirtualServices for hosts of other namespaces", ownership::foreign_hosts),
];

/// All findings, most severe first, then by code and object.
pub fn analyze(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for (_, _, check) in CHECKS {
        check(snapshot, &mut found);
    }
    found.sort_by(|a, b| {
        let key = |f: &Finding| (std::cmp::Reverse(f.severity), f.code, f.origin.clone(), f.message.clone());
        key(a).cmp(&key(b))
    });
    found.dedup();
    found
}

impl Finding {
    fn new(code: &'static str, severity: Severity, object: &Object, message: String) -> Finding {
        Finding {
            code,
            severity,
            origin: object.key().to_string().into(),
            location: object.meta.location.clone(),
            message,
        }
    }

    fn error(code: &'static str, object: &Object, message: String) -> Finding {
        Finding::new(code, Severity::Error, object, message)
    }

    fn warning(code: &'static str, object: &Object, message: String) -> Finding {
        Finding::new(code, Severity::Warning, object, message)
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
        let mut fields = json!({"code": self.code});
        if self.code.starts_with("IST") {
            fields["documentationUrl"] = json!(format!("{address}/{}/", self.code.to_ascii_lowercase()));
        }
        fields["level"] = json!(self.level());
        fields["message"] = json!(self.message);
        fields["origin"] = json!(&*self.origin);
        if let Some(location) = &self.location {
            fields["reference"] = json!(location.to_string());
        }
        fields
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}] ({}", self.level(), self.code, self.origin)?;
        if let Some(location) = &self.location {
            write!(f, " {location}")?;
        }
        write!(f, ") {}", self.message)
    }
}

fn virtual_services(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &VirtualService)> {
    snapshot.objects.of(Kind::VirtualService).filter_map(|object| match &object.spec {
        Spec::VirtualService(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// `namespace/name`.
fn full_name(meta: &Meta) -> String {
    format!("{}/{}", meta.namespace, meta.name)
}

/// A list in Go's format.
fn listed<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests;
