//! Upstream TLS: as the rule sets it, mesh mTLS, or auto mTLS per endpoint; and the PROXY protocol header.

use std::borrow::Cow;

use api::envoy::config::cluster::v3::cluster::TransportSocketMatch;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::config::core::v3::transport_socket::ConfigType;
use api::envoy::config::core::v3::{DataSource, ProxyProtocolConfig, TransportSocket};
use api::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use api::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use api::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CombinedCertificateValidationContext, ValidationContextType,
};
use api::envoy::extensions::transport_sockets::tls::v3::tls_parameters::TlsProtocol;
use api::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SdsSecretConfig, TlsParameters, UpstreamTlsContext,
};
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use api::istio::networking::v1alpha3::ClientTlsSettings;
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::traffic_policy::ProxyProtocol;
use api::{Any, Struct, any};
use model::names::Str;
use model::proxy::ProxyKind;

use super::{ClusterDraft, dns, http};
use crate::dns_cache::{self, DnsCache};
use crate::plan::cluster::outbound::{EndpointDiscovery, OutboundPlan, UpstreamSecurity};
use crate::plan::cluster::{ClientCertificateFiles, ClusterContext};
use crate::plan::policy::EffectivePolicy;
use crate::render::endpoints::{fields, text};
use crate::render::secrets;

const TLS: &str = "envoy.transport_sockets.tls";
const RAW_BUFFER: &str = "envoy.transport_sockets.raw_buffer";
const PROXY_PROTOCOL: &str = "envoy.transport_sockets.upstream_proxy_protocol";
/// CA certificates of the operating system, if a rule sets none.
const SYSTEM_ROOTS: &str = "system";

/// Applies TLS. The HTTP version must be set before.
pub(super) fn apply(
    draft: &mut ClusterDraft,
    context: &ClusterContext,
    plan: &OutboundPlan,
    policy: &EffectivePolicy<'_>,
) {
    let UpstreamSecurity::Originate { automatic, server_name, accounts } = &plan.security else { return };
    let default =
        DefaultTls { automatic: *automatic, server_name: server_name.as_deref().unwrap_or_default(), accounts };
    if let Some((settings, detected)) = settled(context, plan.external, policy.tls, &default) {
        let origination = TlsOrigination { plan: Some(plan), context, accounts };
        let socket = origination.tls_context(draft, &settings).map(|tls| tls_socket(&tls));
        let per_endpoint = detected && settings.mode() == TlSmode::IstioMutual && !draft.is_original_destination();
        match socket {
            Some(socket) if per_endpoint => draft.cluster.transport_socket_matches = by_endpoint(socket),
            socket => draft.cluster.transport_socket = socket,
        }
    }
    if let Some(header) = policy.proxy_protocol {
        announce_client(draft, header);
    }
}

/// TLS to the host of each request.
pub(super) fn originate_to_any(draft: &mut ClusterDraft, context: &ClusterContext, settings: &ClientTlsSettings) {
    let origination = TlsOrigination { plan: None, context, accounts: &[] };
    draft.cluster.transport_socket = origination.tls_context(draft, settings).map(|tls| tls_socket(&tls));
}

/// TLS if the rule does not set it.
struct DefaultTls<'a> {
    automatic: bool,
    server_name: &'a str,
    accounts: &'a [Str],
}

/// The effective TLS settings, and whether they are auto mTLS.
fn settled<'a>(
    context: &ClusterContext,
    external: bool,
    rule: Option<&'a ClientTlsSettings>,
    default: &DefaultTls<'_>,
) -> Option<(Cow<'a, ClientTlsSettings>, bool)> {
    let Some(settings) = rule else {
        let accounts: Vec<String> = default.accounts.iter().map(|a| a.to_string()).collect();
        let own = match &context.certificates {
            Some(files) => with_files(files, accounts, default.server_name),
            None => mesh_settings(accounts, default.server_name),
        };
        return default.automatic.then_some((Cow::Owned(own), true));
    };
    let own = match (settings.mode(), &context.certificates) {
        (TlSmode::Disable | TlSmode::Simple, _) => Cow::Borrowed(settings),
        (_, Some(_)) if external && context.features.prefer_rule_tls_for_external => Cow::Borrowed(settings),
        (_, Some(files)) => Cow::Owned(ClientTlsSettings {
            insecure_skip_verify: settings.insecure_skip_verify,
            ..with_files(files, settings.subject_alt_names.clone(), &settings.sni)
        }),
        (TlSmode::IstioMutual, None) => {
            let server_name = if settings.sni.is_empty() { default.server_name } else { &settings.sni };
            let names = match settings.subject_alt_names.as_slice() {
                [] => default.accounts.iter().map(|a| a.to_string()).collect(),
                names => names.to_vec(),
            };
            let insecure_skip_verify = settings.insecure_skip_verify;
            Cow::Owned(ClientTlsSettings { insecure_skip_verify, ..mesh_settings(names, server_name) })
        }
        _ => Cow::Borrowed(settings),
    };
    Some((own, false))
}

fn mesh_settings(subject_alt_names: Vec<String>, server_name: &str) -> ClientTlsSettings {
    ClientTlsSettings {
        mode: TlSmode::IstioMutual as i32,
        subject_alt_names,
        sni: server_name.to_owned(),
        ..ClientTlsSettings::default()
    }
}

fn with_files(files: &ClientCertificateFiles, subject_alt_names: Vec<String>, server_name: &str) -> ClientTlsSettings {
    ClientTlsSettings {
        mode: TlSmode::Mutual as i32,
        client_certificate: files.chain.to_string(),
        private_key: files.key.to_string(),
        ca_certificates: files.root.to_string(),
        subject_alt_names,
        sni: server_name.to_owned(),
        ..ClientTlsSettings::default()
    }
}

/// Builds TLS contexts. `plan` is `None` for the cluster of hosts of no service.
struct TlsOrigination<'a> {
    plan: Option<&'a OutboundPlan>,
    context: &'a ClusterContext,
    accounts: &'a [Str],
}

impl TlsOrigination<'_> {
    /// The TLS context; `None` for plaintext, and if the rule cannot be applied.
    fn tls_context(&self, draft: &mut ClusterDraft, settings: &ClientTlsSettings) -> Option<UpstreamTlsContext> {
        match settings.mode() {
            TlSmode::Disable => None,
            TlSmode::IstioMutual => Some(self.mesh_context(draft, settings)),
            TlSmode::Simple | TlSmode::Mutual if self.must_not_read(settings) => None,
            TlSmode::Simple | TlSmode::Mutual => self.own_context(draft, settings),
        }
    }

    /// Whether a sidecar must not use the credential. Only rules with a workload selector give credentials to sidecars:
    /// others lack the permission and would never become ready.
    fn must_not_read(&self, settings: &ClientTlsSettings) -> bool {
        let credential = &settings.credential_name;
        let selects = self.plan.and_then(|p| p.rule.as_ref()).is_some_and(|r| r.spec.workload_selector.is_some());
        !credential.is_empty()
            && !secrets::is_config_map(credential)
            && self.context.client == ProxyKind::Sidecar
            && !selects
    }

    fn is_forwarded(&self) -> bool {
        self.plan.is_none_or(|p| matches!(p.discovery, EndpointDiscovery::DynamicForwardProxy(_)))
    }

    /// Mesh mTLS.
    fn mesh_context(&self, draft: &mut ClusterDraft, settings: &ClientTlsSettings) -> UpstreamTlsContext {
        let mut alpn = Vec::new();
        if self.context.features.metadata_exchange_alpn {
            alpn.push("istio-peer-exchange");
        }
        alpn.push("istio");
        if http::http2_options(draft).is_some() {
            alpn.push("h2");
        }
        let forwarded = self.is_forwarded();
        let server_name = match settings.sni.as_str() {
            "" if !forwarded => &draft.cluster.name,
            name => name,
        };
        let context = UpstreamTlsContext {
            sni: server_name.to_owned(),
            common_tls_context: Some(CommonTlsContext {
                tls_params: Some(parameters()),
                tls_certificate_sds_secret_configs: vec![secrets::from_agent(secrets::WORKLOAD_CERTIFICATE)],
                alpn_protocols: alpn.into_iter().map(str::to_owned).collect(),
                validation_context_type: Some(combined(
                    named(&settings.subject_alt_names),
                    secrets::from_agent(secrets::TRUSTED_ROOTS),
                )),
                ..CommonTlsContext::default()
            }),
            ..UpstreamTlsContext::default()
        };
        if forwarded {
            self.follow_host(draft, settings);
        }
        context
    }

    /// TLS by the rule's settings; `None` if it requires a client certificate but has none.
    fn own_context(&self, draft: &mut ClusterDraft, settings: &ClientTlsSettings) -> Option<UpstreamTlsContext> {
        self.follow_host(draft, settings);
        let names = match settings.subject_alt_names.as_slice() {
            [] if self.plan.is_some_and(|p| p.from_entry) => self.accounts.iter().map(|a| a.to_string()).collect(),
            names => names.to_vec(),
        };
        let mut common = CommonTlsContext { tls_params: Some(parameters()), ..CommonTlsContext::default() };
        if settings.credential_name.is_empty() {
            self.use_files(&mut common, settings, &names)?;
        } else {
            self.use_credential(&mut common, settings, &names);
        }
        if let (TlSmode::Simple, Some(name), Some(_)) = (settings.mode(), &self.context.backend_certificate, self.plan)
        {
            let secret = secrets::from_credential(name, self.context.credential_socket);
            common.tls_certificate_sds_secret_configs = vec![secret];
        }
        self.apply_mesh_defaults(&mut common);
        if http::http2_options(draft).is_some() {
            common.alpn_protocols = vec!["h2".to_owned()];
        }
        let sni = settings.sni.clone();
        Some(UpstreamTlsContext { sni, common_tls_context: Some(common), ..UpstreamTlsContext::default() })
    }

    fn use_credential(&self, common: &mut CommonTlsContext, settings: &ClientTlsSettings, names: &[String]) {
        let (credential, socket) = (&settings.credential_name, self.context.credential_socket);
        if settings.mode() == TlSmode::Mutual {
            common.tls_certificate_sds_secret_configs = vec![secrets::from_credential(credential, socket)];
        }
        if !skips_verification(settings) {
            let roots = secrets::roots_of_credential(credential, socket);
            common.validation_context_type = Some(combined(named(names), roots));
        }
    }

    fn use_files(&self, common: &mut CommonTlsContext, settings: &ClientTlsSettings, names: &[String]) -> Option<()> {
        let socket = self.context.file_credential_socket;
        if settings.mode() == TlSmode::Mutual {
            let (chain, key) = (&settings.client_certificate, &settings.private_key);
            if chain.is_empty() || key.is_empty() {
                return None;
            }
            let secret = secrets::from_files(&format!("file-cert:{chain}~{key}"), socket);
            common.tls_certificate_sds_secret_configs = vec![secret];
        }
        if skips_verification(settings) {
            let nothing = CertificateValidationContext::default();
            common.validation_context_type = Some(ValidationContextType::ValidationContext(nothing));
            return Some(());
        }
        let mut checks = named(names);
        if !settings.ca_crl.is_empty() {
            let file = Specifier::Filename(settings.ca_crl.clone());
            checks.crl = Some(DataSource { specifier: Some(file), ..DataSource::default() });
        }
        let roots = Some(settings.ca_certificates.as_str()).filter(|path| !path.is_empty()).unwrap_or(SYSTEM_ROOTS);
        let roots = secrets::from_files(&format!("file-root:{roots}"), socket);
        common.validation_context_type = Some(combined(checks, roots));
        Some(())
    }

    fn apply_mesh_defaults(&self, common: &mut CommonTlsContext) {
        let Some(defaults) = &self.context.mesh.tls_defaults else { return };
        let parameters = common.tls_params.get_or_insert_default();
        parameters.ecdh_curves.clone_from(&defaults.ecdh_curves);
        parameters.cipher_suites.clone_from(&defaults.cipher_suites);
    }

    /// Without an SNI in the settings, each request's host is used as SNI and verified in the server certificate.
    fn follow_host(&self, draft: &mut ClusterDraft, settings: &ClientTlsSettings) {
        let forwarded = self.is_forwarded();
        let asks = settings.sni.is_empty();
        let checks = !skips_verification(settings) && (forwarded || (asks && settings.subject_alt_names.is_empty()));
        if let Some(plan) = self.plan
            && let EndpointDiscovery::DynamicForwardProxy(family) = plan.discovery
            && !(asks && checks)
        {
            dns::forward(&mut draft.cluster, dns_cache::render(&DnsCache::of_host(&plan.service.host, family)), true);
        }
        if asks || checks {
            let options = draft.http().upstream_http_protocol_options.get_or_insert_default();
            options.auto_sni |= asks;
            options.auto_san_validation |= checks;
        }
    }
}

fn skips_verification(settings: &ClientTlsSettings) -> bool {
    settings.insecure_skip_verify.unwrap_or(false)
}

fn parameters() -> TlsParameters {
    TlsParameters {
        tls_minimum_protocol_version: TlsProtocol::TlSv12 as i32,
        tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
        ..TlsParameters::default()
    }
}

/// Verifies that the server certificate has one of these SANs.
fn named(names: &[String]) -> CertificateValidationContext {
    let exactly =
        |name: &String| StringMatcher { match_pattern: Some(MatchPattern::Exact(name.clone())), ..Default::default() };
    CertificateValidationContext {
        match_subject_alt_names: names.iter().map(exactly).collect(),
        ..CertificateValidationContext::default()
    }
}

fn combined(checks: CertificateValidationContext, roots: SdsSecretConfig) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(checks),
        validation_context_sds_secret_config: Some(roots),
        ..CombinedCertificateValidationContext::default()
    })
}

/// mTLS to endpoints that support it, plaintext to others.
fn by_endpoint(mutual_tls: TransportSocket) -> Vec<TransportSocketMatch> {
    vec![
        TransportSocketMatch {
            name: "tlsMode-istio".to_owned(),
            r#match: Some(fields([("tlsMode", text("istio"))])),
            transport_socket: Some(mutual_tls),
        },
        TransportSocketMatch {
            name: "tlsMode-disabled".to_owned(),
            r#match: Some(Struct::default()),
            transport_socket: Some(raw_buffer(RAW_BUFFER)),
        },
    ]
}

/// Adds the PROXY protocol around the transport sockets.
fn announce_client(draft: &mut ClusterDraft, header: &ProxyProtocol) {
    let wrapped = |inner: TransportSocket| {
        let config = ProxyProtocolConfig { version: header.version, ..ProxyProtocolConfig::default() };
        let transport = ProxyProtocolUpstreamTransport {
            config: Some(config),
            transport_socket: Some(inner),
            ..ProxyProtocolUpstreamTransport::default()
        };
        socket(PROXY_PROTOCOL, any(&transport))
    };
    let cluster = &mut draft.cluster;
    for choice in &mut cluster.transport_socket_matches {
        choice.transport_socket = choice.transport_socket.take().map(wrapped);
    }
    if cluster.transport_socket_matches.is_empty() {
        let inner = cluster.transport_socket.take().unwrap_or_else(|| raw_buffer("raw_buffer"));
        cluster.transport_socket = Some(wrapped(inner));
    }
}

fn raw_buffer(name: &str) -> TransportSocket {
    socket(name, any(&RawBuffer {}))
}

fn tls_socket(context: &UpstreamTlsContext) -> TransportSocket {
    socket(TLS, any(context))
}

fn socket(name: &str, config: Any) -> TransportSocket {
    TransportSocket { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}
