//! The MCP v1alpha1 sink against a scripted server.

use api::istio::mcp::v1alpha1::Resource;
use model::config::{envelope, parse};
use sources::health::SourceState;
use sources::store::mcp::schema::{RequestResources, Resources};
use sources::store::mcp::{COLLECTIONS, McpOptions, McpSink};

use crate::follower::Follower;
use crate::mcp_server::{Conversation, Server, answer};

const RULES: &str = "istio/networking/v1alpha3/destinationrules";

fn sink_of(server: &Server, query: &str) -> McpSink {
    McpSink::new(McpOptions::parse(&format!("mcp://{}{query}", server.address), "pilot").unwrap())
}

/// Responds to every first request: these rules, and no other objects. Returns the request for rules.
async fn begin(stream: &mut Conversation, rules: Vec<Resource>, collections: usize) -> RequestResources {
    let mut of_rules = None;
    for number in 0..collections {
        let request = stream.request().await;
        assert_eq!(request.sink_node.as_ref().map(|node| node.id.as_str()), Some("pilot"));
        assert_eq!(request.response_nonce, "");
        let resources = if request.collection == RULES { rules.clone() } else { Vec::new() };
        stream.answer(Resources { resources, ..answer(&request.collection, &format!("first-{number}")) });
        of_rules = of_rules.or(Some(request).filter(|request| request.collection == RULES));
    }
    for _ in 0..collections {
        let verdict = stream.request().await;
        assert!(verdict.response_nonce.starts_with("first-") && verdict.error_detail.is_none(), "{verdict:?}");
    }
    of_rules.unwrap()
}

fn rule(name: &str, version: &str) -> Resource {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
         metadata: {{name: {name}, namespace: shop, resourceVersion: {version:?}}}\nspec: {{host: {name}-{version}}}\n"
    );
    envelope::seal(&parse::documents(&text, "").objects[0]).unwrap()
}

const ALL: usize = COLLECTIONS.len();

#[tokio::test]
async fn whole_collections_replace_each_other_and_outlive_the_stream() {
    let mut server = Server::start().await;
    let mut sink = Follower::new(sink_of(&server, ""));
    let mut stream = server.stream().await;
    let request = begin(&mut stream, vec![rule("a", "1"), rule("b", "1")], ALL).await;
    assert!(!request.incremental && request.initial_resource_versions.is_empty());
    sink.until("the first rules", |sink| sink.synced == 1 && sink.objects.len() == 2).await;

    stream.answer(Resources { resources: vec![rule("b", "2")], ..answer(RULES, "second") });
    sink.until("one rule", |sink| sink.objects.len() == 1).await;
    assert_eq!(stream.request().await.response_nonce, "second");

    stream.answer(Resources { ..answer("istio/unknown/v1/things", "third") });
    let refusal = stream.request().await;
    assert_eq!(refusal.response_nonce, "third");
    assert!(refusal.error_detail.is_some_and(|error| error.message.contains("istio/unknown/v1/things")));
    stream.answer(Resources { incremental: true, ..answer(RULES, "fourth") });
    assert!(stream.request().await.error_detail.is_some(), "changes were not asked for");

    drop(stream);
    let mut stream = server.stream().await;
    assert_eq!(sink.names().len(), 1, "known objects are kept");
    begin(&mut stream, vec![rule("c", "1")], ALL).await;
    sink.until("the rule of the new stream", |sink| sink.objects.keys().any(|key| key.contains("/c"))).await;
    sink.until("the old rule to go", |sink| sink.objects.len() == 1).await;
    assert_eq!(sink.report().state, SourceState::Live);
}

#[tokio::test]
async fn changes_are_applied_and_a_new_stream_starts_with_the_known_versions() {
    let mut server = Server::start().await;
    let mut sink = Follower::new(sink_of(&server, "?incremental=true"));
    let mut stream = server.stream().await;
    let request = begin(&mut stream, vec![rule("a", "1"), rule("b", "1")], ALL).await;
    assert!(request.incremental);
    sink.until("the first rules", |sink| sink.objects.len() == 2).await;

    let removed_resources = vec!["shop/a".to_owned()];
    let resources = vec![rule("c", "7")];
    stream.answer(Resources { resources, removed_resources, incremental: true, ..answer(RULES, "second") });
    assert_eq!(stream.request().await.response_nonce, "second");
    sink.until("the change", |sink| sink.objects.keys().any(|key| key.contains("/c"))).await;
    sink.until("the removal", |sink| sink.objects.len() == 2).await;

    drop(stream);
    let mut stream = server.stream().await;
    loop {
        let request = stream.request().await;
        if request.collection == RULES {
            let held: Vec<(&str, &str)> =
                request.initial_resource_versions.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!(held, [("shop/b", "1"), ("shop/c", "7")]);
            break;
        }
    }
}

#[tokio::test]
async fn an_invalid_object_is_reported_and_the_last_valid_one_stays() {
    let mut server = Server::start().await;
    let mut sink = Follower::new(sink_of(&server, ""));
    let mut stream = server.stream().await;
    begin(&mut stream, vec![rule("a", "1")], ALL).await;
    sink.until("the rule", |sink| sink.objects.len() == 1).await;
    let mut bad = rule("a", "2");
    bad.body.as_mut().unwrap().value = vec![255];
    stream.answer(Resources { resources: vec![bad, rule("b", "1")], ..answer(RULES, "second") });
    assert!(stream.request().await.error_detail.is_none(), "the rest of the answer is good");
    sink.until("the good one", |sink| sink.objects.len() == 2).await;
    assert!(sink.problems.iter().any(|p| p.contains("shop/a") && p.contains("last good")), "{:?}", sink.problems);
}
