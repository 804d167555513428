//! GatewayClass, Gateway and ListenerSet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LabelSelector, ParentReference, gateway_group};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClass {
    pub controller_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gateway {
    pub gateway_class_name: String,
    pub listeners: Vec<Listener>,
    pub addresses: Vec<GatewayAddress>,
    pub infrastructure: Infrastructure,
    pub allowed_listeners: Option<AllowedListeners>,
    pub tls: GatewayTls,
}

/// Listeners that are added to a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerSet {
    pub parent_ref: ParentReference,
    #[serde(default)]
    pub listeners: Vec<Listener>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    pub name: String,
    pub hostname: Option<String>,
    /// 0 if a ListenerSet uses the default of the protocol.
    pub port: u16,
    pub protocol: String,
    pub tls: Option<ListenerTls>,
    pub allowed_routes: AllowedRoutes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTls {
    /// `Terminate` if unset.
    pub mode: Option<String>,
    pub certificate_refs: Vec<SecretReference>,
    pub options: BTreeMap<String, String>,
}

/// A reference to a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SecretReference {
    #[serde(default)]
    pub group: String,
    #[serde(default = "secret_kind")]
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
}

/// Which routes may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    pub namespaces: NamespaceRule,
    pub kinds: Vec<RouteKind>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteKind {
    #[serde(default = "gateway_group")]
    pub group: String,
    pub kind: String,
}

/// Which ListenerSets may attach to a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    pub namespaces: NamespaceRule,
}

/// Allowed namespaces: `All`, `Same`, `None`, or `Selector` with a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceRule {
    pub from: Option<String>,
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GatewayAddress {
    #[serde(rename = "type", default = "address_type")]
    pub kind: String,
    #[serde(default)]
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// Labels of everything that is deployed for the Gateway.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of everything that is deployed for the Gateway.
    pub annotations: Option<BTreeMap<String, String>>,
    pub parameters_ref: Option<ParametersReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ParametersReference {
    pub group: String,
    pub kind: String,
    pub name: String,
}

/// TLS settings of the whole gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    pub frontend: Option<Frontend>,
    pub backend: GatewayBackendTls,
}

/// Client validation: the default, and overrides by port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Frontend {
    pub default: FrontendTls,
    pub per_port: Vec<PortTls>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PortTls {
    pub port: u16,
    pub tls: FrontendTls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontendTls {
    pub validation: Option<ClientValidation>,
}

/// How client certificates are verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    pub ca_certificate_refs: Vec<SecretReference>,
    pub mode: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayBackendTls {
    pub client_certificate_ref: Option<SecretReference>,
}

impl GatewayTls {
    /// Client validation on this port.
    pub fn frontend(&self, port: u16) -> Option<&ClientValidation> {
        let frontend = self.frontend.as_ref()?;
        let own = frontend.per_port.iter().find(|p| p.port == port).map(|p| &p.tls);
        own.unwrap_or(&frontend.default).validation.as_ref()
    }

    /// All client validations, of any port.
    pub fn validations(&self) -> impl Iterator<Item = &ClientValidation> {
        let tls =
            self.frontend.iter().flat_map(|f| std::iter::once(&f.default).chain(f.per_port.iter().map(|p| &p.tls)));
        tls.filter_map(|tls| tls.validation.as_ref())
    }
}

fn secret_kind() -> String {
    "Secret".to_owned()
}

fn address_type() -> String {
    "IPAddress".to_owned()
}
