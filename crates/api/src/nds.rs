//! The DNS name table of pilot-agent (`istio.networking.nds.v1`). It is in no published API package, so it is defined
//! here by field numbers.

use std::collections::BTreeMap;

/// All names that one proxy can resolve.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NameTable {
    /// Host name to addresses.
    #[prost(btree_map = "string, message", tag = "1")]
    pub table: BTreeMap<String, NameInfo>,
}

/// One name's addresses and origin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NameInfo {
    #[prost(string, repeated, tag = "1")]
    pub ips: Vec<String>,
    /// Registry of origin: "Kubernetes" or "External".
    #[prost(string, tag = "2")]
    pub registry: String,
    #[prost(string, tag = "3")]
    pub shortname: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
}

impl prost::Name for NameTable {
    const NAME: &'static str = "NameTable";
    const PACKAGE: &'static str = "istio.networking.nds.v1";

    fn type_url() -> String {
        format!("type.googleapis.com/{}.{}", Self::PACKAGE, Self::NAME)
    }
}
