//! Configuration over xDS for another control plane: by `group/version/Kind`, in both variants.

use api::envoy::config::core::v3::Node;
use api::istio::mcp::v1alpha1::Resource;
use api::istio::mesh::v1alpha1::MeshConfig;
use api::istio::networking::v1alpha3::ServiceEntry;
use api::{Struct, TypeUrl, Value, value};
use prost::{Message, Name};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use xds::client::{DeltaClient, Held, SotwClient};

use crate::started::{SHOP, Started, folder};

const ENTRIES: &str = "networking.istio.io/v1/ServiceEntry";

fn node() -> Node {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let fields = [("GENERATOR".to_owned(), text("api"))].into_iter().collect();
    let id = "sidecar~127.0.0.1~other-pilot.istio-system~istio-system.svc.cluster.local".to_owned();
    Node { id, metadata: Some(Struct { fields }), ..Node::default() }
}

fn kind(url: &str) -> TypeUrl {
    TypeUrl::from(url.to_owned())
}

async fn open_to_all() -> (Started, Channel) {
    let folder = folder();
    std::fs::write(folder.path().join("config/shop.yaml"), SHOP).unwrap();
    let mut server = Started::with(folder, &["--registries="], &[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]);
    server.ready().await;
    let channel = channel(&mut server).await;
    (server, channel)
}

async fn channel(server: &mut Started) -> Channel {
    let grpc = server.port("grpc").await;
    Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap()
}

fn opened(any: &api::Any) -> (String, ServiceEntry) {
    assert_eq!(any.type_url, Resource::type_url());
    let envelope = Resource::decode(&*any.value).unwrap();
    let body = envelope.body.unwrap();
    assert_eq!(body.type_url, "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry");
    (envelope.metadata.unwrap().name, ServiceEntry::decode(&*body.value).unwrap())
}

#[tokio::test]
async fn objects_are_listed_by_kind_and_again_after_a_change() {
    let (server, channel) = open_to_all().await;
    let mut stream = SotwClient::open(channel, node(), &kind(ENTRIES), &[]).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    stream.ack(&first);
    let found: Vec<(String, Vec<String>)> =
        first.resources.iter().map(opened).map(|(name, entry)| (name, entry.hosts)).collect();
    let expected = [("shop/pay", "pay.example"), ("shop/web", "web.shop.example")];
    assert_eq!(found, expected.map(|(name, host)| (name.to_owned(), vec![host.to_owned()])));

    stream.subscribe(&kind("example.com/v1/Unknown"), &[]);
    let unknown = stream.next().await.unwrap().unwrap();
    assert_eq!((unknown.type_url.as_str(), unknown.resources.len()), ("example.com/v1/Unknown", 0));
    stream.ack(&unknown);

    stream.subscribe(&kind("core/v1alpha1/MeshConfig"), &[]);
    let mesh = stream.next().await.unwrap().unwrap();
    assert_eq!(mesh.resources[0].type_url, MeshConfig::type_url());
    let mesh_config = MeshConfig::decode(&*mesh.resources[0].value).unwrap();
    assert_eq!(mesh_config.root_namespace, "istio-system");
    stream.ack(&mesh);

    std::fs::remove_file(server.path("config/shop.yaml")).unwrap();
    let second = stream.next().await.unwrap().unwrap();
    assert_eq!((second.type_url.as_str(), second.resources.len()), (ENTRIES, 0));
}

#[tokio::test]
async fn a_delta_client_gets_only_changes() {
    let (server, channel) = open_to_all().await;
    let mut stream = DeltaClient::open(channel.clone(), node(), Held::new(), &kind(ENTRIES), &[]).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    stream.ack(&first);
    let names: Vec<&str> = first.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["shop/pay", "shop/web"]);

    std::fs::write(server.path("config/shop.yaml"), SHOP.replace("pay.example", "pay2.example")).unwrap();
    let second = stream.next().await.unwrap().unwrap();
    stream.ack(&second);
    assert_eq!(second.resources.len(), 1);
    assert_eq!(opened(second.resources[0].resource.as_ref().unwrap()).1.hosts, ["pay2.example"]);

    // A reconnecting client sends what it has and gets only the rest.
    let held = stream.held.clone();
    drop(stream);
    std::fs::write(server.path("config/shop.yaml"), SHOP.split("---").next().unwrap()).unwrap();
    let mut stream = DeltaClient::open(channel, node(), held, &kind(ENTRIES), &[]).await.unwrap();
    loop {
        let answer = stream.next().await.unwrap().unwrap();
        assert!(answer.resources.is_empty(), "{answer:?}");
        stream.ack(&answer);
        if answer.removed_resources == ["shop/pay"] {
            break;
        }
    }
}

#[tokio::test]
async fn without_a_certificate_configuration_is_denied() {
    let mut server = Started::new(&["--registries="]);
    server.ready().await;
    let channel = channel(&mut server).await;
    let refused = async {
        let mut stream = SotwClient::open(channel, node(), &kind(ENTRIES), &[]).await?;
        stream.next().await
    };
    assert_eq!(refused.await.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn services_of_registries_are_served_as_service_entries() {
    let env = [("ENABLE_XDS_API_GENERATOR_AUTH", "false")];
    let mut server = Started::with(folder(), &["--registries=Mock"], &env);
    server.ready().await;
    let mut stream = SotwClient::open(channel(&mut server).await, node(), &kind(ENTRIES), &[]).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    stream.ack(&first);
    let found: Vec<(String, usize)> =
        first.resources.iter().map(opened).map(|(name, entry)| (name, entry.endpoints.len())).collect();
    let expected = ["hello", "world"].map(|name| (format!("default/synthetic-{name}.default.svc.cluster.local"), 2));
    assert_eq!(found, expected);

    // Written ServiceEntries are served together with them.
    std::fs::write(server.path("config/shop.yaml"), SHOP).unwrap();
    let second = stream.next().await.unwrap().unwrap();
    assert_eq!(second.resources.len(), 4);
}
