//! Messages of `istio.v1.auth.IstioCertificateService`.

use std::collections::BTreeMap;

/// Path of the method.
pub const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
/// Name of the service.
pub const SERVICE: &str = "istio.v1.auth.IstioCertificateService";

/// A request for a certificate.
#[derive(Clone, PartialEq, prost::Message)]
pub struct IstioCertificateRequest {
    /// The CSR in PEM.
    #[prost(string, tag = "1")]
    pub csr: String,
    /// Requested lifetime in seconds.
    #[prost(int64, tag = "3")]
    pub validity_duration: i64,
    /// `CertSigner` and `ImpersonatedIdentity`.
    #[prost(message, optional, tag = "4")]
    pub metadata: Option<Metadata>,
}

/// The issued certificate, the intermediates, and as the last element all roots.
#[derive(Clone, PartialEq, prost::Message)]
pub struct IstioCertificateResponse {
    #[prost(string, repeated, tag = "1")]
    pub cert_chain: Vec<String>,
}

/// The part of `google.protobuf.Struct` that requests use: strings by name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, MetadataValue>,
}

/// A string value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetadataValue {
    #[prost(string, tag = "3")]
    pub string_value: String,
}

impl Metadata {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|value| value.string_value.as_str()).filter(|text| !text.is_empty())
    }

    pub fn of(name: &str, value: &str) -> Metadata {
        Metadata { fields: BTreeMap::from([(name.to_owned(), MetadataValue { string_value: value.to_owned() })]) }
    }
}
