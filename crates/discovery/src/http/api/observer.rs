//! Makes events from differences between the state now and a moment ago. It runs only while events are read, so that
//! serving costs nothing for them otherwise.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::problem::Severity;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::{Pages, WeakPages};
use super::{history, json_of, proxies, status, time_text};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long it goes on without readers: they come back after their connection ends.
const REST: Duration = Duration::from_secs(10);
/// Events about single proxies in one interval; the others are counted.
const MOST: usize = 50;

/// What was last seen.
#[derive(Default)]
struct Observed {
    journal: u64,
    proxies: HashMap<u64, ObservedProxy>,
    sync: (u64, usize, usize),
    sources: HashMap<String, &'static str>,
    problems: Option<(usize, usize)>,
    sample: Option<Value>,
}

struct ObservedProxy {
    name: String,
    pushes: u64,
    rejections: u64,
}

/// Sends events until no reader is left or the server stops.
pub(super) async fn observe(pages: WeakPages, stop: CancellationToken) {
    let mut seen: Option<Observed> = None;
    let mut idle_since: Option<Instant> = None;
    loop {
        let Some(pages) = pages.upgrade() else { return };
        let before = seen.take();
        let look = tokio::task::spawn_blocking(move || {
            let is_first = before.is_none();
            let mut state = before.unwrap_or_default();
            let events = state.look(&pages);
            // The first look finds everything; readers ask for the state before.
            for (kind, data) in events.iter().filter(|_| !is_first) {
                pages.0.events.send(kind, data);
            }
            (state, pages)
        });
        let Ok((state, pages)) = look.await else { return };
        seen = Some(state);
        let readers = pages.0.events.readers();
        idle_since = if readers > 0 { None } else { idle_since.or_else(|| Some(Instant::now())) };
        if idle_since.is_some_and(|since| since.elapsed() > REST) && pages.0.events.rest() {
            return;
        }
        drop(pages);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

type Events = Vec<(&'static str, Value)>;

impl Observed {
    /// What is new since the last look.
    fn look(&mut self, pages: &Pages) -> Events {
        let mut events = Events::new();
        self.look_at_journal(pages, &mut events);
        self.look_at_proxies(pages, &mut events);
        self.look_at_sources(pages, &mut events);
        let sample = pages.0.stats.last().and_then(|sample| json_of(&sample).ok());
        if sample != self.sample {
            self.sample.clone_from(&sample);
            events.extend(sample.map(|sample| ("stats", sample)));
        }
        events
    }

    fn look_at_journal(&mut self, pages: &Pages, events: &mut Events) {
        let view = pages.pilot().world().journal().since(self.journal);
        for entry in &view.entries {
            self.journal = self.journal.max(entry.last);
            events.extend(json_of(&history::entry(entry, false)).ok().map(|shown| ("change", shown)));
        }
    }

    fn look_at_proxies(&mut self, pages: &Pages, events: &mut Events) {
        let newest = pages.pilot().world().now().number;
        let mut before = std::mem::take(&mut self.proxies);
        let (mut holding, mut single) = (0, Vec::new());
        for connection in proxies::sorted(pages) {
            let (name, watched, held) = (connection.proxy.id.to_string(), connection.watched(), connection.holding());
            holding += usize::from(held.since.is_some() && held.number >= newest);
            let pushes = watched.values().map(|of| of.pushes).sum();
            let rejections = watched.values().flat_map(|of| of.refusals.values()).sum();
            let known = before.remove(&connection.number);
            if known.is_none() {
                single.push(("connected", json!({"proxy": name})));
            }
            let known = known.map_or((0, 0), |known| (known.pushes, known.rejections));
            if pushes > known.0 {
                let types: Vec<&str> = watched.keys().map(|kind| kind.short()).collect();
                single.push(("push", json!({"proxy": name, "responses": pushes - known.0, "types": types})));
            }
            if rejections > known.1 {
                let refused = watched.iter().filter_map(|(kind, of)| Some((kind, of.refused.as_ref()?)));
                let newest = refused.max_by_key(|(_, refused)| refused.at);
                let (kind, at, message) = newest.map_or(("", None, ""), |(kind, refused)| {
                    (kind.short(), Some(time_text(refused.at)), refused.message.as_str())
                });
                events.push(("rejection", json!({"proxy": name, "type": kind, "at": at, "message": message})));
            }
            self.proxies.insert(connection.number, ObservedProxy { name, pushes, rejections });
        }
        single.extend(before.into_values().map(|gone| ("disconnected", json!({"proxy": gone.name}))));
        let more = single.len().saturating_sub(MOST);
        single.truncate(MOST);
        events.extend(single);
        if more > 0 {
            events.push(("more", json!({"events": more})));
        }
        let sync = (newest, self.proxies.len(), holding);
        if sync != self.sync {
            self.sync = sync;
            events.push(("sync", json!({"snapshot": newest, "proxies": sync.1, "synced": holding})));
        }
    }

    fn look_at_sources(&mut self, pages: &Pages, events: &mut Events) {
        for source in status::source_entries(pages) {
            if self.sources.insert(source.source.clone(), source.state) != Some(source.state) {
                events.extend(json_of(&source).ok().map(|shown| ("source", shown)));
            }
        }
        let published = pages.pilot().world().now();
        let count = |severity: Severity| {
            published.snapshot.problems.values().flatten().filter(|problem| problem.severity == severity).count()
        };
        let problems = (count(Severity::Error), count(Severity::Warning));
        if self.problems.replace(problems) != Some(problems) {
            events.push(("problems", json!({"errors": problems.0, "warnings": problems.1})));
        }
    }
}
