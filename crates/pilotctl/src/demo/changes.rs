//! Prints what changes while the demo runs: objects, with the proxies that have them and the time it took, and problems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::startup::Demo;
use crate::control_plane::ControlPlaneOptions;

/// How often the server is asked for changes.
const POLL: Duration = Duration::from_millis(20);
/// How often it is asked for problems.
const PROBLEMS: Duration = Duration::from_millis(250);
/// Proxies that do not have a change after this time are reported as behind.
const LATE: Duration = Duration::from_secs(5);

/// Where an object was read from, as `/api/v1/objects` has it.
#[derive(Deserialize)]
struct ObjectPlace {
    kind: String,
    namespace: String,
    name: String,
    file: Option<String>,
}

/// An object as `/debug/configz` has it.
#[derive(Deserialize)]
struct ServerObject {
    kind: String,
    metadata: ObjectMetadata,
    #[serde(default)]
    spec: Value,
}

#[derive(Deserialize)]
struct ObjectMetadata {
    #[serde(default)]
    namespace: String,
    name: String,
}

/// The part of `/debug/snapshotz` that says who has which snapshot.
#[derive(Deserialize)]
struct ServerProxies {
    snapshot: u64,
    proxies: Vec<ServerProxy>,
}

#[derive(Deserialize)]
struct ServerProxy {
    proxy: String,
    snapshot: Option<u64>,
    unacknowledged: u32,
}

impl ServerProxy {
    fn has(&self, snapshot: u64) -> bool {
        self.unacknowledged == 0 && self.snapshot.is_some_and(|own| own >= snapshot)
    }
}

/// A problem as `/debug/problems` has it.
#[derive(Deserialize)]
struct ServerProblem {
    code: String,
    severity: String,
    text: String,
}

/// Objects by name: the file and the content of each.
type KnownObjects = BTreeMap<String, (Option<String>, Value)>;

/// One object that was added, changed or removed.
#[derive(Debug, PartialEq)]
struct ObjectChange {
    object: String,
    file: Option<String>,
    verb: &'static str,
}

/// Prints changes until a process of the demo ends.
pub(super) async fn follow(demo: &mut Demo) -> Result<()> {
    let server = demo.server.clone();
    let mut known = objects(&server).await?;
    let mut problems = problems(&server).await.unwrap_or_default();
    problems.iter().for_each(|problem| println!("{problem}"));
    let mut checked = Instant::now();
    loop {
        demo.check_processes()?;
        if let Ok(now) = objects(&server).await {
            let changes = differences(&known, &now);
            known = now;
            if !changes.is_empty() {
                report(&server, &changes).await;
            }
        }
        if checked.elapsed() > PROBLEMS {
            checked = Instant::now();
            if let Ok(now) = self::problems(&server).await {
                now.difference(&problems).for_each(|problem| println!("{problem}"));
                problems.difference(&now).for_each(|problem| println!("solved: {problem}"));
                problems = now;
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn objects(server: &ControlPlaneOptions) -> Result<KnownObjects> {
    let places: Vec<ObjectPlace> = serde_json::from_value(server.page("/api/v1/objects").await?)?;
    let title = |kind: &str, namespace: &str, name: &str| format!("{kind} {namespace}/{name}");
    let mut files: BTreeMap<String, Option<String>> =
        places.into_iter().map(|of| (title(&of.kind, &of.namespace, &of.name), of.file)).collect();
    let all: Vec<ServerObject> = serde_json::from_value(server.page("/debug/configz").await?)?;
    let named = all.into_iter().map(|object| {
        let name = title(&object.kind, &object.metadata.namespace, &object.metadata.name);
        let file = files.remove(&name).flatten();
        (name, (file, object.spec))
    });
    Ok(named.collect())
}

fn differences(before: &KnownObjects, now: &KnownObjects) -> Vec<ObjectChange> {
    let change = |object: &String, file: &Option<String>, verb| ObjectChange {
        object: object.clone(),
        file: file.clone(),
        verb,
    };
    let new = now.iter().filter_map(|(object, (file, spec))| match before.get(object) {
        None => Some(change(object, file, "added")),
        Some((_, old)) if old != spec => Some(change(object, file, "changed")),
        Some(_) => None,
    });
    let gone = before.iter().filter(|(object, _)| !now.contains_key(*object));
    new.chain(gone.map(|(object, (file, _))| change(object, file, "removed"))).collect()
}

/// Waits until all proxies have the changes, and prints a line for each change.
async fn report(server: &ControlPlaneOptions, changes: &[ObjectChange]) {
    let noticed = SystemTime::now();
    let begun = changes.iter().filter_map(|change| written(change.file.as_deref()?, noticed)).max().unwrap_or(noticed);
    let (mut snapshot, mut is_confirmed) = (None, false);
    let (have, behind, all) = loop {
        let Ok(now) = proxies(server).await else { return };
        let snapshot = *snapshot.get_or_insert(now.snapshot);
        let behind: Vec<String> =
            now.proxies.iter().filter(|of| !of.has(snapshot)).map(|of| of.proxy.clone()).collect();
        let is_done = behind.is_empty();
        if (is_done && is_confirmed) || noticed.elapsed().is_ok_and(|passed| passed > LATE) {
            break (now.proxies.len() - behind.len(), behind, now.proxies.len());
        }
        // A proxy may be about to be sent the change, so it is asked twice.
        is_confirmed = is_done;
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let took = begun.elapsed().unwrap_or_default().as_millis();
    let behind = if behind.is_empty() { String::new() } else { format!("; behind: {}", behind.join(", ")) };
    for ObjectChange { object, file, verb } in changes {
        let name = file.as_deref().and_then(|file| Path::new(file).file_name()).unwrap_or_default().to_string_lossy();
        let from = if name.is_empty() { String::new() } else { format!("{name}: ") };
        println!("{from}{object} {verb}: {have} of {all} proxies have it after {took} ms{behind}");
    }
}

/// When a file was written, if that was just before `now`.
fn written(file: &str, now: SystemTime) -> Option<SystemTime> {
    let at = std::fs::metadata(file).ok()?.modified().ok()?;
    now.duration_since(at).is_ok_and(|ago| ago < LATE).then_some(at)
}

async fn proxies(server: &ControlPlaneOptions) -> Result<ServerProxies> {
    Ok(serde_json::from_value(server.page("/debug/snapshotz").await?)?)
}

/// Problems and findings, one line each.
async fn problems(server: &ControlPlaneOptions) -> Result<BTreeSet<String>> {
    let all: Vec<ServerProblem> = serde_json::from_value(server.page("/debug/problems").await?)?;
    let worth = all.into_iter().filter(|problem| problem.severity != "info");
    Ok(worth.map(|problem| format!("{} [{}] {}", problem.severity, problem.code, problem.text)).collect())
}

#[cfg(test)]
mod tests {
    use super::{KnownObjects, ObjectChange, differences};

    #[test]
    fn added_changed_and_removed_objects_are_named() {
        let of = |rows: &[(&str, &str)]| -> KnownObjects {
            rows.iter().map(|(name, version)| ((*name).to_owned(), (None, (*version).into()))).collect()
        };
        let change = |object: &str, verb| ObjectChange { object: object.to_owned(), file: None, verb };
        assert_eq!(
            differences(&of(&[("a", "1"), ("b", "1"), ("c", "1")]), &of(&[("a", "1"), ("b", "2"), ("d", "1")])),
            [change("b", "changed"), change("d", "added"), change("c", "removed")]
        );
    }
}
