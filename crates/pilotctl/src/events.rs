//! `pilotctl events`: changes, pushes, rejections and sources of a server as they happen.

use anyhow::{Context, Result};
use clap::Args;
use http::Request;
use http_body_util::{BodyExt, Empty};
use net::http::{connect, send};
use serde_json::Value;

use crate::control_plane::ControlPlaneOptions;
use crate::history::summary;
use crate::output::{ListFormat, red, yellow};

/// A line of events is far shorter.
const LONGEST: usize = 16 << 20;

#[derive(Args)]
pub(crate) struct EventsOptions {
    /// Print only these: change, push, rejection, source, problems, sync, connected, disconnected
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Stop after this many events
    #[arg(long)]
    count: Option<usize>,

    /// The same as `-o json`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// How to print events: JSON has one line for each, YAML one document
    #[arg(short, long, value_enum, default_value_t = ListFormat::Table)]
    output: ListFormat,
}

/// Prints events until the server is gone or interrupted; returns the exit status.
pub(crate) async fn run(options: &EventsOptions) -> Result<u8> {
    let (mut last, mut printed) = (String::new(), 0);
    loop {
        // The server ends a stream after some minutes; the next one goes on after the last event.
        let mut stream = EventStream::open(&options.server, &last).await?;
        while let Some(event) = stream.next().await? {
            last.clone_from(&event.id);
            let is_wanted = match options.only.is_empty() {
                true => event.kind != "stats",
                false => options.only.contains(&event.kind),
            };
            if !is_wanted {
                continue;
            }
            print(&event, if options.json { ListFormat::Json } else { options.output })?;
            printed += 1;
            if options.count.is_some_and(|count| printed >= count) {
                return Ok(0);
            }
        }
    }
}

fn print(event: &ServerEvent, format: ListFormat) -> Result<()> {
    let value = || serde_json::json!({"event": event.kind, "data": event.data});
    match format {
        ListFormat::Json => println!("{}", value()),
        ListFormat::Yaml => print!("---\n{}", serde_saphyr::to_string(&value())?),
        ListFormat::Table => anstream::println!("{}", line(event)),
        ListFormat::Wide => anstream::println!("{:>6} {}", event.id, line(event)),
    }
    Ok(())
}

struct ServerEvent {
    id: String,
    kind: String,
    data: Value,
}

struct EventStream {
    body: hyper::body::Incoming,
    buffer: String,
}

impl EventStream {
    async fn open(server: &ControlPlaneOptions, last: &str) -> Result<EventStream> {
        let address = server.live("/api/v1/events")?;
        let failed = || format!("could not read events of the control plane at {address}");
        let request = Request::get("/api/v1/events").header("host", address).header("last-event-id", last);
        let request = request.body(Empty::<bytes::Bytes>::new()).with_context(failed)?;
        let answer = send(connect(address).await.with_context(failed)?, request).await.with_context(failed)?;
        anyhow::ensure!(answer.status().is_success(), "{}: received {}", failed(), answer.status());
        Ok(EventStream { body: answer.into_body(), buffer: String::new() })
    }

    /// The next event; `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<ServerEvent>> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let text: String = self.buffer.drain(..end + 2).collect();
                match parsed(&text) {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            anyhow::ensure!(self.buffer.len() < LONGEST, "an event of the server is too long");
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.context("the server closed the stream of events")?;
            if let Some(bytes) = frame.data_ref() {
                self.buffer.push_str(&String::from_utf8_lossy(bytes));
            }
        }
    }
}

/// An event, or `None` for comments.
fn parsed(text: &str) -> Option<ServerEvent> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let data = serde_json::from_str(field("data:")?).ok()?;
    Some(ServerEvent { id: field("id:")?.to_owned(), kind: field("event:")?.to_owned(), data })
}

fn line(event: &ServerEvent) -> String {
    let text = |field: &str| event.data[field].as_str().unwrap_or_default();
    let number = |field: &str| event.data[field].as_u64().unwrap_or_default();
    match event.kind.as_str() {
        "change" => format!("change       snapshot {}: {}", number("last"), summary(&event.data)),
        "sync" => {
            format!(
                "sync         {} of {} proxies have snapshot {}",
                number("synced"),
                number("proxies"),
                number("snapshot")
            )
        }
        "push" => format!("push         {}: {} responses", text("proxy"), number("responses")),
        "rejection" => red(&format!("rejection    {} {}: {}", text("proxy"), text("type"), text("message"))),
        "source" if text("state") == "stale" => {
            yellow(&format!("source       {} is stale: {}", text("source"), text("reason")))
        }
        "source" => format!("source       {} is {}", text("source"), text("state")),
        "problems" => format!("problems     {} errors, {} warnings", number("errors"), number("warnings")),
        "more" => format!("             and {} more events of proxies", number("events")),
        kind => format!("{kind:12} {}", text("proxy")),
    }
}

#[cfg(test)]
mod tests {
    use super::{line, parsed};

    #[test]
    fn events_are_read_and_comments_are_skipped() {
        let event = parsed("id: 7\nevent: sync\ndata: {\"snapshot\":3,\"proxies\":2,\"synced\":1}\n\n").unwrap();
        assert_eq!((&*event.id, &*event.kind), ("7", "sync"));
        assert_eq!(line(&event), "sync         1 of 2 proxies have snapshot 3");
        assert!(parsed(": \n\n").is_none() && parsed("retry: 200\n\n").is_none() && parsed("id: 1\ndata: {").is_none());
    }
}
