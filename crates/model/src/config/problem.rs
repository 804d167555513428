//! Problems in user input: severity, subject, location and message. Mistakes of users are values, not failures.

use std::fmt;

use super::Key;
pub use super::codes::{CodePage, ProblemCode};
use crate::names::{ClusterId, Namespace, ServiceKey, Str};
use crate::printable::clipped;
use crate::service::Registry;

/// Maximum number of bytes of a name in a message: a message must not repeat a megabyte of input.
const LONGEST_NAME: usize = 300;

/// One problem of one object, file or source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub code: ProblemCode,
    pub severity: Severity,
    pub about: Subject,
    pub location: Option<FileLocation>,
    /// Completes "could not …" or states the fact: lower case, no full stop.
    pub message: Str,
}

/// What a problem is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    Object(Key),
    /// A document that is not one of our kinds, or whose namespace is not known.
    Document {
        kind: Str,
        namespace: Option<Namespace>,
        name: Str,
    },
    /// A whole file: any of its objects may be affected.
    File(Str),
    Service(ServiceKey),
    /// A service that could not be imported, by its name in the registry.
    RegistryService {
        registry: Registry,
        name: Str,
    },
    /// A route of Cloud Foundry, such as `route cart.example.com/v2`.
    Route(Str),
    Cluster(ClusterId),
    /// xDS resources of one type: the first one and the number of others.
    Resource {
        kind: Str,
        name: Str,
        others: usize,
    },
    /// All xDS resources of one type.
    ResourceType(Str),
    VirtualHost(Str),
    /// A server or another source of configuration.
    Source(Str),
    /// A flag or a mesh-wide document, such as `MeshConfig`.
    Setting(Str),
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileLocation {
    pub file: Str,
    /// Counted from 1; 0 if unknown.
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; the object works as written.
    Info,
    /// Part of the object has no effect.
    Warning,
    /// The object, or a file, is not used, or requests that follow it fail.
    Error,
}

impl Problem {
    pub fn error(about: impl Into<Subject>, message: impl Into<Str>) -> Problem {
        Problem::new(Severity::Error, about.into(), message.into())
    }

    pub fn warning(about: impl Into<Subject>, message: impl Into<Str>) -> Problem {
        Problem::new(Severity::Warning, about.into(), message.into())
    }

    pub fn info(about: impl Into<Subject>, message: impl Into<Str>) -> Problem {
        Problem::new(Severity::Info, about.into(), message.into())
    }

    /// A problem with the general code of its subject.
    pub fn new(severity: Severity, about: Subject, message: Str) -> Problem {
        Problem { code: about.general_code(severity), severity, about, location: None, message }
    }

    /// Sets a more specific code.
    #[must_use]
    pub fn coded(mut self, code: ProblemCode) -> Problem {
        self.code = code;
        self
    }

    #[must_use]
    pub fn at(mut self, location: Option<FileLocation>) -> Problem {
        self.location = location;
        self
    }
}

impl Subject {
    /// The code of problems without a specific one.
    fn general_code(&self, severity: Severity) -> ProblemCode {
        match self {
            Subject::Object(_) | Subject::Document { .. } if severity == Severity::Error => ProblemCode::InvalidObject,
            Subject::Object(_) | Subject::Document { .. } => ProblemCode::WithoutEffect,
            Subject::File(_) => ProblemCode::UnreadableFile,
            Subject::Service(_) => ProblemCode::ServiceConflict,
            Subject::RegistryService { .. } => ProblemCode::RegistryService,
            Subject::Route(_) => ProblemCode::Route,
            Subject::Cluster(_) => ProblemCode::Cluster,
            Subject::Resource { .. } | Subject::ResourceType(_) | Subject::VirtualHost(_) => ProblemCode::Resource,
            Subject::Source(_) => ProblemCode::Source,
            Subject::Setting(_) => ProblemCode::Setting,
        }
    }

    pub fn registry_service(registry: Registry, name: impl Into<Str>) -> Subject {
        Subject::RegistryService { registry, name: name.into() }
    }
}

impl From<Key> for Subject {
    fn from(key: Key) -> Subject {
        Subject::Object(key)
    }
}

impl From<ServiceKey> for Subject {
    fn from(key: ServiceKey) -> Subject {
        Subject::Service(key)
    }
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl Severity {
    /// The name in logs, metrics and debug pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |text| clipped(text, LONGEST_NAME);
        match self {
            Subject::Object(key) => write!(f, "{} {}/{}", key.kind, key.namespace, short(&key.name)),
            Subject::Document { kind, namespace: Some(namespace), name } => {
                write!(f, "{} {namespace}/{}", short(kind), short(name))
            }
            Subject::Document { kind, namespace: None, name } if name.is_empty() => f.write_str(short(kind)),
            Subject::Document { kind, namespace: None, name } => write!(f, "{} {}", short(kind), short(name)),
            Subject::File(path) => f.write_str(path),
            Subject::Service(key) => write!(f, "service {}/{}", key.namespace, key.hostname),
            Subject::RegistryService { registry, name } => write!(f, "{} service {name}", registry.as_str()),
            Subject::Route(route) => f.write_str(route),
            Subject::Cluster(cluster) => write!(f, "cluster {cluster}"),
            Subject::Resource { kind, name, others: 0 } => write!(f, "{kind} {name}"),
            Subject::Resource { kind, name, others } => write!(f, "{kind} {name} and {others} more"),
            Subject::VirtualHost(name) => write!(f, "virtual host {name}"),
            Subject::ResourceType(name) | Subject::Source(name) | Subject::Setting(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.location, &self.about) {
            (Some(location), Subject::File(file)) if location.file == *file => write!(f, "{location}")?,
            (Some(location), about) => write!(f, "{location}: {about}")?,
            (None, about) => write!(f, "{about}")?,
        }
        write!(f, ": {}", self.message)
    }
}
