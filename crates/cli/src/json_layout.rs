//! Log lines as JSON with istiod's keys: `time`, `level`, `scope`, `msg`, then the fields of the event.

use std::fmt;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

use crate::scopes::{Scopes, level_name, scope_of};

pub(crate) struct JsonLayout {
    pub(crate) scopes: Scopes,
}

impl<S, N> FormatEvent<S, N> for JsonLayout
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = EventFields::default();
        event.record(&mut fields);
        writeln!(line, "{}", Value::Object(object(&time, event, self.scopes, fields)))
    }
}

fn object(time: &str, event: &Event<'_>, scopes: Scopes, fields: EventFields) -> Map<String, Value> {
    let metadata = event.metadata();
    let mut object = Map::new();
    object.insert("time".to_owned(), json!(time));
    object.insert("level".to_owned(), json!(level_name(*metadata.level())));
    object.insert("scope".to_owned(), json!(scope_of(metadata.target(), scopes)));
    object.insert("msg".to_owned(), json!(fields.message));
    for (name, value) in fields.others {
        // A field must not replace a key of the line.
        let name = if object.contains_key(name) { format!("{name}_") } else { name.to_owned() };
        object.insert(name, value);
    }
    object
}

/// The fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.others.push((name, value)),
        }
    }
}

impl Visit for EventFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, json!(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, json!(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, json!(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::Value;
    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::JsonLayout;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_have_istiods_keys() {
        let lines = Lines::default();
        let out = lines.clone();
        let layout = JsonLayout { scopes: &[("ads", "cli")] };
        let subscriber =
            tracing_subscriber::registry().with(layer().with_writer(move || out.clone()).event_format(layout));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(count = 2, reason = "a\nb", level = "x", text = ?Some(1), "client {}", "left");
        });
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["time", "level", "scope", "msg", "count", "reason", "level_", "text"]);
        assert_eq!(
            (&line["level"], &line["scope"], &line["msg"]),
            (&"warn".into(), &"ads".into(), &"client left".into())
        );
        assert_eq!((&line["count"], &line["reason"], &line["text"]), (&2.into(), &"a\nb".into(), &"Some(1)".into()));
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
}
