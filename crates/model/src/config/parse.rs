//! Parses text to config objects. A bad document becomes a Problem with file and line; the others are returned.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::lines::{FieldPath, lines_of};
use super::message::FieldFinding;
use super::meta::{self, MetaMistake};
use super::text::{self, Chunk, SyntaxError, clip};
use super::{Kind, Meta, Object, message};
use crate::config::problem::{FileLocation, Problem, ProblemCode, Severity, Subject};
use crate::names::Str;
use crate::suggest;

/// Maximum number of findings per object; the rest is only counted.
const MOST_FINDINGS: usize = 20;
/// Maximum number of problems per text; the rest is only counted. A file of tiny documents can have millions.
const MOST_PROBLEMS: usize = 10_000;
/// Maximum nesting of `List`s.
const MOST_LISTS: usize = 4;

/// The objects and problems of a text.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// In the order of the text.
    pub objects: Vec<Object>,
    pub problems: Vec<Problem>,
}

/// Parses all YAML or JSON documents of a text. `file` is its name in messages. Objects are not validated: see
/// `validate`.
pub fn documents(text: &str, file: &str) -> Parsed {
    let (mut parsed, mut unreported) = (Parsed::default(), UnreportedProblems::default());
    let file: Str = file.into();
    for document in text::read(text) {
        let location = FileLocation { file: file.clone(), line: document.line };
        match document.content {
            Ok(value) => parsed.add(DocumentReader::of(&value, &location), document.source),
            Err(SyntaxError { line, message }) => {
                let line = if line == 0 { location.line } else { line };
                let location = FileLocation { file: file.clone(), line };
                let message = format!("could not parse the document: {message}");
                let problem = Problem::error(Subject::File(file.clone()), message).coded(ProblemCode::Syntax);
                parsed.problems.push(problem.at(Some(location)));
            }
        }
        unreported.add(&mut parsed.problems);
    }
    parsed.problems.extend(unreported.summary(&file));
    parsed
}

/// Problems beyond the maximum: only their number and highest severity.
#[derive(Default)]
struct UnreportedProblems {
    count: usize,
    severity: Option<Severity>,
}

impl UnreportedProblems {
    /// Removes problems beyond the maximum.
    fn add(&mut self, problems: &mut Vec<Problem>) {
        if problems.len() > MOST_PROBLEMS {
            self.severity = self.severity.max(problems[MOST_PROBLEMS..].iter().map(|p| p.severity).max());
            self.count += problems.len() - MOST_PROBLEMS;
            problems.truncate(MOST_PROBLEMS);
        }
    }

    /// One problem for all of them, about the whole file because their objects are not recorded.
    fn summary(&self, file: &Str) -> Option<Problem> {
        let severity = self.severity?;
        let message = format!("and {} more problems in this file", self.count).into();
        let location = Some(FileLocation { file: file.clone(), line: 0 });
        Some(Problem::new(severity, Subject::File(file.clone()), message).coded(ProblemCode::Limit).at(location))
    }
}

/// Parses one object that is already JSON, such as a response of an API server.
pub fn value(json: &Value, location: &FileLocation) -> Parsed {
    let mut parsed = Parsed::default();
    parsed.add(DocumentReader::of(json, location), None);
    parsed
}

impl Parsed {
    /// Adds the objects and problems of a document, with their lines if the text is given.
    fn add(&mut self, reading: DocumentReader<'_>, source: Option<Chunk<'_>>) {
        self.problems.extend(located(reading.problems, source));
        let items: HashSet<FieldPath> =
            reading.objects.iter().map(|(_, steps)| steps.clone()).filter(|s| !s.is_empty()).collect();
        let lines = source.filter(|_| !items.is_empty()).map(|chunk| lines_of(chunk, &items)).unwrap_or_default();
        for (mut object, steps) in reading.objects {
            if let (Some(line), Some(meta)) = (lines.get(&steps), Arc::get_mut(&mut object.meta)) {
                meta.location = Some(FileLocation { file: reading.location.file.clone(), line: *line });
            }
            self.objects.push(object);
        }
    }
}

/// Sets the lines of problems to those of their fields, where these can be found.
pub(super) fn located(problems: Vec<(Problem, FieldPath)>, source: Option<Chunk<'_>>) -> Vec<Problem> {
    let wanted: HashSet<FieldPath> =
        problems.iter().map(|(_, steps)| steps.clone()).filter(|s| !s.is_empty()).collect();
    let lines = source.filter(|_| !wanted.is_empty()).map(|chunk| lines_of(chunk, &wanted)).unwrap_or_default();
    let located = |(mut problem, steps): (Problem, FieldPath)| {
        if let (Some(line), Some(location)) = (lines.get(&steps), &mut problem.location) {
            location.line = *line;
        }
        problem
    };
    problems.into_iter().map(located).collect()
}

/// Reads one document. Objects and problems carry the path to their field.
struct DocumentReader<'a> {
    location: &'a FileLocation,
    /// The path to the current object, which may be an item of a `List`.
    steps: FieldPath,
    objects: Vec<(Object, FieldPath)>,
    problems: Vec<(Problem, FieldPath)>,
}

impl<'a> DocumentReader<'a> {
    fn of(json: &Value, location: &'a FileLocation) -> DocumentReader<'a> {
        let mut reading = DocumentReader { location, steps: Vec::new(), objects: Vec::new(), problems: Vec::new() };
        reading.document(json, MOST_LISTS);
        reading
    }

    fn document(&mut self, json: &Value, lists_left: usize) {
        let about = Subject::File(self.location.file.clone());
        let Value::Object(entries) = json else {
            let message = "a document must be an object with apiVersion and kind";
            return self.report(Problem::error(about, message).coded(ProblemCode::NotAnObject));
        };
        let (api_version, kind) = (text_of(entries, "apiVersion"), text_of(entries, "kind"));
        if kind.is_empty() {
            let misspelt = entries.keys().find(|key| suggest::similar(key, ["kind"]).is_some());
            let hint = misspelt.map_or_else(String::new, |key| format!("; did you mean \"kind\" by {:?}?", clip(key)));
            let problem = Problem::error(about, format!("the document has no kind{hint}"));
            return self.report_at(problem.coded(ProblemCode::NotAnObject), misspelt);
        }
        if let Some(kind) = Kind::of(api_version, kind) {
            return self.object(kind, entries);
        }
        match entries.get("items") {
            Some(Value::Array(items)) if kind.ends_with("List") && lists_left > 0 => {
                for (index, item) in items.iter().enumerate() {
                    self.steps.extend(["items".to_owned(), index.to_string()]);
                    self.document(item, lists_left - 1);
                    self.steps.truncate(self.steps.len() - 2);
                }
            }
            _ => {
                let (problem, key) = unknown_kind(api_version, kind, entries);
                self.report_at(problem, Some(key));
            }
        }
    }

    fn object(&mut self, kind: Kind, entries: &Map<String, Value>) {
        let (mut meta, mistakes) = meta::read(entries.get("metadata"), self.location.clone());
        if kind == Kind::ServiceEntry {
            meta.auto_addresses = meta::auto_addresses(entries.get("status"));
        }
        if kind == Kind::WorkloadEntry {
            meta.health = meta::health(entries.get("status"));
        }
        let about = Subject::Object(meta.key(kind));
        if self.metadata(&about, mistakes) == Usable::No || self.keys(kind, &about, entries) == Usable::No {
            return;
        }
        if meta.name.is_empty() {
            let problem = Problem::warning(about.clone(), "metadata.name is missing");
            self.report(problem.coded(ProblemCode::Metadata));
        }
        self.spec(kind, entries.get("spec").unwrap_or(&Value::Null), meta, &about);
    }

    /// Reports mistakes in metadata. A document whose name is misspelt may be any object of the file.
    fn metadata(&mut self, about: &Subject, mistakes: Vec<MetaMistake>) -> Usable {
        let hides_name = mistakes.iter().any(|mistake| mistake.hides_name);
        for mistake in mistakes {
            let problem = match mistake.hides_name {
                true => Problem::error(Subject::File(self.location.file.clone()), mistake.message)
                    .coded(ProblemCode::MisspeltMetadata),
                false => Problem::warning(about.clone(), mistake.message).coded(ProblemCode::Metadata),
            };
            let steps = ["metadata".to_owned()].into_iter().chain(mistake.key);
            self.report_below(problem, steps);
        }
        if hides_name { Usable::No } else { Usable::Yes }
    }

    /// Reports unknown keys next to `spec`. Without `metadata` or `spec`, a similar key hides the name or the whole
    /// content of the object.
    fn keys(&mut self, kind: Kind, about: &Subject, entries: &Map<String, Value>) -> Usable {
        let missing = |key: &&str| !entries.contains_key(*key);
        let mut usable = Usable::Yes;
        for key in entries.keys().filter(|key| !KNOWN_KEYS.contains(&key.as_str())).take(MOST_FINDINGS) {
            let meant = suggest::similar(key, KNOWN_KEYS.iter().copied().filter(missing));
            let of_spec = || kind.message().and_then(|name| api::reflect::istio().get_message_by_name(name));
            let hint = match meant {
                Some(meant) => format!("; did you mean {meant:?}?"),
                None if of_spec().is_some_and(|spec| spec.get_field_by_json_name(key).is_some()) => {
                    "; it is a field of \"spec\": check the indentation".to_owned()
                }
                None => String::new(),
            };
            let message = format!("unknown field {:?}{hint}", clip(key));
            let problem = match meant {
                Some("metadata") => Problem::error(Subject::File(self.location.file.clone()), message)
                    .coded(ProblemCode::MisspeltMetadata),
                Some("spec") => Problem::error(about.clone(), message).coded(ProblemCode::UnknownField),
                _ => Problem::warning(about.clone(), message).coded(ProblemCode::UnknownField),
            };
            if problem.severity == Severity::Error {
                usable = Usable::No;
            }
            self.report_at(problem, Some(key));
        }
        usable
    }

    fn spec(&mut self, kind: Kind, json: &Value, meta: Meta, about: &Subject) {
        let Some(message) = kind.message() else {
            return match kind.read(json) {
                Ok(spec) => self.objects.push((Object { meta: Arc::new(meta), spec }, self.steps.clone())),
                Err(error) => {
                    let problem = Problem::error(about.clone(), format!("could not read the spec: {error}"));
                    let steps = ["spec".to_owned()].into_iter().chain(error.steps());
                    self.report_below(problem.coded(ProblemCode::WrongValue), steps);
                }
            };
        };
        let Some(descriptor) = api::reflect::istio().get_message_by_name(message) else {
            return self.report(Problem::error(about.clone(), "the kind has no descriptor"));
        };
        let (dynamic, findings) = message::read(&descriptor, json, "spec");
        let refused = findings.iter().any(|finding| finding.severity == Severity::Error);
        let found = problems(findings, about, self.location);
        self.problems
            .extend(found.into_iter().map(|(problem, steps)| (problem, [self.steps.as_slice(), &steps].concat())));
        if refused {
            return;
        }
        match kind.decode(&prost::Message::encode_to_vec(&dynamic)) {
            Ok(spec) => self.objects.push((Object { meta: Arc::new(meta), spec }, self.steps.clone())),
            Err(error) => self.report(Problem::error(about.clone(), format!("could not read the spec: {error}"))),
        }
    }

    /// Adds a problem of the whole object.
    fn report(&mut self, problem: Problem) {
        self.report_below(problem, []);
    }

    /// Adds a problem of a key of the object.
    fn report_at(&mut self, problem: Problem, key: Option<impl Into<String>>) {
        self.report_below(problem, key.map(Into::into));
    }

    fn report_below(&mut self, problem: Problem, steps: impl IntoIterator<Item = String>) {
        let steps = self.steps.iter().cloned().chain(steps).collect();
        self.problems.push((problem.at(Some(self.location.clone())), steps));
    }
}

/// Whether a document can be used despite its problems.
#[derive(PartialEq)]
enum Usable {
    Yes,
    No,
}

const KNOWN_KEYS: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];

/// Findings as problems of one object: errors first, up to the maximum.
pub(super) fn problems(
    mut findings: Vec<FieldFinding>,
    about: &Subject,
    location: &FileLocation,
) -> Vec<(Problem, FieldPath)> {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let more = findings.len().saturating_sub(MOST_FINDINGS);
    let shown = findings.into_iter().take(MOST_FINDINGS).map(|finding| {
        let message = match finding.severity {
            Severity::Error => format!("could not read {}: {}", finding.path, finding.message),
            _ => format!("{} {:?}{}", finding.message, finding.path, finding.hint),
        };
        let code = match finding.severity {
            Severity::Error => ProblemCode::WrongValue,
            Severity::Warning | Severity::Info => ProblemCode::UnknownField,
        };
        let problem = Problem::new(finding.severity, about.clone(), message.into()).coded(code);
        (problem.at(Some(location.clone())), finding.steps)
    });
    let rest = Problem::warning(about.clone(), format!("and {more} more")).at(Some(location.clone()));
    shown.chain((more > 0).then_some((rest, FieldPath::new()))).collect()
}

/// The problem of a document of no known kind, and the key at fault. A kind or group that resembles ours, or an unknown
/// kind of Istio's groups, is a mistake; others are not ours.
fn unknown_kind(api_version: &str, kind: &str, entries: &Map<String, Value>) -> (Problem, &'static str) {
    let text = |key: &str| entries.get("metadata").and_then(|meta| meta.get(key)).and_then(Value::as_str);
    let meant = meant_kind(api_version, kind);
    let group = api_version.split('/').next().unwrap_or_default();
    let is_istios = group.ends_with(".istio.io") && Kind::ALL.iter().any(|known| known.group() == group);
    let severity = if meant.is_some() || is_istios { Severity::Warning } else { Severity::Info };
    let (key, hint) = match meant {
        Some(meant) if meant.as_str() == kind => {
            let version = meant.versions().first().copied().unwrap_or_default();
            ("apiVersion", format!("; did you mean apiVersion \"{}/{version}\"?", meant.group()))
        }
        Some(meant) => ("kind", format!("; did you mean kind {:?}?", meant.as_str())),
        None => ("kind", String::new()),
    };
    let message = format!("kind {:?} of apiVersion {:?} is not supported{hint}", clip(kind), clip(api_version));
    let about = Subject::Document {
        kind: kind.into(),
        namespace: text("namespace").map(Into::into),
        name: text("name").unwrap_or_default().into(),
    };
    (Problem::new(severity, about, message.into()).coded(ProblemCode::UnknownKind), key)
}

/// The kind that a user may have meant: of the same or a similar name, in the same, a similar or no group.
fn meant_kind(api_version: &str, kind: &str) -> Option<Kind> {
    let group = api_version.split('/').next().unwrap_or_default();
    let is_near = |known: &&Kind| {
        group.is_empty() || group == known.group() || suggest::similar(group, [known.group()]).is_some()
    };
    let near: Vec<Kind> = Kind::ALL.iter().filter(is_near).copied().collect();
    let found = suggest::similar(kind, near.iter().map(|known| known.as_str()))?;
    // Without a group, the name must be exact: many projects have similar ones.
    near.into_iter().find(|known| known.as_str() == found && (!group.is_empty() || found == kind))
}

fn text_of<'a>(entries: &'a Map<String, Value>, key: &str) -> &'a str {
    entries.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Parsed, documents};
    use crate::config::Spec;
    use crate::config::problem::Severity;

    const SERVICE: &str = "apiVersion: networking.istio.io/v1\nkind: VirtualService\n";

    fn with_spec(spec: &str) -> Parsed {
        documents(&format!("{SERVICE}metadata: {{name: a, namespace: shop}}\nspec: {spec}\n"), "f.yaml")
    }

    fn shown(parsed: &Parsed) -> Vec<String> {
        parsed.problems.iter().map(|p| format!("{:?} {p}", p.severity)).collect()
    }

    fn timeout_of(parsed: &Parsed) -> Option<(i64, i32)> {
        match &parsed.objects.first()?.spec {
            Spec::VirtualService(service) => service.http[0].timeout.map(|t| (t.seconds, t.nanos)),
            _ => None,
        }
    }

    #[test]
    fn upstreams_spellings_are_accepted() {
        let parsed = with_spec(
            "{hosts: [h], http: [{timeout: 1h, match: [{port: '80', uri: null}], mirror_percentage: {value: 5},
              retries: {attempts: 3.0}, route: [{weight: \"90\", destination: {host: b}}]}]}",
        );
        assert_eq!(shown(&parsed), Vec::<String>::new());
        assert_eq!(timeout_of(&parsed), Some((3600, 0)));
        let Spec::VirtualService(service) = &parsed.objects[0].spec else { panic!("not a VirtualService") };
        let http = &service.http[0];
        assert_eq!((http.r#match[0].port, http.route[0].weight), (80, 90));
        assert_eq!(http.mirror_percentage.map(|p| p.value), Some(5.0));
        assert_eq!(http.retries.as_ref().map(|r| r.attempts), Some(3));
    }

    #[test]
    fn unknown_fields_are_warned_about_by_path() {
        let parsed = with_spec("{hosts: [h], htp: [], http: [{timeuot: 1s, route: [{destination: {hosst: x}}]}]}");
        let about = "Warning f.yaml:4: VirtualService shop/a: unknown field";
        let fields = [
            ("spec.htp", "http"),
            ("spec.http[0].timeuot", "timeout"),
            ("spec.http[0].route[0].destination.hosst", "host"),
        ];
        assert_eq!(shown(&parsed), fields.map(|(path, meant)| format!("{about} {path:?}; did you mean {meant:?}?")));
        assert_eq!(parsed.objects.len(), 1);
    }

    #[test]
    fn every_wrong_value_is_reported_and_the_object_left_out() {
        let parsed =
            with_spec("{hosts: [1.10], http: [{timeout: 5, match: [{port: -1}], retries: {attempts: 3000000000}}]}");
        let about = "Error f.yaml:4: VirtualService shop/a: could not read";
        let expected = [
            "spec.hosts[0]: expected a string, found the number 1.1 (text needs quotes)",
            "spec.http[0].timeout: expected a duration such as 1m30s, found the number 5",
            "spec.http[0].match[0].port: expected an integer from 0 to 4294967295, found the number -1",
            "spec.http[0].retries.attempts: expected a 32-bit integer, found the number 3000000000",
        ];
        assert_eq!(shown(&parsed), expected.map(|message| format!("{about} {message}")));
        assert!(parsed.objects.is_empty());
    }

    #[test]
    fn enums_are_read_by_name_or_number() {
        let mode = |mode: &str| {
            let text = format!(
                "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: a}}\nspec: {{mtls: {{mode: {mode}}}}}"
            );
            let parsed = documents(&text, "f");
            match parsed.objects.first().map(|object| &object.spec) {
                Some(Spec::PeerAuthentication(policy)) => Ok(policy.mtls.map(|mtls| mtls.mode)),
                _ => Err(parsed.problems[0].message.to_string()),
            }
        };
        assert_eq!(mode("STRICT"), Ok(Some(3)));
        assert_eq!(mode("3"), Ok(Some(3)));
        assert_eq!(
            mode("strict"),
            Err("could not read spec.mtls.mode: expected one of UNSET, DISABLE, PERMISSIVE, STRICT, found \"strict\""
                .into())
        );
    }

    #[test]
    fn metadata_values_are_strings() {
        let text = format!(
            "{SERVICE}metadata:\n  name: 7\n  namespace: shop\n  labels: {{version: 1.10, on: true, empty: }}\n  \
             annotations: {{a: b}}\n  creationTimestamp: 2024-02-29T12:30:45Z\n  resourceVersion: '42'\n"
        );
        let parsed = documents(&text, "f");
        assert_eq!(shown(&parsed), Vec::<String>::new());
        let meta = &parsed.objects[0].meta;
        assert_eq!((&*meta.name, &*meta.namespace, &*meta.resource_version), ("7", "shop", "42"));
        assert_eq!(meta.created, 1_709_209_845);
        assert_eq!(meta.labels, [("version", "1.1"), ("on", "true"), ("empty", "")].into_iter().collect());
        assert_eq!(meta.annotations.get("a").map(|v| &**v), Some("b"));
    }

    #[test]
    fn one_bad_document_leaves_the_others() {
        let good = |name| format!("{SERVICE}metadata: {{name: {name}}}\nspec: {{hosts: [h]}}\n");
        let text = format!("{}---\na: [\n---\n{}---\n- 1\n---\nmetadata: {{}}\n", good("a"), good("b"));
        let parsed = documents(&text, "dir/f.yaml");
        let names: Vec<&str> = parsed.objects.iter().map(|object| &*object.meta.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(parsed.objects[1].meta.location.as_ref().map(|location| location.line), Some(8));
        let lines: Vec<u32> = parsed.problems.iter().filter_map(|p| Some(p.location.as_ref()?.line)).collect();
        assert!(parsed.problems.iter().all(|p| p.severity == Severity::Error), "{:?}", shown(&parsed));
        assert_eq!((lines.len(), lines[1], lines[2]), (3, 13, 15), "{:?}", shown(&parsed));
        assert!((6..=7).contains(&lines[0]));
    }

    #[test]
    fn items_of_lists_are_read() {
        let item = "{apiVersion: networking.istio.io/v1beta1, kind: VirtualService, metadata: {name: a}}";
        let parsed = documents(&format!("apiVersion: v1\nkind: List\nitems: [{item}, {{kind: Pod}}]"), "f");
        assert_eq!(parsed.objects.len(), 1);
        assert_eq!(shown(&parsed), ["Info f:3: Pod: kind \"Pod\" of apiVersion \"\" is not supported"]);
    }

    #[test]
    fn problems_have_the_line_of_their_field() {
        let item = |name: &str| {
            format!(
                "- apiVersion: networking.istio.io/v1\n  kind: VirtualService\n  metadata:\n    name: {name}\n  spec:\n    hosts: [h]\n    htp: 1\n"
            )
        };
        let text = format!("# list\nx: 1\n---\nkind: List\nitems:\n{}{}", item("a"), item("b"));
        let parsed = documents(&text, "f");
        let lines: Vec<u32> = parsed.objects.iter().filter_map(|o| Some(o.meta.location.as_ref()?.line)).collect();
        assert_eq!(lines, [6, 13]);
        let shown = shown(&parsed);
        assert_eq!(
            shown[1..],
            [
                "Warning f:12: VirtualService /a: unknown field \"spec.htp\"; did you mean \"http\"?",
                "Warning f:19: VirtualService /b: unknown field \"spec.htp\"; did you mean \"http\"?"
            ]
        );
    }

    #[test]
    fn unknown_kinds_are_reported_as_info() {
        let parsed = documents("apiVersion: v1\nkind: Service\nmetadata: {name: s}\n", "f");
        assert_eq!(shown(&parsed), ["Info f:2: Service s: kind \"Service\" of apiVersion \"v1\" is not supported"]);
        let parsed = documents("apiVersion: networking.istio.io/v9\nkind: Sidecar\nmetadata: {name: s}\n", "f");
        assert_eq!(parsed.problems[0].severity, Severity::Warning);
    }

    #[test]
    fn misspelt_kinds_and_levels_are_recognized() {
        let hint_of = |text: &str| {
            let parsed = documents(text, "f");
            let problem = parsed.problems.first().map(|p| (p.severity, p.message.to_string()));
            let (severity, message) = problem.unwrap_or_else(|| panic!("no problem in {text}"));
            (severity, message.split_once("; ").map(|(_, hint)| hint.to_owned()).unwrap_or_default())
        };
        let meta = "metadata: {name: a}";
        for (text, severity, hint) in [
            (
                format!("apiVersion: networking.istio.io/v1\nkind: VirtualServce\n{meta}"),
                Severity::Warning,
                "did you mean kind \"VirtualService\"?",
            ),
            (
                format!("apiVersion: networkin.istio.io/v1\nkind: Sidecar\n{meta}"),
                Severity::Warning,
                "did you mean apiVersion \"networking.istio.io/v1\"?",
            ),
            (
                format!("kind: Sidecar\n{meta}"),
                Severity::Warning,
                "did you mean apiVersion \"networking.istio.io/v1\"?",
            ),
            (format!("apiVersion: networking.istio.io/v1\nkind: Foo\n{meta}"), Severity::Warning, ""),
            (format!("apiVersion: apps/v1\nkind: Deployment\n{meta}"), Severity::Info, ""),
            (
                format!("{SERVICE}{meta}\nspec: {{hosts: [h], route: []}}"),
                Severity::Warning,
                "it belongs below http or tcp or tls: check the indentation",
            ),
            (
                format!("{SERVICE}{meta}\nspec: {{http: [{{hosts: [h]}}]}}"),
                Severity::Warning,
                "it is a field of \"spec\": check the indentation",
            ),
            (
                format!("{SERVICE}{meta}\nhosts: [h]"),
                Severity::Warning,
                "it is a field of \"spec\": check the indentation",
            ),
        ] {
            assert_eq!(hint_of(&text), (severity, hint.to_owned()), "{text}");
        }
    }

    #[test]
    fn hole_15_problems_of_one_file_are_bounded_and_counted() {
        let text = "---\na\n".repeat(20_000);
        let parsed = documents(&text, "f");
        assert_eq!(parsed.problems.len(), super::MOST_PROBLEMS + 1);
        let last = parsed.problems.last().map(|p| (p.severity, p.message.to_string()));
        assert_eq!(last, Some((Severity::Error, "and 10000 more problems in this file".to_owned())));
    }

    #[test]
    fn hole_15_a_document_of_too_many_values_is_refused() {
        let many = super::text::MOST_VALUES / 2;
        let good =
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [h]}\n";
        for text in ["- {a: 1}\n".repeat(2 * many), format!("{{\"a\": [{}1]}}\n", "1,".repeat(2 * many))] {
            let parsed = documents(&format!("{text}{good}"), "f");
            assert_eq!((parsed.objects.len(), parsed.problems.len()), (1, 1), "{:?}", shown(&parsed));
            assert!(shown(&parsed)[0].contains("could not parse the document"), "{:?}", shown(&parsed));
        }
    }
}
