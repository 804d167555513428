//! Custom bootstrap files and templates.

use std::fs;

use agent::bootstrap::{self, BootstrapSource};
use testkit::servers;

use super::{case, plan_of, validation_error};

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
fn template_is_rendered_to_the_file_of_its_epoch() {
    if servers::without("envoy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("bootstrap.tmpl");
    fs::write(&template, TEMPLATE).unwrap();
    let mut setting = case("template", "", serde_json::Value::Null);
    setting.flags = "--zipkinAddress zipkin:9411 --proxyAdminPort 15100";
    setting.config = "{extraStatTags: [a, b]}";
    let (_, mut bootstrap_input) = plan_of(&setting);
    bootstrap_input.config.config_path = folder.path().join("out").to_string_lossy().into_owned();
    let file = bootstrap::write(&BootstrapSource::Template(template), &bootstrap_input, 3).unwrap();
    assert_eq!(file.path, folder.path().join("out/envoy-rev3.json"));
    assert!(file.is_ours);
    let text = fs::read_to_string(&file.path).unwrap();
    let rendered: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(rendered["node"]["id"], "sidecar~10.0.0.1~a-1.shop~shop.svc.cluster.local");
    assert_eq!(rendered["admin"]["address"]["socket_address"]["port_value"], 15100);
    assert_eq!(rendered["stats_config"]["stats_tags"][1]["tag_name"], "b");
    assert_eq!(validation_error(&text, "json"), None);
}

#[test]
fn template_parameters_follow_flags() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("names.tmpl");
    let text = "{\"names\": [{{ range $i, $name := .pilot_SAN }}{{ if $i }},{{ end }}\"{{ $name }}\"{{ end }}], \
                \"connect\": \"{{ .connect_timeout }}\", \"delay\": \"{{ .refresh_delay }}\"}";
    fs::write(&template, text).unwrap();
    let rendered = |flags: &'static str| {
        let (_, mut input) = plan_of(&super::Case { flags, ..case("names", "", serde_json::Value::Null) });
        input.config.config_path = folder.path().to_string_lossy().into_owned();
        let file = bootstrap::write(&BootstrapSource::Template(template.clone()), &input, 0).unwrap();
        serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&file.path).unwrap()).unwrap()
    };
    let secure = "--controlPlaneAuthPolicy MUTUAL_TLS --discoveryAddress istio-pilot.mesh:15005 --connectTimeout 7s";
    let pilot = "spiffe://cluster.local/ns/mesh/sa/istio-pilot-service-account";
    assert_eq!(
        rendered(secure),
        serde_json::json!({"names": ["istio-pilot.mesh", pilot], "connect": "7s", "delay": "1s"})
    );
    assert_eq!(
        rendered("--controlPlaneAuthPolicy NONE --discoveryRefreshDelay 500ms"),
        serde_json::json!({"names": [], "connect": "1s", "delay": "0.500000000s"})
    );
}

#[test]
fn custom_file_is_used_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let custom = folder.path().join("own.yaml");
    fs::write(&custom, "node: {id: me, cluster: mine}\n").unwrap();
    let (_, bootstrap_input) = plan_of(&case("custom", "", serde_json::Value::Null));
    let file = bootstrap::write(&BootstrapSource::Custom(custom.clone()), &bootstrap_input, 0).unwrap();
    assert_eq!((file.path, file.is_ours), (custom, false));
}

#[test]
fn errors_name_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("bad.tmpl");
    fs::write(&template, "{\n{{ if .zipkin }}\n}\n").unwrap();
    let (_, bootstrap_input) = plan_of(&case("bad", "", serde_json::Value::Null));
    let error = bootstrap::write(&BootstrapSource::Template(template), &bootstrap_input, 0).unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("bad.tmpl") && message.contains("line 2: unclosed if"), "{message}");
    let missing =
        bootstrap::write(&BootstrapSource::Template(folder.path().join("none")), &bootstrap_input, 0).unwrap_err();
    assert!(format!("{missing:#}").contains("could not read the bootstrap"), "{missing:#}");
}
