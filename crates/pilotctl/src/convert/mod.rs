//! `pilotctl convert`: prints objects of old Istio releases as objects of today's kinds. Documents of other kinds stay as
//! they are, so that the output can replace the files.

mod comments;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use model::change::{Batch, Change, SourceId};
use model::config::legacy::print_one;
use model::config::parse::documents;
use model::config::print::to_json;
use model::config::validate::validate;
use model::config::{Key, Kind, Object};
use model::problem::{Problem, Severity, Subject};
use model::settings::Settings;
use model::snapshot::Snapshot;
use model::snapshot::gateway_api::Equivalent;
use serde_json::Value;
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;

use crate::analyze::cluster_objects::cluster_objects;
use crate::analyze::gather::parts;
use crate::objects::{ObjectServer, ServerOptions, texts};

#[derive(Args)]
pub(crate) struct ConvertOptions {
    /// Files and folders with objects; `-` reads standard input
    files: Vec<PathBuf>,

    /// Read the objects of all namespaces from the configuration API or a cluster instead of files
    #[arg(long, conflicts_with = "files")]
    from_server: bool,

    /// Also read Services and ServiceEntries from the server: policies of files may name services that no file has
    #[arg(long)]
    services_from_server: bool,

    #[command(flatten)]
    server: ServerOptions,
}

/// Prints the documents; exit status 1 if an object could not be converted.
pub(crate) async fn run(options: &ConvertOptions) -> Result<u8> {
    let mut texts = match (options.from_server, options.files.is_empty()) {
        (true, _) => Vec::new(),
        (false, true) => bail!("could not find anything to convert: name files or folders, or give --from-server"),
        (false, false) => texts(&options.files)?,
    };
    let mut services = Vec::new();
    if options.from_server || options.services_from_server {
        let server = options.server.connect().await?;
        services.push(("server".to_owned(), stored_services(&server).await?));
        if options.from_server {
            texts.push(("server".to_owned(), stored(&server).await?));
        }
    }
    let conversion = Conversion::of(&texts, &services, options.server.namespace());
    conversion.problems.iter().for_each(|problem| eprintln!("{problem}"));
    let printed = conversion.printed(&texts);
    if !printed.is_empty() {
        println!("{}", printed.join("\n---\n"));
    }
    Ok(u8::from(conversion.problems.iter().any(|problem| problem.severity == Severity::Error)))
}

/// All legacy objects of the server, as JSON documents.
async fn stored(server: &ObjectServer) -> Result<String> {
    let mut found = Vec::new();
    for kind in Kind::ALL.iter().filter(|kind| kind.is_legacy()) {
        found.extend(server.objects_of(&version(*kind), kind.as_str()).await?);
    }
    documents_of(found)
}

/// The services of the server, which policies name: Services and ServiceEntries.
async fn stored_services(server: &ObjectServer) -> Result<String> {
    let mut found = server.objects_of("v1", "Service").await?;
    let kind = Kind::ServiceEntry;
    found.extend(server.objects_of(&version(kind), kind.as_str()).await?);
    documents_of(found)
}

/// The newest version of a kind, with its group.
fn version(kind: Kind) -> String {
    format!("{}/{}", kind.group(), kind.versions().first().copied().unwrap_or("v1"))
}

fn documents_of(objects: Vec<Value>) -> Result<String> {
    let texts = objects.into_iter().map(|object| serde_json::to_string(&without_server_fields(object)));
    let texts = texts.collect::<Result<Vec<String>, _>>().context("could not write JSON")?;
    Ok(texts.join("\n---\n"))
}

/// Drops what only a server sets.
fn without_server_fields(mut item: Value) -> Value {
    if let Some(metadata) = item.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["uid", "resourceVersion", "generation", "managedFields", "selfLink"] {
            metadata.shift_remove(key);
        }
    }
    item
}

/// The legacy objects of all texts and what they become.
struct Conversion {
    equivalents: Vec<Equivalent>,
    problems: Vec<Problem>,
    namespace: String,
}

impl Conversion {
    /// Converts the legacy objects of `texts`. Services and ServiceEntries of all texts are part of the mesh, because
    /// policies name services and become selectors of their workloads.
    fn of(texts: &[(String, String)], services: &[(String, String)], namespace: &str) -> Conversion {
        let is_shown = |problem: &Problem| problem.severity > Severity::Info;
        let (mut objects, mut problems) = (Vec::new(), Vec::new());
        for (name, text) in texts {
            let parsed = documents(text, name);
            problems.extend(parsed.problems.into_iter().filter(is_shown));
            objects.extend(parsed.objects.into_iter().map(|object| in_namespace(object, namespace)));
        }
        for (name, text) in services {
            objects.extend(documents(text, name).objects);
        }
        let is_entry = |object: &Object| object.spec.kind() == Kind::ServiceEntry && is_valid(object);
        let entries: Vec<&Object> = objects.iter().filter(|object| is_entry(object)).collect();
        let legacy: Vec<&Object> = objects.iter().filter(|object| object.spec.kind().is_legacy()).collect();
        let changes = entries.iter().chain(&legacy).map(|object| Change::Applied(Object::clone(object))).collect();
        let settings = Settings::default();
        let mut cluster = ClusterState::new(ClusterOptions::own(&settings), settings.clone());
        for object in texts.iter().chain(services).flat_map(|(_, text)| cluster_objects(text, namespace)) {
            if matches!(object, ClusterObject::Service(_)) {
                cluster.apply(object);
            }
        }
        let batches = vec![
            Batch { source: SourceId("files".into()), changes },
            Batch { source: SourceId("Kubernetes".into()), changes: cluster.changes() },
        ];
        let (snapshot, _) = Snapshot::empty(settings).apply(batches);
        problems.extend(legacy.iter().flat_map(|object| snapshot.legacy_problems(object)).filter(is_shown));
        // ServiceEntries are not converted; `analyze` reports their problems.
        let is_about_entry = |problem: &Problem| matches!(&problem.about, Subject::Object(key) if entries.iter().any(|entry| entry.key() == *key));
        let found =
            snapshot.problems.values().flatten().filter(|problem| is_shown(problem) && !is_about_entry(problem));
        problems.extend(found.cloned());
        Conversion { equivalents: snapshot.converted.equivalents(), problems, namespace: namespace.to_owned() }
    }

    /// The documents of all texts, with legacy ones replaced. An object that several legacy ones became is printed once,
    /// at the first of them.
    fn printed(&self, texts: &[(String, String)]) -> Vec<String> {
        let mut printed: BTreeSet<String> = BTreeSet::new();
        let mut all = Vec::new();
        for (name, part) in
            texts.iter().flat_map(|(name, text)| parts(text).into_iter().map(move |part| (name, part.1)))
        {
            let objects = documents(part, name).objects;
            let keys: Vec<Key> = objects.into_iter().map(|o| in_namespace(o, &self.namespace).key()).collect();
            if !keys.iter().any(|key| key.kind.is_legacy()) {
                all.push(part.trim_start_matches("---").trim().to_owned());
                continue;
            }
            all.extend(self.replaced(&keys, part, &mut printed));
        }
        all
    }

    /// What a document with these objects becomes. A document that cannot be converted stays, and one without an
    /// equivalent, as Mixer's, is left out.
    fn replaced(&self, keys: &[Key], part: &str, printed: &mut BTreeSet<String>) -> Vec<String> {
        let mut found = Vec::new();
        for key in keys {
            let source = source_name(key);
            let mine: Vec<&Equivalent> = self.equivalents.iter().filter(|e| e.sources.contains(&source)).collect();
            let is_broken = self
                .problems
                .iter()
                .any(|problem| problem.severity == Severity::Error && problem.about.to_string() == key.to_string());
            if mine.is_empty() && is_broken {
                found.push(part.trim().to_owned());
            }
            let keeps_comments = keys.len() == 1 && mine.len() == 1 && mine[0].sources.len() == 1;
            for equivalent in mine {
                if !printed.insert(equivalent.object.key().to_string()) {
                    continue;
                }
                let text = print_one(&to_json(&equivalent.object));
                found.push(if keeps_comments { comments::kept(part, &text) } else { text });
            }
        }
        found
    }
}

fn is_valid(object: &Object) -> bool {
    validate(object).iter().all(|problem| problem.severity < Severity::Error)
}

/// As the conversion names the source of an object; policies of RBAC are made from several.
fn source_name(key: &Key) -> String {
    match key.kind {
        Kind::ServiceRole | Kind::ServiceRoleBinding | Kind::RbacConfig | Kind::ClusterRbacConfig => {
            format!("RBAC {}", key.name)
        }
        _ => key.to_string(),
    }
}

/// The object in the default namespace if it names none.
fn in_namespace(mut object: Object, namespace: &str) -> Object {
    if object.meta.namespace.is_empty() && !object.spec.kind().is_cluster_wide() {
        Arc::make_mut(&mut object.meta).namespace = namespace.into();
    }
    object
}

#[cfg(test)]
mod tests;
