//! `get` from a running pilot-discovery: its objects and services, from whatever files, registries or clusters they come. For
//! meshes without an API server; see `get` for those with one.

use anyhow::{Result, bail};
use model::config::Kind;
use model::suggest::similar;
use serde_json::{Value, json};

use super::get_options::{GetOptions, ObjectFormat};
use crate::control_plane::{ControlPlaneOptions, escaped};
use crate::table::table;

const SERVICE: [&str; 4] = ["services", "service", "svc", "services.v1"];

/// What users may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunningKind {
    Service,
    Object(Kind),
}

/// Prints objects or services; returns the exit status.
pub(super) async fn get(options: &GetOptions, server: &ControlPlaneOptions) -> Result<u8> {
    if !options.selector.is_empty() || !options.at.is_empty() {
        bail!("--selector and --at need a cluster or the configuration API; `pilotctl at` prints objects of the past");
    }
    match kind_named(&options.kind)? {
        RunningKind::Service => services(options, server).await,
        RunningKind::Object(kind) => objects(options, server, kind).await,
    }
}

/// The kind with a name as users type it: plural, singular or short, with a group or without.
fn kind_named(name: &str) -> Result<RunningKind> {
    let lower = name.to_lowercase();
    if SERVICE.contains(&&*lower) {
        return Ok(RunningKind::Service);
    }
    let (word, group) = lower.split_once('.').unwrap_or((&lower, ""));
    let is_it = |kind: &&Kind| {
        let short = kind.traits().short_name.unwrap_or_default();
        let is_named = [kind.plural(), short].contains(&word) || kind.as_str().eq_ignore_ascii_case(word);
        is_named && (group.is_empty() || kind.group() == group)
    };
    if let Some(kind) = Kind::ALL.iter().find(is_it) {
        return Ok(RunningKind::Object(*kind));
    }
    let known = Kind::ALL.iter().map(|kind| kind.plural()).chain(["services"]);
    let hint = similar(word, known).map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
    bail!("the server has no kind {name:?}{hint}")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn items(page: &Value) -> Vec<&Value> {
    page.as_array().into_iter().flatten().collect()
}

/// `&namespace=NAME`, if one was given.
fn of_namespace(options: &GetOptions) -> String {
    match options.server.given_namespace() {
        Some(namespace) if !options.all_namespaces => format!("&namespace={}", escaped(namespace)),
        _ => String::new(),
    }
}

async fn objects(options: &GetOptions, server: &ControlPlaneOptions, kind: Kind) -> Result<u8> {
    let name = if options.name.is_empty() { String::new() } else { format!("&name={}", escaped(&options.name)) };
    let path = format!("/api/v1/objects?spec&kind={kind}{name}{}", of_namespace(options));
    let page = server.page(&path).await?;
    // Two groups have a kind Gateway.
    let mut found = items(&page);
    found.retain(|entry| text(&entry["object"], "apiVersion").split('/').next() == Some(kind.group()));
    if found.is_empty() && !options.name.is_empty() {
        bail!("could not get {}: {:?} not found", options.kind, options.name);
    }
    match options.output {
        ObjectFormat::Name => {
            found.iter().for_each(|entry| println!("{}.{}/{}", kind.plural(), kind.group(), text(entry, "name")));
        }
        ObjectFormat::Json | ObjectFormat::Yaml => {
            let objects: Vec<&Value> = found.iter().map(|entry| &entry["object"]).collect();
            let value = match objects[..] {
                [one] if !options.name.is_empty() => one.clone(),
                _ => json!({"apiVersion": "v1", "kind": "List", "items": objects}),
            };
            options.output.print(&value)?;
        }
        ObjectFormat::Table | ObjectFormat::Wide => {
            let place = |entry: &Value| match (entry["file"].as_str(), entry["line"].as_u64()) {
                (Some(file), Some(line)) => format!("{file}:{line}"),
                (Some(file), None) => file.to_owned(),
                _ => text(entry, "source").to_owned(),
            };
            let row = |entry: &&Value| {
                let names = [text(entry, "namespace"), text(entry, "name")].map(str::to_owned);
                let further = [place(entry), text(entry, "source").to_owned(), text(entry, "config").to_owned()];
                names.into_iter().chain(further).collect::<Vec<_>>()
            };
            let rows: Vec<Vec<String>> = found.iter().map(row).collect();
            print!("{}", columns(&["NAMESPACE", "NAME", "FROM", "SOURCE", "CONFIG"], 3, rows, options));
        }
    }
    Ok(0)
}

async fn services(options: &GetOptions, server: &ControlPlaneOptions) -> Result<u8> {
    let name = if options.name.is_empty() { String::new() } else { format!("&name={}", escaped(&options.name)) };
    let page = server.page(&format!("/api/v1/services?limit=10000{name}{}", of_namespace(options))).await?;
    let mut found = items(&page["services"]);
    // The server looks for a part of the host. A short name is the first label.
    let is_named = |host: &str| host == options.name || host.split('.').next() == Some(&*options.name);
    found.retain(|service| options.name.is_empty() || is_named(text(service, "host")));
    if found.is_empty() && !options.name.is_empty() {
        bail!("could not get services: {:?} not found", options.name);
    }
    match options.output {
        ObjectFormat::Name => found.iter().for_each(|service| println!("services/{}", text(service, "host"))),
        ObjectFormat::Json | ObjectFormat::Yaml => options.output.print(&json!({"services": found}))?,
        ObjectFormat::Table | ObjectFormat::Wide => {
            let ports = |service: &Value| {
                let port = |port: &&Value| format!("{}/{}", port["number"], text(port, "protocol"));
                items(&service["ports"]).iter().map(port).collect::<Vec<_>>().join(",")
            };
            let row = |service: &&Value| {
                let plain = ["namespace", "host", "registry"].map(|field| text(service, field).to_owned());
                let healthy = format!("{}/{}", service["healthy"], service["endpoints"]);
                let further = [
                    ports(service),
                    healthy,
                    text(service, "address").to_owned(),
                    text(service, "resolution").to_owned(),
                ];
                plain.into_iter().chain(further).collect::<Vec<_>>()
            };
            let rows: Vec<Vec<String>> = found.iter().map(row).collect();
            let head = ["NAMESPACE", "HOST", "REGISTRY", "PORTS", "HEALTHY", "ADDRESS", "RESOLUTION"];
            print!("{}", columns(&head, 5, rows, options));
        }
    }
    Ok(0)
}

/// A table of the first columns, or of all of them.
fn columns(head: &[&str], narrow: usize, mut rows: Vec<Vec<String>>, options: &GetOptions) -> String {
    let shown = if options.output == ObjectFormat::Wide { head.len() } else { narrow };
    rows.iter_mut().for_each(|row| row.truncate(shown));
    table(&head[..shown], &rows)
}

#[cfg(test)]
mod tests {
    use model::config::Kind;

    use super::{RunningKind, kind_named};

    #[test]
    fn kinds_are_found_as_users_type_them() {
        for (name, kind) in [
            ("vs", Kind::VirtualService),
            ("VirtualService", Kind::VirtualService),
            ("virtualservices.networking.istio.io", Kind::VirtualService),
            ("gateway", Kind::Gateway),
            ("gateways.gateway.networking.k8s.io", Kind::KubernetesGateway),
            ("httproutes", Kind::HttpRoute),
        ] {
            assert_eq!(kind_named(name).unwrap(), RunningKind::Object(kind), "{name}");
        }
        assert_eq!(kind_named("svc").unwrap(), RunningKind::Service);
        let error = kind_named("virtualservcies").unwrap_err().to_string();
        assert_eq!(error, "the server has no kind \"virtualservcies\"; did you mean \"virtualservices\"?");
    }
}
