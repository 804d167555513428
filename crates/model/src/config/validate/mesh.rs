//! Rules of MeshConfig, the proxy settings in it, and MeshNetworks.

use api::istio::mesh::v1alpha1::network::istio_network_gateway::Gw;
use api::istio::mesh::v1alpha1::network::network_endpoints::Ne;
use api::istio::mesh::v1alpha1::private_key_provider::Provider as KeyProvider;
use api::istio::mesh::v1alpha1::proxy_config::{ClusterName, ConnectionSettings};
use api::istio::mesh::v1alpha1::tracing::Tracer;
use api::istio::mesh::v1alpha1::{MeshConfig, MeshNetworks, Network, PrivateKeyProvider, ProxyConfig, Tracing};
use api::istio::networking::v1alpha3::OutlierDetection;

use super::names::{self, is_dns_label, nanoseconds};
use super::report::{Report, Rule, Violation};
use super::{connection_pool, extension_provider, load_balancer, tls};

const ECDH_CURVES: &[&str] = &["P-224", "P-256", "P-521", "P-384", "X25519", "X25519Kyber768Draft00", "X25519MLKEM768"];
const HOUR: i128 = 3_600_000_000_000;

pub(super) fn config(mesh: &MeshConfig, report: &mut Report) {
    report.within("proxyListenPort", |report| report.check(names::port(mesh.proxy_listen_port)));
    report.within("connectTimeout", |report| report.check(connect_timeout(mesh)));
    let detection = mesh.protocol_detection_timeout.as_ref().map_or(0, nanoseconds);
    report.within("protocolDetectionTimeout", |report| {
        report.error_if(detection % 1_000_000 != 0, "only durations to ms precision are supported");
    });
    match &mesh.default_config {
        None => report.error("missing default config"),
        Some(config) => report.within("defaultConfig", |report| proxy_config(config, report)),
    }
    // Outlier detection is set per DestinationRule, so it is assumed here.
    report.given("localityLbSetting", mesh.locality_lb_setting.as_ref(), |report, setting| {
        load_balancer::locality(setting, true, report);
    });
    report.given("zoneAwareLbSetting", mesh.zone_aware_lb_setting.as_ref(), |report, setting| {
        load_balancer::zone_aware(setting, true, report);
    });
    report.each("serviceSettings", &mesh.service_settings, |report, settings| {
        for host in &settings.hosts {
            report.check(names::wildcard_domain(host));
        }
    });
    report.within("trustDomain", |report| report.check(trust_domain(&mesh.trust_domain)));
    report.each("trustDomainAliases", &mesh.trust_domain_aliases, |report, alias| report.check(trust_domain(alias)));
    extension_provider::check(&mesh.extension_providers, report);
    tls_settings(mesh, report);
    default_traffic_policy(mesh, report);
}

fn connect_timeout(mesh: &MeshConfig) -> Rule {
    let timeout = mesh.connect_timeout.unwrap_or_default();
    names::duration(&timeout)?;
    match nanoseconds(&timeout) > HOUR {
        true => Err(Violation::from("time must be >1ms and <1h".to_owned())),
        false => Ok(()),
    }
}

fn trust_domain(domain: &str) -> Rule {
    let labels = domain.strip_suffix('.').unwrap_or(domain);
    match domain {
        "" => Err(Violation::from("empty domain name not allowed".to_owned())),
        _ if labels.split('.').all(is_dns_label) => Ok(()),
        _ => Err(Violation::from(format!("trust domain name {domain:?} invalid"))),
    }
}

fn tls_settings(mesh: &MeshConfig, report: &mut Report) {
    let curves = mesh.mesh_m_tls.as_ref().is_some_and(|tls| !tls.ecdh_curves.is_empty());
    report.error_if(curves, "mesh TLS does not support ECDH curves configuration");
    report.given("tlsDefaults", mesh.tls_defaults.as_ref(), |report, defaults| {
        let known = |curve: &str| curve.is_empty() || ECDH_CURVES.contains(&curve);
        let messages = ["detected unrecognized ECDH curves", "detected duplicate ECDH curves"];
        tls::listed(&defaults.ecdh_curves, known, messages, report);
    });
}

fn default_traffic_policy(mesh: &MeshConfig, report: &mut Report) {
    report.given("defaultTrafficPolicy", mesh.default_traffic_policy.as_ref(), |report, policy| {
        report.given("connectionPool", policy.connection_pool.as_ref(), connection_pool::check);
        report.given("outlierDetection", policy.outlier_detection.as_ref(), |report, outlier: &OutlierDetection| {
            connection_pool::outlier_detection(report, outlier);
        });
    });
}

pub(super) fn proxy_config(config: &ProxyConfig, report: &mut Report) {
    report.error_if(config.config_path.is_empty(), "config path must be set");
    report.error_if(config.binary_path.is_empty(), "binary path must be set");
    match &config.cluster_name {
        Some(ClusterName::ServiceCluster(name)) => {
            report.error_if(name.is_empty(), "service cluster must be specified")
        }
        Some(ClusterName::TracingServiceName(_)) => {}
        None => report.error("oneof service cluster or tracing service name must be specified"),
    }
    report.within("drainDuration", |report| report.check(drain_duration(config)));
    match config.discovery_address.as_str() {
        "" => report.error("discovery address must be set to the proxy discovery service"),
        address => report.within("discoveryAddress", |report| report.check(names::proxy_address(address))),
    }
    report.given("tracing", config.tracing.as_ref(), tracing);
    addresses(config, report);
    report.within("proxyAdminPort", |report| report.check(names::port(config.proxy_admin_port)));
    report.error_if(
        !matches!(config.control_plane_auth_policy, 0 | 1),
        format_args!("unrecognized control plane auth policy {}", config.control_plane_auth_policy),
    );
    report.within("statusPort", |report| report.check(names::port(config.status_port)));
    report.given("privateKeyProvider", config.private_key_provider.as_ref(), private_key_provider);
    report.given("connectionSettings", config.connection_settings.as_ref(), connection_settings);
    report.warn_if(
        config.proxy_metadata.contains_key("ISTIO_META_DNS_AUTO_ALLOCATE"),
        "'ISTIO_META_DNS_AUTO_ALLOCATE' is deprecated; services get addresses by themselves",
    );
}

fn drain_duration(config: &ProxyConfig) -> Rule {
    let drain = config.drain_duration.unwrap_or_default();
    names::duration(&drain)?;
    match drain.nanos {
        0 => Ok(()),
        _ => Err(Violation::from("drain time only supports durations to seconds precision".to_owned())),
    }
}

/// Addresses of services that proxies report to, if given.
fn addresses(config: &ProxyConfig, report: &mut Report) {
    let of = |service: Option<&api::istio::mesh::v1alpha1::RemoteService>| {
        service.map_or("", |it| it.address.as_str()).to_owned()
    };
    let given = [
        ("statsdUdpAddress", config.statsd_udp_address.clone()),
        ("envoyMetricsServiceAddress", config.envoy_metrics_service_address.clone()),
        ("envoyMetricsService.address", of(config.envoy_metrics_service.as_ref())),
        ("envoyAccessLogService.address", of(config.envoy_access_log_service.as_ref())),
    ];
    for (name, address) in given.into_iter().filter(|(_, address)| !address.is_empty()) {
        report.within(name, |report| report.check(names::proxy_address(&address)));
    }
}

fn tracing(report: &mut Report, tracing: &Tracing) {
    let on_host = |address: &str| names::proxy_address(&address.replacen("$(HOST_IP)", "127.0.0.1", 1));
    match &tracing.tracer {
        Some(Tracer::Zipkin(it)) => report.within("zipkin", |report| report.check(on_host(&it.address))),
        Some(Tracer::Datadog(it)) => report.within("datadog", |report| report.check(on_host(&it.address))),
        Some(Tracer::Lightstep(it)) => report.within("lightstep", |report| {
            report.check(names::proxy_address(&it.address));
            report.error_if(it.access_token.is_empty(), "access token is required");
        }),
        _ => {}
    }
    report.given("tlsSettings", tracing.tls_settings.as_ref(), |report, settings| tls::client("", settings, report));
}

fn private_key_provider(report: &mut Report, provider: &PrivateKeyProvider) {
    let delay = match &provider.provider {
        None => return report.error("private key provider configuration is required"),
        Some(KeyProvider::Cryptomb(it)) => it.poll_delay.as_ref(),
        Some(KeyProvider::Qat(it)) => it.poll_delay.as_ref(),
    };
    match delay {
        None => report.error("pollDelay is required"),
        Some(delay) => report.error_if(nanoseconds(delay) == 0, "pollDelay must be non zero"),
    }
}

fn connection_settings(report: &mut Report, settings: &ConnectionSettings) {
    let durations = [
        ("http_idle_timeout", &settings.http_idle_timeout),
        ("http_max_connection_duration", &settings.http_max_connection_duration),
        ("http_drain_timeout", &settings.http_drain_timeout),
        ("http_request_timeout", &settings.http_request_timeout),
        ("http_request_headers_timeout", &settings.http_request_headers_timeout),
        ("http_stream_idle_timeout", &settings.http_stream_idle_timeout),
        ("http_max_stream_duration", &settings.http_max_stream_duration),
    ];
    for (name, duration) in durations {
        let negative = duration.as_ref().is_some_and(|duration| nanoseconds(duration) < 0);
        report.error_if(negative, format_args!("{name} must be non-negative"));
    }
    let least = [
        (
            "listener_per_connection_buffer_limit_bytes",
            settings.listener_per_connection_buffer_limit_bytes,
            0,
            "non-negative",
        ),
        (
            "cluster_per_connection_buffer_limit_bytes",
            settings.cluster_per_connection_buffer_limit_bytes,
            0,
            "non-negative",
        ),
        ("http_max_concurrent_streams", settings.http_max_concurrent_streams, 1, "positive"),
        ("http2_initial_stream_window_size", settings.http2_initial_stream_window_size, 65535, "at least 65535"),
        (
            "http2_initial_connection_window_size",
            settings.http2_initial_connection_window_size,
            65535,
            "at least 65535",
        ),
        ("listener_connection_limit", settings.listener_connection_limit, 1, "positive"),
        ("global_downstream_connection_limit", settings.global_downstream_connection_limit, 1, "positive"),
    ];
    for (name, value, least, wanted) in least {
        let low = value.is_some_and(|value| i64::from(value) < least);
        report.error_if(low, format_args!("{name} must be {wanted}"));
    }
}

pub(super) fn networks(networks: &MeshNetworks, report: &mut Report) {
    for (name, it) in &networks.networks {
        report.within(format_args!("networks[{name:?}]"), |report| network(it, report));
    }
}

fn network(network: &Network, report: &mut Report) {
    report.each("endpoints", &network.endpoints, |report, endpoint| match &endpoint.ne {
        Some(Ne::FromCidr(block)) => report.check(names::subnet(block)),
        Some(Ne::FromRegistry(name)) => {
            report.error_if(!is_dns_label(name), format_args!("invalid registry name: {name}"))
        }
        None => {}
    });
    report.each("gateways", &network.gateways, |report, gateway| {
        match &gateway.gw {
            Some(Gw::RegistryServiceName(name)) => report.check(names::fqdn(name)),
            // Host names are allowed, as by default in upstream.
            Some(Gw::Address(address)) => report.error_if(
                !names::is_ip(address) && names::fqdn(address).is_err(),
                format_args!("{address} is not a valid IP address or DNS name"),
            ),
            None => {}
        }
        report.check(names::port(gateway.port));
    });
}
