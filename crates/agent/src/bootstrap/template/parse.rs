//! A template's text as a tree. Errors name the line.

use std::iter::{Cloned, Peekable};
use std::slice::Iter;
use std::vec::IntoIter;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

#[derive(Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    Print(Pipeline),
    /// Conditions with what they show, and what is shown when none holds.
    If(Vec<(Pipeline, Vec<Node>)>, Vec<Node>),
    Range(Loop),
    With(Pipeline, Vec<Node>, Vec<Node>),
    Assign(String, Pipeline),
}

#[derive(Debug, PartialEq)]
pub(super) struct Loop {
    /// Variables for index or key, and for the value.
    pub(super) names: Vec<String>,
    pub(super) over: Pipeline,
    pub(super) body: Vec<Node>,
    pub(super) otherwise: Vec<Node>,
}

/// Commands joined by `|`: the value of each is the last argument of the next.
#[derive(Debug, PartialEq)]
pub(super) struct Pipeline {
    pub(super) line: usize,
    pub(super) commands: Vec<Vec<Operand>>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Operand {
    /// `.a.b`, or `.` alone.
    Field(Vec<String>),
    /// `$x.a`, or `$` for the whole of the values.
    Variable(String, Vec<String>),
    Literal(Value),
    Function(String),
    Group(Pipeline),
}

/// Reads a whole template.
pub(super) fn parse(text: &str) -> Result<Vec<Node>> {
    let mut parser = Parser { pieces: split(text)?.into_iter().peekable() };
    let nodes = parser.nodes()?;
    match parser.pieces.next() {
        None => Ok(nodes),
        Some(piece) => bail!("line {}: nothing is open that could be ended here", piece.line()),
    }
}

#[derive(Debug)]
enum Piece {
    Text(String),
    Action { line: usize, words: Vec<Word> },
}

impl Piece {
    fn line(&self) -> usize {
        match self {
            Piece::Text(_) => 0,
            Piece::Action { line, .. } => *line,
        }
    }

    /// The keyword that an action begins with.
    fn keyword(&self) -> &str {
        match self {
            Piece::Action { words, .. } => match words.first() {
                Some(Word::Name(name)) => name,
                _ => "",
            },
            Piece::Text(_) => "",
        }
    }
}

/// Splits into text and actions; `{{-` and `-}}` take the space beside them away.
fn split(text: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let (mut rest, mut line, mut trim) = (text, 1, false);
    while let Some(at) = rest.find("{{") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        line += before.matches('\n').count();
        let end = action_end(after).ok_or_else(|| anyhow!("line {line}: {{{{ is not closed"))?;
        let mut inside = &after[..end];
        let mut shown = if trim { before.trim_start() } else { before };
        if let Some(trimmed) = inside.strip_prefix("- ").or_else(|| inside.strip_prefix("-\n")) {
            (inside, shown) = (trimmed, shown.trim_end());
        }
        trim = inside.ends_with(" -") || inside.ends_with("\n-");
        inside = if trim { &inside[..inside.len() - 1] } else { inside };
        pieces.push(Piece::Text(shown.to_owned()));
        if !inside.trim_start().starts_with("/*") {
            pieces.push(Piece::Action { line, words: words(inside, line)? });
        }
        line += after[..end].matches('\n').count();
        rest = &after[end + 2..];
    }
    pieces.push(Piece::Text(if trim { rest.trim_start() } else { rest }.to_owned()));
    pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
    Ok(pieces)
}

/// Where `}}` stands, outside of quotes.
fn action_end(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '`' => quote = Some(c),
            None if text[at..].starts_with("}}") => return Some(at),
            None => {}
        }
    }
    None
}

#[derive(Clone, Debug, PartialEq)]
enum Word {
    /// A keyword, function or literal such as `true`.
    Name(String),
    /// `.a.b`
    Field(Vec<String>),
    /// `$x.a`
    Variable(String, Vec<String>),
    Literal(Value),
    /// One of `| ( ) , := =`
    Mark(&'static str),
}

const MARKS: [&str; 6] = ["|", "(", ")", ",", ":=", "="];

fn words(text: &str, line: usize) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            words.push(Word::Mark(mark));
            mark.len()
        } else if first == '"' || first == '`' {
            let length = quoted_length(rest).ok_or_else(|| anyhow!("line {line}: a quote is not closed"))?;
            words.push(Word::Literal(unquote(&rest[..length], line)?));
            length
        } else {
            let end = |c: char| c.is_whitespace() || "|(),=:".contains(c);
            let length = rest.find(end).unwrap_or(rest.len()).max(1);
            words.push(word(&rest[..length], line)?);
            length
        };
        rest = rest[length..].trim_start();
    }
    Ok(words)
}

fn quoted_length(text: &str) -> Option<usize> {
    let open = text.chars().next()?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if open == '"' => escaped = true,
            c if c == open => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn unquote(text: &str, line: usize) -> Result<Value> {
    match text.strip_prefix('`') {
        Some(raw) => Ok(raw.trim_end_matches('`').into()),
        None => serde_json::from_str(text).map_err(|error| anyhow!("line {line}: could not read {text}: {error}")),
    }
}

fn word(text: &str, line: usize) -> Result<Word> {
    let path = |path: &str| path.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if let Some(fields) = text.strip_prefix('.') {
        return Ok(Word::Field(path(fields)));
    }
    if let Some(variable) = text.strip_prefix('$') {
        let (name, fields) = variable.split_once('.').unwrap_or((variable, ""));
        return Ok(Word::Variable(name.to_owned(), path(fields)));
    }
    match text {
        "true" | "false" | "nil" => Ok(Word::Literal(match text {
            "nil" => Value::Null,
            text => (text == "true").into(),
        })),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') => {
            let number = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from));
            Ok(Word::Literal(number.map_err(|_| anyhow!("line {line}: {text:?} is no number"))?))
        }
        _ if text.chars().all(|c| c.is_alphanumeric() || c == '_') => Ok(Word::Name(text.to_owned())),
        _ => bail!("line {line}: could not read {text:?}"),
    }
}

struct Parser {
    pieces: Peekable<IntoIter<Piece>>,
}

impl Parser {
    /// Everything up to an `else`, an `end` or the end.
    fn nodes(&mut self) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        while self.pieces.peek().is_some_and(|piece| !["else", "end"].contains(&piece.keyword())) {
            let Some(piece) = self.pieces.next() else { break };
            nodes.push(match piece {
                Piece::Text(text) => Node::Text(text),
                Piece::Action { line, words } => self.action(line, words)?,
            });
        }
        Ok(nodes)
    }

    fn action(&mut self, line: usize, words: Vec<Word>) -> Result<Node> {
        match (&words[..], words.first()) {
            (_, Some(Word::Name(name))) if name == "if" => self.conditions(line, &words[1..]),
            (_, Some(Word::Name(name))) if name == "range" => {
                let (names, over) = loop_head(&words[1..], line)?;
                let (body, otherwise) = self.block(line)?;
                Ok(Node::Range(Loop { names, over, body, otherwise }))
            }
            (_, Some(Word::Name(name))) if name == "with" => {
                let over = pipeline(&words[1..], line)?;
                let (body, otherwise) = self.block(line)?;
                Ok(Node::With(over, body, otherwise))
            }
            (_, Some(Word::Name(name))) if ["define", "template", "block", "break", "continue"].contains(&&**name) => {
                bail!("line {line}: {name} is not supported")
            }
            ([Word::Variable(name, fields), Word::Mark(":=" | "="), rest @ ..], _) if fields.is_empty() => {
                Ok(Node::Assign(name.clone(), pipeline(rest, line)?))
            }
            _ => Ok(Node::Print(pipeline(&words, line)?)),
        }
    }

    /// `if`, any `else if`, `else` and the `end` of them all.
    fn conditions(&mut self, line: usize, words: &[Word]) -> Result<Node> {
        let mut branches = vec![(pipeline(words, line)?, self.nodes()?)];
        loop {
            match self.pieces.next() {
                Some(Piece::Action { line, words }) => match &words[..] {
                    [Word::Name(_), Word::Name(name), rest @ ..] if name == "if" => {
                        branches.push((pipeline(rest, line)?, self.nodes()?));
                    }
                    [Word::Name(name)] if name == "else" => {
                        let otherwise = self.nodes()?;
                        self.end(line)?;
                        return Ok(Node::If(branches, otherwise));
                    }
                    _ => return Ok(Node::If(branches, Vec::new())),
                },
                _ => bail!("line {line}: if is not ended"),
            }
        }
    }

    /// The body of a loop or `with`, and what stands after its `else`.
    fn block(&mut self, line: usize) -> Result<(Vec<Node>, Vec<Node>)> {
        let body = self.nodes()?;
        let mut otherwise = Vec::new();
        if self.pieces.peek().is_some_and(|piece| piece.keyword() == "else") {
            self.pieces.next();
            otherwise = self.nodes()?;
        }
        self.end(line)?;
        Ok((body, otherwise))
    }

    fn end(&mut self, line: usize) -> Result<()> {
        match self.pieces.next() {
            Some(piece) if piece.keyword() == "end" => Ok(()),
            _ => bail!("line {line}: what is opened here is not ended"),
        }
    }
}

/// `$i, $v := .list`, `$v := .list` or `.list`.
fn loop_head(words: &[Word], line: usize) -> Result<(Vec<String>, Pipeline)> {
    let (names, rest) = match words {
        [Word::Variable(a, _), Word::Mark(","), Word::Variable(b, _), Word::Mark(":="), rest @ ..] => {
            (vec![a.clone(), b.clone()], rest)
        }
        [Word::Variable(a, _), Word::Mark(":="), rest @ ..] => (vec![a.clone()], rest),
        rest => (Vec::new(), rest),
    };
    Ok((names, pipeline(rest, line)?))
}

fn pipeline(words: &[Word], line: usize) -> Result<Pipeline> {
    let mut rest = words.iter().cloned().peekable();
    let pipeline = commands(&mut rest, line)?;
    if rest.next().is_some() {
        bail!("line {line}: a bracket is closed that was not opened");
    }
    Ok(pipeline)
}

fn commands(words: &mut Peekable<Cloned<Iter<'_, Word>>>, line: usize) -> Result<Pipeline> {
    let mut commands = vec![Vec::new()];
    while let Some(word) = words.next_if(|word| *word != Word::Mark(")")) {
        let operand = match word {
            Word::Mark("|") => {
                commands.push(Vec::new());
                continue;
            }
            Word::Mark("(") => {
                let inside = self::commands(words, line)?;
                if words.next() != Some(Word::Mark(")")) {
                    bail!("line {line}: a bracket is not closed");
                }
                Operand::Group(inside)
            }
            Word::Mark(mark) => bail!("line {line}: {mark:?} has no place here"),
            Word::Name(name) => Operand::Function(name),
            Word::Field(path) => Operand::Field(path),
            Word::Variable(name, path) => Operand::Variable(name, path),
            Word::Literal(value) => Operand::Literal(value),
        };
        if let Some(command) = commands.last_mut() {
            command.push(operand);
        }
    }
    if commands.iter().any(Vec::is_empty) {
        bail!("line {line}: a value is missing");
    }
    Ok(Pipeline { line, commands })
}
