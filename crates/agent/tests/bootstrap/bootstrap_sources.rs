//! Custom files and templates.

use std::fs;

use agent::bootstrap::{self, BootstrapSource};
use testkit::servers;

use super::{case, planned, refusal};

const TEMPLATE: &str = r#"{
  "node": {
    "id": "{{ .nodeID }}",
    "cluster": "{{ .cluster }}",
    "metadata": {{ .meta_json_str }}
  },
  "stats_config": {
    "stats_tags": [
      {{- range $i, $tag := .extraStatTags }}
      {{- if $i }},{{ end }}
      {"tag_name": "{{ $tag }}", "regex": "({{ $tag }}=\\.=(.*?);\\.;)"}
      {{- end }}
    ]
  },
  "admin": {
    "address": {"socket_address": {"address": "{{ .localhost }}", "port_value": {{ .config.ProxyAdminPort }}}}
  },
  "static_resources": {
    "clusters": [
      {{- if .zipkin }}
      {
        "name": "zipkin",
        "type": "STRICT_DNS",
        "connect_timeout": "{{ .connect_timeout }}",
        "load_assignment": {
          "cluster_name": "zipkin",
          "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {{ .zipkin }}}}}]}]
        }
      }
      {{- end }}
    ]
  }
}
"#;

#[test]
fn a_template_is_rendered_into_a_file_of_its_epoch() {
    if servers::without("envoy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("bootstrap.tmpl");
    fs::write(&template, TEMPLATE).unwrap();
    let mut asked = case("template", "", serde_json::Value::Null);
    asked.flags = "--zipkinAddress zipkin:9411 --proxyAdminPort 15100";
    asked.config = "{extraStatTags: [a, b]}";
    let (_, mut bootstrap_input) = planned(&asked);
    bootstrap_input.config.config_path = folder.path().join("out").to_string_lossy().into_owned();
    let written = bootstrap::write(&BootstrapSource::Template(template), &bootstrap_input, 3).unwrap();
    assert_eq!(written.path, folder.path().join("out/envoy-rev3.json"));
    assert!(written.is_ours);
    let text = fs::read_to_string(&written.path).unwrap();
    let made: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(made["node"]["id"], "sidecar~10.0.0.1~a-1.shop~shop.svc.cluster.local");
    assert_eq!(made["admin"]["address"]["socket_address"]["port_value"], 15100);
    assert_eq!(made["stats_config"]["stats_tags"][1]["tag_name"], "b");
    assert_eq!(refusal(&text, "json"), None);
}

#[test]
fn a_custom_file_is_used_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let custom = folder.path().join("own.yaml");
    fs::write(&custom, "node: {id: me, cluster: mine}\n").unwrap();
    let (_, bootstrap_input) = planned(&case("custom", "", serde_json::Value::Null));
    let written = bootstrap::write(&BootstrapSource::Custom(custom.clone()), &bootstrap_input, 0).unwrap();
    assert_eq!((written.path, written.is_ours), (custom, false));
}

#[test]
fn a_mistake_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("bad.tmpl");
    fs::write(&template, "{\n{{ if .zipkin }}\n}\n").unwrap();
    let (_, bootstrap_input) = planned(&case("bad", "", serde_json::Value::Null));
    let error = bootstrap::write(&BootstrapSource::Template(template), &bootstrap_input, 0).unwrap_err();
    let told = format!("{error:#}");
    assert!(told.contains("bad.tmpl") && told.contains("line 2: if is not ended"), "{told}");
    let missing =
        bootstrap::write(&BootstrapSource::Template(folder.path().join("none")), &bootstrap_input, 0).unwrap_err();
    assert!(format!("{missing:#}").contains("could not read the bootstrap"), "{missing:#}");
}
