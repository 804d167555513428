//! Configuration over xDS read by an independent client: Envoy's Go client and stubs with Istio's Go types.

use std::fs;

use model::config::parse;
use serde_json::Value;
use testkit::process::Process;
use testkit::{servers, wait};

use crate::started::{SHOP, Started, folder};

const RULES: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.example]
  http:
  - {match: [{uri: {prefix: /new}}], route: [{destination: {host: web.shop.example, subset: v2}}], timeout: 1.500s}
  - {route: [{destination: {host: web.shop.example}, weight: 90}, {destination: {host: pay.example}, weight: 10}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {methods: [POST]}}]}]}
";
const ENTRIES: &str = "networking.istio.io/v1/ServiceEntry";
const KINDS: &str = "networking.istio.io/v1/ServiceEntry,networking.istio.io/v1alpha3/VirtualService,\
                     security.istio.io/v1beta1/AuthorizationPolicy";

/// A server with the shop and its rules, and a Go client that subscribes to all kinds.
struct GoClient {
    server: Started,
    stranger: Process,
}

impl GoClient {
    async fn start(args: &[&str]) -> GoClient {
        let folder = folder();
        fs::write(folder.path().join("config/shop.yaml"), SHOP).unwrap();
        fs::write(folder.path().join("config/rules.yaml"), RULES).unwrap();
        let mut server = Started::with(folder, &["--registries="], &[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]);
        server.ready().await;
        let [address, kinds] = [format!("--address={}", server.port("grpc").await), format!("--kinds={KINDS}")];
        let args = [&[address.as_str(), &kinds], args].concat();
        let stranger = Process::start("mcp-client", &servers::binary("mcp-client"), &args, &[]);
        GoClient { server, stranger }
    }

    /// Waits for the response of a kind with this number, counted from 1.
    async fn answer(&mut self, kind: &str, number: usize) -> Value {
        wait::until(&format!("answer {number} of {kind}"), async || {
            self.stranger.check_alive();
            let output = self.stranger.output();
            let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.filter(|answer| answer["kind"] == kind).nth(number - 1).ok_or(output.clone())
        })
        .await
    }

    fn write_shop(&self, text: &str) {
        fs::write(self.server.path("config/shop.yaml"), text).unwrap();
    }
}

/// Objects of one kind as the Go client should print them: names with specs.
fn written(texts: &[&str], kind: &str) -> Vec<(String, Value)> {
    let kind = kind.rsplit('/').next().unwrap();
    let objects = texts.iter().flat_map(|text| parse::documents(text, "").objects);
    let of_kind = objects.filter(|object| object.key().kind.as_str() == kind);
    let mut all: Vec<(String, Value)> = of_kind
        .map(|object| (format!("{}/{}", object.meta.namespace, object.meta.name), object.spec.to_json()))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn sent(answer: &Value) -> Vec<(String, Value)> {
    let objects = answer["objects"].as_array().unwrap();
    objects.iter().map(|object| (object["name"].as_str().unwrap().to_owned(), object["spec"].clone())).collect()
}

async fn reads_everything(scene: &mut GoClient) {
    for kind in KINDS.split(',') {
        let answer = scene.answer(kind, 1).await;
        let expected = written(&[SHOP, RULES], kind);
        assert!(!expected.is_empty(), "{kind}");
        assert_eq!(sent(&answer), expected, "{kind}");
    }
}

#[tokio::test]
async fn a_go_client_reads_the_files_and_their_changes() {
    if servers::without("mcp-client") {
        return;
    }
    // The client rejects the second response of each kind; later changes are sent anyway.
    let mut scene = GoClient::start(&["--refuse=2"]).await;
    reads_everything(&mut scene).await;

    let changed = SHOP.replace("10.0.0.2", "10.0.0.3");
    scene.write_shop(&changed);
    let second = scene.answer(ENTRIES, 2).await;
    assert_eq!((sent(&second), &second["refused"]), (written(&[&changed], ENTRIES), &Value::Bool(true)));

    let fewer = changed.split("---").next().unwrap();
    scene.write_shop(fewer);
    let third = scene.answer(ENTRIES, 3).await;
    assert_eq!((sent(&third), &third["refused"]), (written(&[fewer], ENTRIES), &Value::Bool(false)));
}

#[tokio::test]
async fn a_delta_go_client_gets_only_changes() {
    if servers::without("mcp-client") {
        return;
    }
    let mut scene = GoClient::start(&["--delta", "--refuse=2"]).await;
    reads_everything(&mut scene).await;

    let changed = SHOP.replace("10.0.0.2", "10.0.0.3");
    scene.write_shop(&changed);
    let second = scene.answer(ENTRIES, 2).await;
    let expected: Vec<_> = written(&[&changed], ENTRIES).into_iter().filter(|(name, _)| name == "shop/web").collect();
    assert_eq!((sent(&second), &second["refused"]), (expected, &Value::Bool(true)));

    scene.write_shop(changed.split("---").next().unwrap());
    let third = scene.answer(ENTRIES, 3).await;
    assert_eq!(third["removed"], serde_json::json!(["shop/pay"]));
}
