//! Renders a secret for SDS.

use api::envoy::config::core::v3::DataSource;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use api::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret as Message, TlsCertificate,
};
use model::change::SecretBytes;
use scope::credentials::Secret;

use crate::plan::secret::SecretPlan;

/// The secret.
pub fn secret(plan: &SecretPlan) -> Message {
    let content = match &plan.content {
        Secret::KeyPair(pair) => Type::TlsCertificate(TlsCertificate {
            certificate_chain: Some(inline(&pair.certificate)),
            private_key: Some(inline(&pair.key)),
            ocsp_staple: pair.ocsp_staple.as_ref().map(inline),
            ..TlsCertificate::default()
        }),
        Secret::Ca(authority) => Type::ValidationContext(CertificateValidationContext {
            trusted_ca: Some(inline(&authority.certificates)),
            crl: authority.crl.as_ref().map(inline),
            ..CertificateValidationContext::default()
        }),
    };
    Message { name: plan.name.to_string(), r#type: Some(content) }
}

fn inline(bytes: &SecretBytes) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(bytes.bytes().to_vec())), ..DataSource::default() }
}
