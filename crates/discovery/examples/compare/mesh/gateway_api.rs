//! The Gateway API: a gateway, routes of every kind on it and on Services, and policies of backends.

use serde_json::{Value, json};
use testkit::certificates::Authority;

use super::NAMESPACES;
use super::dice::Dice;
use super::services::Service;

pub(super) fn generate(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    front(objects);
    http_routes(town, dice, objects);
    other_routes(town, dice, objects);
    policies(town, dice, objects);
}

fn of(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "ReferenceGrant" => "v1beta1",
        "TCPRoute" => "v1alpha2",
        _ => "v1",
    };
    json!({"apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": kind, "spec": spec,
        "metadata": {"name": name, "namespace": namespace}})
}

fn parent(name: &str, section: Option<&str>) -> Value {
    let mut parent =
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name, "namespace": "alpha"});
    if let Some(section) = section {
        parent["sectionName"] = json!(section);
    }
    parent
}

fn front(objects: &mut Vec<Value>) {
    objects.push(
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "istio"},
        "spec": {"controllerName": "istio.io/gateway-controller"}}),
    );
    let everywhere = json!({"namespaces": {"from": "All"}});
    let same = json!({"namespaces": {"from": "Same"}});
    let selected = json!({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "beta"}}}});
    objects.push(of("Gateway", "alpha", "front", json!({"gatewayClassName": "istio", "listeners": [
        {"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes": everywhere},
        {"name": "own", "port": 80, "protocol": "HTTP", "hostname": "*.own.example", "allowedRoutes": same},
        {"name": "some", "port": 80, "protocol": "HTTP", "hostname": "*.beta.example", "allowedRoutes": selected},
        {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "*.secure.example", "allowedRoutes": everywhere,
            "tls": {"mode": "Terminate", "certificateRefs": [{"group": "", "kind": "Secret", "name": "front"}]}},
        {"name": "https-any", "port": 443, "protocol": "HTTPS", "allowedRoutes": everywhere,
            "tls": {"mode": "Terminate", "certificateRefs": [{"group": "", "kind": "Secret", "name": "front"}],
                "options": {"gateway.istio.io/tls-terminate-mode": "MUTUAL"}}},
        {"name": "bytes", "port": 9000, "protocol": "TCP", "allowedRoutes": everywhere},
        {"name": "ended", "port": 9443, "protocol": "TLS", "hostname": "ended.example", "allowedRoutes": everywhere,
            "tls": {"mode": "Terminate", "certificateRefs": [{"group": "", "kind": "Secret", "name": "front"}]}},
        {"name": "through", "port": 8443, "protocol": "TLS", "hostname": "*.through.example", "allowedRoutes": everywhere,
            "tls": {"mode": "Passthrough"}}]})));
    let froms: Vec<Value> = ["HTTPRoute", "GRPCRoute", "TLSRoute"]
        .iter()
        .flat_map(|kind| {
            ["alpha", "beta"].map(|ns| json!({"group": "gateway.networking.k8s.io", "kind": kind, "namespace": ns}))
        })
        .collect();
    objects.push(of(
        "ReferenceGrant",
        "gamma",
        "from-others",
        json!({"from": froms, "to": [{"group": "", "kind": "Service"}]}),
    ));
}

fn http_routes(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..town.len() / 5 {
        let target = dice.pick(town);
        let namespace = if dice.chance(60) { target.namespace } else { *dice.pick(NAMESPACES) };
        let hostnames = ["own.example", "beta.example", "plain.example", "secure.example"];
        let mut spec = json!({"rules": (0..=dice.roll(2)).map(|_| http_rule(target, town, dice)).collect::<Vec<_>>()});
        if dice.chance(60) {
            let section = *dice.pick(&[None, None, None, Some("web"), Some("https"), Some("own")]);
            spec["parentRefs"] = json!([parent("front", section)]);
            if dice.chance(90) {
                spec["hostnames"] = json!([format!("h{}.{}", dice.roll(9), dice.pick(&hostnames))]);
            }
        } else {
            let mut parent =
                json!({"group": "", "kind": "Service", "name": target.name, "namespace": target.namespace});
            if dice.chance(40) {
                parent["port"] = json!(target.port(dice));
            }
            spec["parentRefs"] = json!([parent]);
        }
        objects.push(of("HTTPRoute", namespace, &format!("http{number}"), spec));
    }
}

fn other_routes(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..(town.len() / 30).max(4) {
        let target = dice.pick(town);
        let parents =
            if dice.chance(70) { json!([parent("front", None)]) } else { json!([parent("front", Some("web"))]) };
        let mut matching = json!({"method": {"type": "Exact", "service": "shop.Cart", "method": "Add"}});
        match dice.roll(4) {
            0 => matching = json!({"method": {"type": "Exact", "service": "shop.Cart"}}),
            1 => matching = json!({"method": {"type": "RegularExpression", "service": "shop.*", "method": "Get.*"}}),
            2 => matching["headers"] = json!([{"type": "RegularExpression", "name": "x-a", "value": "b.*"}]),
            _ => {}
        }
        let mut rule = json!({"matches": [matching], "backendRefs": [backend(target, target, dice)]});
        if dice.chance(30) {
            rule["filters"] = json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-g", "value": "1"}]}}]);
        }
        objects.push(of(
            "GRPCRoute",
            target.namespace,
            &format!("grpc{number}"),
            json!({"parentRefs": parents,
            "hostnames": [format!("g{number}.plain.example")], "rules": [rule]}),
        ));
        let to = dice.pick(town);
        objects.push(of(
            "TLSRoute",
            target.namespace,
            &format!("tls{number}"),
            json!({"parentRefs": [parent("front", Some("through"))],
            "hostnames": [format!("t{number}.through.example")],
            "rules": [{"backendRefs": [backend(target, target, dice), backend(to, target, dice)]}]}),
        ));
        if dice.chance(50) {
            let at = if dice.chance(50) {
                parent("front", Some("bytes"))
            } else {
                json!({"group": "", "kind": "Service", "name": target.name, "namespace": target.namespace})
            };
            objects.push(of(
                "TCPRoute",
                target.namespace,
                &format!("tcp{number}"),
                json!({"parentRefs": [at],
                "rules": [{"backendRefs": [backend(target, target, dice), backend(to, target, dice)]}]}),
            ));
        }
    }
    let ended = dice.pick(town);
    objects.push(of(
        "TLSRoute",
        ended.namespace,
        "ended",
        json!({"parentRefs": [parent("front", Some("ended"))], "hostnames": ["ended.example"],
        "rules": [{"backendRefs": [backend(ended, ended, dice)]}]}),
    ));
}

/// BackendTLSPolicies of some backends.
fn policies(town: &[Service], dice: &mut Dice, objects: &mut Vec<Value>) {
    for number in 0..(town.len() / 30).max(4) {
        let target = dice.pick(town);
        let mut reference = json!({"group": "", "kind": "Service", "name": target.name});
        if dice.chance(40) && !target.ports[0].0.is_empty() {
            reference["sectionName"] = json!(target.ports[0].0);
        }
        let mut validation = json!({"hostname": format!("b{number}.example.com")});
        if dice.chance(50) {
            validation["wellKnownCACertificates"] = json!("System");
        } else {
            validation["caCertificateRefs"] = json!([{"group": "", "kind": "ConfigMap", "name": "roots"}]);
        }
        if dice.chance(40) {
            validation["subjectAltNames"] =
                json!([{"type": "Hostname", "hostname": "*.san.example"}, {"type": "URI", "uri": "spiffe://a/b"}]);
        }
        objects.push(of(
            "BackendTLSPolicy",
            target.namespace,
            &format!("secure{number}"),
            json!({"targetRefs": [reference], "validation": validation}),
        ));
        let target = dice.pick(town);
        let spec = json!({"targetRefs": [{"group": "", "kind": "Service", "name": target.name}],
            "retryConstraint": {"budget": {"percent": 30, "interval": "10s"}, "minRetryRate": {"count": 5, "interval": "1s"}}});
        objects.push(
            json!({"apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackendTrafficPolicy", "spec": spec,
            "metadata": {"name": format!("budget{number}"), "namespace": target.namespace}}),
        );
    }
    let authority = Authority::new();
    let own = authority.host("front.example");
    for namespace in NAMESPACES {
        objects.push(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "roots", "namespace": namespace},
            "data": {"ca.crt": authority.root()}}),
        );
    }
    objects.push(json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "front", "namespace": "alpha"},
        "stringData": {"tls.crt": own.chain, "tls.key": own.key, "ca.crt": authority.root()}}));
}

fn backend(to: &Service, at: &Service, dice: &mut Dice) -> Value {
    let mut backend =
        json!({"group": "", "kind": "Service", "name": to.name, "port": to.port(dice), "weight": 1 + dice.roll(5)});
    if to.namespace != at.namespace {
        backend["namespace"] = json!(to.namespace);
    }
    backend
}

fn http_rule(target: &Service, town: &[Service], dice: &mut Dice) -> Value {
    let path = format!("/g{}", dice.roll(20));
    let matches = match dice.roll(4) {
        0 => json!([{"path": {"type": "Exact", "value": path}}]),
        1 => json!([{"path": {"type": "PathPrefix", "value": path}, "method": "GET"},
            {"path": {"type": "PathPrefix", "value": "/"}, "headers": [{"type": "Exact", "name": "x-kind", "value": "b"}]}]),
        2 => json!([{"path": {"type": "RegularExpression", "value": format!("{path}.*")},
            "queryParams": [{"type": "Exact", "name": "q", "value": "1"}]}]),
        _ => json!([{"path": {"type": "PathPrefix", "value": path}}]),
    };
    let mut backends = vec![backend(target, target, dice)];
    if dice.chance(30) {
        backends.push(backend(dice.pick(town), target, dice));
    }
    let mut rule = json!({"matches": matches, "backendRefs": backends});
    if dice.chance(45) {
        rule["filters"] = json!([filter(&backend(dice.pick(town), target, dice), dice)]);
    }
    if dice.chance(25) {
        rule["timeouts"] = dice
            .pick(&[
                json!({"request": "10s"}),
                json!({"request": "10s", "backendRequest": "2s"}),
                json!({"backendRequest": "0s"}),
            ])
            .clone();
    }
    if dice.chance(20) {
        rule["retry"] = dice
            .pick(&[
                json!({"attempts": 3, "codes": [500, 503], "backoff": "0.1s"}),
                json!({"attempts": 0}),
                json!({"codes": [429]}),
            ])
            .clone();
    }
    if dice.chance(10) {
        rule["name"] = json!("named");
    }
    if dice.chance(8) {
        rule["sessionPersistence"] = json!({"sessionName": "s", "type": "Cookie"});
    }
    rule
}

fn filter(copy: &Value, dice: &mut Dice) -> Value {
    match dice.roll(10) {
        0 => {
            json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-set", "value": "1"}], "add": [{"name": "x-add", "value": "%START_TIME%"}], "remove": ["x-gone"]}})
        }
        1 => {
            json!({"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": dice.pick(&["/new", "/", ""])}}})
        }
        2 => {
            json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {"add": [{"name": "x-more", "value": "2"}]}})
        }
        3 => {
            json!({"type": "URLRewrite", "urlRewrite": {"hostname": "other.example", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/full"}}})
        }
        4 => {
            json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 301, "port": 8443}})
        }
        5 => {
            json!({"type": "RequestRedirect", "requestRedirect": {"hostname": "moved.example", "statusCode": dice.pick(&[302, 307, 308, 303]), "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/to"}}})
        }
        6 => json!({"type": "RequestMirror", "requestMirror": {"backendRef": copy, "percent": 25}}),
        7 => {
            json!({"type": "RequestMirror", "requestMirror": {"backendRef": copy, "fraction": {"numerator": 1, "denominator": 3}}})
        }
        8 => {
            json!({"type": "CORS", "cors": {"allowOrigins": ["https://a.example", "https://*.b.example"], "allowMethods": ["GET"], "allowHeaders": ["x-a"], "exposeHeaders": ["x-e"], "maxAge": 60, "allowCredentials": true}})
        }
        _ => json!({"type": "ExtensionRef", "extensionRef": {"group": "example.com", "kind": "Thing", "name": "t"}}),
    }
}
