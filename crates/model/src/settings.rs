//! Mesh-wide settings that change the generated config: mesh config, networks, and the table of knobs with upstream's
//! environment variables and defaults. `main` reads them once.

use std::net::IpAddr;

use api::istio::mesh::v1alpha1::mesh_config::proxy_path_normalization::NormalizationType;
use api::istio::mesh::v1alpha1::{MeshConfig, MeshNetworks};
use ipnet::IpNet;

use crate::conflict::ConflictSettings;
use crate::hashed::Hashed;
use crate::names::{ClusterId, Namespace, Str};
use crate::service::ExportTo;

/// Mesh config with upstream's defaults filled in.
pub type Mesh = Hashed<MeshConfig>;
/// The networks of endpoints, and the gateways between networks.
pub type Networks = Hashed<MeshNetworks>;

/// Mesh-wide settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub mesh: Mesh,
    pub networks: Networks,
    pub knobs: Knobs,
    /// DNS suffix of the mesh, `cluster.local`.
    pub domain: Str,
    /// The cluster of this control plane.
    pub cluster: ClusterId,
    /// Conflict resolution between registries and between config stores.
    pub conflicts: ConflictSettings,
}

impl Settings {
    /// The namespace whose objects apply to the whole mesh.
    pub fn root_namespace(&self) -> Namespace {
        self.mesh.root_namespace.as_str().into()
    }

    pub fn default_service_export(&self) -> ExportTo {
        ExportTo::parse(&self.mesh.default_service_export_to)
    }

    pub fn default_virtual_service_export(&self) -> ExportTo {
        ExportTo::parse(&self.mesh.default_virtual_service_export_to)
    }

    pub fn default_destination_rule_export(&self) -> ExportTo {
        ExportTo::parse(&self.mesh.default_destination_rule_export_to)
    }

    /// How Envoy normalizes paths before matching.
    pub fn path_normalization(&self) -> NormalizationType {
        let wanted = self.mesh.path_normalization.unwrap_or_default().normalization();
        match wanted {
            NormalizationType::Default if self.knobs.strict_authorization => NormalizationType::DecodeAndMergeSlashes,
            NormalizationType::Default => NormalizationType::Base,
            explicit => explicit,
        }
    }
}

macro_rules! knobs {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr, $name:literal;)*) => {
        /// Settings that are read from the environment.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct Knobs {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for Knobs {
            fn default() -> Self {
                Knobs { $($field: $default,)* }
            }
        }

        impl Knobs {
            /// All environment variables.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Each environment variable with the value in effect, as a user would write it.
            pub fn shown(&self) -> Vec<(&'static str, String)> {
                vec![$(($name, self.$field.shown()),)*]
            }

            /// Reads the knobs with `look_up`. An invalid value keeps the default; its variable is returned.
            pub fn read(look_up: impl Fn(&str) -> Option<String>) -> (Knobs, Vec<&'static str>) {
                let mut knobs = Knobs::default();
                let mut invalid = Vec::new();
                $(
                    if let Some(text) = look_up($name) {
                        match <$type as Knob>::parse(&text) {
                            Some(value) => knobs.$field = value,
                            None => invalid.push($name),
                        }
                    }
                )*
                (knobs, invalid)
            }
        }
    };
}

knobs! {
    /// Send Istio's ALPN filter, which only Istio's Envoy build has.
    alpn_filter: bool = true, "PILOT_ENABLE_ALPN_FILTER";
    /// Send Istio's metadata exchange filters.
    metadata_exchange: bool = true, "PILOT_ENABLE_METADATA_EXCHANGE";
    /// Leave the ALPN name of metadata exchange out of TLS handshakes.
    disable_mx_alpn: bool = false, "PILOT_DISABLE_MX_ALPN";
    /// Add metadata for telemetry filters to clusters and endpoints.
    telemetry_label: bool = true, "PILOT_ENABLE_TELEMETRY_LABEL";
    /// Merge virtual hosts that have the same routes.
    route_collapse: bool = true, "PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION";
    /// Add host names with a trailing dot to the domains of virtual hosts.
    absolute_fqdn_domain: bool = true, "PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN";
    /// Send unhealthy endpoints too, unless outlier detection sets `minHealthPercent`.
    auto_send_unhealthy: bool = true, "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS";
    /// Send unhealthy endpoints too; Envoy does not use them unless it panics.
    send_unhealthy: bool = false, "PILOT_SEND_UNHEALTHY_ENDPOINTS";
    /// Send the endpoints of headless services by EDS, so that Envoy balances between them.
    eds_for_headless: bool = false, "PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES";
    /// Send gateways only the clusters that their routes refer to.
    filter_gateway_clusters: bool = false, "PILOT_FILTER_GATEWAY_CLUSTER_CONFIG";
    /// A Gateway selects only workloads of the same namespace.
    scope_gateway_to_namespace: bool = false, "PILOT_SCOPE_GATEWAY_TO_NAMESPACE";
    /// Gateways of other namespaces are not merged into managed gateways.
    strict_gateway_merging: bool = true, "PILOT_ENABLE_STRICT_GATEWAY_MERGING";
    /// Accept HTTP/1.0.
    http10: bool = false, "PILOT_HTTP10";
    /// Set `use_remote_address` in outbound listeners of sidecars.
    sidecar_use_remote_address: bool = false, "PILOT_SIDECAR_USE_REMOTE_ADDRESS";
    /// Pass `100-continue` headers through.
    continue_100_headers: bool = true, "ENABLE_100_CONTINUE_HEADERS";
    /// TLS settings of DestinationRules take precedence for external services.
    prefer_rule_tls_for_external: bool = true, "PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES";
    /// Apply the TLS settings of a Sidecar's ingress listeners.
    tls_on_sidecar_ingress: bool = false, "ENABLE_TLS_ON_SIDECAR_INGRESS";
    /// Serve both address families.
    dual_stack: bool = false, "ISTIO_DUAL_STACK";
    /// HTTP/3 at gateways. Not supported: only a problem is reported.
    quic_listeners: bool = false, "PILOT_ENABLE_QUIC_LISTENERS";
    /// Add Envoy's Mongo filter to ports of that protocol.
    mongo_filter: bool = true, "PILOT_ENABLE_MONGO_FILTER";
    /// Add Envoy's MySQL filter to ports of that protocol.
    mysql_filter: bool = false, "PILOT_ENABLE_MYSQL_FILTER";
    /// Add Envoy's Redis filter to ports of that protocol.
    redis_filter: bool = false, "PILOT_ENABLE_REDIS_FILTER";
    /// Percentage of requests to trace.
    trace_sampling: Percent = Percent(100), "PILOT_TRACE_SAMPLING";
    /// Jitter of Envoy's periodic DNS resolution.
    dns_jitter_ms: Milliseconds = Milliseconds(100), "PILOT_DNS_JITTER_DURATION";
    /// `udp_max_queries` of Envoy's c-ares resolver.
    dns_cares_udp_max_queries: u32 = 100, "PILOT_DNS_CARES_UDP_MAX_QUERIES";
    /// Weight localities in every cluster, not only where a DestinationRule asks for it.
    locality_weighted_lb: bool = false, "ENABLE_LOCALITY_WEIGHTED_LB_CONFIG";
    /// Apply the persistent session labels of services.
    persistent_session: bool = false, "PILOT_ENABLE_PERSISTENT_SESSION_FILTER";
    /// Do not add `-shadow` to the host of mirrored requests.
    disable_shadow_host_suffix: bool = true, "DISABLE_SHADOW_HOST_SUFFIX";
    /// ServiceEntries may select pods by labels.
    entries_select_pods: bool = true, "PILOT_ENABLE_SERVICEENTRY_SELECT_PODS";
    /// Kubernetes Services may select WorkloadEntries by labels.
    services_select_entries: bool = true, "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES";
    /// Allocate addresses for hosts of ServiceEntries that have none.
    ip_auto_allocate: bool = true, "PILOT_ENABLE_IP_AUTOALLOCATE";
    /// Consider `exportTo` when DestinationRules of one host are merged.
    enhanced_rule_merge: bool = true, "ENABLE_ENHANCED_DESTINATIONRULE_MERGE";
    /// In addition to a Sidecar's ingress listeners, serve the ports of the proxy's services.
    auto_inbound_ports: bool = false, "PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE";
    /// Connections that a listener accepts per event loop; 0 means all pending ones.
    connections_per_event: u32 = 1, "MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP";
    /// Time for a TLS handshake with a gateway.
    handshake_timeout: Milliseconds = Milliseconds(15_000), "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT";
    /// Accept mutual TLS peers of any trust domain.
    skip_validate_trust_domain: bool = false, "PILOT_SKIP_VALIDATE_TRUST_DOMAIN";
    /// Treat addresses of mesh networks as internal in every HTTP connection manager.
    internal_networks: bool = false, "ENABLE_HCM_INTERNAL_NETWORKS";
    /// Add an IPv4 outbound listener in IPv6 clusters.
    ipv4_outbound_on_ipv6: bool = false, "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS";
    /// Allow several external authorization providers for one workload.
    several_custom_providers: bool = false, "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS";
    /// Reject clients whose certificate has another namespace or service account than their node metadata.
    identity_check: bool = true, "PILOT_ENABLE_XDS_IDENTITY_CHECK";
    /// Trust the node metadata of clients of the plain-text port, and send them secrets.
    trust_plaintext: bool = false, "PILOTAGE_TRUST_PLAINTEXT";
    /// DENY rules match paths and hosts in all spellings: encoded or repeated slashes, a trailing slash, ports, trailing
    /// dots.
    strict_authorization: bool = false, "PILOTAGE_STRICT_AUTHORIZATION";
    /// Read the Kubernetes Gateway API.
    gateway_api: bool = true, "PILOT_ENABLE_GATEWAY_API";
    /// Apply XBackendTrafficPolicy objects.
    alpha_gateway_api: bool = false, "PILOT_ENABLE_ALPHA_GATEWAY_API";
    /// Write the status of Gateway API objects.
    gateway_api_status: bool = true, "PILOT_ENABLE_GATEWAY_API_STATUS";
    /// Create the default GatewayClasses.
    make_gateway_classes: bool = true, "PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER";
    /// Deploy proxies for Gateways: Deployment, Service and ServiceAccount of each.
    deploy_gateways: bool = true, "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER";
    /// What is deployed for a Gateway gets its labels and annotations, unless `spec.infrastructure` has others.
    copy_gateway_metadata: bool = true, "PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS";
    /// Only the elected replica writes to the cluster.
    leader_election: bool = true, "ENABLE_LEADER_ELECTION";
    /// The addresses of a Gateway may name a Service that the user deployed for it.
    manual_gateways: bool = true, "ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT";
    /// Name of the GatewayClass that is served.
    gateway_class: Str = "istio".into(), "PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME";
    /// Controller name of the GatewayClasses that are handled.
    gateway_controller: Str = "istio.io/gateway-controller".into(), "PILOT_GATEWAY_API_CONTROLLER_NAME";
    /// Policies with a label selector also apply to Gateway API proxies.
    selectors_reach_gateways: bool = true, "ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY";
    /// The namespace of the proxies that serve Ingress.
    ingress_namespace: Str = "istio-system".into(), "K8S_INGRESS_NS";
    /// Refresh interval of fetched JSON Web Key Sets.
    key_refresh: Milliseconds = Milliseconds(20 * 60 * 1000), "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL";
    /// Additional blocks that key sets are never fetched from.
    blocked_key_blocks: IpBlocks = IpBlocks::default(), "BLOCKED_CIDRS_IN_JWKS_URIS";
    /// Blocks that key sets may be fetched from although they are loopback, link-local or otherwise special.
    allowed_key_blocks: IpBlocks = IpBlocks::default(), "PILOTAGE_JWKS_ALLOWED_CIDRS";
    /// How long startup waits for a remote cluster.
    remote_cluster_timeout: Milliseconds = Milliseconds(30_000), "PILOT_REMOTE_CLUSTER_TIMEOUT";
    /// How long an API server must report the loss of nearly all objects of a kind before they are removed; 0 for
    /// immediately.
    hold_losses: Milliseconds = Milliseconds(60_000), "PILOTAGE_KUBERNETES_HOLD_LOSSES";
    /// Maximum number of objects in a list of an API server; more than Kubernetes supports.
    max_kubernetes_objects: u32 = 500_000, "PILOTAGE_KUBERNETES_MAX_OBJECTS";
    /// Unsafe options that kubeconfigs of remote clusters may use, such as `exec` or `tokenFile`.
    insecure_kubeconfig_options: NameList = NameList::default(), "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS";
    /// Serve config objects over xDS only to clients with a certificate of the root namespace.
    api_generator_auth: bool = true, "ENABLE_XDS_API_GENERATOR_AUTH";
    /// How long changes are gathered at most before they are applied together; `PILOT_DEBOUNCE_MAX` may lower it.
    debounce_after: Milliseconds = Milliseconds(100), "PILOT_DEBOUNCE_AFTER";
    /// See `PILOT_DEBOUNCE_AFTER`.
    debounce_max: Milliseconds = Milliseconds(10_000), "PILOT_DEBOUNCE_MAX";
    /// Maximum number of routes from delegates in one VirtualService; four times as many in one namespace.
    delegated_routes: u32 = 10_000, "PILOTAGE_DELEGATED_ROUTES";
    /// Maximum encoded size of these routes.
    delegated_bytes: u32 = 8 * 1024 * 1024, "PILOTAGE_DELEGATED_BYTES";
    /// Maximum size of one EnvoyFilter patch value. A Kubernetes API server accepts no larger object.
    patch_bytes: u32 = 2 * 1024 * 1024, "PILOTAGE_PATCH_BYTES";
    /// Maximum number of bytes that patches add to the resources of one type of one proxy.
    patched_bytes: u32 = 32 * 1024 * 1024, "PILOTAGE_PATCHED_BYTES";
    /// Maximum number of patch applications to the resources of one type of one proxy.
    patch_applications: u32 = 1_000_000, "PILOTAGE_PATCH_APPLICATIONS";
    /// Maximum size of one resource.
    resource_bytes: u32 = 32 * 1024 * 1024, "PILOTAGE_RESOURCE_BYTES";
    /// Maximum size of all resources of one type of one proxy.
    push_bytes: u32 = 256 * 1024 * 1024, "PILOTAGE_PUSH_BYTES";
    /// A stream whose client takes no part of a response for this time is ended; 0 for no limit.
    send_timeout: Milliseconds = Milliseconds(5_000), "PILOT_XDS_SEND_TIMEOUT";
    /// Run a certificate authority and serve certificates on the TLS port.
    ca_server: bool = true, "ENABLE_CA_SERVER";
    /// Folder of a plugged-in CA: `ca-cert.pem`, `ca-key.pem`, `cert-chain.pem` and `root-cert.pem`, or `tls.crt`,
    /// `tls.key` and `ca.crt`. Without these files the CA has a self-signed root.
    ca_folder: Str = "./etc/cacerts".into(), "ROOT_CA_DIR";
    /// `ISTIOD_RA_KUBERNETES_API`: workload certificates are issued by a signer of the Kubernetes cluster.
    external_ca: Str = "".into(), "EXTERNAL_CA";
    /// Signer of the cluster that issues workload certificates.
    kubernetes_signer: Str = "".into(), "K8S_SIGNER";
    /// Domain of the signers that requests for certificates may name.
    signer_domain: Str = "".into(), "CERT_SIGNER_DOMAIN";
    /// Lifetime of a self-signed root.
    root_lifetime: Milliseconds = Milliseconds::days(3650), "CITADEL_SELF_SIGNED_CA_CERT_TTL";
    /// RSA bits of the key of a new self-signed root; 0 for ECDSA on P-256.
    root_rsa_bits: u32 = 0, "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE";
    /// How often the age of a self-signed root is checked. Changes by other replicas are noticed within a minute.
    root_check: Milliseconds = Milliseconds(3_600_000), "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL";
    /// A self-signed root is replaced when this percentage of its lifetime is left.
    root_grace: Percent = Percent(2000), "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE";
    /// Time of each step in which a self-signed root is replaced; 0 for as long as the issued certificates live. Certificates
    /// that live longer than a step given here lose their trust.
    rotation_step: Milliseconds = Milliseconds(0), "PILOTAGE_ROOT_ROTATION_STEP";
    /// Lifetime of workload certificates if the request has none.
    leaf_lifetime: Milliseconds = Milliseconds::days(1), "DEFAULT_WORKLOAD_CERT_TTL";
    /// Requests for certificates with a longer lifetime are refused.
    max_leaf_lifetime: Milliseconds = Milliseconds::days(90), "MAX_WORKLOAD_CERT_TTL";
    /// Additional names of this server's certificate.
    custom_hosts: NameList = NameList::default(), "ISTIOD_CUSTOM_HOST";
    /// Audiences of Kubernetes tokens that authenticate workloads.
    token_audiences: NameList = NameList::of("istio-ca"), "TOKEN_AUDIENCES";
    /// Tokens of another issuer that authenticate workloads: JSON with `issuer`, `audiences` and `jwks_uri`, which may be
    /// a `file:` URL.
    jwt_rule: Str = "".into(), "JWT_RULE";
    /// Peers whose `x-forwarded-client-cert` header authenticates workloads.
    trusted_gateways: IpBlocks = IpBlocks::default(), "TRUSTED_GATEWAY_CIDR";
    /// Require clients of the TLS port to authenticate.
    xds_auth: bool = true, "XDS_AUTH";
    /// Require clients of the plain-text port to authenticate too.
    xds_auth_plaintext: bool = false, "XDS_AUTH_PLAINTEXT";
    /// How often the identity of a connected client is checked again.
    identity_recheck: Milliseconds = Milliseconds(1_800_000), "PILOTAGE_IDENTITY_RECHECK";
    /// Token reviews per second that an API server is asked for.
    token_review_rate: u32 = 200, "PILOTAGE_TOKEN_REVIEW_RATE";
    /// Send agents the trust bundle of the mesh: the CA's roots, `caCertificates` of the mesh config and SPIFFE bundles.
    multi_root_mesh: bool = false, "ISTIO_MULTIROOT_MESH";
    /// Name of the ConfigMaps with the roots of the mesh.
    root_config_map: Str = "istio-ca-root-cert".into(), "PILOT_CA_CERT_CONFIGMAP";
    /// Deliver the revocation lists of a plugged-in CA to all namespaces.
    ca_crl: bool = true, "PILOT_ENABLE_CA_CRL";
    /// Name of the ConfigMaps with the revocation lists.
    crl_config_map: Str = "istio-ca-crl".into(), "PILOT_CRL_CONFIGMAP";
    /// Make WorkloadEntries for workloads that register themselves with a WorkloadGroup.
    auto_registration: bool = true, "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION";
    /// Write the health that agents report into WorkloadEntries.
    workload_health_checks: bool = true, "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS";
    /// A workload that registers must prove namespace and service account of its WorkloadEntry.
    registration_identity: bool = true, "ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY";
    /// How long the WorkloadEntry of a disconnected workload is kept.
    registration_grace: Milliseconds = Milliseconds(10_000), "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD";
}

/// A percentage, stored in hundredths of a percent because floats cannot be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Percent(pub u32);

impl Percent {
    pub fn value(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// A duration in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Milliseconds(pub u64);

impl Milliseconds {
    const fn days(days: u64) -> Milliseconds {
        Milliseconds(days * 24 * 3_600_000)
    }

    pub fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

/// Comma-separated CIDR blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IpBlocks(pub Vec<IpNet>);

impl IpBlocks {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(&address))
    }
}

/// Comma-separated names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameList(Vec<Str>);

impl NameList {
    pub fn of(text: &str) -> NameList {
        NameList(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Str::from).collect())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|known| **known == *name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }
}

trait Knob: Sized {
    fn parse(text: &str) -> Option<Self>;

    /// The value as `parse` reads it.
    fn shown(&self) -> String;
}

impl Knob for bool {
    fn parse(text: &str) -> Option<bool> {
        match text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
            _ => None,
        }
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Knob for Str {
    fn parse(text: &str) -> Option<Str> {
        Some(text.into())
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Knob for u32 {
    fn parse(text: &str) -> Option<u32> {
        text.parse().ok()
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Knob for IpBlocks {
    fn parse(text: &str) -> Option<IpBlocks> {
        let blocks = text.split(',').map(str::trim).filter(|block| !block.is_empty()).map(|block| block.parse().ok());
        blocks.collect::<Option<Vec<IpNet>>>().map(IpBlocks)
    }

    fn shown(&self) -> String {
        self.0.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",")
    }
}

impl Knob for NameList {
    fn parse(text: &str) -> Option<NameList> {
        Some(NameList::of(text))
    }

    fn shown(&self) -> String {
        self.iter().collect::<Vec<_>>().join(",")
    }
}

impl Knob for Percent {
    fn parse(text: &str) -> Option<Percent> {
        let percent = text.parse::<f64>().ok().filter(|p| (0.0..=100.0).contains(p))?;
        Some(Percent((percent * 100.0).round() as u32))
    }

    fn shown(&self) -> String {
        self.value().to_string()
    }
}

impl Knob for Milliseconds {
    fn parse(text: &str) -> Option<Milliseconds> {
        crate::duration::parse(text).and_then(|d| {
            let millis = i128::from(d.seconds) * 1000 + i128::from(d.nanos) / 1_000_000;
            u64::try_from(millis).ok().map(Milliseconds)
        })
    }

    fn shown(&self) -> String {
        match self.0 {
            0 => "0s".to_owned(),
            millis if millis % 3_600_000 == 0 => format!("{}h", millis / 3_600_000),
            millis if millis % 60_000 == 0 => format!("{}m", millis / 60_000),
            millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
            millis => format!("{millis}ms"),
        }
    }
}
