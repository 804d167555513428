//! Default mesh config: upstream's defaults of a standard install.

use api::Duration;
use api::istio::mesh::v1alpha1::mesh_config::extension_provider::{
    EnvoyFileAccessLogProvider, PrometheusMetricsProvider, Provider, StackdriverProvider,
};
use api::istio::mesh::v1alpha1::mesh_config::{
    DefaultProviders, ExtensionProvider, InboundTrafficPolicy, IngressControllerMode, OutboundTrafficPolicy,
    inbound_traffic_policy, outbound_traffic_policy,
};
use api::istio::mesh::v1alpha1::proxy_config::ClusterName;
use api::istio::mesh::v1alpha1::{AuthenticationPolicy, MeshConfig, MeshNetworks, ProxyConfig};
use api::istio::networking::v1alpha3::LocalityLoadBalancerSetting;

use crate::conflict::ConflictSettings;
use crate::hashed::Hashed;
use crate::service::Registry;
use crate::settings::{Knobs, Settings};

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mesh: Hashed::from_message(default_mesh()),
            networks: Hashed::from_message(MeshNetworks::default()),
            knobs: Knobs::default(),
            domain: "cluster.local".into(),
            cluster: Registry::Kubernetes.as_str().into(),
            conflicts: ConflictSettings::default(),
        }
    }
}

/// Mesh config of a standard install.
pub fn default_mesh() -> MeshConfig {
    MeshConfig {
        enable_tracing: true,
        protocol_detection_timeout: seconds(0),
        ingress_service: "istio-ingressgateway".to_owned(),
        ingress_controller_mode: IngressControllerMode::Strict.into(),
        ingress_class: "istio".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        enable_auto_mtls: Some(true),
        outbound_traffic_policy: Some(OutboundTrafficPolicy {
            mode: outbound_traffic_policy::Mode::AllowAny.into(),
            ..OutboundTrafficPolicy::default()
        }),
        inbound_traffic_policy: Some(InboundTrafficPolicy { mode: inbound_traffic_policy::Mode::Passthrough.into() }),
        locality_lb_setting: Some(LocalityLoadBalancerSetting {
            enabled: Some(true),
            ..LocalityLoadBalancerSetting::default()
        }),
        default_config: Some(default_proxy_config()),
        root_namespace: "istio-system".to_owned(),
        proxy_listen_port: 15001,
        proxy_inbound_listen_port: 15006,
        connect_timeout: seconds(10),
        default_service_export_to: everyone(),
        default_virtual_service_export_to: everyone(),
        default_destination_rule_export_to: everyone(),
        dns_refresh_rate: seconds(60),
        enable_prometheus_merge: Some(true),
        default_providers: Some(DefaultProviders::default()),
        extension_providers: extension_providers(),
        ..MeshConfig::default()
    }
}

/// The default ProxyConfig.
pub fn default_proxy_config() -> ProxyConfig {
    ProxyConfig {
        config_path: "./etc/istio/proxy".to_owned(),
        binary_path: "/usr/local/bin/envoy".to_owned(),
        cluster_name: Some(ClusterName::ServiceCluster("istio-proxy".to_owned())),
        drain_duration: seconds(45),
        termination_drain_duration: seconds(5),
        proxy_admin_port: 15000,
        control_plane_auth_policy: AuthenticationPolicy::MutualTls.into(),
        discovery_address: "istiod.istio-system.svc:15012".to_owned(),
        stat_name_length: 189,
        status_port: 15020,
        ..ProxyConfig::default()
    }
}

/// Built-in extension providers.
fn extension_providers() -> Vec<ExtensionProvider> {
    let stdout = EnvoyFileAccessLogProvider { path: "/dev/stdout".to_owned(), ..EnvoyFileAccessLogProvider::default() };
    [
        ("prometheus", Provider::Prometheus(PrometheusMetricsProvider::default())),
        ("stackdriver", Provider::Stackdriver(StackdriverProvider::default())),
        ("envoy", Provider::EnvoyFileAccessLog(stdout)),
    ]
    .into_iter()
    .map(|(name, provider)| ExtensionProvider { name: name.to_owned(), provider: Some(provider) })
    .collect()
}

fn everyone() -> Vec<String> {
    vec!["*".to_owned()]
}

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}
