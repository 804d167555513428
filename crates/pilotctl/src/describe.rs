//! `pilotctl describe`: everything that a server knows about one object or one proxy.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::control_plane::{ControlPlaneOptions, escaped};
use crate::history::summary;
use crate::output::OutputOptions;
use crate::table::table;

#[derive(Args)]
pub(crate) struct DescribeOptions {
    /// An object, KIND/NAMESPACE/NAME, or a connected proxy, NAME.NAMESPACE
    what: String,

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

/// Prints the description; returns the exit status.
pub(crate) async fn run(options: &DescribeOptions) -> Result<u8> {
    match options.what.splitn(3, '/').collect::<Vec<_>>()[..] {
        [kind, namespace, name] => object(options, kind, namespace, name).await,
        [_] => proxy(options).await,
        _ => bail!("{}: expected KIND/NAMESPACE/NAME or NAME.NAMESPACE", options.what),
    }
}

async fn object(options: &DescribeOptions, kind: &str, namespace: &str, name: &str) -> Result<u8> {
    let path = format!("/api/v1/objects?spec&namespace={}&name={}", escaped(namespace), escaped(name));
    let page = options.server.page(&path).await?;
    let is_meant = |object: &&Value| {
        text(object, "kind").eq_ignore_ascii_case(kind)
            && text(object, "namespace") == namespace
            && text(object, "name") == name
    };
    let Some(object) = page.as_array().into_iter().flatten().find(is_meant) else {
        bail!("{} does not exist", options.what);
    };
    let full = format!("{} {namespace}/{name}", text(object, "kind"));
    let problems = options.server.page("/api/v1/problems").await?;
    let about = |problem: &&Value| text(problem, "about") == full;
    let problems: Vec<&Value> = problems.as_array().into_iter().flatten().filter(about).collect();
    let history = options.server.page(&format!("/api/v1/history?object={}", escaped(&options.what))).await?;
    if options.output.printed(&json!({"object": object, "problems": problems, "history": history["entries"]}))? {
        return Ok(0);
    }
    println!("{full}");
    println!("from: {} {}", text(object, "source"), text(object, "file"));
    println!("\n{}", serde_saphyr::to_string(&object["object"])?);
    for problem in &problems {
        println!("{} {}: {}", text(problem, "severity"), text(problem, "code"), text(problem, "message"));
    }
    let row = |entry: &Value| vec![entry["last"].to_string(), text(entry, "at").to_owned(), summary(entry)];
    let rows: Vec<Vec<String>> = list(&history, "entries").iter().map(row).collect();
    if !rows.is_empty() {
        print!("{}", table(&["SNAPSHOT", "TIME", "CHANGE"], &rows));
    }
    Ok(u8::from(!problems.is_empty()))
}

async fn proxy(options: &DescribeOptions) -> Result<u8> {
    let page = options.server.page(&format!("/api/v1/proxies/{}", escaped(&options.what))).await?;
    if options.output.printed(&page)? {
        return Ok(0);
    }
    println!("{} ({}), {}", text(&page, "proxy"), text(&page, "type"), text(&page, "state"));
    println!("connected since {} from {}", text(&page, "connectedAt"), text(&page, "address"));
    let hosts: Vec<&str> = list(&page, "services").iter().filter_map(Value::as_str).collect();
    println!("services: {}", if hosts.is_empty() { "none".to_owned() } else { hosts.join(", ") });
    let row = |detail: &Value| {
        vec![
            text(detail, "type").to_owned(),
            text(detail, "status").to_owned(),
            detail["resources"].to_string(),
            text(detail, "sentAt").to_owned(),
            detail["pushes"].to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = list(&page, "details").iter().map(row).collect();
    print!("{}", table(&["TYPE", "STATUS", "RESOURCES", "SENT", "PUSHES"], &rows));
    for detail in list(&page, "details").iter().filter(|detail| detail["rejection"].is_object()) {
        println!("rejected {}: {}", text(detail, "type"), text(&detail["rejection"], "message"));
    }
    for pinned in list(&page, "pinned") {
        println!("served in an earlier version: {}: {}", text(pinned, "object"), text(pinned, "message"));
    }
    Ok(u8::from(text(&page, "state") == "rejected"))
}
