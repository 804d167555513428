//! Line numbers of fields, computed only when a problem needs them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_saphyr::granit_parser::{Event, Parser};

use super::text::{self, Chunk};

/// Path of a field from the document's root, such as `spec`, `http`, `0`.
pub(super) type FieldPath = Vec<String>;

/// The lines of these fields. A field that comes from an alias has the line of the nearest enclosing field.
pub(super) fn lines_of(chunk: Chunk<'_>, wanted: &HashSet<FieldPath>) -> HashMap<FieldPath, u32> {
    let around: HashSet<&[String]> = wanted.iter().flat_map(|steps| (1..=steps.len()).map(|n| &steps[..n])).collect();
    let mut walk = LineFinder { around, steps: Vec::new(), frames: Vec::new(), found: HashMap::new() };
    // The text was parsed before, so it is well-formed and not nested too deeply.
    for (event, span) in Parser::new_from_str(chunk.text).map_while(Result::ok) {
        let within = u32::try_from(span.start.line()).unwrap_or(u32::MAX);
        walk.event(&event, chunk.line.saturating_add(within.saturating_sub(1)));
    }
    let nearest = |steps: &FieldPath| (1..=steps.len()).rev().find_map(|n| walk.found.get(&steps[..n]).copied());
    wanted.iter().filter_map(|steps| Some((steps.clone(), nearest(steps)?))).collect()
}

/// Replaces the line of each object by the line of a field in it, where the text has the field. Paths are those of
/// messages, such as `spec.http[0].match`.
pub fn locate(text: &str, fields: &mut [(&mut u32, &str)]) {
    let chunks = text::chunks(text);
    let mut by_chunk: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, (line, _)) in fields.iter().enumerate() {
        // The chunk that begins last before the line.
        if let Some(chunk) = chunks.partition_point(|chunk| chunk.line <= **line).checked_sub(1) {
            by_chunk.entry(chunk).or_default().push(index);
        }
    }
    for (chunk, indexes) in by_chunk {
        let chunk = chunks[chunk];
        let items = if chunk.first_line().is_some_and(|first| indexes.iter().all(|i| *fields[*i].0 == first)) {
            HashMap::new()
        } else {
            item_lines(chunk)
        };
        let path = |(line, field): &(&mut u32, &str)| -> FieldPath {
            let item = items.get(&**line).map(|item| ["items".to_owned(), item.to_string()]);
            item.into_iter().flatten().chain(steps_of(field)).collect()
        };
        let wanted: Vec<(usize, FieldPath)> = indexes.into_iter().map(|index| (index, path(&fields[index]))).collect();
        let lines = lines_of(chunk, &wanted.iter().map(|(_, steps)| steps.clone()).collect());
        for (index, steps) in wanted {
            if let Some(line) = lines.get(&steps) {
                *fields[index].0 = *line;
            }
        }
    }
}

/// The items of a `List` by their first line.
fn item_lines(chunk: Chunk<'_>) -> HashMap<u32, usize> {
    let paths = (0..MOST_ITEMS).map(|item| vec!["items".to_owned(), item.to_string()]).collect();
    let items =
        lines_of(chunk, &paths).into_iter().filter_map(|(steps, line)| Some((line, steps[1].parse::<usize>().ok()?)));
    // An item that is missing has the line of `items`, like every other missing one.
    let mut lines: HashMap<u32, usize> = HashMap::new();
    for (line, item) in items {
        lines.entry(line).and_modify(|known| *known = item.min(*known)).or_insert(item);
    }
    lines
}

/// Items of a `List` whose fields are located.
const MOST_ITEMS: usize = 1000;

/// The single steps of a path such as `spec.http[0]["a.b"]`.
fn steps_of(path: &str) -> FieldPath {
    let mut steps = FieldPath::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (step, after) = match rest.strip_prefix("[\"").and_then(|quoted| quoted.split_once("\"]")) {
            Some((key, after)) => (key, after),
            None => {
                let inside = rest.strip_prefix(['[', '.']).unwrap_or(rest);
                let end = inside.find(['.', '[', ']']).unwrap_or(inside.len());
                let (step, after) = inside.split_at(end);
                (step, after.strip_prefix(']').unwrap_or(after))
            }
        };
        if !step.is_empty() {
            steps.push(step.to_owned());
        }
        if after.len() == rest.len() {
            break;
        }
        rest = after;
    }
    steps
}

/// An open mapping or sequence.
enum Frame {
    Key,
    Value,
    Item(usize),
}

struct LineFinder<'a> {
    around: HashSet<&'a [String]>,
    steps: FieldPath,
    frames: Vec<Frame>,
    found: HashMap<FieldPath, u32>,
}

impl LineFinder<'_> {
    fn event(&mut self, event: &Event<'_>, line: u32) {
        match event {
            Event::Scalar(text, ..) if matches!(self.frames.last(), Some(Frame::Key)) => self.key(text, line),
            Event::Scalar(..) | Event::Alias(_) => {
                self.begin(line);
                self.end();
            }
            Event::MappingStart(..) => {
                self.begin(line);
                self.frames.push(Frame::Key);
            }
            Event::SequenceStart(..) => {
                self.begin(line);
                self.frames.push(Frame::Item(0));
            }
            Event::MappingEnd | Event::SequenceEnd => {
                self.frames.pop();
                self.end();
            }
            _ => {}
        }
    }

    fn key(&mut self, key: &str, line: u32) {
        self.steps.push(key.to_owned());
        self.note(line);
        self.set(Frame::Value);
    }

    /// A node begins. An item of a sequence extends the path; a mapping value does not, its key did.
    fn begin(&mut self, line: u32) {
        match self.frames.last() {
            Some(Frame::Item(index)) => {
                self.steps.push(index.to_string());
                self.note(line);
            }
            // A key that is not a scalar; no field of ours has one.
            Some(Frame::Key) => self.steps.push(String::new()),
            Some(Frame::Value) | None => {}
        }
    }

    fn end(&mut self) {
        let next = match self.frames.last() {
            Some(Frame::Item(index)) => Frame::Item(index + 1),
            Some(Frame::Value) => Frame::Key,
            Some(Frame::Key) => return self.set(Frame::Value),
            None => return,
        };
        self.steps.pop();
        self.set(next);
    }

    fn set(&mut self, frame: Frame) {
        if let Some(last) = self.frames.last_mut() {
            *last = frame;
        }
    }

    fn note(&mut self, line: u32) {
        if self.around.contains(self.steps.as_slice()) {
            self.found.entry(self.steps.clone()).or_insert(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chunk, lines_of, locate};

    fn line(text: &str, path: &str) -> Option<u32> {
        let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
        lines_of(Chunk { line: 1, text }, &[steps.clone()].into()).get(&steps).copied()
    }

    #[test]
    fn fields_and_items_are_found() {
        let text = "spec:\n  hosts: [a,\n    b]\n  http:\n  - match:\n    - port: 1\n    timeout: 5\n  - timeout: 6\n";
        for (path, expected) in [
            ("spec", 1),
            ("spec.hosts.1", 3),
            ("spec.http.0.match.0.port", 6),
            ("spec.http.0.timeout", 7),
            ("spec.http.1.timeout", 8),
        ] {
            assert_eq!(line(text, path), Some(expected), "{path}");
        }
    }

    #[test]
    fn field_from_an_alias_has_the_line_of_its_use() {
        let text = "a: &a\n  x: {y: 1}\nb:\n  c: *a\nd: 1\n";
        assert_eq!(line(text, "b.c.x.y"), Some(4));
        assert_eq!(line(text, "d"), Some(5));
        assert_eq!(line(text, "nowhere"), None);
    }

    #[test]
    fn fields_of_objects_are_located_in_documents_and_lists() {
        let item = "  spec:\n    http:\n    - timeout: 1\n";
        let text = format!("a: 1\n---\nspec:\n  labels:\n    a.b: 1\n---\nitems:\n- x: 1\n{item}- x: 2\n{item}");
        let (mut key, mut second, mut near, mut absent) = (3, 12, 12, 1);
        let path = "spec.http[0].timeout";
        locate(
            &text,
            &mut [
                (&mut key, "spec.labels[\"a.b\"]"),
                (&mut second, path),
                (&mut near, "spec.http[3]"),
                (&mut absent, "spec.x"),
            ],
        );
        assert_eq!((key, second, near, absent), (5, 15, 14, 1), "{text}");
    }

    #[test]
    fn json_has_lines_too() {
        assert_eq!(line("{\"a\": {\n  \"b\": [1,\n 2]}}", "a.b.1"), Some(3));
    }
}
