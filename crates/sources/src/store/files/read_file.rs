//! Reads one config file: its valid objects and its problems, and which objects a problem may concern.
//! Earlier content of the file is in `file_objects`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::SystemTime;

use model::config::check::checked;
use model::config::parse::Parsed;
use model::config::{Key, Object};
use model::names::{Namespace, Str};
use model::problem::{FileLocation, Problem, ProblemCode, Severity, Subject};
use xxhash_rust::xxh3::xxh3_128;

use crate::disk::{self, FileStamp, is_absence};
use crate::source::panic_text;

/// Larger files are parsed by `large`; a smaller one takes a fraction of a second.
const LARGE: usize = 1 << 20;

/// The result of reading a file.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Gone,
    Unreadable(String),
    /// The file changed while it was read.
    Unsettled,
    /// The same bytes as last time.
    Same(FileStamp),
    /// Parsed later, by `large`.
    Large(RawFile),
    Parsed(ParsedFile),
}

/// The content of a file, not parsed.
#[derive(Debug)]
pub(crate) struct RawFile {
    stamp: FileStamp,
    pub(crate) hash: u128,
    pub(crate) bytes: Vec<u8>,
}

/// The content of a file, parsed and validated.
#[derive(Debug)]
pub(crate) struct ParsedFile {
    pub(crate) stamp: FileStamp,
    pub(crate) hash: u128,
    pub(crate) read_at: SystemTime,
    /// The file has no bytes.
    pub(crate) is_empty: bool,
    pub(crate) objects: Vec<Object>,
    pub(crate) problems: Vec<Problem>,
}

impl ParsedFile {
    /// Whether an object of the file may be missing.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_empty || self.problems.iter().any(|p| p.severity == Severity::Error || misspelt_document(p).is_some())
    }
}

/// Reads a file, and parses it unless its hash is `known_hash` or it is large.
pub(crate) fn read(path: &Path, known_hash: Option<u128>) -> ReadOutcome {
    let (stamp, bytes) = match disk::bytes(path) {
        Ok(Some(read)) => read,
        Ok(None) => return ReadOutcome::Unsettled,
        Err(e) if is_absence(&e) => return ReadOutcome::Gone,
        Err(e) => return ReadOutcome::Unreadable(e.to_string()),
    };
    let bytes = RawFile::new(stamp, bytes);
    if known_hash == Some(bytes.hash) {
        return ReadOutcome::Same(stamp);
    }
    if bytes.bytes.len() > LARGE { ReadOutcome::Large(bytes) } else { ReadOutcome::Parsed(bytes.parsed(path)) }
}

impl RawFile {
    pub(crate) fn new(stamp: FileStamp, bytes: Vec<u8>) -> RawFile {
        RawFile { stamp, hash: xxh3_128(&bytes), bytes }
    }

    /// Parses the content and frees the bytes.
    pub(crate) fn parsed(self, path: &Path) -> ParsedFile {
        let RawFile { stamp, hash, bytes } = self;
        let (objects, problems) = objects_of(&bytes, &path.to_string_lossy());
        let read_at = SystemTime::now();
        ParsedFile { stamp, hash, read_at, is_empty: bytes.is_empty(), objects, problems }
    }
}

/// Matches problems with the objects that they may concern. A set, since a file may have tens of thousands of both.
pub(crate) struct ProblemSubjects {
    /// For problems: one concerns the whole file. For objects: there is one.
    is_any: bool,
    /// Objects that errors are about.
    objects: HashSet<Key>,
    /// Namespace and name of documents that are no objects any longer, whatever is misspelt in them.
    documents: HashSet<(Namespace, Str)>,
}

impl ProblemSubjects {
    /// The subjects of these problems.
    pub(crate) fn of_problems(problems: &[Problem]) -> ProblemSubjects {
        let mut subjects = ProblemSubjects { is_any: false, objects: HashSet::new(), documents: HashSet::new() };
        for problem in problems {
            match (problem.severity, &problem.about) {
                (Severity::Error, Subject::File(_)) => subjects.is_any = true,
                (Severity::Error, Subject::Object(key)) => _ = subjects.objects.insert(key.clone()),
                _ => subjects.documents.extend(misspelt_document(problem)),
            }
        }
        subjects
    }

    /// The subjects of problems that concern these objects.
    pub(crate) fn of_objects<'a>(keys: impl Iterator<Item = &'a Key> + Clone) -> ProblemSubjects {
        let objects: HashSet<Key> = keys.clone().cloned().collect();
        ProblemSubjects { is_any: !objects.is_empty(), objects, documents: keys.map(document_of).collect() }
    }

    /// Whether one of the problems may concern this object.
    pub(crate) fn has_object(&self, key: &Key) -> bool {
        self.is_any || self.objects.contains(key) || self.documents.contains(&document_of(key))
    }

    /// Whether the problem may concern one of the objects.
    pub(crate) fn has_problem(&self, problem: &Problem) -> bool {
        match (problem.severity, &problem.about) {
            (Severity::Error, Subject::File(_)) => self.is_any,
            (Severity::Error, Subject::Object(key)) => self.objects.contains(key),
            _ => misspelt_document(problem).is_some_and(|document| self.documents.contains(&document)),
        }
    }
}

fn document_of(key: &Key) -> (Namespace, Str) {
    (key.namespace.clone(), key.name.clone())
}

/// The document of a problem that may have been an object before: its kind or group is likely misspelt, or it cannot be
/// converted.
fn misspelt_document(problem: &Problem) -> Option<(Namespace, Str)> {
    let Subject::Document { namespace, name, .. } = &problem.about else { return None };
    let is_misspelt = problem.code == ProblemCode::UnknownKind && problem.severity > Severity::Info;
    let is_lost = is_misspelt || problem.severity == Severity::Error;
    is_lost.then(|| (namespace.clone().unwrap_or_default(), name.clone()))
}

fn objects_of(bytes: &[u8], file: &str) -> (Vec<Object>, Vec<Problem>) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            let line = 1 + bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count();
            let is_wide = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
            let found = if is_wide { ", but UTF-16" } else { "" };
            let message = format!("could not parse the file: not UTF-8{found}; save it as UTF-8");
            return (Vec::new(), vec![whole_file(file, line as u32, &message).coded(ProblemCode::Syntax)]);
        }
    };
    // A panic in the parser must cost this file only.
    let parsed = catch_unwind(AssertUnwindSafe(|| checked(text, file, "")));
    parsed.map(|Parsed { objects, problems }| (objects, problems)).unwrap_or_else(|panic| {
        let message = format!("could not parse the file: {}", panic_text(&*panic));
        (Vec::new(), vec![whole_file(file, 0, &message).coded(ProblemCode::Syntax)])
    })
}

/// A problem that concerns the whole file.
pub(crate) fn whole_file(file: &str, line: u32, message: &str) -> Problem {
    let location = FileLocation { file: file.into(), line };
    Problem::error(Subject::File(location.file.clone()), message).at(Some(location))
}

#[cfg(test)]
mod tests {
    use super::objects_of;

    const GOOD: &str = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: b}\n\
                        spec:\n  egress:\n  - hosts: [./cart.example]\n";

    /// Number of objects, and code, line and message of the first problem.
    fn read(bytes: &[u8]) -> (usize, Option<(String, u32, String)>) {
        let (objects, problems) = objects_of(bytes, "f.yaml");
        let first = problems.first().map(|problem| {
            let line = problem.location.as_ref().map_or(0, |location| location.line);
            (problem.code.to_string(), line, problem.message.to_string())
        });
        (objects.len(), first)
    }

    #[test]
    fn wrong_encodings_are_named_with_their_line() {
        let wide = |to_bytes: fn(u16) -> [u8; 2]| {
            "\u{feff}".encode_utf16().chain(GOOD.encode_utf16()).flat_map(to_bytes).collect::<Vec<u8>>()
        };
        let latin = [GOOD.as_bytes(), b"# caf\xe9\n"].concat();
        for (bytes, line, expected) in [
            (wide(u16::to_le_bytes), 1, "not UTF-8, but UTF-16; save it as UTF-8"),
            (wide(u16::to_be_bytes), 1, "not UTF-8, but UTF-16; save it as UTF-8"),
            (latin, 7, "not UTF-8; save it as UTF-8"),
        ] {
            let message = format!("could not parse the file: {expected}");
            assert_eq!(read(&bytes), (0, Some(("PIL0101".to_owned(), line, message))));
        }
    }

    #[test]
    fn byte_order_marks_and_line_ends_of_windows_are_read_and_nul_is_named() {
        assert_eq!(read(format!("\u{feff}{GOOD}").as_bytes()), (1, None));
        assert_eq!(read(GOOD.replace('\n', "\r\n").as_bytes()), (1, None));
        let mistake = format!("\u{feff}{}", GOOD.replace("hosts", "hsots").replace('\n', "\r\n"));
        let (_, problem) = read(mistake.as_bytes());
        assert!(
            matches!(&problem, Some((code, 6, message)) if code == "PIL0104" && message.contains("\"hosts\"")),
            "{problem:?}"
        );
        let (objects, problem) = read(GOOD.replace("cart", "ca\0rt").as_bytes());
        assert!(objects == 0 && matches!(&problem, Some((_, 6, _))), "{objects} {problem:?}");
    }
}
