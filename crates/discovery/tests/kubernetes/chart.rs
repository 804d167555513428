//! The Helm chart, rendered by Helm: with default values it equals the plain manifest, and the API server accepts it with
//! other values too.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};
use testkit::kubectl::Kubectl;
use testkit::servers;

use crate::cluster::{cluster, create, is_left_out};
use crate::rights::deploy;

/// A label of Helm that the manifest does not have.
const MANAGER: &str = "app.kubernetes.io/managed-by";

/// The chart with these values, as YAML.
pub(crate) fn rendered(values: &[&str]) -> String {
    let mut helm = Command::new(servers::binary("helm"));
    helm.args(["template", "pilotage", "--namespace=istio-system"]).arg(deploy().join("chart"));
    helm.args(values.iter().flat_map(|value| ["--set", value]));
    let output = helm.output().unwrap();
    assert!(output.status.success(), "{values:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Objects by kind and name.
pub(crate) fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let documents = yaml.split("---\n").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let named = documents.filter(|document| !document.is_null()).map(|mut object| {
        without_manager(&mut object);
        (format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', ""), object)
    });
    named.collect()
}

fn without_manager(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove(MANAGER);
            fields.values_mut().for_each(without_manager);
        }
        Value::Array(items) => items.iter_mut().for_each(without_manager),
        _ => {}
    }
}

#[test]
fn the_manifest_is_the_chart_with_its_defaults() {
    if servers::without("helm") {
        return;
    }
    let (chart, mut manifest) =
        (objects(&rendered(&[])), objects(&std::fs::read_to_string(deploy().join("manifest.yaml")).unwrap()));
    // Helm creates it.
    assert!(manifest.remove("Namespace istio-system").is_some());
    assert_eq!(chart.keys().collect::<Vec<_>>(), manifest.keys().collect::<Vec<_>>());
    for (name, object) in &chart {
        assert_eq!(object, &manifest[name], "{name}");
    }
}

#[test]
fn permissions_of_disabled_features_are_not_requested() {
    if servers::without("helm") {
        return;
    }
    let roles = |values: &[&str]| {
        let all = objects(&rendered(values));
        all.into_keys().filter_map(|name| Some(name.strip_prefix("ClusterRole ")?.to_owned())).collect::<Vec<_>>()
    };
    let none = [
        "readSecrets=false",
        "writeStatus=false",
        "makeGatewayClasses=false",
        "deployGateways=false",
        "certificateAuthority=false",
        "reviewTokens=false",
        "registerWorkloads=false",
        "injection.enabled=false",
        "validation.enabled=false",
    ];
    assert_eq!(roles(&none), ["istiod-read-istio-system"]);
    let all = [
        "classes",
        "definitions",
        "gateways",
        "read",
        "registration",
        "roots",
        "secrets",
        "status",
        "tokens",
        "webhooks",
    ];
    let all = all.map(|of| format!("istiod-{of}-istio-system"));
    assert_eq!(roles(&["registerCRDs=true"]), all);
    // No other role may read Secrets of all namespaces.
    let rules = |values: &[&str]| {
        let all = objects(&rendered(values)).into_iter();
        let names_secrets = |role: &Value| {
            let rules = role["rules"].as_array().into_iter().flatten();
            rules.into_iter().any(|rule| rule["resources"].as_array().unwrap().contains(&json!("secrets")))
        };
        all.filter(|(_, role)| names_secrets(role)).map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(rules(&[]), ["ClusterRole istiod-secrets-istio-system", "Role istiod-ca"]);
    assert_eq!(rules(&["readSecrets=false"]), ["Role istiod-ca", "Role istiod-secrets"]);
}

#[test]
fn the_tls_port_is_declared_only_with_a_certificate() {
    if servers::without("helm") {
        return;
    }
    let of = |values: &[&str]| {
        let all = objects(&rendered(values));
        let has_port = |object: &str, field: &str| {
            let ports = all[object].pointer(field).and_then(Value::as_array).unwrap();
            ports.iter().any(|port| port.get("port").or(port.get("containerPort")) == Some(&json!(15012)))
        };
        let container = all["Deployment istiod"].pointer("/spec/template/spec/containers/0").unwrap();
        let flag = container["args"].as_array().unwrap().contains(&json!("--tlsCertFile=/etc/istiod-tls/tls.crt"));
        // After the CA's Secret, which is mounted first.
        let mut mount =
            container["volumeMounts"].as_array().into_iter().flatten().map(|mount| mount["mountPath"].clone());
        let mount = mount.rfind(|path| *path != "/etc/cacerts").unwrap_or_default();
        let volumes = all["Deployment istiod"].pointer("/spec/template/spec/volumes").and_then(Value::as_array);
        let mut secret =
            volumes.into_iter().flatten().filter_map(|volume| volume.pointer("/secret/secretName").cloned());
        let secret = secret.rfind(|name| *name != "cacerts");
        let declared = has_port("Deployment istiod", "/spec/template/spec/containers/0/ports");
        assert_eq!(declared, has_port("Service istiod", "/spec/ports"));
        (declared, flag, mount, secret.unwrap_or_default())
    };
    assert_eq!(of(&[]), (true, false, Value::Null, Value::Null));
    assert_eq!(of(&["certificateAuthority=false"]), (false, false, Value::Null, Value::Null));
    let mounted = (true, true, json!("/etc/istiod-tls"), json!("istiod-tls"));
    assert_eq!(of(&["certificateAuthority=false", "tlsSecret=istiod-tls"]), mounted);
}

#[test]
fn a_plugged_in_ca_of_upstream_is_used_if_its_secret_exists() {
    if servers::without("helm") {
        return;
    }
    let mounted = |values: &[&str]| {
        let all = objects(&rendered(values));
        let deployment = all.iter().find(|(name, _)| name.starts_with("Deployment ")).unwrap().1;
        let pod = deployment.pointer("/spec/template/spec").unwrap().clone();
        let named = |list: &Value, key: &str, value: &str| {
            let found: Vec<Value> =
                list.as_array().into_iter().flatten().filter(|item| item[key] == value).cloned().collect();
            assert!(found.len() <= 1, "{values:?}: {found:?}");
            found.into_iter().next().unwrap_or_default()
        };
        let mount = named(&pod["containers"][0]["volumeMounts"], "mountPath", "/etc/cacerts");
        let volume = mount["name"].as_str().map(|name| named(&pod["volumes"], "name", name));
        volume.map_or(Value::Null, |volume| volume["secret"].clone())
    };
    let upstream = json!({"secretName": "cacerts", "optional": true});
    assert_eq!(mounted(&[]), upstream);
    assert_eq!(mounted(&["tlsSecret=istiod-tls", "revision=next"]), upstream);
    assert_eq!(mounted(&["caSecret=own"]), json!({"secretName": "own"}), "a Secret that was asked for must exist");
    assert_eq!(mounted(&["caSecret="]), Value::Null);
    assert_eq!(mounted(&["certificateAuthority=false"]), Value::Null);
    let by_volume = [
        "volumes[0].name=ca",
        "volumes[0].secret.secretName=mine",
        "volumeMounts[0].name=ca",
        "volumeMounts[0].mountPath=/etc/cacerts",
    ];
    assert_eq!(mounted(&by_volume), json!({"secretName": "mine"}));
}

#[test]
fn an_unknown_value_is_refused_and_kiali_finds_what_it_reads() {
    if servers::without("helm") {
        return;
    }
    let mut helm = Command::new(servers::binary("helm"));
    helm.args(["template", "pilotage", "--set", "revison=canary"]).arg(deploy().join("chart"));
    let output = helm.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("additional properties 'revison' not allowed"), "{text}");
    let all = objects(&rendered(&["revision=canary", "clusterID=east"]));
    let revision = |object: &str, pointer: &str| all[object].pointer(pointer).unwrap()["istio.io/rev"].clone();
    assert_eq!(revision("Deployment istiod-canary", "/metadata/labels"), "canary");
    assert_eq!(revision("Deployment istiod-canary", "/spec/template/metadata/labels"), "canary");
    assert_eq!(revision("Service istiod-canary", "/metadata/labels"), "canary");
    let env =
        all["Deployment istiod-canary"].pointer("/spec/template/spec/containers/0/env").unwrap().as_array().unwrap();
    assert!(env.contains(&json!({"name": "CLUSTER_ID", "value": "east"})), "{env:?}");
}

/// Whether Helm refuses a value, and why.
fn refusal(value: &str) -> String {
    let mut helm = Command::new(servers::binary("helm"));
    helm.args(["template", "pilotage", "--namespace=istio-system", "--set", value]).arg(deploy().join("chart"));
    let output = helm.output().unwrap();
    assert!(!output.status.success(), "{value} is accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn values_by_upstreams_names_have_the_same_effect() {
    if servers::without("helm") {
        return;
    }
    let pairs: [(&[&str], &[&str]); 12] = [
        (&["hub=mesh.example/a", "tag=v2"], &["image=mesh.example/a/pilot:v2"]),
        (&["global.tag=0.1.0", "global.hub=pilotage"], &[]),
        (&["autoscaleMin=3", "autoscaleMax=9"], &["minReplicas=3", "maxReplicas=9"]),
        (&["cpu.targetAverageUtilization=60"], &["targetCPU=60"]),
        (
            &["global.logging.level=ads:debug", "global.logAsJson=true"],
            &["logLevel=ads:debug", "logAsJson=true", "injection.values.global.logAsJson=true"],
        ),
        (
            &["global.multiCluster.clusterName=east"],
            &["clusterID=east", "injection.values.global.multiCluster.clusterName=east"],
        ),
        (
            &["global.proxy.clusterDomain=mesh.local"],
            &["domain=mesh.local", "injection.values.global.proxy.clusterDomain=mesh.local"],
        ),
        (
            &["global.proxy.image=other", "global.network=n1"],
            &["injection.values.global.proxy.image=other", "injection.values.global.network=n1"],
        ),
        (&["sidecarInjectorWebhook.enableNamespacesByDefault=true"], &["injection.namespacesByDefault=true"]),
        (
            &["sidecarInjectorWebhook.rewriteAppHTTPProbe=false"],
            &["injection.values.sidecarInjectorWebhook.rewriteAppHTTPProbe=false"],
        ),
        (&["global.configValidation=false"], &["validation.enabled=false"]),
        (&["keepaliveMaxServerConnectionAge=9m"], &["args={--keepaliveMaxServerConnectionAge=9m}"]),
    ];
    for (upstream, ours) in pairs {
        assert_eq!(objects(&rendered(upstream)), objects(&rendered(ours)), "{upstream:?} and {ours:?}");
    }
    assert_eq!(objects(&rendered(&["traceSampling=0"])), objects(&rendered(&["env.PILOT_TRACE_SAMPLING=0"])));
    let fixed = objects(&rendered(&["autoscaleEnabled=false", "replicaCount=4", "podLabels.team=mesh"]));
    assert_eq!(fixed["Deployment istiod"].pointer("/spec/replicas"), Some(&json!(4)));
    assert_eq!(fixed["Deployment istiod"].pointer("/spec/template/metadata/labels/team"), Some(&json!("mesh")));
    assert!(!fixed.contains_key("HorizontalPodAutoscaler istiod"));
    for unknown in ["global.istiod.enableAnalysis=true", "global.logging.levels=x", "cpu.target=1", "autoscalemin=2"] {
        let text = refusal(unknown);
        assert!(text.contains("additional properties"), "{unknown}: {text}");
    }
    let text = refusal("global.istioNamespace=other");
    assert!(text.contains("use --namespace"), "{text}");
}

#[test]
fn pods_go_where_the_affinity_says() {
    if servers::without("helm") {
        return;
    }
    let term = "podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    let all = objects(&rendered(&[&format!("affinity.{term}[0].topologyKey=kubernetes.io/hostname")]));
    let field = format!("/spec/template/spec/affinity/{}/0/topologyKey", term.replace('.', "/"));
    assert_eq!(all["Deployment istiod"].pointer(&field), Some(&json!("kubernetes.io/hostname")));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_say_what_comes_next() {
    if is_left_out(&["kubectl", "helm"]) {
        return;
    }
    let api_server = cluster().await;
    let notes = |values: &[&str]| {
        let mut helm = Command::new(servers::binary("helm"));
        helm.args(["install", "pilotage", "--dry-run=client", "--namespace=istio-system"]).arg(deploy().join("chart"));
        helm.arg("--kubeconfig").arg(api_server.kubeconfig());
        helm.args(values.iter().flat_map(|value| ["--set", value]));
        let output = helm.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split("NOTES:\n").nth(1).unwrap_or_else(|| panic!("no notes in\n{text}")).to_owned()
    };
    let plain = notes(&[]);
    assert!(plain.contains("deployment/istiod\n") && plain.contains("istio-injection=enabled"), "{plain}");
    assert!(plain.contains("pilot-discovery crds | kubectl apply"), "{plain}");
    // The port that pilotctl asks without further flags.
    assert!(plain.contains("port-forward deployment/istiod 15014 & pilotctl check\n"), "{plain}");
    let canary = notes(&["revision=canary", "registerCRDs=true"]);
    assert!(canary.contains("deployment/istiod-canary\n") && canary.contains("istio.io/rev=canary"), "{canary}");
    assert!(!canary.contains("crds"), "{canary}");
    assert!(!notes(&["injection.enabled=false"]).contains("Inject a namespace"));
}

#[test]
fn two_revisions_share_no_object_and_no_pod() {
    if servers::without("helm") {
        return;
    }
    let [plain, canary, next] = [
        &["registerCRDs=true"][..],
        &["registerCRDs=true", "revision=canary"],
        &["registerCRDs=true", "revision=next"],
    ]
    .map(|values| objects(&rendered(values)));
    for (one, other) in [(&plain, &canary), (&canary, &next)] {
        let shared: Vec<&String> = one.keys().filter(|name| other.contains_key(*name)).collect();
        assert!(shared.is_empty(), "{shared:?}");
    }
    assert_eq!(plain.len(), canary.len());
    let pods = |all: &BTreeMap<String, Value>, name: &str| {
        all[&format!("Deployment {name}")].pointer("/spec/template/metadata/labels").unwrap().clone()
    };
    let selects = |all: &BTreeMap<String, Value>, object: &str, pointer: &str, labels: &Value| {
        let selector = all[object].pointer(pointer).and_then(Value::as_object).unwrap();
        selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    for (all, name, own, foreign) in [
        (&plain, "istiod", pods(&plain, "istiod"), pods(&canary, "istiod-canary")),
        (&canary, "istiod-canary", pods(&canary, "istiod-canary"), pods(&plain, "istiod")),
        (&next, "istiod-next", pods(&next, "istiod-next"), pods(&canary, "istiod-canary")),
    ] {
        for (kind, pointer) in [
            ("Service", "/spec/selector"),
            ("Deployment", "/spec/selector/matchLabels"),
            ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ] {
            let object = format!("{kind} {name}");
            assert!(selects(all, &object, pointer, &own) && !selects(all, &object, pointer, &foreign), "{object}");
        }
    }
    let mesh = canary["ConfigMap istio-canary"].pointer("/data/mesh").and_then(Value::as_str).unwrap();
    assert!(mesh.contains("discoveryAddress: istiod-canary.istio-system.svc:15012"), "{mesh}");
    let webhook = &canary["MutatingWebhookConfiguration istio-sidecar-injector-canary"]["webhooks"][0];
    assert_eq!(webhook.pointer("/clientConfig/service/name"), Some(&json!("istiod-canary")));
    for (all, name, revision, suffix) in
        [(&plain, "istiod", "default", ""), (&canary, "istiod-canary", "canary", "-canary")]
    {
        let env = all[&format!("Deployment {name}")].pointer("/spec/template/spec/containers/0/env").unwrap();
        assert!(env.as_array().unwrap().contains(&json!({"name": "REVISION", "value": revision})), "{env}");
        let leases =
            ["istio-gateway-status-leader", "istio-gateway-deployment"].map(|lease| format!("{lease}{suffix}"));
        assert_eq!(all[&format!("Role {name}-lease")]["rules"][1]["resourceNames"], json!(leases));
    }
}

#[test]
fn a_tag_refers_to_the_revision_of_its_release() {
    if servers::without("helm") {
        return;
    }
    let all = objects(&rendered(&["revision=next", "revisionTags={prod,default}"]));
    let tag = |name: &str| {
        let object = &all[&format!("MutatingWebhookConfiguration istio-revision-tag-{name}")];
        let labels = &object["metadata"]["labels"];
        let webhooks = object["webhooks"].as_array().unwrap();
        let selected = webhooks[0].pointer("/namespaceSelector/matchExpressions/0/values").unwrap().clone();
        let service = webhooks[0].pointer("/clientConfig/service/name").unwrap().clone();
        let labels = (labels["istio.io/tag"].clone(), labels["istio.io/rev"].clone());
        (labels, selected, service, webhooks.len())
    };
    let expected = |name: &str, webhooks| ((json!(name), json!("next")), json!([name]), json!("istiod-next"), webhooks);
    assert_eq!(tag("prod"), expected("prod", 2));
    // It also injects namespaces and pods with upstream's older labels.
    assert_eq!(tag("default"), expected("default", 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_accepts_the_chart_with_any_values() {
    if is_left_out(&["kubectl", "helm"]) {
        return;
    }
    let api_server = cluster().await;
    let system = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}});
    create(&api_server, &[system]).await;
    let kubectl = Kubectl::new(&api_server);
    let varied: [&[&str]; 8] = [
        &[],
        &["readSecrets=false"],
        &["tlsSecret=istiod-tls", "certificateAuthority=false"],
        &["caSecret=own", "revision=next", "revisionTags={default}"],
        &["registerCRDs=true", "writeStatus=false", "makeGatewayClasses=false", "revision=canary", "minReplicas=1"],
        &[
            "args={--resync=5m,--log_as_json}",
            "env.PILOT_DEBOUNCE_AFTER=50ms",
            "env.ENABLE_LEADER_ELECTION=false",
            "meshConfig.accessLogFile=/dev/stdout",
            "meshConfig.defaultConfig.proxyMetadata.A=b",
            "image=mesh/pilot:1",
        ],
        &[
            "imagePullSecrets={registry}",
            "tolerations[0].operator=Exists",
            "nodeSelector.disk=fast",
            "logLevel=default:debug",
            "logAsJson=true",
            "volumes[0].name=ca",
            "volumes[0].secret.secretName=cacerts",
            "volumeMounts[0].name=ca",
            "volumeMounts[0].mountPath=/etc/cacerts",
        ],
        &[
            "global.tag=2",
            "autoscaleEnabled=false",
            "replicaCount=2",
            "podAnnotations.a=b",
            "traceSampling=1",
            "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=kubernetes.io/hostname",
        ],
    ];
    // Side by side: the second revision is accepted while the first is there. Other tests use the same API server.
    let side_by_side = [rendered(&[]), rendered(&["revision=next"])];
    for yaml in &side_by_side {
        kubectl.run_with(&["apply", "-f", "-"], yaml).await;
    }
    for yaml in &side_by_side {
        kubectl.run_with(&["delete", "-f", "-"], yaml).await;
    }
    for values in varied {
        let yaml = rendered(values);
        let count = objects(&yaml).len();
        let said = kubectl.run_with(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], &yaml).await;
        assert_eq!(said.lines().count(), count, "{values:?}: {said}");
        println!("{count} objects accepted with {values:?}");
    }
}
