//! Evaluates a parsed template by the rules of Go's text/template.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde_json::Value;

use super::parse::{Loop, Operand, Pipeline, TemplateNode};

/// Renders the nodes with these values.
pub(super) fn evaluate(nodes: &[TemplateNode], values: &Value) -> Result<String> {
    let mut out = String::new();
    let mut scope = Scope { root: values, dot: values.clone(), variables: Vec::new() };
    scope.show(nodes, &mut out)?;
    Ok(out)
}

struct Scope<'a> {
    root: &'a Value,
    dot: Value,
    /// Innermost scope last.
    variables: Vec<(String, Value)>,
}

impl Scope<'_> {
    fn show(&mut self, nodes: &[TemplateNode], out: &mut String) -> Result<()> {
        let outer = self.variables.len();
        for node in nodes {
            match node {
                TemplateNode::Text(text) => out.push_str(text),
                TemplateNode::Print(pipeline) => print(&self.value(pipeline)?, out),
                TemplateNode::Assign(name, pipeline) => {
                    let value = self.value(pipeline)?;
                    self.variables.push((name.clone(), value));
                }
                TemplateNode::If(branches, otherwise) => self.choose(branches, otherwise, out)?,
                TemplateNode::With(pipeline, body, otherwise) => match self.value(pipeline)? {
                    value if is_true(&value) => self.inside(value, body, out)?,
                    _ => self.show(otherwise, out)?,
                },
                TemplateNode::Range(range) => self.repeat(range, out)?,
            }
        }
        self.variables.truncate(outer);
        Ok(())
    }

    fn choose(
        &mut self,
        branches: &[(Pipeline, Vec<TemplateNode>)],
        otherwise: &[TemplateNode],
        out: &mut String,
    ) -> Result<()> {
        for (condition, body) in branches {
            if is_true(&self.value(condition)?) {
                return self.show(body, out);
            }
        }
        self.show(otherwise, out)
    }

    fn repeat(&mut self, range: &Loop, out: &mut String) -> Result<()> {
        let items: Vec<(Value, Value)> = match self.value(&range.over)? {
            Value::Array(list) => list.into_iter().enumerate().map(|(i, value)| (i.into(), value)).collect(),
            Value::Object(mut map) => {
                map.sort_keys();
                map.into_iter().map(|(key, value)| (key.into(), value)).collect()
            }
            Value::Null => Vec::new(),
            other => bail!("line {}: could not range over {other}", range.over.line),
        };
        if items.is_empty() {
            return self.show(&range.otherwise, out);
        }
        for (key, value) in items {
            let outer = self.variables.len();
            match &range.names[..] {
                [one] => self.variables.push((one.clone(), value.clone())),
                [first, second, ..] => {
                    self.variables.push((first.clone(), key));
                    self.variables.push((second.clone(), value.clone()));
                }
                [] => {}
            }
            self.inside(value, &range.body, out)?;
            self.variables.truncate(outer);
        }
        Ok(())
    }

    fn inside(&mut self, dot: Value, body: &[TemplateNode], out: &mut String) -> Result<()> {
        let before = std::mem::replace(&mut self.dot, dot);
        let shown = self.show(body, out);
        self.dot = before;
        shown
    }

    fn value(&self, pipeline: &Pipeline) -> Result<Value> {
        let mut piped: Option<Value> = None;
        for command in &pipeline.commands {
            let (function, arguments) = match command.split_first() {
                Some((Operand::Function(name), rest)) => (Some(name), rest),
                _ => (None, &command[..]),
            };
            let mut values = arguments.iter().map(|it| self.operand(it, pipeline.line)).collect::<Result<Vec<_>>>()?;
            values.extend(piped.take());
            piped = Some(match (function, &mut values[..]) {
                (Some(name), _) => call(name, &values, pipeline.line)?,
                (None, [value]) => value.take(),
                (None, _) => bail!("line {}: only functions take arguments", pipeline.line),
            });
        }
        Ok(piped.unwrap_or_default())
    }

    fn operand(&self, operand: &Operand, line: usize) -> Result<Value> {
        match operand {
            Operand::Field(path) => Ok(follow(&self.dot, path)),
            Operand::Variable(name, path) if name.is_empty() => Ok(follow(self.root, path)),
            Operand::Variable(name, path) => match self.variables.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => Ok(follow(value, path)),
                None => bail!("line {line}: ${name} is not set"),
            },
            Operand::Literal(value) => Ok(value.clone()),
            Operand::Function(name) => call(name, &[], line),
            Operand::Group(pipeline) => self.value(pipeline),
        }
    }
}

fn follow(value: &Value, path: &[String]) -> Value {
    path.iter().try_fold(value, |value, name| value.get(name)).cloned().unwrap_or_default()
}

/// The functions of Go and sprig that bootstraps use.
fn call(name: &str, arguments: &[Value], line: usize) -> Result<Value> {
    Ok(match (name, arguments) {
        ("eq", [first, others @ ..]) if !others.is_empty() => others.iter().any(|other| other == first).into(),
        ("ne", [one, other]) => (one != other).into(),
        ("not", [value]) => (!is_true(value)).into(),
        ("and", [.., last]) => arguments.iter().find(|value| !is_true(value)).unwrap_or(last).clone(),
        ("or", [.., last]) => arguments.iter().find(|value| is_true(value)).unwrap_or(last).clone(),
        ("len", [value]) => match value {
            Value::String(text) => text.len().into(),
            Value::Array(list) => list.len().into(),
            Value::Object(map) => map.len().into(),
            other => bail!("line {line}: {other} has no length"),
        },
        ("index", [value, path @ ..]) => path.iter().fold(value.clone(), |value, step| match step {
            Value::String(key) => value.get(key).cloned().unwrap_or_default(),
            step => value.get(step.as_u64().unwrap_or(u64::MAX) as usize).cloned().unwrap_or_default(),
        }),
        ("default", [default, value]) => if is_true(value) { value } else { default }.clone(),
        ("toJSON" | "toJson", [value]) => value.to_string().into(),
        ("quote", [value]) => Value::from(text(value)).to_string().into(),
        // JSON escapes cover what Go's `js` escapes inside a JSON string.
        ("js", [value]) => Value::from(text(value)).to_string().trim_matches('"').into(),
        ("print", values) => values.iter().map(text).collect::<String>().into(),
        (
            "eq" | "ne" | "not" | "and" | "or" | "len" | "index" | "default" | "toJSON" | "toJson" | "quote" | "js",
            _,
        ) => {
            bail!("line {line}: {name} does not take {} arguments", arguments.len())
        }
        _ => bail!("line {line}: the function {name} is not supported"),
    })
}

/// Go's truth: not null, zero, false or empty.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(on) => *on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn text(value: &Value) -> String {
    let mut out = String::new();
    print(value, &mut out);
    out
}

fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<no value>"),
        Value::String(text) => out.push_str(text),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::parse::parse;
    use super::evaluate;

    fn check(template: &str, expected: &str) {
        let values = json!({
            "name": "a",
            "port": 15000,
            "config": {"Path": "/p", "Policy": 1},
            "empty": "",
            "list": ["x", "y"],
            "map": {"k2": "v2", "k1": "v1"},
            "json": "{\"address\": \"z\"}",
        });
        let result = parse(template).and_then(|nodes| evaluate(&nodes, &values)).unwrap_or_else(|e| e.to_string());
        assert_eq!(result, expected, "{template}");
    }

    #[test]
    fn values_are_inserted() {
        check("{\"id\": \"{{ .name }}\", \"port\": {{.port}}}", "{\"id\": \"a\", \"port\": 15000}");
        check("{{ .config.Path }} {{ $.config.Policy }} {{ .missing }}", "/p 1 <no value>");
        check("{{ .json }}{{/* a note */}}", "{\"address\": \"z\"}");
    }

    #[test]
    fn conditions_choose() {
        check("{{ if .name }}yes{{ else }}no{{ end }}", "yes");
        check("{{ if .empty }}1{{ else if eq .config.Policy 1 }}2{{ else }}3{{ end }}", "2");
        check(
            "{{ if or .empty .name }}1{{ end }}{{ if and .empty .name }}2{{ end }}{{ if not .empty }}3{{ end }}",
            "13",
        );
        check("{{ with .config }}{{ .Path }}{{ $.name }}{{ end }}{{ with .empty }}x{{ else }}-{{ end }}", "/pa-");
    }

    #[test]
    fn loops_repeat() {
        check("{{ range .list }}{{ . }},{{ end }}", "x,y,");
        check("{{ range $i, $v := .list }}{{ if $i }},{{ end }}{{ $v }}{{ end }}", "x,y");
        check("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "k1=v1;k2=v2;");
        check("{{ range .empty_list }}x{{ else }}none{{ end }}", "none");
        check("{{ $x := .name }}{{ range $v := .list }}{{ $x }}{{ $v }}{{ end }}", "axay");
    }

    #[test]
    fn dashes_trim_whitespace() {
        check("a  {{- if .name }}\n  b\n  {{- end }}  c", "a\n  b  c");
        check("a {{ .name -}}\n\n b", "a ab");
    }

    #[test]
    fn pipes_and_functions_work() {
        check("{{ .list | toJSON }} {{ toJson .config }}", "[\"x\",\"y\"] {\"Path\":\"/p\",\"Policy\":1}");
        check("{{ .missing | default \"d}}\" | quote }} {{ len .list }} {{ index .list 1 }}", "\"d}}\" 2 y");
        check("{{ js \"a\\\\.b\" }} {{ (index .map \"k1\") }}", "a\\\\.b v1");
    }

    #[test]
    fn errors_name_the_line() {
        check("a\n{{ if .name }}\nb", "line 2: unclosed if");
        check("a\n\n{{ shuffle .list }}", "line 3: the function shuffle is not supported");
        check("{{ template \"x\" }}", "line 1: template is not supported");
        check("{{ .name", "line 1: unclosed {{");
        check("x{{ end }}", "line 1: unexpected end or else");
        check("{{ $no }}", "line 1: $no is not set");
        check("{{ (len .list }}", "line 1: unclosed parenthesis");
    }
}
