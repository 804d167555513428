//! What is likely wrong although each object is good by itself: references that lead nowhere, objects that are in each
//! other's way. Codes and wording are those of `istioctl analyze`, which users look up. To add a check: a function
//! over the snapshot in one of the files, and a row in `CHECKS`.

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

/// One thing that is likely wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Upstream's code, such as `IST0101`; `PIL0001` and so on where only we look.
    pub code: &'static str,
    pub severity: Severity,
    /// The object that it is about, as `VirtualService shop/cart`, or the file.
    pub origin: Str,
    pub location: Option<FileLocation>,
    pub message: String,
}

/// A check and what it looks for.
type AnalysisCheck = fn(&Snapshot, &mut Vec<Finding>);

/// Checks with upstream's names, in the order of its list; then those that only we have.
pub const CHECKS: &[(&str, &str, AnalysisCheck)] = &[
    ("destinationrule.CaCertificateAnalyzer", "Servers whose certificate nobody checks", destinations::certificates),
    ("destinationrule.UnknownHostAnalyzer", "DestinationRules for hosts that are not there", destinations::hosts),
    ("envoyfilter.EnvoyPatchAnalyzer", "Patches that may not be applied", patches::operations),
    ("gateway.ConflictingGatewayAnalyzer", "Gateways that claim the same port and hosts", clashes::gateways),
    ("schema.ValidationAnalyzer", "Objects that break the rules of their kind", schema::problems),
    ("serviceentry.ConflictingProtocolAnalyzer", "Ports with several protocols", clashes::protocols),
    ("sidecar.SelectorAnalyzer", "Sidecars for the same workloads", clashes::sidecars),
    ("telemetry.DefaultSelectorAnalyzer", "Several Telemetries for a whole namespace", clashes::telemetries),
    ("virtualservice.ConflictingMeshGatewayHostsAnalyzer", "Routes for the same host", clashes::mesh_hosts),
    ("virtualservice.DestinationHostAnalyzer", "Routes to hosts and ports that are not there", routes::destinations),
    ("virtualservice.DestinationRuleAnalyzer", "Routes to subsets that are not there", routes::subsets),
    ("virtualservice.GatewayAnalyzer", "Routes of gateways that are not there", routes::gateways),
    ("authorizationpolicy.PathSpellingAnalyzer", "Denied paths that other spellings pass by", spellings::paths),
    ("authorizationpolicy.HostSpellingAnalyzer", "Denied hosts that other spellings pass by", spellings::hosts),
    ("virtualservice.ForeignHostAnalyzer", "Routes for hosts of other namespaces", ownership::foreign_hosts),
];

/// Everything that is likely wrong with a mesh, worst first, then by object.
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

    /// The level's name, as upstream spells it.
    pub fn level(&self) -> &'static str {
        match self.severity {
            Severity::Info => "Info",
            Severity::Warning => "Warning",
            Severity::Error => "Error",
        }
    }

    /// The finding as upstream's JSON.
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

/// A list as Go prints one.
fn listed<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests;
