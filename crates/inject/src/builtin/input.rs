//! The input that all built-in templates render from.

use std::collections::BTreeMap;

use api::istio::mesh::v1alpha1::mesh_config::inbound_traffic_policy::Mode;
use api::istio::mesh::v1alpha1::proxy_config::InboundInterceptionMode;
use api::istio::mesh::v1alpha1::{MeshConfig, ProxyConfig};
use serde_json::Value;

use crate::annotations;
use crate::pod::{self, ContainerList, PROXY};
use crate::values::ChartValues;
use crate::workload::Workload;

/// Inputs of a template. The pod is without the parts that an earlier injection added.
pub(crate) struct RenderInput<'a> {
    pub(crate) pod: &'a Value,
    pub(crate) workload: &'a Workload,
    pub(crate) proxy_config: &'a ProxyConfig,
    pub(crate) mesh: &'a MeshConfig,
    pub(crate) values: &'a ChartValues,
    pub(crate) revision: &'a str,
    /// Whether the cluster runs native sidecars; the pod's annotation has precedence.
    pub(crate) native: bool,
    pub(crate) compliance_policy: &'a str,
    /// Environment variables that custom templates may read.
    pub(crate) environment: &'a BTreeMap<String, String>,
}

/// User and group of the proxy.
pub(crate) const PROXY_ID: i64 = 1337;

impl<'a> RenderInput<'a> {
    pub(crate) fn annotation(&self, name: &str) -> Option<&'a str> {
        pod::annotation(self.pod, name)
    }

    pub(crate) fn label(&self, name: &str) -> Option<&'a str> {
        pod::label(self.pod, name)
    }

    /// An annotation, else a value of the chart.
    pub(crate) fn setting(&self, annotation: &str, path: &str, default: &str) -> String {
        match self.annotation(annotation) {
            Some(text) => text.to_owned(),
            None => self.values.text(path, default),
        }
    }

    pub(crate) fn interception_mode(&self) -> &'a str {
        self.annotation(annotations::INTERCEPTION_MODE).unwrap_or_else(|| self.mesh_interception_mode())
    }

    /// The interception mode of the ProxyConfig; annotations are not considered.
    pub(crate) fn mesh_interception_mode(&self) -> &'static str {
        InboundInterceptionMode::try_from(self.proxy_config.interception_mode)
            .unwrap_or(InboundInterceptionMode::Redirect)
            .as_str_name()
    }

    pub(crate) fn is_tproxy(&self) -> bool {
        self.interception_mode() == "TPROXY"
    }

    pub(crate) fn is_native(&self) -> bool {
        match self.annotation(annotations::NATIVE) {
            None | Some("") => self.native,
            Some(text) => text != "false",
        }
    }

    pub(crate) fn uses_cni(&self) -> bool {
        self.values.is_set("pilot.cni.enabled")
    }

    pub(crate) fn holds_application(&self) -> bool {
        self.proxy_config.hold_application_until_proxy_starts == Some(true)
            || self.values.is_set("global.proxy.holdApplicationUntilProxyStarts")
    }

    pub(crate) fn inbound_to_localhost(&self) -> bool {
        self.mesh.inbound_traffic_policy.as_ref().is_some_and(|policy| policy.mode == i32::from(Mode::Localhost))
    }

    pub(crate) fn status_port(&self) -> String {
        self.setting(annotations::STATUS_PORT, "global.proxy.statusPort", "15020")
    }

    pub(crate) fn trust_domain(&self) -> String {
        if self.mesh.trust_domain.is_empty() {
            self.values.text("global.trustDomain", "")
        } else {
            self.mesh.trust_domain.clone()
        }
    }

    pub(crate) fn metadata_is(&self, name: &str, value: &str) -> bool {
        self.proxy_config.proxy_metadata.get(name).is_some_and(|text| text == value)
    }

    /// The user's containers, except one for the proxy.
    pub(crate) fn applications(&self) -> Vec<&'a str> {
        let all = pod::containers(self.pod, ContainerList::Containers).iter();
        all.map(|container| pod::text(container, "name")).filter(|name| *name != PROXY).collect()
    }

    /// Image of the proxy: hub, name, tag and type.
    pub(crate) fn proxy_image(&self) -> String {
        let kind = self.proxy_config.image.as_ref().map_or("", |image| image.image_type.as_str());
        self.image("global.proxy.image", kind)
    }

    /// Image of the init container.
    pub(crate) fn init_image(&self) -> String {
        self.image("global.proxy_init.image", "")
    }

    fn image(&self, path: &str, kind: &str) -> String {
        let name = self.values.given(path).unwrap_or_else(|| "proxyv2".to_owned());
        let kind = match self.annotation(annotations::IMAGE_TYPE) {
            Some(kind) => kind.to_owned(),
            None if kind.is_empty() => self.values.text("global.variant", ""),
            None => kind.to_owned(),
        };
        let tag = tag_of_type(&self.values.text("global.tag", ""), &kind);
        format!("{}/{name}:{tag}", self.values.text("global.hub", ""))
    }
}

/// A tag for a type of image: the type replaces one that the tag has already.
fn tag_of_type(tag: &str, kind: &str) -> String {
    if kind.is_empty() {
        return tag.to_owned();
    }
    let plain = tag.strip_suffix("-distroless").or_else(|| tag.strip_suffix("-debug")).unwrap_or(tag);
    if kind == "default" { plain.to_owned() } else { format!("{plain}-{kind}") }
}

#[cfg(test)]
mod tests {
    use super::tag_of_type;

    #[test]
    fn the_type_of_an_image_replaces_that_of_the_tag() {
        for (tag, kind, expected) in [
            ("1.2", "", "1.2"),
            ("1.2", "debug", "1.2-debug"),
            ("1.2-distroless", "debug", "1.2-debug"),
            ("1.2-debug", "default", "1.2"),
            ("1.2-own", "distroless", "1.2-own-distroless"),
        ] {
            assert_eq!(tag_of_type(tag, kind), expected);
        }
    }
}
