//! Config stores: `configSources` of the mesh config, read once at the start, else `--configDir`; plus the
//! configuration API and the servers of `--mcpServerAddrs`.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use api::istio::mesh::v1alpha1::ConfigSource;
use api::istio::networking::v1alpha3::ClientTlsSettings;
use api::istio::networking::v1alpha3::client_tls_settings::TlSmode;
use model::change::SourceId;
use model::config::mesh::parse_mesh;
use sources::disk;
use sources::grpc::GrpcTls;
use sources::http::{ClientIdentity, TrustRoots};
use sources::store::{mcp, xds};

use crate::args::DiscoveryFlags;
use crate::config_api;
use crate::environment::Instance;

/// One store of configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigStore {
    Folder(PathBuf),
    Xds(xds::XdsStoreOptions),
    Mcp(mcp::McpOptions),
    /// The storage of the configuration API. Another source reads it.
    ConfigApi,
    /// The API server of the Kubernetes registry. Its source reads configuration together with services.
    Kubernetes,
}

impl ConfigStore {
    /// Source id. The first folder is `files`, the id that a folder of `--configDir` has always had.
    pub(crate) fn id(&self, number: usize) -> SourceId {
        match self {
            ConfigStore::Folder(_) if number == 0 => SourceId("files".into()),
            ConfigStore::Folder(folder) => SourceId(format!("files/{}", folder.display()).into()),
            ConfigStore::Xds(options) => options.id(),
            ConfigStore::Mcp(options) => options.id(),
            ConfigStore::ConfigApi => SourceId(config_api::ID.into()),
            ConfigStore::Kubernetes => SourceId("Kubernetes".into()),
        }
    }
}

/// The config stores in order of precedence.
pub(crate) fn read(args: &DiscoveryFlags, instance: &Instance) -> Result<Vec<ConfigStore>> {
    let namespace = instance.namespace();
    let node = format!("{}.{namespace}", instance.name.as_deref().unwrap_or("pilot-discovery"));
    // The source that watches this file reports it if it cannot be read.
    let text = disk::text(&args.mesh_config).unwrap_or_default();
    let (mesh, _) = parse_mesh(&text, &args.mesh_config.display().to_string());
    let of_mesh = mesh.config_sources.iter().map(|source| store(source, &node, namespace));
    let mut stores = of_mesh.collect::<Result<Vec<ConfigStore>>>()?;
    if stores.is_empty() {
        stores.extend(args.config_dir.clone().map(ConfigStore::Folder));
    }
    stores.extend(args.config_api.is_on().then_some(ConfigStore::ConfigApi));
    for address in args.registry_flags.mcp_servers.iter().filter(|address| !address.is_empty()) {
        let options = mcp::McpOptions::parse(address, &node);
        stores.push(ConfigStore::Mcp(options.map_err(|reason| anyhow!("could not use --mcpServerAddrs: {reason}"))?));
    }
    Ok(stores)
}

fn store(source: &ConfigSource, node: &str, namespace: &str) -> Result<ConfigStore> {
    let url = source.address.as_str();
    let tls = tls(source.tls_settings.as_ref(), url)?;
    let bad = |reason: &str| anyhow!("could not use config source {url:?}: {reason}");
    let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("expected an address, as in xds://host:port"))?;
    match scheme {
        "fs" if rest.starts_with('/') => Ok(ConfigStore::Folder(rest.into())),
        "fs" => Err(bad("expected an absolute path, as in fs:///etc/config")),
        "k8s" if rest.is_empty() || rest == "/" => Ok(ConfigStore::Kubernetes),
        "k8s" => Err(bad("only the cluster of the Kubernetes registry is supported: k8s://")),
        "xds" => {
            let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
            let variant = match query {
                "" => xds::XdsVariant::StateOfTheWorld,
                "protocol=delta" => xds::XdsVariant::Delta,
                other => return Err(bad(&format!("unknown parameter {other:?}, expected protocol=delta"))),
            };
            let address = address.trim_end_matches('/').to_owned();
            if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
                return Err(bad("expected an address, as in xds://host:port"));
            }
            Ok(ConfigStore::Xds(xds::XdsStoreOptions {
                address,
                variant,
                tls,
                node: node.to_owned(),
                namespace: namespace.to_owned(),
            }))
        }
        "mcp" | "mcps" => {
            let options = mcp::McpOptions::parse(url, node).map_err(|error| bad(&error.to_string()))?;
            Ok(ConfigStore::Mcp(mcp::McpOptions { tls: tls.or(options.tls.clone()), ..options }))
        }
        other => Err(bad(&format!("unknown scheme {other:?}, expected fs, xds, mcp or k8s"))),
    }
}

fn tls(settings: Option<&ClientTlsSettings>, url: &str) -> Result<Option<GrpcTls>> {
    let Some(settings) = settings else { return Ok(None) };
    let file = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
    let identity = match settings.mode() {
        TlSmode::Disable => return Ok(None),
        TlSmode::Simple => None,
        TlSmode::Mutual => match (file(&settings.client_certificate), file(&settings.private_key)) {
            (Some(chain), Some(key)) => Some(ClientIdentity { chain, key }),
            _ => bail!("could not use config source {url:?}: TLS mode MUTUAL needs clientCertificate and privateKey"),
        },
        TlSmode::IstioMutual => bail!("could not use config source {url:?}: TLS mode ISTIO_MUTUAL is not supported"),
    };
    let roots = file(&settings.ca_certificates).map_or(TrustRoots::System, TrustRoots::File);
    let server_name = Some(settings.sni.clone()).filter(|name| !name.is_empty());
    Ok(Some(GrpcTls { roots, identity, server_name }))
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::ConfigSource;
    use sources::store::xds::XdsVariant;

    use super::{ConfigStore, store};

    fn read(address: &str) -> Result<ConfigStore, String> {
        let source = ConfigSource { address: address.to_owned(), ..ConfigSource::default() };
        store(&source, "pilot.mesh", "mesh").map_err(|error| error.to_string())
    }

    #[test]
    fn the_scheme_selects_the_store() {
        assert_eq!(read("fs:///etc/config"), Ok(ConfigStore::Folder("/etc/config".into())));
        assert_eq!(read("k8s://"), Ok(ConfigStore::Kubernetes));
        assert!(matches!(read("mcp://a:1"), Ok(ConfigStore::Mcp(_))));
        for (address, expected) in
            [("xds://a:1", XdsVariant::StateOfTheWorld), ("xds://a:1?protocol=delta", XdsVariant::Delta)]
        {
            let Ok(ConfigStore::Xds(options)) = read(address) else { panic!("{address}") };
            assert_eq!((options.address.as_str(), options.variant), ("a:1", expected));
        }
    }

    #[test]
    fn an_unusable_address_is_named_in_the_error() {
        for bad in ["", "fs://", "xds://", "xds://a", "xds://a:1?x", "k8s://other", "http://a:1", "mcp://a"] {
            let error = read(bad).unwrap_err();
            assert!(error.contains(&format!("{bad:?}")), "{bad}: {error}");
        }
    }
}
