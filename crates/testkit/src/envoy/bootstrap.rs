//! Bootstrap of an Envoy that gets everything from one ADS server.

use std::path::Path;

use serde_json::{Value, json};

/// Variant of the xDS transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdsTransport {
    Sotw,
    Delta,
}

/// Node and servers of an Envoy.
pub struct Bootstrap {
    /// Port of the ADS server on 127.0.0.1.
    pub ads_port: u16,
    pub transport: XdsTransport,
    /// `type~ip~pod.ns~domain`.
    pub node_id: String,
    pub cluster: String,
    pub metadata: Value,
    /// `{region, zone, sub_zone}`, or null.
    pub locality: Value,
    /// Port of the SDS server on 127.0.0.1; without it Envoy has no certificates.
    pub sds_port: Option<u16>,
}

impl Bootstrap {
    /// A sidecar with the metadata of the injector.
    pub fn sidecar(ads_port: u16, transport: XdsTransport, name: &str, namespace: &str, labels: Value) -> Bootstrap {
        Self::node("sidecar", ads_port, transport, name, namespace, labels)
    }

    /// A gateway. Gateway selectors match its labels.
    pub fn router(ads_port: u16, transport: XdsTransport, name: &str, namespace: &str, labels: Value) -> Bootstrap {
        Self::node("router", ads_port, transport, name, namespace, labels)
    }

    fn node(
        kind: &str,
        ads_port: u16,
        transport: XdsTransport,
        name: &str,
        namespace: &str,
        labels: Value,
    ) -> Bootstrap {
        Bootstrap {
            ads_port,
            transport,
            node_id: format!("{kind}~127.0.0.1~{name}.{namespace}~{namespace}.svc.cluster.local"),
            cluster: format!("{name}.{namespace}"),
            metadata: json!({
                "NAME": name,
                "NAMESPACE": namespace,
                "CLUSTER_ID": "Kubernetes",
                "ISTIO_VERSION": "1.29.6",
                "INSTANCE_IPS": "127.0.0.1",
                "INTERCEPTION_MODE": "NONE",
                "LABELS": labels,
            }),
            locality: Value::Null,
            sds_port: None,
        }
    }

    /// The bootstrap with a Unix socket instead of the ADS port.
    pub fn over_socket(&self, socket: &Path) -> Value {
        let mut bootstrap = self.json();
        let endpoint = "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
        match bootstrap.pointer_mut(endpoint) {
            Some(address) => *address = json!({"pipe": {"path": socket}}),
            None => panic!("the bootstrap has no ADS endpoint"),
        }
        bootstrap
    }

    pub(super) fn json(&self) -> Value {
        let mut node = json!({"id": self.node_id, "cluster": self.cluster, "metadata": self.metadata});
        if !self.locality.is_null() {
            node["locality"] = self.locality.clone();
        }
        let api_type = match self.transport {
            XdsTransport::Sotw => "GRPC",
            XdsTransport::Delta => "DELTA_GRPC",
        };
        // Envoy's default waits up to 30 s between attempts.
        let back_off = json!({"base_interval": "0.05s", "max_interval": "0.2s"});
        let grpc = json!({"cluster_name": "xds-grpc", "retry_policy": {"retry_back_off": back_off}});
        let ads = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
        json!({
            "node": node,
            "dynamic_resources": {
                "ads_config": {
                    "api_type": api_type,
                    "transport_api_version": "V3",
                    "set_node_on_first_message_only": true,
                    "grpc_services": [{"envoy_grpc": grpc}],
                },
                "cds_config": ads.clone(),
                "lds_config": ads,
            },
            "static_resources": {"clusters": self.clusters()},
        })
    }

    fn clusters(&self) -> Value {
        let ads = grpc_cluster("xds-grpc", self.ads_port);
        std::iter::once(ads).chain(self.sds_port.map(|port| grpc_cluster("sds-grpc", port))).collect()
    }
}

fn grpc_cluster(name: &str, port: u16) -> Value {
    let http = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    });
    let endpoint = json!({"endpoint": {"address": address("127.0.0.1", port)}});
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http,
        },
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    })
}

/// A socket address in Envoy's format.
pub(super) fn address(ip: &str, port: u16) -> Value {
    json!({"socket_address": {"address": ip, "port_value": port}})
}
