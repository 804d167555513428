//! Tests of the interpreter: results as Go gives them, and the limits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::config::mesh::{default_mesh, default_proxy_config};
use serde_json::{Value, json};

use super::{Template, run};
use crate::builtin::RenderInput;
use crate::values::ChartValues;
use crate::workload::Workload;

fn rendered(text: &str) -> Result<String, String> {
    let pod: Value = json!({
        "metadata": {"name": "p", "labels": {"app": "cart"}, "annotations": {"note": "7"}},
        "spec": {"containers": [
            {"name": "a", "image": "i:1", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}]},
            {"name": "b"},
        ]},
    });
    let values = json!({"n": 3, "t": "text", "m": {"b": 2, "a": null, "c": {"d": [1, "x"]}}, "none": null, "on": true});
    let (mesh, mut proxy_config) = (default_mesh(), default_proxy_config());
    proxy_config.proxy_metadata.insert("B".to_owned(), "2".to_owned());
    proxy_config.proxy_metadata.insert("A".to_owned(), "1".to_owned());
    let input = RenderInput {
        pod: &pod,
        workload: &Workload { kind: "Deployment".to_owned(), name: "cart".to_owned(), ..Workload::default() },
        proxy_config: &proxy_config,
        mesh: &mesh,
        values: &ChartValues(values),
        revision: "canary",
        native: false,
        compliance_policy: "",
        environment: &BTreeMap::from([("ZONE".to_owned(), "z1".to_owned())]),
    };
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    run(&template, &input).map_err(|error| error.to_string())
}

fn check(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(rendered(text).as_deref(), Ok(*expected), "{text}");
    }
}

fn refused(text: &str, reason: &str) {
    let error = rendered(text).expect_err(text);
    assert!(error.contains(reason), "{text}: {error}");
}

#[test]
fn text_is_trimmed_at_markers() {
    check(&[
        ("a {{- \" b \" -}} c", "a b c"),
        ("a\n{{/* note */}}b", "a\nb"),
        ("a\n{{- /* note */ -}}\nb", "ab"),
        ("{{`raw \"x\"`}} {{\"q\\t\\u00e9\\\"\"}}", "raw \"x\" q\té\""),
        ("{{ -3 }} {{ 0x10 }} {{ 1.5 }} {{ 'a' }} {{ 1e3 }}", "-3 16 1.5 97 1000"),
    ]);
}

#[test]
fn control_structures_behave_as_in_go() {
    check(&[
        ("{{if .Values.on}}y{{else}}n{{end}}", "y"),
        ("{{if .Values.none}}y{{else if eq .Values.t \"text\"}}z{{else}}n{{end}}", "z"),
        ("{{with .Values.t}}{{.}}{{$.Revision}}{{end}}{{with .Values.x}}no{{else}}else{{end}}", "textcanaryelse"),
        ("{{range $i, $c := .Spec.Containers}}{{$i}}={{$c.Name}};{{end}}", "0=a;1=b;"),
        ("{{range $k, $v := .ProxyConfig.ProxyMetadata}}{{$k}}{{$v}}{{end}}", "A1B2"),
        ("{{range .Values.x}}x{{else}}none{{end}}", "none"),
        (
            "{{range $i, $_ := until 9}}{{if eq $i 2}}{{continue}}{{end}}{{if gt $i 4}}{{break}}{{end}}{{$i}}{{end}}",
            "0134",
        ),
        ("{{$x := 1}}{{if true}}{{$x = 2}}{{$y := 3}}{{end}}{{$x}}", "2"),
        ("{{define \"t\"}}<{{.}}>{{end}}{{template \"t\" .Values.t}}{{template \"t\"}}", "<text><<no value>>"),
        ("{{block \"b\" 5}}[{{.}}]{{end}}", "[5]"),
        ("{{and 1 0 2}} {{or 0 \"\" 3}} {{and false (fail \"not evaluated\")}} {{not nil}}", "0 3 false true"),
    ]);
}

#[test]
fn missing_values_behave_as_in_go() {
    check(&[
        ("{{.Values.missing}} {{.Values.missing.deeper}}", "<no value> <no value>"),
        ("{{(.Values.none).x}} {{eq .Values.none \"\"}} {{ne .Values.none \"\"}}", "<no value> false true"),
        ("{{index .ObjectMeta.Labels \"absent\" | quote}}", "\"\""),
        ("{{annotation .ObjectMeta \"x\" .Values.missing}}", "<nil>"),
        (
            "{{.Spec.ServiceAccountName | quote}} {{.Spec.HostNetwork}} {{(index .Spec.Containers 1).Image | quote}}",
            "\"\" false \"\"",
        ),
    ]);
    refused("{{.Values.none.x}}", "nil pointer");
    refused("{{.Spec.NoSuchField}}", "NoSuchField");
    refused("{{.MeshConfig.NoSuchField}}", "NoSuchField");
    refused("{{index nil 1}}", "index of untyped nil");
    refused("{{eq 1 \"1\"}}", "incompatible types");
    refused("{{upper .Values.missing}}", "expected a string");
}

#[test]
fn structs_and_messages_have_their_go_names() {
    check(&[
        ("{{.TypeMeta.Kind}} {{.DeploymentMeta.Name}} {{.ObjectMeta.Name}}", "Deployment cart p"),
        ("{{.ProxyConfig.InterceptionMode}} {{.ProxyConfig.InterceptionMode.String}}", "REDIRECT REDIRECT"),
        ("{{.ProxyConfig.HoldApplicationUntilProxyStarts.GetValue | default \"unset\"}}", "unset"),
        ("{{.ProxyConfig.GetTracing.GetTlsSettings.GetCaCertificates}}", "<no value>"),
        (
            "{{.ProxyConfig.StatusPort}} {{.MeshConfig.TrustDomain}} {{.MeshConfig.RootNamespace}}",
            "15020 cluster.local istio-system",
        ),
        ("{{formatDuration .ProxyConfig.DrainDuration}} {{len .MeshConfig.ExtensionProviders}}", "45s 3"),
        ("{{range .Spec.Containers}}{{range .Ports}}{{.ContainerPort}}/{{.Protocol}} {{end}}{{end}}", "80/ 53/UDP "),
    ]);
}

#[test]
fn the_injectors_own_functions() {
    check(&[
        ("{{annotation .ObjectMeta `note` 9}} {{annotation .ObjectMeta `other` 9}}", "7 9"),
        ("{{isset .ObjectMeta.Annotations `note`}} {{valueOrDefault \"\" 4}}", "true 4"),
        ("{{includeInboundPorts .Spec.Containers}} {{excludeInboundPort 15020 \"1,2\"}}", "80 1,2,15020"),
        ("{{toYaml .Values.m | indent 2}}", "a: null\n  b: 2\n  c:\n    d:\n    - 1\n    - x\n  "),
        ("{{toYaml (omitNil .Values.m.c) | nindent 2}}", "\n  d:\n  - 1\n  - x\n  "),
        ("{{protoToJSON .ProxyConfig}}", "{\"proxyMetadata\":{\"A\":\"1\",\"B\":\"2\"}}"),
        ("{{structToJSON (index (index .Spec.Containers 0).Ports 0)}}", "{\"containerPort\":80,\"name\":\"http\"}"),
        ("{{(fromJSON `{\"a\": [1, 2]}`).a}} {{fromJSON `x`}}", "[1 2] {}"),
        (
            "{{contains \"x\" \"text\"}} {{toLower \"ABC\"}} {{directory \"/a/b/c\"}} {{env \"ZONE\" \"d\"}} {{env \"X\" \"d\"}}",
            "true abc /a/b/ z1 d",
        ),
        (
            "{{toJsonMap (strdict \"b\" \"1\") (omit .ObjectMeta.Labels \"app\") (mergeMaps (strdict \"a\"))}}",
            "{\"a\":\"\",\"b\":\"1\"}",
        ),
    ]);
}

#[test]
fn functions_of_sprig() {
    check(&[
        ("{{\"a-b_c \" | trim | trunc 3 | upper | quote}} {{trimAll \"-_\" \"-a_\"}}", "\"A-B\" a"),
        ("{{list 1 \"b\" 3 | join \"-\"}} {{splitList \",\" \"a,b\"}} {{(split \"/\" \"a/b\")._1}}", "1-b-3 [a b] b"),
        (
            "{{add 1 2 .Values.n}} {{sub 5 2}} {{mul 2 3}} {{div 7 2}} {{mod 7 2}} {{max 1 9 3}} {{round 2.555 2}}",
            "6 3 6 3 1 9 2.56",
        ),
        (
            "{{dict \"a\" 1 \"b\" 2 | keys}} {{get (dict \"a\" 1) \"a\"}} {{hasKey (dict \"a\" 1) \"b\"}}",
            "[a b] 1 false",
        ),
        (
            "{{$d := dict}}{{$_ := set $d \"k\" \"v\"}}{{$d}} {{merge (dict \"a\" 1) (dict \"a\" 2 \"b\" 3)}}",
            "map[k:v] map[a:1 b:3]",
        ),
        ("{{default 5 0}} {{coalesce \"\" nil 7}} {{ternary 1 2 false}} {{empty list}}", "5 7 2 true"),
        (
            "{{regexMatch \"^a+$\" \"aaa\"}} {{regexReplaceAll \"(a)b\" \"abab\" \"${1}c\"}} {{regexFind \"[0-9]+\" \"x12\"}}",
            "true acac 12",
        ),
        ("{{b64enc \"a\"}} {{b64dec \"YQ==\"}} {{toJson (dict \"a\" (list 1 true))}}", "YQ== a {\"a\":[1,true]}"),
        (
            "{{printf \"%s|%5d|%-3s|%03d|%q|%v|%t|%.1f|%%\" \"a\" 7 \"b\" 5 \"c\" .Values.m.c true 2.25}}",
            "a|    7|b  |005|\"c\"|map[d:[1 x]]|true|2.2|%",
        ),
        (
            "{{seq 3}} {{until 3}} {{untilStep 6 0 -2}} {{first (list 1 2)}} {{rest (list 1 2)}} {{has 2 (list 1 2)}}",
            "1 2 3 [0 1 2] [6 4 2] 1 [2] true",
        ),
        (
            "{{camelcase \"http_server\"}} {{snakecase \"HttpServer\"}} {{kebabcase \"HttpServer\"}} {{title \"a b\"}}",
            "HttpServer http_server http-server A B",
        ),
        ("{{dig \"c\" \"d\" \"x\" .Values.m}} {{dig \"c\" \"e\" \"x\" .Values.m}}", "[1 x] x"),
    ]);
    refused("{{fail \"no\"}}", "no");
    refused("{{sha1sum 1}}", "not known");
    refused("{{div 1 0}}", "division by zero");
}

#[test]
fn templates_that_do_not_parse_name_their_line() {
    for (text, reason) in [
        ("a\n{{", "line 2: unclosed action"),
        ("{{if 1}}", "unclosed block"),
        ("{{end}}", "unexpected end"),
        ("{{nosuch 1}}", "\"nosuch\" is not known"),
        ("{{\"x}}", "unclosed string"),
        ("{{/* x}}", "unclosed comment"),
        ("{{1 |}}", "missing value"),
        ("{{break}}", "outside of range"),
        ("{{}}", "missing value"),
        ("{{(1}}", ""),
        ("{{define \"x\"}}", "unclosed define"),
    ] {
        refused(text, reason);
    }
    refused(&format!("{}1{}", "{{".to_owned() + &"(".repeat(5000), ")".repeat(5000) + "}}"), "nested");
    refused(&"{{if 1}}".repeat(5000), "nested");
}

#[test]
fn loops_and_giant_output_end_within_limits() {
    let begin = Instant::now();
    refused("{{define \"t\"}}{{template \"t\" .}}{{end}}{{template \"t\" .}}", "nested more than");
    refused("{{range until 90000}}{{range until 90000}}{{end}}{{end}}", "steps");
    refused("{{range until 90000}}{{repeat 1000 \"x\"}}{{end}}", "bytes");
    refused("{{repeat 99999999999 \"x\"}}", "too large");
    refused("{{until 999999999}}", "more than");
    refused("{{$l := list 1}}{{range until 60}}{{$l = list $l $l}}{{end}}{{toJson $l}}", "too large");
    refused("{{$l := list 1}}{{range until 60}}{{$l = list $l $l}}{{end}}{{$l}}", "too large");
    refused("{{$s := repeat 1000000 \"a\"}}{{replace \"a\" $s $s}}", "too large");
    refused(
        "{{$s := repeat 1000 \"a\"}}{{$l := list}}{{range until 1500}}{{$l = append $l $s}}{{end}}{{join $s $l}}",
        "too large",
    );
    refused("{{$d := dict}}{{$_ := set $d \"d\" $d}}{{$d}}", "itself");
    refused("{{regexMatch \"((((a{99}){99}){99}){99})\" \"a\"}}", "");
    refused("{{range until 9999}}{{regexMatch \"a\" \"a\"}}{{end}}", "steps");
    refused("{{printf \"%999999999d\" 1 | repeat 1000}}", "too large");
    refused("{{nindent 100000000 \"a\"}}", "too large");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}
