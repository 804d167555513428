//! Parses text to config objects. A bad document becomes a Problem with file and line; the others are returned.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::lines::{FieldPath, lines_of};
use super::message::FieldFinding;
use super::text::{self, Chunk, SyntaxError, clip};
use super::{Kind, Meta, Object, message, meta};
use crate::config::problem::{FileLocation, Problem, Severity, Subject};
use crate::names::Str;

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
                parsed.problems.push(Problem::error(Subject::File(file.clone()), message).at(Some(location)));
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
        Some(Problem { severity, about: Subject::File(file.clone()), location, message })
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
            return self.report(Problem::error(about, "a document must be an object with apiVersion and kind"));
        };
        let (api_version, kind) = (text_of(entries, "apiVersion"), text_of(entries, "kind"));
        if kind.is_empty() {
            return self.report(Problem::error(about, "the document has no kind"));
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
            _ => self.report(not_known(api_version, kind, entries)),
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
        for mistake in mistakes {
            self.report(Problem::warning(about.clone(), mistake));
        }
        if meta.name.is_empty() {
            self.report(Problem::warning(about.clone(), "metadata.name is missing"));
        }
        for key in entries.keys().filter(|key| !KNOWN_KEYS.contains(&key.as_str())).take(MOST_FINDINGS) {
            self.report(Problem::warning(about.clone(), format!("unknown field {:?}", clip(key))));
        }
        self.spec(kind, entries.get("spec").unwrap_or(&Value::Null), meta, &about);
    }

    fn spec(&mut self, kind: Kind, json: &Value, meta: Meta, about: &Subject) {
        let Some(message) = kind.message() else {
            return match kind.read(json) {
                Ok(spec) => self.objects.push((Object { meta: Arc::new(meta), spec }, self.steps.clone())),
                Err(error) => self.report(Problem::error(about.clone(), format!("could not read the spec: {error}"))),
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
        self.problems.push((problem.at(Some(self.location.clone())), self.steps.clone()));
    }
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
            _ => format!("{} {:?}", finding.message, finding.path),
        };
        let location = Some(location.clone());
        (Problem { severity: finding.severity, about: about.clone(), location, message: message.into() }, finding.steps)
    });
    let rest = Problem::warning(about.clone(), format!("and {more} more")).at(Some(location.clone()));
    shown.chain((more > 0).then_some((rest, FieldPath::new()))).collect()
}

fn not_known(api_version: &str, kind: &str, entries: &Map<String, Value>) -> Problem {
    let name = entries.get("metadata").and_then(|meta| meta.get("name")).and_then(Value::as_str).unwrap_or_default();
    // One of our kinds with a wrong version is most likely a mistake; other kinds are not ours.
    let severity = match Kind::ALL.iter().any(|known| known.as_str() == kind && api_version.starts_with(known.group()))
    {
        true => Severity::Warning,
        false => Severity::Info,
    };
    Problem {
        severity,
        about: Subject::Document { kind: kind.into(), namespace: None, name: name.into() },
        location: None,
        message: format!("kind {:?} of apiVersion {:?} is not supported", clip(kind), clip(api_version)).into(),
    }
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
        let paths = ["spec.htp", "spec.http[0].timeuot", "spec.http[0].route[0].destination.hosst"];
        assert_eq!(shown(&parsed), paths.map(|path| format!("{about} {path:?}")));
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
                "Warning f:12: VirtualService /a: unknown field \"spec.htp\"",
                "Warning f:19: VirtualService /b: unknown field \"spec.htp\""
            ]
        );
    }

    #[test]
    fn unknown_kinds_are_reported_as_info() {
        let parsed = documents("apiVersion: v1\nkind: Service\nmetadata: {name: s}\n", "f");
        assert_eq!(shown(&parsed), ["Info f:1: Service s: kind \"Service\" of apiVersion \"v1\" is not supported"]);
        let parsed = documents("apiVersion: networking.istio.io/v9\nkind: Sidecar\nmetadata: {name: s}\n", "f");
        assert_eq!(parsed.problems[0].severity, Severity::Warning);
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
