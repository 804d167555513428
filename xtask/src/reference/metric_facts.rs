//! Type and labels of a metric, from the code around its name: the call that registers or prints it, the type of the field
//! that is registered, and the labels that are set before the call. `metrics` lists the names.

use super::source::{Literal, literals};

/// Type and labels of a metric.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MetricFacts {
    pub(super) kind: &'static str,
    pub(super) labels: Vec<String>,
}

/// Calls that take a metric's name, with the type that they make. The type of a registered one is that of its field.
const CALLS: &[(&str, &str)] = &[
    ("register(", ""),
    ("labelled(", "gauge"),
    ("counters(", "counter"),
    (".counter(", "counter"),
    (".gauge(", "gauge"),
    (".histogram(", "histogram"),
    ("MetricType::Counter", "counter"),
    (" gauge(", "gauge"),
    ("} counter\\n", "counter"),
];

struct Call {
    start: usize,
    /// The end of its statement.
    end: usize,
    name: &'static str,
    kind: &'static str,
}

/// The facts of the metric that a literal names; `None` if the code has a form that is not known here.
pub(super) fn facts(code: &str, name: &Literal) -> Option<MetricFacts> {
    if let Some(kind) = in_head(code, name) {
        return Some(MetricFacts { kind, labels: printed_labels(code, name) });
    }
    let call = call_of(code, name)?;
    if call.name == "register(" {
        return registered(code, name);
    }
    let labels = if matches!(call.name, "labelled(" | "counters(") { labels_before(code, &call) } else { Vec::new() };
    Some(MetricFacts { kind: call.kind, labels })
}

/// The type in `text.head("name", "counter", …)`, or with the name in a variable.
fn in_head(code: &str, name: &Literal) -> Option<&'static str> {
    let statement = &code[code[..name.start].rfind([';', '{', '}']).map_or(0, |at| at + 1)..];
    let is_head = statement[..statement.len() - (code.len() - name.start)].contains(".head(");
    let rest = &code[name.end..];
    let is_bound = rest.starts_with(";\n") && rest.trim_start_matches([';', '\n', ' ']).starts_with("text.head(name,");
    let kinds = ["counter", "gauge", "histogram"];
    let quoted = rest.find('"').map(|at| &rest[at + 1..])?;
    kinds.into_iter().find(|kind| (is_head || is_bound) && quoted.starts_with(&format!("{kind}\"")))
}

/// The labels in texts such as `{type=\"envoy\"}` of the lines until the next metric.
fn printed_labels(code: &str, name: &Literal) -> Vec<String> {
    let scope = name.start.min(code[..name.start].rfind("fn ").unwrap_or(0))..code.len();
    let rest = &code[name.end..];
    let end = [".head(", ".histogram(", ".gauge(", ".counter("].iter().filter_map(|call| rest.find(call)).min();
    let own = &rest[..end.unwrap_or(rest.len())];
    // A label may be bound to a variable at the begin of the function.
    let bound = if own.contains(", label,") { &code[scope.start..name.start] } else { "" };
    let label = |text: &str| -> Vec<String> {
        literals(text)
            .iter()
            .filter_map(|literal| Some(literal.text.strip_prefix('{')?.split_once('=')?.0.to_owned()))
            .collect()
    };
    let mut found = label(own);
    found.extend(label(bound));
    found.dedup();
    found
}

/// The call of a metric: around its name, or of the loop over the table with its name.
fn call_of(code: &str, name: &Literal) -> Option<Call> {
    let begin = code[..name.start].rfind([';', '{', '}']).map_or(0, |at| at + 1);
    let around = CALLS.iter().filter_map(|(call, kind)| {
        let at = code[begin..name.start].rfind(call)?;
        Some(Call { start: begin + at, end: end_of_statement(code, name.end), name: call, kind })
    });
    if let Some(call) = around.max_by_key(|call| call.start) {
        return Some(call);
    }
    let table = table_of(code, name).and_then(|table| code.find(&format!(" in {table} {{")));
    let from = table.unwrap_or(name.end);
    let after = CALLS.iter().filter_map(|(call, kind)| {
        let start = from + code[from..].find(call)?;
        Some(Call { start, end: end_of_statement(code, start), name: call, kind })
    });
    after.min_by_key(|call| call.start)
}

fn end_of_statement(code: &str, from: usize) -> usize {
    code[from..].find([';', '}']).map_or(code.len(), |at| from + at)
}

/// The name of the constant that a literal is in.
fn table_of<'a>(code: &'a str, name: &Literal) -> Option<&'a str> {
    let before = &code[..name.start];
    let constant = before.rfind("\nconst ")?;
    if before[constant..].contains("\n];") || before[constant..].contains("\nfn ") {
        return None;
    }
    before[constant + "\nconst ".len()..].split(':').next()
}

/// Type and labels of a field that is registered under the name.
fn registered(code: &str, name: &Literal) -> Option<MetricFacts> {
    let rest = &code[name.end..];
    let field = &rest[rest.find("self.")? + "self.".len()..];
    let field = field.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    let declared = |line: &str| {
        let line = line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        line.strip_prefix(field)?.strip_prefix(": ")?.strip_suffix(',').map(str::to_owned)
    };
    let kind_of = code.lines().find_map(declared)?;
    let label_set =
        kind_of.split_once('<').map(|(_, inner)| inner.trim_end_matches('>').split(',').next().unwrap_or(""));
    let kind = if kind_of.contains("Histogram") { "histogram" } else { "counter" };
    let labels = label_set.map_or_else(|| Some(Vec::new()), |set| fields_of(code, set))?;
    Some(MetricFacts { kind, labels })
}

/// The fields of a set of labels.
fn fields_of(code: &str, set: &str) -> Option<Vec<String>> {
    let body = code.split(&format!("struct {set} {{\n")).nth(1)?.split("\n}").next()?;
    let field = |line: &str| Some(line.trim().split_once(':')?.0.trim_start_matches("r#").to_owned());
    Some(body.lines().filter_map(field).collect())
}

/// The labels that are set in the statements before a call, back to the call before it; else those of the whole function.
fn labels_before(code: &str, call: &Call) -> Vec<String> {
    if code[call.start..call.end].contains("&[(&[],") {
        return Vec::new();
    }
    let function = code[..call.start].rfind("fn ").unwrap_or(0);
    let emissions = CALLS.iter().filter_map(|(name, _)| code[function..call.start].rfind(name));
    let previous = emissions.max().map_or(function, |at| function + at);
    let previous = end_of_statement(code, previous).min(call.start);
    match pairs(&code[previous..call.end]) {
        found if found.is_empty() => pairs(&code[function..call.end]),
        found => found,
    }
}

/// The names in arrays such as `[("type", kind), ("event", event)]`.
fn pairs(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for literal in literals(code) {
        let before = code[..literal.start].trim_end();
        let Some(before) = before.strip_suffix('(').map(str::trim_end) else { continue };
        let is_further = before.ends_with("),") && !found.is_empty();
        let is_pair = (before.ends_with('[') || is_further) && code[literal.end..].starts_with(',');
        let is_name = literal.text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if is_pair && is_name && !found.contains(&literal.text) {
            found.push(literal.text);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source::literals;
    use super::facts;

    #[test]
    fn types_and_labels_are_read_from_the_code() {
        let code = r#"
struct TypeLabel {
    r#type: String,
}
struct M {
    pushes: Counters<TypeLabel>,
    time: Histogram,
    plain: PlainCounter,
}
const TABLE: [X; 1] = [
    ("m_table", "Of a table", f),
];
fn register(all: &R) {
    all.register("m_pushes", "Pushes", self.pushes.clone());
    all.register("m_time", "Time", self.time.clone());
    for (name, help, counter) in [("m_plain", "Plain", &self.plain)] {
        all.register(name, help, counter.clone());
    }
    gauge(&mut encoder, "m_gauge", "A gauge", 1.0)?;
    let yes: &[(&str, &str)] = &[("held", "true")];
    labelled(&mut encoder, "m_held", help, &[(yes, 1.0)])?;
    counters(encoder, "m_none", help, &[(&[], 1.0)])?;
}
fn sources() {
    let labels = [("source", r)];
    for (name, help, of) in TABLE {
        counters(encoder, name, help, &values)?;
    }
}
"#;
        for (name, kind, labels) in [
            ("m_pushes", "counter", &["type"][..]),
            ("m_time", "histogram", &[]),
            ("m_plain", "counter", &[]),
            ("m_gauge", "gauge", &[]),
            ("m_held", "gauge", &["held"]),
            ("m_none", "counter", &[]),
            ("m_table", "counter", &["source"]),
        ] {
            let literal = literals(code).into_iter().find(|literal| literal.text == name).unwrap();
            let found = facts(code, &literal).unwrap_or_else(|| panic!("nothing about {name}"));
            assert_eq!(
                (found.kind, &found.labels[..]),
                (kind, &labels.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>()[..]),
                "{name}"
            );
        }
    }
}
