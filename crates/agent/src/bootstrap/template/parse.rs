//! Parses a template into a tree. Errors name the line.

use std::iter::{Cloned, Peekable};
use std::slice::Iter;
use std::vec::IntoIter;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

#[derive(Debug, PartialEq)]
pub(super) enum TemplateNode {
    Text(String),
    Print(Pipeline),
    /// Conditions with their bodies, and the else body.
    If(Vec<(Pipeline, Vec<TemplateNode>)>, Vec<TemplateNode>),
    Range(Loop),
    With(Pipeline, Vec<TemplateNode>, Vec<TemplateNode>),
    Assign(String, Pipeline),
}

#[derive(Debug, PartialEq)]
pub(super) struct Loop {
    /// Variables for index or key, and for the value.
    pub(super) names: Vec<String>,
    pub(super) over: Pipeline,
    pub(super) body: Vec<TemplateNode>,
    pub(super) otherwise: Vec<TemplateNode>,
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
    /// `$x.a`, or `$` for the root value.
    Variable(String, Vec<String>),
    Literal(Value),
    Function(String),
    Group(Pipeline),
}

/// Parses a template.
pub(super) fn parse(text: &str) -> Result<Vec<TemplateNode>> {
    let mut parser = Parser { segments: split(text)?.into_iter().peekable() };
    let nodes = parser.nodes()?;
    match parser.segments.next() {
        None => Ok(nodes),
        Some(segment) => bail!("line {}: unexpected end or else", segment.line()),
    }
}

#[derive(Debug)]
enum Segment {
    Text(String),
    Action { line: usize, tokens: Vec<Token> },
}

impl Segment {
    fn line(&self) -> usize {
        match self {
            Segment::Text(_) => 0,
            Segment::Action { line, .. } => *line,
        }
    }

    /// The first name of an action, or empty.
    fn keyword(&self) -> &str {
        match self {
            Segment::Action { tokens, .. } => match tokens.first() {
                Some(Token::Name(name)) => name,
                _ => "",
            },
            Segment::Text(_) => "",
        }
    }
}

/// Splits a template into text and actions. `{{-` and `-}}` trim adjacent whitespace.
fn split(text: &str) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    let (mut rest, mut line, mut trim) = (text, 1, false);
    while let Some(at) = rest.find("{{") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        line += before.matches('\n').count();
        let end = action_end(after).ok_or_else(|| anyhow!("line {line}: unclosed {{{{"))?;
        let mut inside = &after[..end];
        let mut shown = if trim { before.trim_start() } else { before };
        if let Some(trimmed) = inside.strip_prefix("- ").or_else(|| inside.strip_prefix("-\n")) {
            (inside, shown) = (trimmed, shown.trim_end());
        }
        trim = inside.ends_with(" -") || inside.ends_with("\n-");
        inside = if trim { &inside[..inside.len() - 1] } else { inside };
        segments.push(Segment::Text(shown.to_owned()));
        if !inside.trim_start().starts_with("/*") {
            segments.push(Segment::Action { line, tokens: tokens(inside, line)? });
        }
        line += after[..end].matches('\n').count();
        rest = &after[end + 2..];
    }
    segments.push(Segment::Text(if trim { rest.trim_start() } else { rest }.to_owned()));
    segments.retain(|segment| !matches!(segment, Segment::Text(text) if text.is_empty()));
    Ok(segments)
}

/// The position of `}}` outside of quotes.
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
enum Token {
    /// A keyword, function or literal such as `true`.
    Name(String),
    /// `.a.b`
    Field(Vec<String>),
    /// `$x.a`
    Variable(String, Vec<String>),
    Literal(Value),
    /// One of `| ( ) , := =`
    Symbol(&'static str),
}

const SYMBOLS: [&str; 6] = ["|", "(", ")", ",", ":=", "="];

fn tokens(text: &str, line: usize) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(symbol));
            symbol.len()
        } else if first == '"' || first == '`' {
            let length = quoted_length(rest).ok_or_else(|| anyhow!("line {line}: unclosed quote"))?;
            tokens.push(Token::Literal(unquote(&rest[..length], line)?));
            length
        } else {
            let end = |c: char| c.is_whitespace() || "|(),=:".contains(c);
            let length = rest.find(end).unwrap_or(rest.len()).max(1);
            tokens.push(token(&rest[..length], line)?);
            length
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
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
        None => serde_json::from_str(text).map_err(|error| anyhow!("line {line}: could not parse {text}: {error}")),
    }
}

fn token(text: &str, line: usize) -> Result<Token> {
    let path = |path: &str| path.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if let Some(fields) = text.strip_prefix('.') {
        return Ok(Token::Field(path(fields)));
    }
    if let Some(variable) = text.strip_prefix('$') {
        let (name, fields) = variable.split_once('.').unwrap_or((variable, ""));
        return Ok(Token::Variable(name.to_owned(), path(fields)));
    }
    match text {
        "true" | "false" | "nil" => Ok(Token::Literal(match text {
            "nil" => Value::Null,
            text => (text == "true").into(),
        })),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') => {
            let number = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from));
            Ok(Token::Literal(number.map_err(|_| anyhow!("line {line}: could not parse {text:?} as a number"))?))
        }
        _ if text.chars().all(|c| c.is_alphanumeric() || c == '_') => Ok(Token::Name(text.to_owned())),
        _ => bail!("line {line}: could not parse {text:?}"),
    }
}

struct Parser {
    segments: Peekable<IntoIter<Segment>>,
}

impl Parser {
    /// All nodes up to `else`, `end` or the end of the template.
    fn nodes(&mut self) -> Result<Vec<TemplateNode>> {
        let mut nodes = Vec::new();
        while self.segments.peek().is_some_and(|segment| !["else", "end"].contains(&segment.keyword())) {
            let Some(segment) = self.segments.next() else { break };
            nodes.push(match segment {
                Segment::Text(text) => TemplateNode::Text(text),
                Segment::Action { line, tokens } => self.action(line, tokens)?,
            });
        }
        Ok(nodes)
    }

    fn action(&mut self, line: usize, tokens: Vec<Token>) -> Result<TemplateNode> {
        match (&tokens[..], tokens.first()) {
            (_, Some(Token::Name(name))) if name == "if" => self.conditions(line, &tokens[1..]),
            (_, Some(Token::Name(name))) if name == "range" => {
                let (names, over) = loop_head(&tokens[1..], line)?;
                let (body, otherwise) = self.block(line)?;
                Ok(TemplateNode::Range(Loop { names, over, body, otherwise }))
            }
            (_, Some(Token::Name(name))) if name == "with" => {
                let over = pipeline(&tokens[1..], line)?;
                let (body, otherwise) = self.block(line)?;
                Ok(TemplateNode::With(over, body, otherwise))
            }
            (_, Some(Token::Name(name))) if ["define", "template", "block", "break", "continue"].contains(&&**name) => {
                bail!("line {line}: {name} is not supported")
            }
            ([Token::Variable(name, fields), Token::Symbol(":=" | "="), rest @ ..], _) if fields.is_empty() => {
                Ok(TemplateNode::Assign(name.clone(), pipeline(rest, line)?))
            }
            _ => Ok(TemplateNode::Print(pipeline(&tokens, line)?)),
        }
    }

    /// `if`, `else if`, `else` and `end`.
    fn conditions(&mut self, line: usize, tokens: &[Token]) -> Result<TemplateNode> {
        let mut branches = vec![(pipeline(tokens, line)?, self.nodes()?)];
        loop {
            match self.segments.next() {
                Some(Segment::Action { line, tokens }) => match &tokens[..] {
                    [Token::Name(_), Token::Name(name), rest @ ..] if name == "if" => {
                        branches.push((pipeline(rest, line)?, self.nodes()?));
                    }
                    [Token::Name(name)] if name == "else" => {
                        let otherwise = self.nodes()?;
                        self.end(line)?;
                        return Ok(TemplateNode::If(branches, otherwise));
                    }
                    _ => return Ok(TemplateNode::If(branches, Vec::new())),
                },
                _ => bail!("line {line}: unclosed if"),
            }
        }
    }

    /// The body of `range` or `with`, and its else body.
    fn block(&mut self, line: usize) -> Result<(Vec<TemplateNode>, Vec<TemplateNode>)> {
        let body = self.nodes()?;
        let mut otherwise = Vec::new();
        if self.segments.peek().is_some_and(|segment| segment.keyword() == "else") {
            self.segments.next();
            otherwise = self.nodes()?;
        }
        self.end(line)?;
        Ok((body, otherwise))
    }

    fn end(&mut self, line: usize) -> Result<()> {
        match self.segments.next() {
            Some(segment) if segment.keyword() == "end" => Ok(()),
            _ => bail!("line {line}: unclosed block"),
        }
    }
}

/// `$i, $v := .list`, `$v := .list` or `.list`.
fn loop_head(tokens: &[Token], line: usize) -> Result<(Vec<String>, Pipeline)> {
    let (names, rest) = match tokens {
        [Token::Variable(a, _), Token::Symbol(","), Token::Variable(b, _), Token::Symbol(":="), rest @ ..] => {
            (vec![a.clone(), b.clone()], rest)
        }
        [Token::Variable(a, _), Token::Symbol(":="), rest @ ..] => (vec![a.clone()], rest),
        rest => (Vec::new(), rest),
    };
    Ok((names, pipeline(rest, line)?))
}

fn pipeline(tokens: &[Token], line: usize) -> Result<Pipeline> {
    let mut rest = tokens.iter().cloned().peekable();
    let pipeline = commands(&mut rest, line)?;
    if rest.next().is_some() {
        bail!("line {line}: unexpected closing parenthesis");
    }
    Ok(pipeline)
}

fn commands(tokens: &mut Peekable<Cloned<Iter<'_, Token>>>, line: usize) -> Result<Pipeline> {
    let mut commands = vec![Vec::new()];
    while let Some(token) = tokens.next_if(|token| *token != Token::Symbol(")")) {
        let operand = match token {
            Token::Symbol("|") => {
                commands.push(Vec::new());
                continue;
            }
            Token::Symbol("(") => {
                let inside = self::commands(tokens, line)?;
                if tokens.next() != Some(Token::Symbol(")")) {
                    bail!("line {line}: unclosed parenthesis");
                }
                Operand::Group(inside)
            }
            Token::Symbol(symbol) => bail!("line {line}: unexpected {symbol:?}"),
            Token::Name(name) => Operand::Function(name),
            Token::Field(path) => Operand::Field(path),
            Token::Variable(name, path) => Operand::Variable(name, path),
            Token::Literal(value) => Operand::Literal(value),
        };
        if let Some(command) = commands.last_mut() {
            command.push(operand);
        }
    }
    if commands.iter().any(Vec::is_empty) {
        bail!("line {line}: expected a value");
    }
    Ok(Pipeline { line, commands })
}
