//! The parser returns for any input, and parses what it printed.

use model::config::{Kind, mesh, parse, print, validate};
use model::problem::FileLocation;
use proptest::collection::{btree_map, vec};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// Field names that reach deep into the parser.
const FIELDS: &[&str] =
    &["hosts", "http", "route", "match", "spec", "metadata", "name", "annotations", "servers", "tls", "port", "rules"];
/// Legacy kinds, which are converted.
const OLD: &[(&str, &str)] = &[
    ("config.istio.io/v1alpha2", "RouteRule"),
    ("config.istio.io/v1alpha2", "EgressRule"),
    ("config.istio.io/v1alpha2", "DestinationPolicy"),
    ("config.istio.io/v1alpha2", "IngressRule"),
    ("authentication.istio.io/v1alpha1", "Policy"),
    ("authentication.istio.io/v1alpha1", "MeshPolicy"),
];
/// Maximum depth of generated specs.
const DEPTH: u32 = 6;

/// Runs every parser of text.
fn read(text: &str) {
    for object in parse::documents(text, "f").objects {
        validate::validate(&object);
        print::to_json(&object);
    }
    mesh::parse_mesh(text, "f");
    mesh::parse_networks(text, "f");
    mesh::effective_proxy_config(&mesh::default_mesh(), text);
}

fn location() -> FileLocation {
    FileLocation { file: "f".into(), line: 1 }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~é\u{0}]{0,12}".prop_map(Value::from),
        select(&["5s", "STRICT", "*.a.com", "10.0.0.0/8", "80"][..]).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let key = prop_oneof!["[a-z]{1,4}", select(FIELDS).prop_map(String::from)];
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            btree_map(key, inner, 0..5).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A valid spec of a kind, from a stream of random choices.
fn spec_of(descriptor: &MessageDescriptor, choices: &mut impl Iterator<Item = u32>, depth: u32) -> Value {
    let mut entries = Map::new();
    for field in descriptor.fields() {
        // Recursive fields and oneofs exclude each other; the rest is random.
        let taken = choices.next().unwrap_or(0).is_multiple_of(4);
        let rival =
            field.containing_oneof().is_some_and(|oneof| oneof.fields().any(|f| entries.contains_key(f.json_name())));
        if taken && !rival {
            let value = field_of(&field, choices, depth);
            entries.insert(field.json_name().to_owned(), value);
        }
    }
    Value::Object(entries)
}

fn field_of(field: &FieldDescriptor, choices: &mut impl Iterator<Item = u32>, depth: u32) -> Value {
    let count = choices.next().unwrap_or(0) % 3 + 1;
    match field.kind() {
        FieldKind::Message(entry) if field.is_map() => {
            let kind = entry.map_entry_value_field().kind();
            (0..count).map(|n| (n.to_string(), single(&kind, choices, depth))).collect::<Map<_, _>>().into()
        }
        kind if field.is_list() => (0..count).map(|_| single(&kind, choices, depth)).collect(),
        kind => single(&kind, choices, depth),
    }
}

fn single(kind: &FieldKind, choices: &mut impl Iterator<Item = u32>, depth: u32) -> Value {
    let choice = choices.next().unwrap_or(0);
    match kind {
        FieldKind::Message(inner) => match inner.full_name() {
            "google.protobuf.Duration" => json!(format!("{}ms", choice)),
            "google.protobuf.Struct" => json!({"a": [choice, null, {"b": "c"}]}),
            name if name.starts_with("google.protobuf.") => single(&wrapped(inner), choices, depth),
            _ if depth == 0 => json!({}),
            _ => spec_of(inner, choices, depth - 1),
        },
        FieldKind::Enum(values) => {
            let index = choice as usize % values.values().len();
            values.values().nth(index).map_or(Value::Null, |value| json!(value.name()))
        }
        FieldKind::Bool => json!(choice % 2 == 1),
        FieldKind::String => json!(format!("s{choice}")),
        FieldKind::Bytes => json!("AAEC"),
        FieldKind::Float | FieldKind::Double => json!(f64::from(choice) / 8.0),
        _ => json!(choice % 100_000),
    }
}

fn wrapped(wrapper: &MessageDescriptor) -> FieldKind {
    wrapper.get_field(1).map_or(FieldKind::String, |field| field.kind())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in any::<String>(), yaml in "([a-z]{1,3}: ?|- |\\[|\\]|\\{|\\}|&a |\\*a|<<: |'|\"|---\n|\n| {1,3}|[0-9]|#|\\||>|%|!|\t){0,60}") {
        read(&text);
        read(&yaml);
    }

    #[test]
    fn any_json_is_answered(json in any_json()) {
        read(&json.to_string());
        for kind in Kind::ALL {
            let api_version = format!("{}/{}", kind.group(), kind.versions()[0]);
            let parsed = parse::value(&json!({"apiVersion": api_version, "kind": kind.as_str(), "metadata": {"name": "a"}, "spec": json}), &location());
            parsed.objects.iter().for_each(|object| drop(validate::validate(object)));
        }
        for (api_version, kind) in OLD {
            for (metadata, spec) in [(&json!({"name": "a"}), &json), (&json, &json!({"destination": {"name": "r"}}))] {
                parse::value(&json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}), &location());
            }
        }
    }

    #[test]
    fn any_object_prints_as_it_reads(at in 0..Kind::ALL.len(), choices in vec(any::<u32>(), 0..400), created in 0..4_000_000_000i64) {
        let kind = Kind::ALL[at];
        let Some(message) = kind.message() else { return Ok(()) };
        let descriptor = api::reflect::istio().get_message_by_name(message).expect("every message has a descriptor");
        let spec = spec_of(&descriptor, &mut choices.into_iter(), DEPTH);
        let document = json!({
            "apiVersion": format!("{}/{}", kind.group(), kind.versions()[0]),
            "kind": kind.as_str(),
            "metadata": {"name": "a", "namespace": "n", "labels": {"l": "1"}, "annotations": {"istio.io/x": "y"},
                "creationTimestamp": model::config::timestamp::format(created), "resourceVersion": "7"},
            "spec": spec,
        });
        let first = parse::value(&document, &location());
        proptest::prop_assert_eq!(&first.problems, &vec![]);
        let printed = print::to_json(&first.objects[0]);
        let second = parse::value(&printed, &location());
        proptest::prop_assert_eq!(&second.problems, &vec![]);
        proptest::prop_assert!(second.objects[0].means_the_same_as(&first.objects[0]));
        proptest::prop_assert_eq!(&second.objects[0], &first.objects[0]);
        validate::validate(&first.objects[0]);
    }
}

/// Nine levels of nine aliases each are refused, with padding too; routes that repeat another one are not.
#[test]
fn aliases_repeat_parts_and_bombs_are_refused() {
    let head = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: b}\n";
    let route = "{match: [{uri: {prefix: /a}}], route: [{destination: {host: a.example}}]}";
    let repeated = format!("{head}spec:\n  hosts: [a.example]\n  http:\n  - &a {route}\n{}", "  - *a\n".repeat(300));
    assert_eq!(parse::documents(&repeated, "f").objects.len(), 1);
    let level = |name: u8| {
        let (name, before) = (char::from(name), char::from(name - 1));
        format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(","))
    };
    let levels: String = (b'b'..=b'j').map(level).collect();
    let bomb = format!("{head}a: &a [x,x,x,x,x,x,x,x,x]\n{levels}");
    for bomb in [bomb.clone(), format!("{bomb}# {}\n", "x".repeat(10_000))] {
        let parsed = parse::documents(&bomb, "f");
        assert_eq!((parsed.objects.len(), parsed.problems.len()), (0, 1), "{:?}", parsed.problems);
    }
}
