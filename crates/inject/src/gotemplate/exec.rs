//! Runs a parsed template within limits.

use super::data::Data;
use super::limits::{MOST_BYTES, MOST_DEPTH, MOST_ITEMS, MOST_STEPS};
use super::parser::{Node, Operand, Pipeline};
use super::{Template, TemplateError, format, functions, schema};
use crate::builtin::RenderInput;

pub(super) fn run(template: &Template, root: Data, input: &RenderInput<'_>) -> Result<String, TemplateError> {
    let mut runner = Runner { template, input, out: String::new(), steps: MOST_STEPS, depth: 0, variables: Vec::new() };
    runner.call(&template.main, root)?;
    Ok(runner.out)
}

/// How a list of nodes ended.
#[derive(PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

struct Runner<'a> {
    template: &'a Template,
    input: &'a RenderInput<'a>,
    out: String,
    steps: u64,
    depth: usize,
    variables: Vec<(String, Data)>,
}

impl Runner<'_> {
    /// Runs the nodes of a template with its own variables.
    fn call(&mut self, nodes: &[Node], dot: Data) -> Result<Flow, TemplateError> {
        let outer = std::mem::replace(&mut self.variables, vec![("$".to_owned(), dot.clone())]);
        let flow = self.walk(nodes, &dot);
        self.variables = outer;
        flow
    }

    /// Runs a block, whose variables end with it.
    fn block(&mut self, nodes: &[Node], dot: &Data) -> Result<Flow, TemplateError> {
        let mark = self.variables.len();
        let flow = self.walk(nodes, dot);
        self.variables.truncate(mark);
        flow
    }

    fn walk(&mut self, nodes: &[Node], dot: &Data) -> Result<Flow, TemplateError> {
        for node in nodes {
            let flow = match node {
                Node::Text(text) => self.write(text, 0)?,
                Node::Action(pipeline) => self.action(pipeline, dot)?,
                Node::If { condition, then, otherwise } => {
                    let mark = self.variables.len();
                    let value = self.pipeline(condition, dot)?;
                    let flow = self.block(if value.is_true() { then } else { otherwise }, dot)?;
                    self.variables.truncate(mark);
                    flow
                }
                Node::With { value, then, otherwise } => {
                    let mark = self.variables.len();
                    let value = self.pipeline(value, dot)?;
                    let flow = if value.is_true() { self.block(then, &value) } else { self.block(otherwise, dot) }?;
                    self.variables.truncate(mark);
                    flow
                }
                Node::Range { values, body, otherwise } => self.range(values, body, otherwise, dot)?,
                Node::Call { name, argument, line } => self.named(name, argument.as_ref(), *line, dot)?,
                Node::Break => Flow::Break,
                Node::Continue => Flow::Continue,
            };
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn write(&mut self, text: &str, line: usize) -> Result<Flow, TemplateError> {
        if self.out.len() + text.len() > MOST_BYTES {
            return Err(TemplateError { line, message: format!("the output has more than {MOST_BYTES} bytes") });
        }
        self.out.push_str(text);
        Ok(Flow::Next)
    }

    fn action(&mut self, pipeline: &Pipeline, dot: &Data) -> Result<Flow, TemplateError> {
        let value = self.pipeline(pipeline, dot)?;
        if !pipeline.variables.is_empty() {
            return Ok(Flow::Next);
        }
        if value.is_nil() {
            return self.write("<no value>", pipeline.line);
        }
        let text = format::print(&value).map_err(|message| TemplateError { line: pipeline.line, message })?;
        self.write(&text, pipeline.line)
    }

    fn named(
        &mut self,
        name: &str,
        argument: Option<&Pipeline>,
        line: usize,
        dot: &Data,
    ) -> Result<Flow, TemplateError> {
        let template = self.template;
        let Some(nodes) = template.defined.get(name) else {
            return Err(TemplateError { line, message: format!("template {name:?} is not defined") });
        };
        let argument = argument.map_or(Ok(Data::Nil), |pipeline| self.pipeline(pipeline, dot))?;
        self.deeper(line, |runner| runner.call(nodes, argument))
    }

    fn deeper<T>(
        &mut self,
        line: usize,
        run: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        if self.depth >= MOST_DEPTH {
            return Err(TemplateError { line, message: format!("nested more than {MOST_DEPTH} deep") });
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn range(
        &mut self,
        values: &Pipeline,
        body: &[Node],
        otherwise: &[Node],
        dot: &Data,
    ) -> Result<Flow, TemplateError> {
        let value = self.commands(values, dot)?;
        let entries: Vec<(Data, Data)> = match &value {
            Data::Missing | Data::Nil => Vec::new(),
            Data::List(list) => (0i64..).map(Data::Int).zip(list.iter().cloned()).collect(),
            Data::Map(map) => map.entries.borrow().iter().map(|(k, v)| (Data::text(k), v.clone())).collect(),
            Data::Int(count) => {
                let count = usize::try_from(*count).unwrap_or_default().min(MOST_ITEMS);
                (0i64..).take(count).map(|n| (Data::Int(n), Data::Int(n))).collect()
            }
            other => {
                let message = format!("range can't iterate over a {}", other.kind());
                return Err(TemplateError { line: values.line, message });
            }
        };
        if entries.is_empty() {
            return self.block(otherwise, dot);
        }
        for (key, item) in entries {
            self.step(1, values.line)?;
            let mark = self.variables.len();
            match values.variables.as_slice() {
                [] => {}
                [one] => self.set(one, item.clone(), values)?,
                [first, second, ..] => {
                    self.set(first, key, values)?;
                    self.set(second, item.clone(), values)?;
                }
            }
            let flow = self.walk(body, &item)?;
            self.variables.truncate(mark);
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn step(&mut self, cost: u64, line: usize) -> Result<(), TemplateError> {
        match self.steps.checked_sub(cost) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => Err(TemplateError { line, message: format!("more than {MOST_STEPS} steps") }),
        }
    }

    fn set(&mut self, name: &str, value: Data, pipeline: &Pipeline) -> Result<(), TemplateError> {
        if !pipeline.assigns {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        match self.variables.iter_mut().rev().find(|(known, _)| known == name) {
            Some((_, known)) => {
                *known = value;
                Ok(())
            }
            None => Err(TemplateError { line: pipeline.line, message: format!("undefined variable {name}") }),
        }
    }

    /// The value of a pipeline; its variables are set.
    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Data) -> Result<Data, TemplateError> {
        let value = self.commands(pipeline, dot)?;
        for name in &pipeline.variables {
            self.set(name, value.clone(), pipeline)?;
        }
        Ok(value)
    }

    fn commands(&mut self, pipeline: &Pipeline, dot: &Data) -> Result<Data, TemplateError> {
        let mut value = None;
        for command in &pipeline.commands {
            value = Some(self.command(command, dot, value, pipeline.line)?);
        }
        Ok(value.unwrap_or(Data::Missing))
    }

    fn command(
        &mut self,
        command: &[Operand],
        dot: &Data,
        last: Option<Data>,
        line: usize,
    ) -> Result<Data, TemplateError> {
        let Some((first, rest)) = command.split_first() else { return Ok(Data::Missing) };
        let Operand::Function(name) = first else {
            if !rest.is_empty() || last.is_some() {
                return Err(TemplateError { line, message: "can't give arguments to a value".to_owned() });
            }
            return self.operand(first, dot, line);
        };
        if name == "and" || name == "or" {
            return self.short_circuit(name == "and", rest, dot, last, line);
        }
        let mut arguments = Vec::with_capacity(rest.len() + 1);
        for operand in rest {
            arguments.push(self.operand(operand, dot, line)?);
        }
        arguments.extend(last);
        self.function(name, &arguments, line)
    }

    fn function(&mut self, name: &str, arguments: &[Data], line: usize) -> Result<Data, TemplateError> {
        let bytes: usize = arguments.iter().map(weight).sum();
        self.step(functions::cost(name) + (bytes / 32) as u64, line)?;
        let result = functions::call(name, arguments, self.input)
            .map_err(|message| TemplateError { line, message: format!("{name}: {message}") })?;
        if weight(&result) > MOST_BYTES {
            return Err(TemplateError { line, message: format!("{name}: the result is too large") });
        }
        Ok(result)
    }

    fn short_circuit(
        &mut self,
        is_and: bool,
        operands: &[Operand],
        dot: &Data,
        last: Option<Data>,
        line: usize,
    ) -> Result<Data, TemplateError> {
        let mut value = Data::Missing;
        for operand in operands {
            value = self.operand(operand, dot, line)?;
            if value.is_true() != is_and {
                return Ok(value);
            }
        }
        Ok(last.unwrap_or(value))
    }

    fn operand(&mut self, operand: &Operand, dot: &Data, line: usize) -> Result<Data, TemplateError> {
        self.step(1, line)?;
        let at_line = |message: String| TemplateError { line, message };
        let fields = |value: Data, path: &[String]| {
            path.iter().try_fold(value, |value, name| schema::field(&value, name)).map_err(at_line)
        };
        match operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Data::Nil),
            Operand::Bool(value) => Ok(Data::Bool(*value)),
            Operand::Int(int) => Ok(Data::Int(*int)),
            Operand::Float(float) => Ok(Data::Float(*float)),
            Operand::Text(text) => Ok(Data::text(text)),
            Operand::Field(path) => fields(dot.clone(), path),
            Operand::Variable(name, path) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                let Some((_, value)) = known else { return Err(at_line(format!("undefined variable {name}"))) };
                fields(value.clone(), path)
            }
            Operand::Group(pipeline, path) => {
                let value = self.deeper(line, |runner| runner.pipeline(pipeline, dot))?;
                // The value of a group may be nil: its fields are nil too.
                if value.is_nil() && !path.is_empty() {
                    return Ok(Data::Missing);
                }
                fields(value, path)
            }
            Operand::Function(name) => self.function(name, &[], line),
        }
    }
}

/// The approximate size of a value in bytes.
fn weight(value: &Data) -> usize {
    match value {
        Data::Text(text) => text.len(),
        Data::List(list) => list.len() * 8,
        Data::Map(map) => map.entries.borrow().len() * 16,
        _ => 1,
    }
}
