//! Published weaknesses of other control planes, tried on ours: each test has the id of the weakness.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use api::envoy::config::core::v3::Node;
use api::{Struct, Value as ProtoValue, value};
use serde_json::{Value, json};
use testkit::ca_client::CaClient;
use tonic::Code;

use crate::fixture::{FRONT, Mesh, assert_refused};
use crate::streams::{open, open_as, secured};

/// A token whose payload is JSON `null` or no object, and metadata lists of one byte, ended the process before
/// authentication.
#[tokio::test]
async fn cve_2022_23635_odd_payloads_and_metadata_end_no_process() {
    let mut mesh = Mesh::start(&[]).await;
    let roots = mesh.roots().await;
    let limit = Duration::from_secs(20);
    let odd = [Value::Null, json!([]), json!("x"), json!(7), json!({}), json!({"aud": null}), json!({"sub": [1]})];
    for payload in odd {
        let token = mesh.signed(&payload);
        let client = CaClient::new(mesh.secure, &roots, None, Some(&token));
        assert_refused(&payload.to_string(), client.certificate(FRONT, 0).await, Code::Unauthenticated);
        let mut stream = open(secured(&mesh, None).await, Some(&token), "shop").await;
        assert_eq!(stream.end(limit).await, (false, Some(Code::Unauthenticated)), "{payload}");
    }
    let text = |text: &str| ProtoValue { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let list = |values: Vec<ProtoValue>| {
        let mut kind = value::Kind::ListValue(Default::default());
        if let value::Kind::ListValue(list) = &mut kind {
            list.values = values;
        }
        ProtoValue { kind: Some(kind) }
    };
    let none = || ProtoValue { kind: None };
    let good = mesh.token("front");
    for value in [text(","), text(""), list(vec![text("x")]), list(vec![]), list(vec![none()]), none()] {
        for key in
            ["LABELS", "STATIC_LABELS", "INSTANCE_IPS", "POD_PORTS", "NAMESPACE", "PROXY_CONFIG", "ISTIO_VERSION"]
        {
            let metadata = Struct { fields: [(key.to_owned(), value.clone())].into() };
            let id = "sidecar~10.0.0.1~front.shop~shop.svc.cluster.local".to_owned();
            let node = Node { id, metadata: Some(metadata), ..Node::default() };
            let mut stream = open_as(secured(&mesh, None).await, Some(&good), node).await;
            // Served, or refused with a status: never the end of the connection.
            let (is_served, code) = stream.end(Duration::from_millis(200)).await;
            assert!(is_served || code.is_some(), "{key} = {value:?}");
            mesh.server.process().check_alive();
        }
    }
    mesh.serves_an_honest_caller().await;
}

/// Anyone on the same machine could claim any identity with a forwarded certificate.
#[tokio::test]
async fn cve_2022_39388_a_forwarded_certificate_counts_only_from_a_named_address() {
    let header = ("x-forwarded-client-cert".to_owned(), format!("URI={FRONT}"));
    for (blocks, is_trusted) in [("", false), ("10.0.0.0/8", false), ("127.0.0.0/8", true)] {
        let mesh = Mesh::start(&[("TRUSTED_GATEWAY_CIDR", blocks)]).await;
        let mut client = CaClient::new(mesh.secure, &mesh.roots().await, None, None);
        client.headers = vec![header.clone()];
        let result = client.certificate(FRONT, 0).await;
        match is_trusted {
            true => drop(result.unwrap()),
            false => assert_refused(blocks, result, Code::Unauthenticated),
        }
    }
}

/// SECURITY.md names a test for each published weakness.
#[test]
fn every_test_that_the_list_of_weaknesses_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let (_, list) = page.split_once("## Published weaknesses").unwrap();
    let (list, _) = list.split_once("\n## ").unwrap();
    let rows = list.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let names = rows.flat_map(|(_, tests)| tests.split('`').skip(1).step_by(2));
    let names: BTreeSet<&str> = names.filter(|name| name.contains('_') && !name.contains('/')).collect();
    assert!(names.len() >= 18, "{names:?}");
    let mut missing = names;
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                missing.retain(|name| !text.contains(&format!("fn {name}(")));
            }
        }
    }
    assert_eq!(missing, BTreeSet::new());
}
