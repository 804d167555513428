//! gRPC's server reflection (`v1` and `v1alpha`, which are the same on the wire), so that tools such as
//! grpcurl can list and call the services. Files come from Envoy's descriptors.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::task::{Context, Poll};

use api::reflect;
use http::{Request, Response};
use prost_reflect::FileDescriptor;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status, Streaming};
use tower::Service;

use crate::body::{Sender, message};
use crate::call;

/// The current edition of the service.
#[derive(Debug)]
pub struct V1;

/// The edition that older tools ask for.
#[derive(Debug)]
pub struct V1Alpha;

/// Tells which services there are and which messages they use.
#[derive(Debug)]
pub struct Reflection<E> {
    services: &'static [&'static str],
    edition: PhantomData<fn() -> E>,
}

impl<E> Reflection<E> {
    /// Reflection that lists these services.
    pub fn new(services: &'static [&'static str]) -> Self {
        Self { services, edition: PhantomData }
    }
}

impl<E> Clone for Reflection<E> {
    fn clone(&self) -> Self {
        Self::new(self.services)
    }
}

impl NamedService for Reflection<V1> {
    const NAME: &'static str = "grpc.reflection.v1.ServerReflection";
}

impl NamedService for Reflection<V1Alpha> {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";
}

impl<E> Service<Request<Body>> for Reflection<E> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        const MOST_BYTES: usize = 64 * 1024;
        let services = self.services;
        ready(Ok(if request.uri().path().ends_with("/ServerReflectionInfo") {
            call::spawn(request, MOST_BYTES, |requests, responses| converse(services, requests, responses))
        } else {
            Status::unimplemented("").into_http()
        }))
    }
}

async fn converse(services: &[&str], mut requests: Streaming<Question>, responses: Sender) -> Status {
    loop {
        let question = match requests.message().await {
            Ok(Some(question)) => question,
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        };
        if responses.send(Ok(message(&answer(services, question)))).await.is_err() {
            return Status::cancelled("the client left");
        }
    }
}

fn answer(services: &[&str], question: Question) -> Answer {
    let answer = match &question.about {
        Some(About::FileByFilename(name)) => file(reflect::envoy().get_file_by_name(name), name),
        Some(About::FileContainingSymbol(symbol)) => file(file_of(symbol), symbol),
        Some(About::ListServices(_)) => {
            let name = |service: &&str| ServiceName { name: service.to_string() };
            Answered::Services(ServiceNames { services: services.iter().map(name).collect() })
        }
        Some(About::FileContainingExtension(_) | About::ExtensionNumbers(_)) => {
            failure(Code::NotFound, "no extension is known by number")
        }
        None => failure(Code::InvalidArgument, "empty request"),
    };
    Answer { host: question.host.clone(), original: Some(question), answer: Some(answer) }
}

/// The file that defines a message, an enumeration, a service, or one of its methods.
fn file_of(symbol: &str) -> Option<FileDescriptor> {
    let pool = reflect::envoy();
    let message = |name| pool.get_message_by_name(name).map(|found| found.parent_file());
    let enumeration = |name| pool.get_enum_by_name(name).map(|found| found.parent_file());
    let service = |name| pool.get_service_by_name(name).map(|found| found.parent_file());
    let definition = |name| message(name).or_else(|| enumeration(name)).or_else(|| service(name));
    definition(symbol).or_else(|| definition(symbol.rsplit_once('.')?.0))
}

/// A file and all that it imports, the file itself first.
fn file(found: Option<FileDescriptor>, wanted: &str) -> Answered {
    let Some(first) = found else { return failure(Code::NotFound, &format!("no definition of {wanted}")) };
    let mut seen = BTreeSet::from([first.name().to_owned()]);
    let mut files = vec![first];
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        files.extend(file.dependencies().filter(|import| seen.insert(import.name().to_owned())));
        at += 1;
    }
    Answered::Files(Files { files: files.iter().map(FileDescriptor::encode_to_vec).collect() })
}

fn failure(code: Code, message: &str) -> Answered {
    Answered::Failure(Failure { code: code as i32, message: message.to_owned() })
}

#[derive(Clone, PartialEq, prost::Message)]
struct Question {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "About", tags = "3, 4, 5, 6, 7")]
    about: Option<About>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum About {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(Extension),
    #[prost(string, tag = "6")]
    ExtensionNumbers(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Extension {
    #[prost(string, tag = "1")]
    containing_type: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(message, optional, tag = "2")]
    original: Option<Question>,
    #[prost(oneof = "Answered", tags = "4, 6, 7")]
    answer: Option<Answered>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Answered {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "6")]
    Services(ServiceNames),
    #[prost(message, tag = "7")]
    Failure(Failure),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceNames {
    #[prost(message, repeated, tag = "1")]
    services: Vec<ServiceName>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceName {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Failure {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorProto;

    use super::{About, Answered, Code, Question, answer};

    fn ask(about: About) -> Answered {
        answer(&["a.B"], Question { host: String::new(), about: Some(about) }).answer.unwrap()
    }

    #[test]
    fn service_is_found_with_everything_it_imports() {
        let symbol = "envoy.service.discovery.v3.AggregatedDiscoveryService";
        for symbol in [symbol.to_owned(), format!("{symbol}.StreamAggregatedResources")] {
            let Answered::Files(found) = ask(About::FileContainingSymbol(symbol)) else { panic!("no files") };
            let files: Vec<_> =
                found.files.iter().map(|f| FileDescriptorProto::decode(f.as_slice()).unwrap()).collect();
            assert_eq!(files[0].name(), "envoy/service/discovery/v3/ads.proto");
            let known = |name: &String| files.iter().any(|file| file.name() == name);
            assert!(files.iter().flat_map(|file| &file.dependency).all(known));
        }
    }

    #[test]
    fn unknown_definitions_are_not_found() {
        for about in [About::FileByFilename("x.proto".into()), About::FileContainingSymbol("x.Y".into())] {
            let Answered::Failure(failure) = ask(about) else { panic!("found") };
            assert_eq!(failure.code, Code::NotFound as i32);
        }
    }

    #[test]
    fn listed_services_are_those_given() {
        let Answered::Services(list) = ask(About::ListServices("*".into())) else { panic!("no list") };
        assert_eq!(list.services[0].name, "a.B");
    }
}
