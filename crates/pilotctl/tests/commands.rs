//! Every command of pilotctl on a small mesh of real parts: the demo's pilot-discovery, agents and Envoys.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use testkit::kubernetes::ApiServer;
use testkit::sandbox::Sandbox;
use testkit::{programs, servers};

const LIMIT: Duration = Duration::from_secs(240);
/// Planted in the mesh's configuration; no bundle may have it.
const SECRET: &str = "hunter2-planted-secret";

/// `code N COMMAND` runs a command that must end with this status; `has TEXT FILE` looks for a fixed text, `matches` for
/// a pattern.
const HELPERS: &str = r#"
exec 3>&1
# No cluster of this machine is meant.
export HOME=$PWD; unset KUBECONFIG
code() { local wanted=$1 got=0; shift; "$@" || got=$?
    if [ $got -ne $wanted ]; then echo "status $got instead of $wanted: $*" >&3; tail -n 40 /proc/$$/fd/1 >&3; exit 1; fi; }
has() { if ! grep -qF -- "$1" "$2"; then echo "no '$1' in $2:"; cat "$2"; exit 1; fi; }
hasnt() { if grep -qF -- "$1" "$2"; then echo "unexpected '$1' in $2:"; cat "$2"; exit 1; fi; }
matches() { if ! grep -Eq -- "$1" "$2"; then echo "no match of '$1' in $2:"; cat "$2"; exit 1; fi; }
wait_for() { until grep -q "$1" "$2"; do kill -0 "$demo"; sleep 0.02; done; }
wait_for_port() { until (: </dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.02; done; }
start_demo() {
    pilotctl demo >out 2>&1 & demo=$!
    wait_for 'is open at' out
    wait_for 'Ctrl-C ends it' out
    export PILOTCTL_SERVER=$(grep -o 'pilotctl ps --server [^`]*' out | cut -d' ' -f4)
    admin=$(grep '^front-v1 ' out | grep -o 'admin http://[^/]*' | cut -d/ -f3)
}
canary=samples/shop/config/canary.yaml
reviews='Host: reviews.shop.svc.cluster.local'
"#;

fn shop() -> Option<Sandbox> {
    if servers::without("envoy") {
        return None;
    }
    for (package, name) in [("discovery", "pilot-discovery"), ("agent", "pilot-agent")] {
        programs::binary(package, name);
    }
    let own = Path::new(env!("CARGO_BIN_EXE_pilotctl")).parent().map(Path::to_owned).unwrap_or_default();
    let sandbox = Sandbox::new(&[own]);
    sandbox.copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/shop"), "samples/shop");
    // A filter that sets a header with a secret: part of the listeners of every proxy.
    let planted = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: planted, namespace: shop}}\nspec:\n  hosts: \
         [cart.shop.svc.cluster.local]\n  http:\n  - name: planted\n    headers: {{request: {{set: {{Authorization: Bearer \
         {SECRET}}}}}}}\n    route:\n    - destination: {{host: cart.shop.svc.cluster.local}}\n"
    );
    fs::write(sandbox.work().join("samples/shop/config/planted.yaml"), planted).expect("a file");
    Some(sandbox)
}

fn run(script: &str) {
    let Some(sandbox) = shop() else { return };
    let envoy = servers::binary("envoy").to_string_lossy().into_owned();
    let output = sandbox.run(&format!("{HELPERS}{script}\necho finished"), &[("PILOTAGE_ENVOY", &envoy)], LIMIT).good();
    assert!(output.contains("finished"), "{output}");
}

#[test]
fn proxies_and_their_configuration_are_shown() {
    run(r#"
        start_demo
        code 0 pilotctl ps >ps; matches '^NAME +CLUSTER +CDS +LDS +EDS +RDS +ECDS +VERSION$' ps
        has 'front-v1.shop' ps; has SYNCED ps; hasnt STALE ps
        code 0 pilotctl ps -o wide >wide; has SNAPSHOT wide
        code 0 pilotctl ps -o yaml >yaml; has 'proxy: front-v1.shop' yaml
        for part in cluster listener route endpoint; do
            code 0 pilotctl pc $part front-v1.shop >"$part"
            code 0 pilotctl pc $part front-v1.shop --actual --admin $admin >"$part-actual"
        done
        has 'SERVICE FQDN' cluster; has 'ADDRESS' listener; has 'VHOST NAME' route; has 'LOCALITY' endpoint
        has 'reviews.shop.svc.cluster.local' cluster-actual; has '127.0.80.5:18080' endpoint-actual
        for part in cluster listener route; do
            code 0 pilotctl pc $part front-v1.shop --diff --admin $admin >diff; test ! -s diff
        done
        pilotctl pc all reviews-v1.shop -o json >other.json
        code 1 pilotctl pc listener --dump other.json --diff --admin $admin >diff; has '+++ actual' diff
        code 0 pilotctl pc secret front-v1.shop --actual --admin $admin >secret
        matches '^RESOURCE NAME +TYPE +STATUS +VALID CERT +SERIAL NUMBER +NOT AFTER +NOT BEFORE +TRUST DOMAIN$' secret
        matches '^default +Cert Chain +ACTIVE +true +[0-9a-f]+ +20[0-9-]+T[0-9:]+Z +20[0-9-]+T[0-9:]+Z +shop.example' secret
        matches '^ROOTCA +CA +ACTIVE +true' secret
        code 0 pilotctl pc bootstrap front-v1.shop --actual --admin $admin >bootstrap
        python3 -c 'import json; assert json.load(open("bootstrap"))["configs"][0]["bootstrap"]["node"]'
        code 0 pilotctl describe front-v1.shop >proxy; has 'front-v1.shop (sidecar), synced' proxy
        code 0 pilotctl describe VirtualService/shop/reviews >object; has 'weight: 90' object; has canary.yaml object
        code 1 pilotctl describe VirtualService/shop/none 2>none; has 'does not exist' none
        # Without a cluster and a configuration API.
        code 0 pilotctl get vs >get; matches '^NAMESPACE +NAME +FROM$' get; matches '^shop +reviews +.*canary.yaml:11$' get
        code 0 pilotctl get virtualservices reviews -n shop -o yaml >get; has 'weight: 90' get; has 'kind: VirtualService' get
        code 0 pilotctl get virtualservices -n none >get; hasnt reviews get
        code 0 pilotctl get destinationrules -o name >get; has 'destinationrules.networking.istio.io/' get
        code 0 pilotctl get services >get; matches '^shop +reviews.shop.svc.cluster.local +[A-Za-z]+ +19080/' get
        code 0 pilotctl get svc reviews -o json >get
        python3 -c 'import json; [one] = json.load(open("get"))["services"]; assert one["endpoints"] == 2, one'
        code 0 pilotctl get services -o wide >get; has RESOLUTION get
        code 1 pilotctl get vs none 2>none; has '"none" not found' none
        code 1 pilotctl get virtualservcies 2>none; has 'did you mean "virtualservices"?' none
        code 3 pilotctl get vs --server 127.0.0.1:1 2>gone; has 'could not read' gone
        code 0 pilotctl explain --from front-v1.shop http://127.0.80.1:19080/ -H "$reviews" >why
        has '90 % to cluster outbound|19080|v1|reviews.shop.svc.cluster.local' why
        has 'canary.yaml:11, rule in line 20)' why
        has 'at reviews-v1.shop (127.0.80.4:18080) with mutual TLS as spiffe://shop.example/ns/shop/sa/front' why
        has 'PeerAuthentication from' why; has 'security.yaml:2)' why
        code 0 pilotctl check >check; has 'no problems' check
        code 0 pilotctl check -o json >check.json; python3 -c 'import json; json.load(open("check.json"))["problems"]'
        code 0 pilotctl check -o yaml >check.yaml; has 'sources:' check.yaml
        code 0 pilotctl version >version; has 'server ' version
        code 2 pilotctl ps --nonsense 2>usage
        code 2 pilotctl pc nothing front-v1.shop 2>usage
        code 3 pilotctl ps --server 127.0.0.1:1 2>gone; has 'could not read' gone; hasnt 'panicked' gone
        kill $demo
    "#);
}

#[test]
fn changes_are_followed_through_time() {
    run(r#"
        start_demo
        pilotctl events >events 2>&1 & events=$!
        before=$(pilotctl history -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["entries"][0]["last"])')
        sed 's/weight: 90/weight: 70/; s/weight: 10$/weight: 30/' $canary >next.yaml
        code 0 pilotctl plan -f next.yaml >plan; has 'VirtualService shop/reviews' plan; has 'front-v1.shop' plan
        code 0 pilotctl plan -f next.yaml --config samples/shop/config \
            --node sidecar~127.0.80.1~front-v1.shop~shop.svc.cluster.local >offline-plan
        has 'reviews' offline-plan
        code 0 pilotctl diff $before >same
        cp next.yaml $canary
        code 0 pilotctl wait -f next.yaml -o json >waited
        python3 -c 'import json; assert json.load(open("waited"))["state"] == "done"'
        code 0 pilotctl wait -f next.yaml >waited; has 'proxies have it' waited
        code 1 pilotctl diff $before >diff; matches '^-.*weight: 90' diff; matches '^[+].*weight: 70' diff
        code 1 pilotctl diff $before -o json >diff.json
        python3 -c 'import json; [one] = json.load(open("diff.json"))["objects"]; assert one["before"] != one["after"], one'
        code 1 pilotctl diff $before -o yaml >diff.yaml; has 'before:' diff.yaml
        code 0 pilotctl history VirtualService/shop/reviews >history; has canary.yaml: history; has ' in ' history
        code 0 pilotctl at $before VirtualService/shop/reviews >at; has 'weight: 90' at
        code 1 pilotctl at $before VirtualService/shop/none 2>none; has 'did not exist then' none
        code 0 pilotctl blame VirtualService/shop/reviews >blame; has 'is at ' blame; has canary.yaml: blame
        code 0 pilotctl blame /apis/networking.istio.io/v1/namespaces/shop/virtual-service/reviews >blame2; has canary.yaml: blame2
        until grep -q 'VirtualService' events; do kill -0 $events; sleep 0.02; done
        kill $events
        code 0 pilotctl events --only stats --count 1 -o json >event; python3 -c 'import json; json.load(open("event"))["data"]'
        code 0 pilotctl events --only stats --count 1 -o yaml >event; has 'event: stats' event
        # A server that ends while a command waits.
        sed 's/70/60/; s/30$/40/' next.yaml >later.yaml
        pilotctl wait -f later.yaml >half 2>&1 & waiting=$!
        kill $demo; wait $demo || true
        code 3 wait $waiting; has 'could not read' half; hasnt 'panicked' half
        code 3 pilotctl plan -f next.yaml 2>half; has 'could not read' half
    "#);
}

#[test]
fn bundles_have_no_secrets_and_are_read_offline() {
    run(&format!(
        r#"
        start_demo
        curl -sf "http://$PILOTCTL_SERVER/debug/config_dump?proxyID=front-v1.shop" >dump; has {SECRET} dump
        code 0 pilotctl bundle b.json --proxy front-v1.shop >bundled; has 'pages' bundled
        kill $demo; wait $demo || true
        hasnt {SECRET} b.json; hasnt 'PRIVATE KEY' b.json;
        unset PILOTCTL_SERVER
        code 0 pilotctl ps --bundle b.json >ps; has 'front-v1.shop' ps; has SYNCED ps
        code 0 pilotctl pc cluster front-v1.shop --bundle b.json >pc; has 'reviews.shop.svc.cluster.local' pc
        code 0 pilotctl explain --from front-v1.shop --bundle b.json http://127.0.80.1:19080/ -H "$reviews" >why
        has '90 % to' why; has 'canary.yaml:11)' why
        code 0 pilotctl history --bundle b.json >history; has canary.yaml history
        code 0 pilotctl history VirtualService/shop/reviews --bundle b.json >history
        has canary.yaml history; test $(wc -l <history) -lt $(pilotctl history --bundle b.json | wc -l)
        code 0 pilotctl history VirtualService/shop/none --bundle b.json 2>none; has 'no such change' none
        code 0 pilotctl history --proxy none.shop --bundle b.json 2>none; has 'no such change' none
        code 0 pilotctl history --proxy front-v1.shop --bundle b.json >history; has SNAPSHOT history
        code 0 pilotctl blame VirtualService/shop/reviews --bundle b.json >blame; has 'is at ' blame
        code 0 pilotctl describe VirtualService/shop/reviews --bundle b.json >object; has 'weight: 90' object; has canary.yaml object
        code 0 pilotctl describe front-v1.shop --bundle b.json >proxy; has 'front-v1.shop (sidecar), synced' proxy
        code 0 pilotctl get vs reviews --bundle b.json -o yaml >get; has 'weight: 90' get
        code 0 pilotctl get services --bundle b.json >get; has 'reviews.shop.svc.cluster.local' get
        # What a bundle lacks is named in one line, and no server is asked: that would be status 3.
        lacks() {{ local page=$1; shift; code 1 "$@" --bundle b.json 2>lack; has "$page" lack; test $(wc -l <lack) = 1; }}
        lacks /api/v1/proxies/none.shop pilotctl describe none.shop
        lacks /api/v1/history/objects pilotctl at 1
        lacks /api/v1/history/diff pilotctl diff 1
        lacks /api/v1/events pilotctl events
        lacks /debug/config_dump pilotctl bundle c.json; test ! -e c.json
        code 0 pilotctl check --bundle b.json >check
        head -c 1000 b.json >cut.json
        code 1 pilotctl ps --bundle cut.json 2>cut; has 'cut off' cut
        code 1 pilotctl wait -f $canary --bundle b.json 2>cut; has 'needs a running server' cut
        "#
    ));
}

#[test]
fn commands_without_a_server_and_log_levels() {
    run(r#"
        node=sidecar~127.0.80.1~front-v1.shop~shop.svc.cluster.local
        code 0 pilotctl translate samples/shop/config --node $node >translated; has 'reviews.shop.svc.cluster.local' translated
        code 0 pilotctl translate samples/shop/config --node $node -o json >dump.json
        code 0 pilotctl pc cluster --dump dump.json >pc; has 'reviews.shop.svc.cluster.local' pc
        for shell in bash zsh fish; do code 0 pilotctl completion $shell >"$shell"; has explain "$shell"; done
        bash -n bash
        code 0 pilotctl man pages; has 'explain' pages/pilotctl.1; test -s pages/pilotctl-explain.1
        code 0 pilotctl bootstrap --discovery 127.0.0.1:15010 >bootstrap; has 'xds-grpc' bootstrap
        code 2 pilotctl nothing 2>usage; code 2 pilotctl translate 2>usage
        # 5,000 files, one of them with a mistake.
        mkdir many
        for i in $(seq 5000); do
            printf 'apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s%d, namespace: many}\nspec: {hosts: [s%d.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n' $i $i >many/$i.yaml
        done
        code 0 pilot-discovery version >/dev/null
        pilot-discovery discovery --registries= --configDir=samples/shop/config >server.log 2>&1 & server=$!
        until curl -sf http://127.0.0.1:8080/ready >/dev/null; do kill -0 $server; sleep 0.05; done
        begun=$(date +%s%N)
        code 0 pilotctl plan -f many --no-validate >plan || { tail -5 plan; exit 1; }
        echo "a plan of 5,000 files took $((($(date +%s%N) - begun) / 1000000)) ms"
        has 's4999' plan
        sed -i 's/hosts: .s77.example.,/hosts: [],/' many/77.yaml
        code 1 pilotctl plan -f many --no-validate >plan 2>&1; has 'many/77.yaml:1: service entry must have at least one host' plan; hasnt panicked plan
        code 0 pilotctl log >levels; has 'SCOPE' levels
        scope=$(sed -n 2p levels | cut -d' ' -f1)
        code 0 pilotctl log $scope=debug >levels; grep -Eq "^$scope +debug" levels
        code 1 pilotctl log nonsense 2>bad; has 'expected SCOPE=LEVEL' bad
        # The ports are taken now, and free afterwards.
        code 1 pilotctl check --pre --machine >pre; has 'could not listen on 15010' pre; has 'not ready for an installation' pre
        kill $server; wait $server || true
        code 0 pilotctl check --pre --machine -o json >pre.json
        python3 -c 'import json; found = json.load(open("pre.json")); assert len(found) >= 7 and all(f["level"] != "error" for f in found), found'
        # A server of another version has no such page.
        mkdir old && (cd old && exec python3 -m http.server 9911 --bind 127.0.0.1) 2>/dev/null & old=$!
        wait_for_port 9911
        code 1 pilotctl ps --server 127.0.0.1:9911 2>other; has 'could not read /api/v1/proxies' other; hasnt panicked other
        kill $old
    "#);
}

/// A cluster before and after another control plane is there.
#[tokio::test]
async fn a_cluster_is_checked_before_an_installation() {
    if servers::without("kube-apiserver") {
        return;
    }
    let api = ApiServer::start().await;
    let check = |more: &[&str]| {
        let kubeconfig = api.kubeconfig().to_string_lossy().into_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
        let output =
            command.args(["check", "--pre", "--kubeconfig", &kubeconfig]).args(more).output().expect("pilotctl");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), text)
    };
    let (code, text) = check(&[]);
    assert_eq!(code, Some(0), "{text}");
    for expected in ["the API server is v", "you may create everything", "no definitions", "no other one is installed"]
    {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    let meta =
        |name: &str| json!({"name": name, "namespace": "default", "labels": {"app": "istiod", "istio.io/rev": "old"}});
    let container = json!({"name": "a", "image": "a"});
    let template = json!({"metadata": {"labels": {"app": "istiod"}}, "spec": {"containers": [container]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("istiod-old"),
        "spec": {"selector": {"matchLabels": {"app": "istiod"}}, "template": template}});
    api.create("/apis/apps/v1/namespaces/default/deployments", &deployment).await.expect("a Deployment");
    let client = json!({"service": {"name": "gone", "namespace": "default"}});
    let webhook = json!({"name": "rev.namespace.sidecar-injector.istio.io", "clientConfig": client,
        "sideEffects": "None", "admissionReviewVersions": ["v1"]});
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "istio-sidecar-injector"}, "webhooks": [webhook]});
    let hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    api.create(hooks, &configuration).await.expect("a webhook");
    api.define(&[("networking.istio.io", &["v9"], "VirtualService", "virtualservices", true)]).await;
    let (code, text) = check(&["-o", "json"]);
    assert_eq!(code, Some(1), "{text}");
    for expected in [
        "default/istiod-old has revision old",
        "calls service default/gone, which does not exist",
        "virtualservices.networking.istio.io serves v9, and none of v1",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    // An account without rights.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "poor"}});
    api.create("/api/v1/namespaces/default/serviceaccounts", &account).await.expect("a ServiceAccount");
    let poor = api.account("default", "poor").await;
    let output = Command::new(env!("CARGO_BIN_EXE_pilotctl"))
        .args(["check", "--pre", "--kubeconfig", &poor.to_string_lossy()])
        .output()
        .expect("pilotctl");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("you may not create namespaces") && output.status.code() == Some(1), "{text}");
    let gone = Command::new(env!("CARGO_BIN_EXE_pilotctl"))
        .args(["check", "--pre", "--kubeconfig", "/nowhere/kubeconfig"])
        .output()
        .expect("pilotctl");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("--machine"), "{gone:?}");
}
