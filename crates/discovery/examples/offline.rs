//! What would a proxy get? Renders the configuration of a folder for one proxy, without a server:
//!
//! ```text
//! cargo run -p discovery --example offline -- samples/shop/config sidecar~127.0.80.1~front-v1.shop~shop.svc.cluster.local
//! ```
//!
//! prints the names of all resources. A further argument prints the resources of that name as JSON.

use std::path::Path;
use std::{env, fs};

use anyhow::{Context, Result, anyhow, bail};
use api::envoy::config::core::v3::Node;
use api::{Resource, TypeUrl, reflect};
use discovery::offline::Offline;
use model::config::Object;
use model::config::parse::documents;
use model::settings::Settings;
use prost_reflect::DynamicMessage;

const TYPES: [TypeUrl; 4] = [TypeUrl::CLUSTER, TypeUrl::ENDPOINT, TypeUrl::LISTENER, TypeUrl::ROUTE];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, id, names @ ..] = arguments.as_slice() else { bail!("usage: offline FOLDER NODE-ID [NAME...]") };
    let mesh = Offline::new(Settings::default(), objects(Path::new(folder))?);
    let node = Node { id: id.clone(), ..Node::default() };
    for kind in TYPES {
        let resources = mesh.resources(&node, &kind, names);
        for resource in resources.map_err(|error| anyhow!("could not read node id {id}: {}", error.0))? {
            match names {
                [] => println!("{} {}", kind.short(), resource.name),
                _ => println!("{}", json(&kind, &resource)?),
            }
        }
    }
    Ok(())
}

/// The objects of all YAML files in a folder; problems go to stderr.
fn objects(folder: &Path) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let parsed = documents(&fs::read_to_string(&path)?, &path.to_string_lossy());
            parsed.problems.iter().for_each(|problem| eprintln!("{problem}"));
            objects.extend(parsed.objects);
        }
    }
    Ok(objects)
}

fn json(kind: &TypeUrl, resource: &Resource) -> Result<String> {
    let name = kind.as_str().rsplit('/').next().unwrap_or_default();
    let descriptor = reflect::envoy().get_message_by_name(name).with_context(|| format!("no message {name}"))?;
    let message = DynamicMessage::decode(descriptor, resource.body.joined())?;
    Ok(serde_json::to_string_pretty(&message)?)
}
