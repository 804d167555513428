//! Parses tokens into a tree.

use std::collections::BTreeMap;

use super::lexer::{ActionToken, Lexed};
use super::{Template, TemplateError, functions};

/// Deepest nesting of blocks and parentheses.
const MOST_DEPTH: usize = 100;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Text(String),
    Action(Pipeline),
    If { condition: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    With { value: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    Range { values: Pipeline, body: Vec<Node>, otherwise: Vec<Node> },
    Call { name: String, argument: Option<Pipeline>, line: usize },
    Break,
    Continue,
}

#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) line: usize,
    pub(super) variables: Vec<String>,
    /// `=` instead of `:=`.
    pub(super) assigns: bool,
    pub(super) commands: Vec<Vec<Operand>>,
}

#[derive(Clone, Debug)]
pub(super) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Field(Vec<String>),
    Variable(String, Vec<String>),
    Function(String),
    Group(Box<Pipeline>, Vec<String>),
}

pub(super) fn parse(tokens: Vec<Lexed>) -> Result<Template, TemplateError> {
    let mut parser = Parser { tokens, at: 0, line: 1, depth: 0, loops: 0, defined: BTreeMap::new() };
    let (main, end) = parser.nodes()?;
    match end {
        BlockEnd::Text => Ok(Template { main, defined: parser.defined }),
        _ => parser.error("unexpected end or else"),
    }
}

/// What a list of nodes ended with.
enum BlockEnd {
    Text,
    End,
    Else,
    ElseIf,
    ElseWith,
}

struct Parser {
    tokens: Vec<Lexed>,
    at: usize,
    line: usize,
    depth: usize,
    loops: usize,
    defined: BTreeMap<String, Vec<Node>>,
}

impl Parser {
    fn error<T>(&self, message: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError { line: self.line, message: message.into() })
    }

    fn next(&mut self) -> Option<Lexed> {
        let next = self.tokens.get(self.at)?.clone();
        self.line = next.line;
        self.at += 1;
        Some(next)
    }

    fn peek(&self) -> Option<&ActionToken> {
        self.tokens.get(self.at).map(|lexed| &lexed.token)
    }

    fn expect_end(&mut self) -> Result<(), TemplateError> {
        match self.next().map(|lexed| lexed.token) {
            Some(ActionToken::End) => Ok(()),
            other => self.error(format!("expected the end of the action, found {other:?}")),
        }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, TemplateError>) -> Result<T, TemplateError> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return self.error(format!("nested more than {MOST_DEPTH} deep"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn nodes(&mut self) -> Result<(Vec<Node>, BlockEnd), TemplateError> {
        let mut nodes = Vec::new();
        loop {
            let keyword = match self.peek() {
                None => return Ok((nodes, BlockEnd::Text)),
                Some(ActionToken::Text(text)) => {
                    nodes.push(Node::Text(text.clone()));
                    self.at += 1;
                    continue;
                }
                Some(ActionToken::Identifier(name)) => name.clone(),
                Some(_) => String::new(),
            };
            match keyword.as_str() {
                "end" => {
                    self.next();
                    self.expect_end()?;
                    return Ok((nodes, BlockEnd::End));
                }
                "else" => return Ok((nodes, self.otherwise()?)),
                _ => nodes.extend(self.node(&keyword)?),
            }
        }
    }

    fn otherwise(&mut self) -> Result<BlockEnd, TemplateError> {
        self.next();
        match self.peek() {
            Some(ActionToken::Identifier(name)) if name == "if" => {
                self.next();
                Ok(BlockEnd::ElseIf)
            }
            Some(ActionToken::Identifier(name)) if name == "with" => {
                self.next();
                Ok(BlockEnd::ElseWith)
            }
            _ => {
                self.expect_end()?;
                Ok(BlockEnd::Else)
            }
        }
    }

    fn node(&mut self, keyword: &str) -> Result<Option<Node>, TemplateError> {
        match keyword {
            "if" | "with" | "range" | "define" | "block" | "template" | "break" | "continue" => {
                self.next();
            }
            _ => {}
        }
        match keyword {
            "if" => self.deeper(Self::condition).map(Some),
            "with" => self.deeper(Self::with).map(Some),
            "range" => self.deeper(Self::range).map(Some),
            "define" => self.deeper(Self::define).map(|()| None),
            "block" => self.deeper(Self::block).map(Some),
            "template" => {
                let name = self.name()?;
                self.call(name).map(Some)
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.error(format!("{keyword} outside of range"));
                }
                self.expect_end()?;
                Ok(Some(if keyword == "break" { Node::Break } else { Node::Continue }))
            }
            _ => {
                let pipeline = self.pipeline(&ActionToken::End)?;
                Ok(Some(Node::Action(pipeline)))
            }
        }
    }

    fn condition(&mut self) -> Result<Node, TemplateError> {
        let condition = self.pipeline(&ActionToken::End)?;
        let (then, end) = self.nodes()?;
        let otherwise = self.rest_of(end)?;
        Ok(Node::If { condition, then, otherwise })
    }

    fn with(&mut self) -> Result<Node, TemplateError> {
        let value = self.pipeline(&ActionToken::End)?;
        let (then, end) = self.nodes()?;
        let otherwise = self.rest_of(end)?;
        Ok(Node::With { value, then, otherwise })
    }

    /// What follows the first branch, up to the end of the block.
    fn rest_of(&mut self, end: BlockEnd) -> Result<Vec<Node>, TemplateError> {
        match end {
            BlockEnd::End => Ok(Vec::new()),
            BlockEnd::Else => match self.nodes()? {
                (nodes, BlockEnd::End) => Ok(nodes),
                _ => self.error("expected end after else"),
            },
            BlockEnd::ElseIf => Ok(vec![self.deeper(Self::condition)?]),
            BlockEnd::ElseWith => Ok(vec![self.deeper(Self::with)?]),
            BlockEnd::Text => self.error("unclosed block"),
        }
    }

    fn range(&mut self) -> Result<Node, TemplateError> {
        let values = self.pipeline(&ActionToken::End)?;
        self.loops += 1;
        let parsed = self.nodes();
        self.loops -= 1;
        let (body, end) = parsed?;
        let otherwise = self.rest_of(end)?;
        Ok(Node::Range { values, body, otherwise })
    }

    fn name(&mut self) -> Result<String, TemplateError> {
        match self.next().map(|lexed| lexed.token) {
            Some(ActionToken::String(name)) => Ok(name),
            _ => self.error("expected the name of a template in quotes"),
        }
    }

    fn define(&mut self) -> Result<(), TemplateError> {
        let name = self.name()?;
        self.expect_end()?;
        match self.nodes()? {
            (nodes, BlockEnd::End) => self.defined.insert(name, nodes),
            _ => return self.error("unclosed define"),
        };
        Ok(())
    }

    fn block(&mut self) -> Result<Node, TemplateError> {
        let name = self.name()?;
        let call = self.call(name.clone())?;
        match self.nodes()? {
            (nodes, BlockEnd::End) => self.defined.insert(name, nodes),
            _ => return self.error("unclosed block"),
        };
        Ok(call)
    }

    fn call(&mut self, name: String) -> Result<Node, TemplateError> {
        let line = self.line;
        if self.peek() == Some(&ActionToken::End) {
            self.next();
            return Ok(Node::Call { name, argument: None, line });
        }
        let argument = Some(self.pipeline(&ActionToken::End)?);
        Ok(Node::Call { name, argument, line })
    }

    /// A pipeline up to and including `end`.
    fn pipeline(&mut self, end: &ActionToken) -> Result<Pipeline, TemplateError> {
        let line = self.line;
        let (variables, assigns) = self.declaration()?;
        let mut commands = vec![Vec::new()];
        loop {
            let Some(lexed) = self.next() else { return self.error("unclosed action") };
            if lexed.token == *end {
                break;
            }
            if lexed.token == ActionToken::Pipe {
                commands.push(Vec::new());
                continue;
            }
            let operand = self.operand(lexed)?;
            if let Some(command) = commands.last_mut() {
                command.push(operand);
            }
        }
        if commands.iter().any(Vec::is_empty) {
            return self.error("missing value for a command");
        }
        Ok(Pipeline { line, variables, assigns, commands })
    }

    /// `$a :=`, `$a =` or `$a, $b :=` at the beginning of a pipeline.
    fn declaration(&mut self) -> Result<(Vec<String>, bool), TemplateError> {
        let ahead: Vec<&ActionToken> = self.tokens[self.at..].iter().take(4).map(|lexed| &lexed.token).collect();
        let (names, assigns) = match ahead.as_slice() {
            [ActionToken::Variable(a), ActionToken::Declare, ..] => (vec![a.clone()], false),
            [ActionToken::Variable(a), ActionToken::Assign, ..] => (vec![a.clone()], true),
            [ActionToken::Variable(a), ActionToken::Comma, ActionToken::Variable(b), ActionToken::Declare] => {
                (vec![a.clone(), b.clone()], false)
            }
            [ActionToken::Variable(a), ActionToken::Comma, ActionToken::Variable(b), ActionToken::Assign] => {
                (vec![a.clone(), b.clone()], true)
            }
            _ => return Ok((Vec::new(), false)),
        };
        for _ in 0..names.len() * 2 {
            self.next();
        }
        Ok((names, assigns))
    }

    fn operand(&mut self, lexed: Lexed) -> Result<Operand, TemplateError> {
        Ok(match lexed.token {
            ActionToken::Dot => Operand::Dot,
            ActionToken::Field(name) => {
                let mut path = vec![name];
                path.extend(self.fields());
                Operand::Field(path)
            }
            ActionToken::Variable(name) => Operand::Variable(name, self.fields()),
            ActionToken::String(text) => Operand::Text(text),
            ActionToken::Int(int) => Operand::Int(int),
            ActionToken::Float(float) => Operand::Float(float),
            ActionToken::Open => {
                let inner = self.deeper(|parser| parser.pipeline(&ActionToken::Close))?;
                Operand::Group(Box::new(inner), self.fields())
            }
            ActionToken::Identifier(name) => match name.as_str() {
                "true" => Operand::Bool(true),
                "false" => Operand::Bool(false),
                "nil" => Operand::Nil,
                _ if functions::exists(&name) => Operand::Function(name),
                _ => return self.error(format!("function {name:?} is not known")),
            },
            other => return self.error(format!("unexpected {other:?}")),
        })
    }

    /// Fields that follow without a space.
    fn fields(&mut self) -> Vec<String> {
        let mut path = Vec::new();
        while let Some(Lexed { token: ActionToken::Field(name), spaced: false, .. }) = self.tokens.get(self.at) {
            path.push(name.clone());
            self.at += 1;
        }
        path
    }
}
