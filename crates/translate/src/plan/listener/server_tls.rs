//! TLS of listeners: certificates by SDS name, TLS parameters, client certificate validation.

use api::istio::mesh::v1alpha1::mesh_config::tls_config::TlsProtocol;
use api::istio::networking::v1alpha3::ServerTlsSettings;
use api::istio::networking::v1alpha3::server_tls_settings::{TlSmode, TlsProtocol as ServerProtocol};
use model::config::validate::tls::usable_cipher_suites;
use model::names::Str;
use scope::ReadProxy;
use scope::View;

use crate::network_filters::metadata_exchange;

/// TLS of a filter chain that terminates it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerTls {
    pub alpn: Vec<Str>,
    pub params: Option<TlsParams>,
    pub certificates: Vec<SecretRef>,
    /// How client certificates are validated; `None` if they are not.
    pub validation: Option<ClientValidation>,
    pub require_client_certificate: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsParams {
    pub min: Option<TlsVersion>,
    pub max: Option<TlsVersion>,
    pub ciphers: Vec<Str>,
    pub curves: Vec<Str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsVersion {
    V1_0,
    V1_1,
    V1_2,
    V1_3,
}

/// A certificate or CA certificate, by its SDS name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecretRef {
    pub name: Str,
    pub source: SecretSource,
}

/// The SDS server that serves a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// The agent.
    Agent,
    /// The agent's socket for files.
    Files,
    /// The control plane, or a local credential socket if the proxy has one.
    Credential { own_socket: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientValidation {
    /// Accepted SANs. Empty, together with `name_prefixes`, means any.
    pub exact_names: Vec<Str>,
    /// Prefixes of accepted SANs.
    pub name_prefixes: Vec<Str>,
    /// CA certificates. `None` if only names are checked.
    pub roots: Option<SecretRef>,
    /// Accepted hashes of the client's public key and of its certificate.
    pub key_hashes: Vec<Str>,
    pub hashes: Vec<Str>,
    /// Path of a certificate revocation list, or empty.
    pub revoked: Str,
    pub accept_untrusted: bool,
}

/// Default cipher suites of mesh mTLS.
const MESH_CIPHERS: &[&str] = &[
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-GCM-SHA256",
];

pub(super) const ALPN_HTTP: &[&str] = &["h2", "http/1.1"];
const ALPN_EXCHANGE: &[&str] = &["istio-peer-exchange", "h2", "http/1.1"];

/// Mesh mTLS.
pub(super) fn mesh_mtls(view: &View, bytes: bool) -> ServerTls {
    let mesh = &view.settings.mesh;
    let exchange = bytes && metadata_exchange::exchanged(view) && !view.settings.knobs.disable_mx_alpn;
    let of_mesh = mesh.mesh_m_tls.clone().unwrap_or_default();
    let ciphers = if of_mesh.cipher_suites.is_empty() { texts(MESH_CIPHERS) } else { texts(&of_mesh.cipher_suites) };
    let min = match of_mesh.min_protocol_version() {
        TlsProtocol::Tlsv13 => TlsVersion::V1_3,
        TlsProtocol::TlsAuto | TlsProtocol::Tlsv12 => TlsVersion::V1_2,
    };
    let files = ServerCertificateFiles::of_proxy(&view.proxy);
    let trusted = trust_domains(view).into_iter().map(|domain| format!("spiffe://{domain}/").into());
    ServerTls {
        alpn: texts(if exchange { ALPN_EXCHANGE } else { ALPN_HTTP }),
        params: Some(TlsParams { min: Some(min), max: Some(TlsVersion::V1_3), ciphers, curves: Vec::new() }),
        certificates: vec![files.certificate()],
        validation: Some(ClientValidation {
            exact_names: Vec::new(),
            name_prefixes: trusted.collect(),
            roots: Some(files.roots()),
            key_hashes: Vec::new(),
            hashes: Vec::new(),
            revoked: "".into(),
            accept_untrusted: false,
        }),
        require_client_certificate: true,
    }
}

/// TLS terminated by a Sidecar's ingress listener.
pub(super) fn terminated(view: &View, settings: &ServerTlsSettings) -> ServerTls {
    let mode = settings.mode();
    let require = matches!(mode, TlSmode::Mutual | TlSmode::IstioMutual);
    let files = if mode == TlSmode::IstioMutual {
        ServerCertificateFiles::of_proxy(&view.proxy)
    } else {
        ServerCertificateFiles::of_settings(settings, &view.proxy)
    };
    let mut certificates = files.pairs(settings);
    if certificates.is_empty() {
        certificates.push(files.certificate());
    }
    let validation = (require || mode == TlSmode::OptionalMutual).then(|| ClientValidation {
        exact_names: texts(&settings.subject_alt_names),
        name_prefixes: Vec::new(),
        roots: Some(files.roots()),
        key_hashes: Vec::new(),
        hashes: Vec::new(),
        revoked: settings.ca_crl.as_str().into(),
        accept_untrusted: settings.insecure_skip_verify.unwrap_or(false),
    });
    let own = matches!(mode, TlSmode::Simple | TlSmode::Mutual | TlSmode::OptionalMutual);
    ServerTls {
        alpn: texts(ALPN_HTTP),
        params: if own { params(view, settings) } else { None },
        certificates,
        validation,
        require_client_certificate: require,
    }
}

/// TLS terminated by a gateway's server. With ISTIO_MUTUAL, TCP may begin with a metadata exchange.
pub(super) fn of_gateway(view: &View, settings: &ServerTlsSettings, bytes: bool) -> ServerTls {
    let mut tls = terminated(view, settings);
    let mode = settings.mode();
    if mode == TlSmode::IstioMutual && bytes {
        let exchange = !view.settings.knobs.disable_mx_alpn;
        tls.alpn = if exchange { texts(ALPN_EXCHANGE) } else { texts(ALPN_HTTP) };
    }
    let named: Vec<&String> = match &settings.credential_names[..] {
        [] => Some(&settings.credential_name).filter(|name| !name.is_empty()).into_iter().collect(),
        names => names.iter().collect(),
    };
    let Some(first) = named.first().filter(|_| mode != TlSmode::IstioMutual) else { return tls };
    let authority = Some(settings.ca_cert_credential_name.clone()).filter(|name| !name.is_empty());
    let authority = authority.unwrap_or_else(|| format!("{first}-cacert"));
    let source = SecretSource::Credential { own_socket: view.proxy.meta("credential") == Some("true") };
    tls.certificates = named.iter().map(|name| SecretRef { name: name.as_str().into(), source }).collect();
    tls.validation = match tls.validation {
        Some(of_files) => Some(ClientValidation {
            roots: Some(SecretRef { name: authority.into(), source }),
            key_hashes: texts(&settings.verify_certificate_spki),
            hashes: texts(&settings.verify_certificate_hash),
            revoked: "".into(),
            ..of_files
        }),
        None => only_names(settings),
    };
    tls
}

/// SANs configured without client certificates: rendered as upstream does, though Envoy ignores them.
fn only_names(settings: &ServerTlsSettings) -> Option<ClientValidation> {
    (!settings.subject_alt_names.is_empty()).then(|| ClientValidation {
        exact_names: texts(&settings.subject_alt_names),
        name_prefixes: Vec::new(),
        roots: None,
        key_hashes: Vec::new(),
        hashes: Vec::new(),
        revoked: "".into(),
        accept_untrusted: false,
    })
}

/// TLS parameters: the server's settings, then the mesh's defaults.
fn params(view: &View, settings: &ServerTlsSettings) -> Option<TlsParams> {
    let defaults = view.settings.mesh.tls_defaults.clone().unwrap_or_default();
    let default_min = match defaults.min_protocol_version() {
        TlsProtocol::TlsAuto => None,
        TlsProtocol::Tlsv12 => Some(TlsVersion::V1_2),
        TlsProtocol::Tlsv13 => Some(TlsVersion::V1_3),
    };
    let mut ciphers = texts(&usable_cipher_suites(&settings.cipher_suites));
    if ciphers.is_empty() {
        ciphers = texts(&defaults.cipher_suites);
    }
    let params = TlsParams {
        min: version(settings.min_protocol_version()).or(default_min),
        max: version(settings.max_protocol_version()),
        ciphers,
        curves: texts(&defaults.ecdh_curves),
    };
    (params != TlsParams::default()).then_some(params)
}

fn version(wanted: ServerProtocol) -> Option<TlsVersion> {
    match wanted {
        ServerProtocol::TlsAuto => None,
        ServerProtocol::Tlsv10 => Some(TlsVersion::V1_0),
        ServerProtocol::Tlsv11 => Some(TlsVersion::V1_1),
        ServerProtocol::Tlsv12 => Some(TlsVersion::V1_2),
        ServerProtocol::Tlsv13 => Some(TlsVersion::V1_3),
    }
}

/// Trust domains of accepted clients, without duplicates.
fn trust_domains(view: &View) -> Vec<Str> {
    if view.settings.knobs.skip_validate_trust_domain {
        return Vec::new();
    }
    let mesh = &view.settings.mesh;
    let of_certificates = mesh.ca_certificates.iter().flat_map(|c| &c.trust_domains);
    let all = std::iter::once(&mesh.trust_domain).chain(&mesh.trust_domain_aliases).chain(of_certificates);
    let mut domains: Vec<Str> = Vec::new();
    for domain in all.filter(|d| !d.is_empty()) {
        if !domains.iter().any(|known| **known == **domain) {
            domains.push(domain.as_str().into());
        }
    }
    domains
}

/// Certificate files, served by SDS name. Empty paths mean the workload certificate from the agent.
struct ServerCertificateFiles {
    chain: Str,
    key: Str,
    roots: Str,
    source: SecretSource,
}

impl ServerCertificateFiles {
    fn of_proxy(proxy: &ReadProxy) -> ServerCertificateFiles {
        let file = |key| proxy.meta(key).unwrap_or_default().into();
        ServerCertificateFiles {
            chain: file("TLS_SERVER_CERT_CHAIN"),
            key: file("TLS_SERVER_KEY"),
            roots: file("TLS_SERVER_ROOT_CERT"),
            source: file_source(proxy),
        }
    }

    fn of_settings(settings: &ServerTlsSettings, proxy: &ReadProxy) -> ServerCertificateFiles {
        ServerCertificateFiles {
            chain: settings.server_certificate.as_str().into(),
            key: settings.private_key.as_str().into(),
            roots: settings.ca_certificates.as_str().into(),
            source: file_source(proxy),
        }
    }

    fn certificate(&self) -> SecretRef {
        self.pair(&self.chain, &self.key)
    }

    fn pairs(&self, settings: &ServerTlsSettings) -> Vec<SecretRef> {
        settings.tls_certificates.iter().map(|c| self.pair(&c.server_certificate, &c.private_key)).collect()
    }

    fn pair(&self, chain: &str, key: &str) -> SecretRef {
        if chain.is_empty() || key.is_empty() {
            return SecretRef { name: "default".into(), source: SecretSource::Agent };
        }
        SecretRef { name: format!("file-cert:{chain}~{key}").into(), source: self.source }
    }

    fn roots(&self) -> SecretRef {
        if self.roots.is_empty() {
            return SecretRef { name: "ROOTCA".into(), source: SecretSource::Agent };
        }
        SecretRef { name: format!("file-root:{}", self.roots).into(), source: self.source }
    }
}

fn file_source(proxy: &ReadProxy) -> SecretSource {
    if proxy.meta("file-credential") == Some("true") { SecretSource::Files } else { SecretSource::Agent }
}

fn texts<S: AsRef<str>>(items: &[S]) -> Vec<Str> {
    items.iter().map(|item| item.as_ref().into()).collect()
}
