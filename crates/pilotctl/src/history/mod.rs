//! `pilotctl history`, `at`, `blame`, and `diff` between two moments: what changed when, from where, and who has it. The
//! server keeps the last changes in a journal of at most 1 MB.

mod moment;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::control_plane::{ControlPlaneOptions, escaped};
use crate::output::{FOUND_SOMETHING, ListFormat, OutputOptions, difference};
use crate::table::table;
pub(crate) use moment::{Moment, parsed_duration};

#[derive(Args)]
pub(crate) struct HistoryOptions {
    /// Only changes of this object, KIND/NAMESPACE/NAME
    object: Option<String>,

    /// Only changes that this proxy acknowledged
    #[arg(long)]
    proxy: Option<String>,

    /// Most changes to print
    #[arg(long, default_value_t = 30)]
    limit: usize,

    #[command(flatten)]
    server: ControlPlaneOptions,

    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Args)]
pub(crate) struct AtOptions {
    /// Time: RFC 3339, a duration such as 10m for ten minutes ago, or the number of a snapshot
    time: Moment,

    /// Only this object, KIND/NAMESPACE/NAME
    object: Option<String>,

    #[command(flatten)]
    server: ControlPlaneOptions,

    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Args)]
pub(crate) struct BlameOptions {
    /// An object, KIND/NAMESPACE/NAME, or a route as `pilotctl explain` prints it: the path of its object
    route: String,

    #[command(flatten)]
    server: ControlPlaneOptions,

    #[command(flatten)]
    output: OutputOptions,
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn joined(value: &Value, field: &str) -> String {
    list(value, field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// `file:line` of an object.
fn place(object: &Value) -> String {
    match (object["file"].as_str(), object["line"].as_u64()) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.to_owned(),
        _ => text(object, "source").to_owned(),
    }
}

/// What an entry changed, in one line.
pub(crate) fn summary(entry: &Value) -> String {
    let mut parts = Vec::new();
    let synced = joined(entry, "synced");
    if !synced.is_empty() {
        parts.push(format!("{synced} synced"));
    }
    let objects = list(entry, "objects");
    for object in objects.iter().take(3) {
        let name = format!("{} {}/{}", text(object, "kind"), text(object, "namespace"), text(object, "name"));
        parts.push(format!("{name} {}", text(object, "change")));
    }
    let more = entry["changedObjects"].as_u64().unwrap_or_default().saturating_sub(objects.len().min(3) as u64);
    if more > 0 {
        parts.push(format!("{more} more objects"));
    }
    if entry["settings"] == true {
        parts.push("settings".to_owned());
    }
    let counted = |field: &str, what: &str| match entry[field].as_u64() {
        None | Some(0) => None,
        Some(count) => Some(format!("{count} {what} ({})", joined(entry, "names"))),
    };
    if objects.is_empty() {
        parts.extend(counted("services", "services").or_else(|| counted("endpoints", "changes of endpoints")));
    }
    if parts.is_empty() { "renewed".to_owned() } else { parts.join("; ") }
}

fn acknowledged(entry: &Value) -> String {
    match (entry["acknowledged"].as_u64().unwrap_or_default(), entry["convergedMillis"].as_u64()) {
        (0, _) | (_, None) => "-".to_owned(),
        (count, Some(millis)) => format!("{count} in {millis} ms"),
    }
}

/// Prints the last changes; returns the exit status.
pub(crate) async fn history(options: &HistoryOptions) -> Result<u8> {
    let mut path = format!("/api/v1/history?limit={}", options.limit);
    if let Some(object) = &options.object {
        path += &format!("&object={}", escaped(object));
    }
    if let Some(proxy) = &options.proxy {
        path += &format!("&proxy={}", escaped(proxy));
    }
    if options.output.is_wide() {
        path += "&proxies";
    }
    let page = options.server.page(&path).await?;
    if options.output.printed(&page)? {
        return Ok(0);
    }
    let entries = list(&page, "entries");
    if entries.is_empty() {
        eprintln!("no such change is known");
        return Ok(0);
    }
    let row = |entry: &Value| {
        let places: Vec<String> = list(entry, "objects").iter().take(3).map(place).collect();
        vec![
            entry["last"].to_string(),
            text(entry, "at").to_owned(),
            if places.is_empty() { joined(entry, "sources") } else { places.join(", ") },
            acknowledged(entry),
            summary(entry),
        ]
    };
    let rows: Vec<Vec<String>> = entries.iter().take(options.limit).map(row).collect();
    print!("{}", table(&["SNAPSHOT", "TIME", "FROM", "ACKNOWLEDGED", "CHANGE"], &rows));
    if options.output.is_wide() {
        for entry in entries.iter().filter(|entry| !list(entry, "proxies").is_empty()) {
            println!("\nsnapshot {}:", entry["last"]);
            let rows: Vec<Vec<String>> = list(entry, "proxies")
                .iter()
                .map(|by| vec![text(by, "proxy").to_owned(), format!("{} ms", by["millis"])])
                .collect();
            print!("{}", table(&["PROXY", "AFTER"], &rows));
        }
    }
    Ok(0)
}

/// Prints objects as they were; returns the exit status.
pub(crate) async fn at(options: &AtOptions) -> Result<u8> {
    let mut path = format!("/api/v1/history/objects?at={}", escaped(&options.time.text()));
    if let Some(object) = &options.object {
        path += &format!("&object={}", escaped(object));
    }
    let page = options.server.page(&path).await?;
    let objects = list(&page, "objects");
    match options.output.output {
        ListFormat::Json => println!("{}", serde_json::to_string_pretty(&page)?),
        // Without an object the list is long: names first.
        ListFormat::Table if options.object.is_none() => {
            println!("snapshot {}", page["snapshot"]);
            let row = |object: &Value| {
                let meta = &object["metadata"];
                vec![text(object, "kind").to_owned(), text(meta, "namespace").to_owned(), text(meta, "name").to_owned()]
            };
            print!("{}", table(&["KIND", "NAMESPACE", "NAME"], &objects.iter().map(row).collect::<Vec<_>>()));
        }
        _ => print!("{}", yaml(objects)?),
    }
    if options.object.is_some() && objects.is_empty() {
        bail!("{} did not exist then", options.object.as_deref().unwrap_or_default());
    }
    Ok(0)
}

fn yaml(objects: &[Value]) -> Result<String> {
    let texts: Result<Vec<String>, _> = objects.iter().map(serde_saphyr::to_string).collect();
    Ok(texts?.join("---\n"))
}

/// Prints what differs between two moments; returns the exit status.
pub(crate) async fn diff(
    server: &ControlPlaneOptions,
    (from, to): (&Moment, Option<&Moment>),
    output: ListFormat,
) -> Result<u8> {
    let mut path = format!("/api/v1/history/diff?from={}", escaped(&from.text()));
    if let Some(to) = to {
        path += &format!("&to={}", escaped(&to.text()));
    }
    let page = server.page(&path).await?;
    let objects = list(&page, "objects");
    let status = if objects.is_empty() { 0 } else { FOUND_SOMETHING };
    if (OutputOptions { output }).printed(&page)? {
        return Ok(status);
    }
    for object in objects {
        let name = format!("{}/{}/{}", text(object, "kind"), text(object, "namespace"), text(object, "name"));
        let side = |value: &Value| match value {
            Value::Null => Ok(String::new()),
            value => serde_saphyr::to_string(value),
        };
        let names = (format!("{name} (snapshot {})", page["from"]), format!("{name} (snapshot {})", page["to"]));
        let text = difference(&side(&object["before"])?, &side(&object["after"])?, (&names.0, &names.1));
        anstream::print!("{text}");
    }
    Ok(status)
}

/// The object that a route comes from: as given, or by the path that Envoy's metadata has.
fn object_of(route: &str) -> Result<String> {
    let route = route.trim_start_matches("from ");
    let Some(path) = route.strip_prefix("/apis/") else { return Ok(route.to_owned()) };
    let parts: Vec<&str> = path.split(' ').next().unwrap_or_default().split('/').collect();
    let [_, _, "namespaces", namespace, kind, name] = parts[..] else {
        bail!("could not read {route}: expected /apis/GROUP/VERSION/namespaces/NAMESPACE/KIND/NAME");
    };
    Ok(format!("{}/{namespace}/{name}", kind.replace('-', "")))
}

/// Prints who changed the object of a route, newest first; returns the exit status.
pub(crate) async fn blame(options: &BlameOptions) -> Result<u8> {
    let object = object_of(&options.route)?;
    let page = options.server.page(&format!("/api/v1/history?limit=1000&object={}", escaped(&object))).await?;
    if options.output.printed(&page)? {
        return Ok(0);
    }
    let parts: Vec<&str> = object.splitn(3, '/').collect();
    let [kind, namespace, name] = parts[..] else { bail!("{object}: expected KIND/NAMESPACE/NAME") };
    let objects = format!("/api/v1/objects?namespace={}&name={}", escaped(namespace), escaped(name));
    let objects = options.server.page(&objects).await.context("could not look the object up")?;
    let is_meant = |entry: &&Value| {
        text(entry, "kind").eq_ignore_ascii_case(kind)
            && text(entry, "namespace") == namespace
            && text(entry, "name") == name
    };
    match objects.as_array().into_iter().flatten().find(is_meant) {
        Some(now) => println!("{object} is at {}", place(now)),
        None => println!("{object} does not exist now"),
    }
    let mut rows = Vec::new();
    for entry in list(&page, "entries") {
        for change in list(entry, "objects").iter().filter(is_meant) {
            rows.push(vec![
                entry["last"].to_string(),
                text(entry, "at").to_owned(),
                text(change, "change").to_owned(),
                place(change),
                acknowledged(entry),
            ]);
        }
    }
    if rows.is_empty() {
        println!("the journal has no change of it: it is as old as the server, or older than the journal reaches");
        return Ok(FOUND_SOMETHING);
    }
    print!("{}", table(&["SNAPSHOT", "TIME", "CHANGE", "FROM", "ACKNOWLEDGED"], &rows));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::object_of;

    #[test]
    fn routes_name_their_object() {
        let path = "/apis/networking.istio.io/v1/namespaces/shop/virtual-service/cart (shop.yaml:22)";
        assert_eq!(object_of(path).unwrap(), "virtualservice/shop/cart");
        assert_eq!(object_of("VirtualService/shop/cart").unwrap(), "VirtualService/shop/cart");
        assert!(object_of("/apis/short").is_err());
    }
}
