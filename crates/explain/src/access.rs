//! What the proxy of an endpoint decides about a request, and its text. `arrival` fills it.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

/// What one proxy does with the request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Arrival {
    pub proxy: String,
    pub address: String,
    pub mutual_tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_chain: Option<String>,
    /// Objects that decide which connections are accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peer_authentications: Vec<String>,
    /// In the order of the filters.
    pub checks: Vec<AccessCheck>,
    pub access: Access,
}

/// One filter, and what it decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessCheck {
    pub what: String,
    /// Rules that match, or that are not met.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<MatchedRule>,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MatchedRule {
    /// The object as a path of its API, or the name in the filter.
    pub config: String,
    /// The field of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// Whether the request reaches the application.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    Allowed,
    Denied(String),
    /// It depends on what is not known here.
    Unknown(String),
}

impl MatchedRule {
    /// Splits `ns[NAMESPACE]-policy[NAME]-rule[INDEX]`, as upstream names rules.
    pub(crate) fn of(name: &str) -> MatchedRule {
        let between = |start: &str| Some(name.split_once(start)?.1.split_once(']')?.0.to_owned());
        let parts = (between("ns["), between("-policy["), between("-rule["));
        let (Some(namespace), Some(policy), Some(index)) = parts else {
            return MatchedRule { config: name.to_owned(), field: None };
        };
        let config = format!("/apis/security.istio.io/v1/namespaces/{namespace}/authorization-policy/{policy}");
        MatchedRule { config, field: Some(format!("spec.rules[{index}]")) }
    }
}

impl Arrival {
    /// Paths of all objects that are named.
    pub(crate) fn configs(&self) -> Vec<&str> {
        let of_checks = self.checks.iter().flat_map(|check| &check.rules).map(|rule| &*rule.config);
        self.peer_authentications.iter().map(|config| &**config).chain(of_checks).collect()
    }
}

impl Display for Arrival {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let by = match (&self.identity, self.mutual_tls) {
            (Some(identity), _) => format!("with mutual TLS as {identity}"),
            (None, true) => "with mutual TLS".to_owned(),
            (None, false) => "without a certificate".to_owned(),
        };
        writeln!(f, "  at {} ({}) {by}", self.proxy, self.address)?;
        self.peer_authentications.iter().try_for_each(|config| writeln!(f, "    PeerAuthentication from {config}"))?;
        self.checks.iter().try_for_each(|check| write!(f, "{check}"))?;
        match &self.access {
            Access::Allowed => writeln!(f, "    allowed"),
            Access::Denied(reason) => writeln!(f, "    denied: {reason}"),
            Access::Unknown(reason) => writeln!(f, "    not decided here: {reason}"),
        }
    }
}

impl Display for AccessCheck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "    {}", self.what)?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "      {rule}"))
    }
}

impl Display for MatchedRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field} from {}", self.config),
            None => write!(f, "from {}", self.config),
        }
    }
}
